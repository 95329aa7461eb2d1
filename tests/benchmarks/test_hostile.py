"""Hostile streams on digits: the file that comes out, and that votes are mirrored as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import cv2
from click.testing import CliRunner
from deco_benchmarks import hostile
from deco_export.images import Images
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning.recipe import Recipe, named
from deco_runtime.storage.bundle import open_bundle

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
    it = hostile._new_learner(bundle, open_engine(bundle, "portable"), named("deco+"), 0)
    rng = np.random.default_rng(0)
    phi, logits = it.engine.represent(rng.standard_normal((5, 3, 16, 16)).astype(np.float32))
    plain = it.likelihood(phi, logits)
    it.mirrored = np.array([True, False, False, True, False])
    np.testing.assert_array_equal(it.likelihood(phi, logits), np.where(it.mirrored[:, None], plain[:, ::-1], plain))


def test_frames_of_each_stream(bundle_path: Path) -> None:
    bundle, rng = open_bundle(bundle_path), np.random.default_rng(0)
    train = Images(rng.integers(0, 256, (200, 16, 16, 3), np.uint8), np.repeat(np.arange(10), 20))
    images = {"train": train, "unknown": train}
    found = {}
    for name in hostile.STREAMS:
        parts = list(hostile._frames(name, images, bundle, Recipe(segment=50), 20, np.random.default_rng(0)))
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
