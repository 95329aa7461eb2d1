"""A guard on the work of a learning step, which no noisy clock can hide or fake."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")  # counts.json holds the workstation's version of onnxruntime

import onnxruntime
from bundles import without
from deco_benchmarks.bench.counts import measure
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
    """128 real frames of one class are 16 micro-batches; its condensed images are one."""
    bundle = open_bundle(bundle_path)
    iterations, everything = 10, -(-len(bundle.buffer().y_syn) // 8)
    assert found["runs"]["one frame"] == {"predict": 1}
    assert found["runs"]["one segment"] == {
        "weight_gradient": iterations * (16 + 1),
        "input_gradient": iterations * 2,
        "predict": everything + iterations,
        "feature_gradient": iterations,
    }
    assert found["runs"]["one epoch of an update"] == {"weight_gradient": everything}
    assert found["runs"]["one frame, deco+"] == {"representation": 1}
    assert found["runs"]["one segment and update, deco+"] == {"representation": 16}


def test_a_bundle_without_condensed_images_is_counted_by_deco_plus(found, bundle_path: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(bundle_path, tmp_path / "bundle"))
    without(bundle, "buffer.npz")
    bare = measure(bundle)
    assert bare["graphs"] == found["graphs"]
    assert bare["runs"] == {name: runs for name, runs in found["runs"].items() if name.endswith("deco+")}
