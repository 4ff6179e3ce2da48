"""Runs the simulator in a separate process, because the simulator replaces the clock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ENV = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}


def simulate(
    *words: str,
    module: str = "simulation",
    env: Mapping[str, str] = ENV,
    cwd: Path | None = None,
    timeout_s: float = 800,
) -> subprocess.CompletedProcess[str]:
    """Run *module* with the arguments *words* to its end.

    Args:
        timeout_s: the default is below the `timeout` of pyproject.toml.
    """
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True, text=True, env=env, cwd=cwd, check=False, timeout=timeout_s,
    )  # fmt: skip
