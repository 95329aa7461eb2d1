"""A guard on the work of a learning step, which no noisy clock can hide or fake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")  # counts.json holds the workstation's version of onnxruntime

import numpy as np
import onnxruntime
from bundles import without
from deco_benchmarks.bench.counts import ENGINE, _runs, measure
from deco_benchmarks.bench.workload import open_work
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.guard import Unguarded
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle

HELD = Path(__file__).with_name("counts.json")


@pytest.fixture(scope="module")
def found(bundle_path: Path):
    return measure(bundle_path)


def test_no_graph_does_more_than_it_did(found) -> None:
    """Where a change is meant: deco-bench counts --bundle BUNDLE > tests/benchmarks/counts.json, on the bundle that
    `python tests/conftest.py DIR` makes."""
    held = json.loads(HELD.read_text("utf-8"))
    if held["onnxruntime"] != onnxruntime.__version__:
        pytest.skip(f"held for onnxruntime {held['onnxruntime']}, which fuses otherwise than {onnxruntime.__version__}")
    assert found == held


def test_runs_follow_from_the_recipe(found, bundle_path: Path) -> None:
    """128 real frames of one class are 13 micro-batches; its condensed images are one."""
    bundle = open_bundle(bundle_path)
    iterations, everything = 10, -(-len(initial(bundle).y_syn) // 10)
    assert found["runs"]["one frame"] == {"predict": 1}
    assert found["runs"]["one segment"] == {
        "weight_gradient": iterations * (13 + 1),
        "input_gradient": iterations * 2,
        "predict": everything + iterations,
        "feature_gradient": iterations,
    }
    assert found["runs"]["one epoch of an update"] == {"weight_gradient": everything}
    assert found["runs"]["one frame, deco+"] == {"representation": 1}
    assert found["runs"]["one segment and update, deco+"] == {}  # its frames were observed when they were predicted


def test_each_frame_goes_through_the_network_once_for_deco_plus(bundle_path: Path) -> None:
    """Predicted, voted for, learned from and answered about by the updated model: one run each, whatever comes next."""
    work = open_work(bundle_path, ENGINE, "deco+")
    learner = work.learner(segment=4)
    stream = Stream(Unguarded(learner))

    def nine() -> None:
        for _ in range(9):
            stream.see(work.frame, np.array([-1]))

    assert _runs(work, nine) == {"representation": 9}
    assert (learner.segments, learner.retrains) == (2, 2)


def test_a_bundle_without_condensed_images_is_counted_by_deco_plus(found, bundle_path: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(bundle_path, tmp_path / "bundle"))
    without(bundle, "buffer.npz")
    bare = measure(bundle)
    assert bare["graphs"] == found["graphs"]
    assert bare["runs"] == {name: runs for name, runs in found["runs"].items() if name.endswith("deco+")}
