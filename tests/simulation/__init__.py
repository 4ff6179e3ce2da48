"""Run whole workers and the real Lua in virtual time: `PYTHONPATH=tests python -m simulation --help`."""
