"""Pages that are visited again: when, and what is kept of the last visit. docs/continuous.md"""
