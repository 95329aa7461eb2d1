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
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import voter
from deco_runtime.learning.chain import decode
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Unguarded
from deco_runtime.preprocess import normalise
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Segment
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


def test_it_gives_what_the_learner_gives_before_a_stream(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit: what is learned, what each frame's odds are alone and by the chain, and the scores."""
    bundle, everything = open_bundle(places / "bundle"), digits(16)
    engine, rng = open_engine(bundle, "portable"), np.random.default_rng(0)
    known, strange = (everything[np.flatnonzero((everything.labels < 5) == which)][:300] for which in (True, False))
    order, is_known = unknown.between(np.arange(300), 300, 30, rng)
    scorer, made = Scorer(bundle.preprocessing, known.pixels, known.labels), list[DecoPlus]()

    class Kept(DecoPlus):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(unknown, "DecoPlus", Kept)
    found = unknown.learn(bundle, engine, known, strange, order, is_known, scorer, lambda *_: None)

    learner = DecoPlus.open(bundle, engine, DecoPlus.RECIPE, np.random.default_rng(0))
    before, alone, chained = scorer.accuracy(learner.predict), [], []

    class ByHand(Stream):
        def gathered(self, segment: Segment) -> None:
            p = learner.voter.likelihood(segment.observed["phi"], segment.observed["logits"])
            alone.append(p[:, -1])
            chained.append(decode(p, learner.scene, None).posterior[:, -1])
            super().gathered(segment)

    pixels = np.stack([(known if k else strange).pixels[i] for i, k in zip(order, is_known, strict=True)])
    stream = ByHand(Unguarded(learner))
    for begin in range(0, 512, 128):
        stream.see(normalise(pixels[begin : begin + 128], bundle.preprocessing), np.full(128, -1))
    assert found["segments"] == learner.segments == learner.retrains == 4
    assert made[0].values() == learner.values()
    mine, others = made[0].arrays(), learner.arrays()
    assert mine.keys() == others.keys()
    assert all(np.array_equal(mine[name], others[name]) for name in mine)
    k, each, together = is_known[:512], np.concatenate(alone), np.concatenate(chained)
    assert found["auroc"] == unknown.auroc(each, k)
    assert found["auroc_chain"] == unknown.auroc(together, k)
    assert found["known_kept"] == np.mean(together[k] <= 0.5)
    assert found["unknown_found"] == np.mean(together[~k] > 0.5)
    assert (found["before"], found["after"]) == (before, scorer.accuracy(learner.predict))


def test_a_bundle_that_cannot_say_unknown_is_refused(bundle_path: Path, places: Path) -> None:
    assert voter.start(open_bundle(bundle_path)).unknown is None
    asked = ["--bundle", bundle_path, "--data", places / "data", "--unknown", places / "others", "--out", places / "o"]
    done = CliRunner().invoke(unknown.main, list(map(str, asked)))
    assert isinstance(done.exception, UsageError)
    assert "expected a bundle that can say unknown" in str(done.exception)
