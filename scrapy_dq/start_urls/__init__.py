"""Spiders that are fed through Redis: their keys, their payloads, and how long they wait for more."""
