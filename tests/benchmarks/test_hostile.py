"""Hostile streams on digits: the file that comes out, and that votes are mirrored as they should be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import cv2
from click.testing import CliRunner
from deco_benchmarks import hostile
from deco_export.images import Images
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.recipe import Recipe, override
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import normalise
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Segment

QUICK = ("segment=16", "retrain_interval=1", "retrain_epochs=1", "iterations=1", "retrain_rate=1e4")
"""At this rate weight decay turns the weights round: every update is useless."""


@pytest.fixture
def data(bundle_path: Path, tmp_path: Path) -> Path:
    bundle = open_bundle(bundle_path)
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    for part in ("train", "test"):
        for c, name in enumerate(bundle.classes):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for i, image in enumerate(pixels[labels == c][:4]):
                cv2.imwrite(str(tmp_path / "data" / part / name / f"{i}.png"), image)
    return tmp_path / "data"


def test_with_and_without_the_guard(bundle_path: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    arguments = ["--bundle", bundle_path, "--data", data, "--unknown", data, "--out", out, "--segments", 3]
    done = CliRunner().invoke(hostile.main, [*map(str, arguments), *(t for s in QUICK for t in ("--set", s))])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert [(r["stream"], r["guarded"]) for r in report["results"]] == [
        (name, guarded) for name in hostile.STREAMS for guarded in (False, True)
    ]
    assert report["test_images"] == 40
    for result in report["results"]:
        assert result["updates"] == 3
        assert len(result["verdicts"]) == (3 if result["guarded"] else 0)
        assert result["before_accuracy"] == report["frozen_accuracy"]
        if result["guarded"]:
            assert result["rejected"] == 3
            assert result["final_accuracy"] == report["frozen_accuracy"]
        else:
            assert result["final_accuracy"] < report["frozen_accuracy"] - 0.3
    frozen = f"{report['frozen_accuracy']:.2%}"
    assert f"noise, guarded: before the stream {frozen}, after it {frozen}, never updated {frozen}\n" in done.output


def test_of_deco_plus(bundle_path: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "hostile.json"
    arguments = ["--bundle", bundle_path, "--data", data, "--unknown", data, "--out", out, "--segments", 6]
    more = ["--recipe", "deco+", "--set", "segment=16"]
    done = CliRunner().invoke(hostile.main, [*map(str, arguments), *more])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert report["recipe"]["name"] == "deco+"
    assert len(report["results"]) == 2 * len(hostile.STREAMS)
    for result in report["results"]:
        assert result["kept"] > 0
        assert [point["segment"] for point in result["curve"]] == [5, 6]
        assert result["curve"][-1]["accuracy"] == result["final_accuracy"]
        assert result["guarded"] or (result["updates"], result["verdicts"]) == (6, [])
    assert len({result["before_accuracy"] for result in report["results"]}) == 1
    one_class = report["results"][0]
    assert one_class["active_segments"][0] > sum(one_class["active_segments"][1:])


def test_votes_are_mirrored_where_that_is_asked_for(bundle_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    engine, rng = open_engine(bundle, "portable"), np.random.default_rng(0)
    scorer = Scorer(bundle.preprocessing, *bundle.labelled_pixels("demo/test.npz"))
    it = DecoPlus.open(bundle, engine, DecoPlus.RECIPE, rng)
    stream = hostile.Hostile(Unguarded(it), scorer)
    observed = it.observe(rng.standard_normal((5, 3, 16, 16)).astype(np.float32))
    plain, logits = it.likelihood(observed, None), it.answer(it.model, observed)
    pseudo, confidence = pseudo_label(logits)
    np.testing.assert_array_equal(stream.label(logits)[0], pseudo)
    stream.mirrored = np.array([True, False, False, True, False])
    expected = np.where(stream.mirrored[:, None], plain[:, ::-1], plain)
    np.testing.assert_array_equal(it.likelihood(observed, None), expected)
    found = stream.label(logits)
    np.testing.assert_array_equal(found[0], np.where(stream.mirrored, 9 - pseudo, pseudo))
    np.testing.assert_array_equal(found[1], confidence)


class Mirrored(DecoPlus):
    """Votes of the frames `mirrored` for class c are for K − 1 − c."""

    mirrored: Any = None

    def likelihood(self, observed, cut):
        p = super().likelihood(observed, cut)
        return p if self.mirrored is None else np.where(self.mirrored[:, None], p[:, ::-1], p)


LIKE_DECO_RUN = {
    "paper": ("segment=16", "retrain_interval=2", "retrain_epochs=2", "iterations=1"),
    "deco+": ("segment=16",),
    "slda": ("segment=16",),
}


def followed(bundle: Bundle, recipe: Recipe, guarded: bool, name: str) -> tuple[dict, Any, list, Scorer, Any]:
    """What `hostile` makes of five segments, the learner that it made it with, the same frames, and one like it."""
    kind, pixels = registry.learner(recipe.name), bundle.labelled_pixels("demo/test.npz")
    images = dict.fromkeys(("train", "unknown"), Images(*pixels))
    scorer, engine = Scorer(bundle.preprocessing, *pixels), open_engine(bundle, "portable")
    kept = list(hostile._frames(name, images, bundle, recipe, 5, np.random.default_rng(1)))
    both = [kind.open(bundle, engine, recipe, np.random.default_rng(3)) for _ in range(2)]
    first = open_guard(bundle, both[0])[0] if guarded else Unguarded(both[0])
    found = hostile._learn(first, iter(kept), bundle.preprocessing, scorer, 5, lambda *_: None)
    return found, first, kept, scorer, both[1]


def same(one: Unguarded, other: Unguarded) -> bool:
    mine, others = one.arrays(), other.arrays()
    alike = mine.keys() == others.keys() and all(np.array_equal(mine[name], others[name]) for name in mine)
    return alike and one.values() == other.values()


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("name", [name for name in hostile.STREAMS if name != "mirrored"])
@pytest.mark.parametrize("recipe_name", LIKE_DECO_RUN)
def test_a_hostile_stream_gives_what_the_learner_gives_before_a_stream(
    recipe_name: str, name: str, guarded: bool, bundle_path: Path
) -> None:
    bundle, recipe = open_bundle(bundle_path), override(registry.named(recipe_name), LIKE_DECO_RUN[recipe_name])
    found, first, frames, scorer, learner = followed(bundle, recipe, guarded, name)
    second = open_guard(bundle, learner)[0] if guarded else Unguarded(learner)
    stream, before = Stream(second), scorer.accuracy(learner.predict)
    stream.follow((normalise(pixels, bundle.preprocessing), labels) for pixels, labels, _ in frames)
    assert same(first, second)
    assert learner.segments == 5
    assert (found["before_accuracy"], found["final_accuracy"]) == (before, scorer.accuracy(learner.predict))
    assert found["updates"] == learner.retrains == 5 // recipe.retrain_interval


def test_mirrored_votes_of_the_paper_are_those_of_segments_made_by_hand(bundle_path: Path) -> None:
    bundle, recipe = open_bundle(bundle_path), override(registry.named("paper"), LIKE_DECO_RUN["paper"])
    found, first, frames, _, learner = followed(bundle, recipe, False, "mirrored")
    kept = []
    for pixels, labels, mirrored in frames:
        observed = learner.observe(normalise(pixels, bundle.preprocessing))
        pseudo, confidence = pseudo_label(learner.answer(learner.model, observed))
        kept.append(learner.learn(Segment(observed, np.where(mirrored, 9 - pseudo, pseudo), confidence, labels)).kept)
        if learner.retrain_due:
            learner.retrain()
    assert same(first, Unguarded(learner))
    assert found["kept"] == np.mean(kept)


def test_mirrored_votes_of_deco_plus_are_those_of_a_learner_that_mirrors_them(bundle_path: Path) -> None:
    bundle, recipe = open_bundle(bundle_path), replace(DecoPlus.RECIPE, segment=16)
    found, first, frames, scorer, plain = followed(bundle, recipe, False, "mirrored")
    learner = Mirrored.open(bundle, plain.engine, recipe, np.random.default_rng(3))
    stream, unlike = Stream(Unguarded(learner)), Stream(Unguarded(plain))
    for pixels, labels, learner.mirrored in frames:
        for each in (stream, unlike):
            each.see(normalise(pixels, bundle.preprocessing), labels)
    assert same(first, Unguarded(learner))
    assert not np.array_equal(learner.model, plain.model)
    assert found["final_accuracy"] == scorer.accuracy(learner.predict)


def test_frames_of_each_stream(bundle_path: Path) -> None:
    bundle, rng = open_bundle(bundle_path), np.random.default_rng(0)
    train = Images(rng.integers(0, 256, (200, 16, 16, 3), np.uint8), np.repeat(np.arange(10), 20))
    images = {"train": train, "unknown": train}
    found = {}
    for name in hostile.STREAMS:
        parts = list(hostile._frames(name, images, bundle, Recipe("paper", segment=50), 20, np.random.default_rng(0)))
        assert [p.shape for p, _, _ in parts] == [(50, 16, 16, 3)] * 20
        found[name] = parts
    assert {int(c) for _, labels, _ in found["one-class"] for c in labels} == {0}
    assert {int(c) for _, labels, _ in found["noise"] for c in labels} == {-1}
    assert {int(c) for _, labels, _ in found["unknown"] for c in labels} == {-1}
    assert {int(c) for _, labels, _ in found["mirrored"] for c in labels} == set(range(10))
    assert np.mean([mirrored.mean() for _, _, mirrored in found["mirrored"]]) == pytest.approx(0.4, abs=0.05)
    assert all(mirrored is None for name in hostile.STREAMS[:3] for _, _, mirrored in found[name])


def test_a_stream_of_no_known_name(bundle_path: Path, data: Path, tmp_path: Path) -> None:
    arguments = ["--bundle", bundle_path, "--data", data, "--unknown", data, "--out", tmp_path / "o", "--streams", "x"]
    done = CliRunner().invoke(hostile.main, list(map(str, arguments)))
    assert isinstance(done.exception, UsageError)
    assert str(done.exception).startswith("expected --streams among one-class, noise")
