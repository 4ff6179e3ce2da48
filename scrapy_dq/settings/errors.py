"""The error for a setting that cannot be used."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting cannot be used; the message names it, its value and what is allowed."""
