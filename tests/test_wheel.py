"""Users install the built wheel, so it must have every file that the package needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

# [build-system] in pyproject.toml requires the same version. Older versions cannot read its licence.
pytest.importorskip("setuptools", minversion="77.0.3")

ROOT = Path(__file__).parents[1]
SOURCES = ["LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.cfg"]

LOAD = """
import sys

import scrapy_dq
from scrapy_dq.frontier.scripts import Script, lua_files

assert scrapy_dq.__file__.startswith(sys.argv[1]), scrapy_dq.__file__
for transition in lua_files("transitions"):
    assert Script(transition).source
print(*sorted(lua_files()))
"""


def run(*command: str, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the sources, without the files that an older build may have left."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "scrapy_dq", copy / "scrapy_dq", ignore=shutil.ignore_patterns("__pycache__"))
    build = ["pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", "dist"]
    run(sys.executable, "-m", *build, cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    """The wheel has all Python and Lua files and py.typed, and nothing else."""
    package = ROOT / "scrapy_dq"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    expected = {path.relative_to(ROOT).as_posix() for path in files}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "scrapy_dq/py.typed" in packed


def test_the_wheel_is_as_small_as_public_ci_requires(wheel: Path) -> None:
    limit = re.search(r"LARGEST_WHEEL_BYTES: (\d+)", (ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    assert limit
    assert wheel.stat().st_size <= int(limit[1])


def test_an_installed_wheel_loads_every_script(wheel: Path, tmp_path: Path) -> None:
    """The scripts of all transitions can be built from the Lua files in the wheel."""
    target = tmp_path / "target"
    install = ["pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    run(sys.executable, "-m", *install, cwd=tmp_path)
    printed = run(sys.executable, "-c", LOAD, str(target), cwd=tmp_path, PYTHONPATH=str(target))
    assert printed.split() == sorted(path.stem for path in (ROOT / "scrapy_dq").rglob("*.lua"))
