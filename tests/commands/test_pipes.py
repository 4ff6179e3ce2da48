"""Commands whose output cannot be written still do their work."""

from __future__ import annotations

import shlex
import subprocess

from support.given import MakeProject
from support.redis_server import RedisServer
from support.stored_counts import count


def test_a_command_does_its_work_even_if_it_cannot_print(
    make_project: MakeProject, server: RedisServer
) -> None:
    """If no program reads the output, no error is printed. A full disk causes one line and exit status 1."""
    project = make_project([], redis_url=server.url)
    (project.folder / "urls.txt").write_text("no URL\nhttp://a.example/2\n")
    name, full = project.name, "standard output cannot be written: No space left on device"
    expected = {
        "doctor --json | true": (0, ""),
        f"push {name} http://a.example/1 | true": (0, ""),
        f"push {name} --file urls.txt 2> /dev/full": (1, ""),
        "doctor > /dev/full": (1, full),
        f"push {name} http://a.example/3 > /dev/full": (1, full),
    }
    started = {
        words: subprocess.Popen(
            ["bash", "-c", f"{shlex.join(project.command('dq'))} {words}; exit ${{PIPESTATUS[0]}}"],
            cwd=project.folder, text=True,
            env=project.environ() | {"PYTHONUNBUFFERED": "1" if "push" in words else ""},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for words in expected
    }  # fmt: skip
    for words, process in started.items():
        stderr = process.communicate(timeout=120)[1]
        status, says = expected[words]
        assert (process.returncode, len(stderr.splitlines())) == (status, bool(says)), (words, stderr)
        assert says in stderr
    with server.client() as client:
        assert count(client, name, "waiting") == 3
        assert client.scard(f"dq:{{{name}}}:members") == 0
