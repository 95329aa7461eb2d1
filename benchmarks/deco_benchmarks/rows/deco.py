"""DECO: the device's learner as it is."""

from __future__ import annotations

from deco_benchmarks.rows import LearnerRow, Row, Setup

NAME = "DECO"
ABOUT = "Condenses voted frames into synthetic images (Xu et al.): the learner that deco-run ships."


def make(setup: Setup) -> Row:
    """The device's learner with the bundle's condensed buffer."""
    return LearnerRow(setup.learner())
