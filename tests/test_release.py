"""A release is complete: workflows, tox, metadata, changelog and version agree."""

from __future__ import annotations

import configparser
import importlib.util
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

import scrapy_dq

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest depends on it

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
CI = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def tox_environments() -> list[str]:
    """Return env_list of tox.ini, where `py{310,311}-x` is two environments."""
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", "utf-8")
    found = []
    for line in tox["tox"]["env_list"].split():
        head, _, rest = line.partition("{")
        choices, _, tail = rest.partition("}")
        found += [f"{head}{choice}{tail}" for choice in choices.split(",")]
    return found


def test_public_ci_runs_every_environment_of_tox() -> None:
    """The matrix in ci.yml has the same environments in the same order, each with its Python."""
    matrix = re.findall(r'- \{env: (\S+), python: "(\d\.\d+)"\}', CI)
    assert [env for env, _ in matrix] == tox_environments()
    assert all(env.startswith(f"py{python.replace('.', '')}-") for env, python in matrix if env != "lint")


def test_every_python_of_tox_is_a_classifier_and_no_other() -> None:
    """The oldest of these Pythons is the lower limit in `requires-python`."""
    pythons = sorted({int(env[3:5]) for env in tox_environments() if env.startswith("py3")})
    named = re.findall(r"Programming Language :: Python :: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))
    assert list(map(int, named)) == pythons
    assert PROJECT["requires-python"] == f">=3.{pythons[0]}"


def test_the_factor_of_the_weekly_run_is_in_tox() -> None:
    """tox ignores an unknown factor, so it would test the newest release of Scrapy."""
    (env,) = re.findall(r"tox run -e (py\S+)", CI)
    factors = re.findall(r"^ +(\w+): .+", (ROOT / "tox.ini").read_text("utf-8"), re.MULTILINE)
    assert env.split("-")[1] in factors


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_the_form_of_its_schema(workflow: Path) -> None:
    """The schema is in check-jsonschema, which the extra `lint` installs."""
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    check = ["check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(
        [sys.executable, "-m", *check], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_few_rights(workflow: Path) -> None:
    """A workflow may only read the repository. The job that publishes may also ask for an identity token."""
    text = workflow.read_text("utf-8")
    assert "\npermissions:\n  contents: read\n" in text
    rights = re.findall(r"^ +([\w-]+: (?:read|write))$", text, re.MULTILINE)
    assert rights == ["contents: read", *(["id-token: write"] if workflow.name == "release.yml" else [])]
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    assert text.count("timeout-minutes:") == text.count("runs-on:")


def test_the_changelog_begins_with_this_version_and_its_date() -> None:
    """The changelog of a development version begins with "Unreleased"."""
    heading = re.search(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert heading
    if "dev" in scrapy_dq.__version__:
        assert heading[1].startswith("Unreleased")
    else:
        version, day = heading[1].rstrip(")").split(" (")
        assert version == scrapy_dq.__version__
        assert date.fromisoformat(day)


def test_the_changelog_is_short() -> None:
    assert len(CHANGELOG.split()) <= 1_500


def test_the_description_is_the_first_line_of_the_package() -> None:
    assert scrapy_dq.__doc__ == f"scrapy_dq: {PROJECT['description'][0].lower()}{PROJECT['description'][1:]}."
