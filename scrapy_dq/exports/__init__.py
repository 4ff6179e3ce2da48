"""Exports: whole crawls as files of JSON Lines."""
