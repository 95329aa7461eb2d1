"""deco-bench growth: what is compared, and the measurement of one case."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from deco_benchmarks.bench.growth import cases
from deco_benchmarks.bench.jobs import measure_in_process


def test_each_case_changes_one_thing() -> None:
    base, *others = (asdict(case) for case in cases(32).values())
    factors = [{key: case[key] / base[key] for key in base if case[key] != base[key]} for case in others]
    assert factors == [{"segment": 8}, {"ipc": 5}, {"classes": 10}, {"pixels": 2}]


def test_a_longer_segment_takes_longer_and_no_more_memory(bundle_path: Path) -> None:
    short, long = (
        measure_in_process("growth", bundle_path, lambda *_: None, engine="portable", segment=n) for n in (64, 4096)
    )
    assert long["seconds"] > 4 * short["seconds"]
    assert long["peak_mib"] == pytest.approx(short["peak_mib"], rel=0.25)
