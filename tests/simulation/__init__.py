"""Whole workers and the real Lua under virtual time: `PYTHONPATH=tests python -m simulation --help`."""
