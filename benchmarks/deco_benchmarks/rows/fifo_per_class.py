"""FIFO, with the same number of places for every class."""

from __future__ import annotations

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows._per_class import make_per_class
from deco_benchmarks.rows.fifo import Queue

NAME = "FIFO (per class)"
ABOUT = "The newest real frames of each class (Hayes et al. 2019)."


def make(setup: Setup) -> Row:
    """Starts with `ipc` labelled images per class, and keeps as many."""
    return make_per_class(setup, Queue)
