"""Repeated visits of pages: their times, and the data kept from the last visit; see docs/continuous.md."""
