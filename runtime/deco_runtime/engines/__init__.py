"""Engines: one file each, found by name."""
