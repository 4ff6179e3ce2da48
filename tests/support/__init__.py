"""Helpers for all tests: real Redis servers, a proxy with faults, web sites, and a Scrapy project."""
