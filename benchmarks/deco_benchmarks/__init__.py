"""Measurements: what the documentation states comes from here."""
