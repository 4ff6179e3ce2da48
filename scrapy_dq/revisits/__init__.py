"""Repeated visits of pages: their times, and the data kept from the last visit. docs/continuous.md"""
