"""DECO-Full with the five passes of eq:opt4: what is left of its cost when only the second order is approximated."""

from __future__ import annotations

from deco_benchmarks.rows import Row, Setup
from deco_benchmarks.rows.deco_full import Full

NAME = "DECO-Full (finite difference)"
ABOUT = "Bi-level condensation with DECO's finite difference in place of the exact second order."


def make(setup: Setup) -> Row:
    """As DECO-Full, with the recipe's own gradient."""
    return Row(setup.learner(Full))
