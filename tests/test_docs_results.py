"""Measurements and the pages that tell of them: none without a page, and no page of one that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PATH = re.compile(r"benchmarks/(?:results|boards)(?:/[\w+-][\w.+-]*)+")


def named() -> dict[str, str]:
    """Each path of a measurement that a page names, with the page: a full stop at its end is the sentence's."""
    return {found.rstrip("."): page.name for page in PAGES for found in PATH.findall(page.read_text("utf-8"))}


def test_every_measurement_is_named_by_a_page() -> None:
    known = {path.split("/")[2] for path in named() if path.startswith("benchmarks/results/")}
    assert sorted(path.name for path in (ROOT / "benchmarks/results").iterdir() if path.name not in known) == []


def test_every_measurement_that_a_page_names_is_there() -> None:
    assert {path: page for path, page in named().items() if not (ROOT / path).exists()} == {}
