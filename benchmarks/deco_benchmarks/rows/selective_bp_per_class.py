"""Selective-BP, with the same number of places for every class."""

from __future__ import annotations

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._per_class import make_per_class
from deco_benchmarks.rows.selective_bp import LeastConfident

NAME = "Selective-BP (per class)"
ABOUT = "The real frames of each class with the lowest confidence (Jiang et al. 2019)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class, and keeps as many."""
    return make_per_class(setup, LeastConfident)
