"""Engines: one file each, found by its NAME; and who takes which of them."""
