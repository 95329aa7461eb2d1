"""The measurement of unknown things: its streams, its area under the curve, and the file that comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import cv2
from click.testing import CliRunner
from deco_benchmarks import unknown
from deco_export.data import Data, digits, hold_out
from deco_export.export import Options, export
from deco_runtime.errors import UsageError
from deco_runtime.storage.bundle import open_bundle
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(1, 200), st.integers(0, 300), st.integers(1, 40), st.integers(0, 2**31))
def test_unknown_scenes_come_between_known_ones_which_keep_their_order(n: int, m: int, scene: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.permutation(n)
    order, is_known = unknown.between(known, m, scene, rng)
    assert len(order) == len(is_known) == n + m
    np.testing.assert_array_equal(order[is_known], known)
    assert sorted(order[~is_known]) == list(range(m))
    changes = np.count_nonzero(np.diff(is_known.astype(int)))
    assert changes <= 2 * (n // scene + 1)


def test_the_area_under_the_curve_is_how_often_an_unknown_frame_is_stranger() -> None:
    rng = np.random.default_rng(0)
    strange, known = np.round(rng.random(60), 1), rng.random(60) < 0.5
    pairs = strange[~known][:, None] - strange[known]
    assert unknown.auroc(strange, known) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the digits 0 to 4, their images as a folder, and those of 5 to 9 as another."""
    place, everything = tmp_path_factory.mktemp("unknown"), digits(16)
    five = everything[np.flatnonzero(everything.labels < 5)]
    for number, (pixels, label) in enumerate(zip(everything.pixels, everything.labels, strict=True)):
        part = ("train" if number % 4 else "test") if label < 5 else "others"
        folder = place / "data" / part / str(label) if label < 5 else place / part / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    train, held = hold_out(five[np.arange(0, len(five), 2)], 0.3, np.random.default_rng(0))
    options = Options("digits", place / "bundle", 1.0, "convnet", 8, 2, 16, None, 20, 0, 0.1, augment=False)
    export(options, lambda *_: None, Data(tuple("01234"), train, held, ()))
    return place


def test_the_file_that_comes_out(places: Path) -> None:
    out = places / "found.json"
    asked = ["--bundle", places / "bundle", "--data", places / "data", "--unknown", places / "others", "--out", out]
    done = CliRunner().invoke(unknown.main, [*map(str, asked), "--share", "0.5", "--known", "400"])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    alone, among = report["results"]["known alone"], report["results"]["among unknown"]
    assert (report["known_frames"], report["unknown_frames"]) == (400, 400)
    assert alone["before"] == among["before"] > 0.8
    assert "auroc" not in alone
    assert among["auroc"] > 0.6
    assert among["auroc_chain"] > among["auroc"]
    assert 0 <= among["unknown_found"] <= 1
    assert among["known_kept"] > 0.8
    assert f"after {among['after']:.2%}" in done.output


def test_a_bundle_that_cannot_say_unknown_is_refused(bundle_path: Path, places: Path) -> None:
    assert open_bundle(bundle_path).regression().unknown is None
    asked = ["--bundle", bundle_path, "--data", places / "data", "--unknown", places / "others", "--out", places / "o"]
    done = CliRunner().invoke(unknown.main, list(map(str, asked)))
    assert isinstance(done.exception, UsageError)
    assert "expected a bundle that can say unknown" in str(done.exception)
