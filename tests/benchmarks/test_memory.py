"""What an export holds in memory, as the system measures it: not all pictures at once, and no copies of them."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from deco_benchmarks.memory import measure  # noqa: E402

SIZE, FEW, MANY = 224, 140, 600
"""Of both numbers, nine tenths make training batches of nearly as many images as a batch may have."""
OPTIONS = ("--model", "deco_benchmarks.memory:coarse", "--epochs", "1")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_more_pictures_take_at_most_one_and_a_half_times_their_pixels(tmp_path: Path) -> None:
    """They are read as they are needed, and no step takes all of them at once, in whatever type."""
    few, many = (measure(tmp_path, count, SIZE, OPTIONS) for count in (FEW, MANY))
    more = many["peak_bytes"] - few["peak_bytes"]
    assert more < 1.5 * (many["pixel_bytes"] - few["pixel_bytes"]), f"{more / 1e6:.0f} MB more"
