"""Streaming linear discriminant analysis against the source's own update, frame by frame, in float64."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import BundleError, UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.recipe import override
from deco_runtime.learning.regression import Statistics, add, scores
from deco_runtime.learning.slda import FILE, Settings, Slda, classifier
from deco_runtime.storage.bundle import open_bundle
from fake_engine import LinearEngine
from hypothesis import given
from hypothesis import strategies as st

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"


def frame_by_frame(phi: np.ndarray, y: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means (K, D), counts (K,) and covariance (D, D) as Hayes & Kanan (2020), section 3, move them with each frame."""
    means, count, covariance = np.zeros((classes, phi.shape[1])), np.zeros(classes), np.zeros((phi.shape[1],) * 2)
    for seen, (z, c) in enumerate(zip(phi.astype(np.float64), y, strict=True)):
        # Their Δ for the running covariance uses the class's mean before the frame; a class's first frame adds nothing.
        away = z - means[c]
        delta = count[c] / (count[c] + 1) * np.outer(away, away)
        covariance = (seen * covariance + delta) / (seen + 1)
        means[c] += away / (count[c] + 1)
        count[c] += 1
    return means, count, covariance


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(1, 6), st.integers(20, 60))
def test_the_classifier_is_that_of_the_source(seed: int, classes: int, size: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    phi = (rng.standard_normal((n, size)) + 2 * rng.standard_normal((classes, size))[y]).astype(np.float32)
    statistics = Statistics.zero(size, classes)
    for part in np.array_split(np.arange(n), 3):  # segments
        statistics = add(statistics, phi[part], np.eye(classes, dtype=np.float32)[y[part]])
    means, count, covariance = frame_by_frame(phi, y, classes)
    ε = 0.1
    inverse = np.linalg.inv((1 - ε) * covariance + ε * np.trace(covariance) / size * np.eye(size))
    expected = phi @ (inverse @ means.T) - 0.5 * np.einsum("kd,de,ke->k", means, inverse, means)
    found = scores(classifier(statistics, ε).reshape(-1, classes), phi)
    known = count > 0
    np.testing.assert_allclose(found[:, known], expected[:, known], rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    assert known[found.argmax(axis=1)].all()


def test_a_class_without_a_frame_is_never_answered() -> None:
    rng = np.random.default_rng(0)
    phi = rng.standard_normal((30, 3)).astype(np.float32)
    w = classifier(add(Statistics.zero(3, 3), phi, np.eye(3, dtype=np.float32)[rng.integers(0, 2, 30)]), 1e-4)
    assert set(scores(w.reshape(-1, 3), 100 * phi).argmax(axis=1)) == {0, 1}


@pytest.mark.parametrize("value", ["0", "-1", "1.1", "nan"])
def test_its_own_hyper_parameter_is_checked(value: str) -> None:
    with pytest.raises(UsageError, match="shrinkage"):
        override(Settings(), [f"shrinkage={value}"])
    assert override(Settings(), ["shrinkage=0.5"]).shrinkage == 0.5


def test_it_starts_from_the_labelled_images_and_forgets_none(bundle_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    it = registry.started(Slda, bundle)
    assert isinstance(it, Slda)
    start = it.memory
    np.testing.assert_array_equal(it.model, classifier(start, Slda.RECIPE.shrinkage))
    rng = np.random.default_rng(0)
    phi = rng.standard_normal((40, len(start.b) - 1)).astype(np.float32)
    t = rng.dirichlet(np.ones(10), 40).astype(np.float32)
    observed = {"phi": phi, "logits": np.zeros((40, 10), np.float32)}
    once, halves = it.add(start, observed, t), start
    for half in (slice(0, 20), slice(20, 40)):
        halves = it.add(halves, {name: array[half] for name, array in observed.items()}, t[half])
    np.testing.assert_allclose(once.a, halves.a, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(once.b[-1], start.b[-1] + t.sum(axis=0), rtol=1e-5)


def test_a_bundle_that_lacks_its_file_is_refused(bundle_path: Path, tmp_path: Path) -> None:
    import shutil

    from bundles import without

    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    without(copy, FILE)
    bundle = open_bundle(copy)
    with pytest.raises(BundleError, match="slda"):
        Slda.open(bundle, LinearEngine(10), Settings(), np.random.default_rng(0))


def test_it_runs_is_killed_and_goes_on(bundle_path: Path, tmp_path: Path) -> None:
    """A run that is cut off after two segments and taken up again ends as one that was left alone, bit for bit."""

    def run(state: str, *more: str) -> dict[str, Any]:
        done = subprocess.run(
            [
                *(sys.executable, "-c", WITHOUT_TORCH, "--bundle", str(bundle_path), "--demo", "--engine", "portable"),
                *("--recipe", "slda", "--set", "segment=64", "--state", str(tmp_path / state), "--save-every", "0"),
                *more,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]

    run("cut", "--max-segments", "2")
    cut, whole = run("cut"), run("whole")
    assert whole["learned"] == cut["learned"] > whole["frozen"]

    def arrays(name: str) -> dict[str, np.ndarray]:
        import io

        with np.load(io.BytesIO((tmp_path / name / "learned.deco").read_bytes()[32:])) as archive:
            return {key: archive[key] for key in archive.files if key != "meta"}

    one, other = arrays("cut"), arrays("whole")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key]) for key in one)
