"""Algorithm 1 as a whole: what a segment changes, when the model is updated, and that nothing happens by halves."""

from __future__ import annotations

import numpy as np
import pytest
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco import Learner
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import normalise
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Segment
from fake_engine import LinearEngine

CLASSES, SHAPE = 3, (3, 2, 2)
PARAMETERS = (Parameter("weight", (CLASSES, 12), 0, "normal", 0.0, 0.3),)


def learner(recipe: Recipe, engine=None, ipc: int = 2) -> Learner:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(CLASSES), ipc)
    buffer = CondensedBuffer.start(rng.standard_normal((len(y), *SHAPE)).astype(np.float32), y)
    theta = 0.1 * rng.standard_normal(36).astype(np.float32)
    return Learner(engine or LinearEngine(CLASSES), PARAMETERS, theta, buffer, CLASSES, recipe, rng)


def segment(pseudo: list[int], labels: list[int] | None = None, seed: int = 1) -> Segment:
    rng = np.random.default_rng(seed)
    n = len(pseudo)
    x = rng.standard_normal((n, *SHAPE)).astype(np.float32)
    true = np.asarray(labels if labels is not None else [-1] * n)
    return Segment(x, np.asarray(pseudo), rng.uniform(0.4, 1, n).astype(np.float32), true)


def snapshot(of: Learner):
    return of.theta.copy(), of.buffer.x_syn.copy(), of.rng.bit_generator.state, of.segments, of.retrains


def test_a_segment_moves_its_active_class_only() -> None:
    it = learner(Recipe(iterations=2))
    before = it.buffer.x_syn.copy()
    report = it.learn(segment([1] * 7 + [0, 2, 2]))
    moved = (it.buffer.x_syn != before).reshape(6, -1).any(1)
    assert moved.tolist() == [False, False, True, True, False, False]
    assert report.active == [1]
    assert report.kept == pytest.approx(0.7)
    assert report.pseudo_accuracy is None


def test_true_labels_score_and_do_nothing_else() -> None:
    blind, seeing = learner(Recipe(iterations=2)), learner(Recipe(iterations=2))
    blind.learn(segment([1] * 7 + [0] * 3))
    report = seeing.learn(segment([1] * 7 + [0] * 3, labels=[1] * 6 + [2] + [0] * 3))
    assert report.pseudo_accuracy == pytest.approx(6 / 7)
    assert np.array_equal(blind.buffer.x_syn, seeing.buffer.x_syn)


def test_a_segment_without_a_majority_teaches_nothing_but_counts() -> None:
    it = learner(Recipe())
    before = snapshot(it)
    report = it.learn(segment([0, 0, 1, 1, 2, 2]))
    after = snapshot(it)
    assert report.active == []
    assert report.kept == 0
    assert report.distances == []
    assert np.array_equal(before[1], after[1])
    assert it.segments == 1


def test_the_model_is_due_every_beta_segments() -> None:
    it = learner(Recipe(iterations=1, retrain_interval=2, retrain_epochs=2))
    due = []
    for _ in range(5):
        it.learn(segment([1] * 4))
        due.append(it.retrain_due)
        if it.retrain_due:
            before = it.theta.copy()
            assert it.retrain().accepted
            assert not np.array_equal(before, it.theta)
    assert due == [False, True, False, True, False]
    assert it.retrains == 2


@pytest.mark.parametrize("what", ["learn", "retrain"])
def test_stopping_half_way_leaves_everything_as_it_was(what: str) -> None:
    it = learner(Recipe())
    before, calls = snapshot(it), iter(range(3))

    def check() -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        it.learn(segment([1] * 6), check) if what == "learn" else it.retrain(check)
    for old, new in zip(before, snapshot(it), strict=True):
        assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new
    # and doing it again gives what an undisturbed learner gets
    other = learner(Recipe())
    for each in (it, other):
        each.learn(segment([1] * 6)) if what == "learn" else each.retrain()
    assert np.array_equal(it.buffer.x_syn, other.buffer.x_syn)
    assert np.array_equal(it.theta, other.theta)


def test_an_update_that_is_not_finite_is_dropped_and_counted() -> None:
    class Broken(LinearEngine):
        def weight_gradient(self, theta, x, t):
            loss, gradient = super().weight_gradient(theta, x, t)
            return loss, gradient * np.float32(np.nan)

    it = learner(Recipe(iterations=2, retrain_epochs=2), Broken(CLASSES))
    before = it.theta.copy()
    report = it.learn(segment([1] * 4))
    assert report.dropped == 2
    assert np.isfinite(it.buffer.x_syn).all()
    assert not it.retrain().accepted
    assert np.array_equal(it.theta, before)
    assert it.dropped == 3


@pytest.mark.parametrize("ipc", [1, 3])
def test_one_image_per_class_works_as_many_do(ipc: int) -> None:
    it = learner(Recipe(iterations=2), ipc=ipc)
    before = it.buffer.x_syn.copy()
    it.learn(segment([2] * 5))
    assert not np.array_equal(before, it.buffer.x_syn)
    assert np.isfinite(it.buffer.x_syn).all()


def test_real_images_through_a_real_engine(engine, bundle_path) -> None:
    """Matching real digits of one class with a fitting rate brings the buffer's gradients closer to theirs."""
    bundle = open_bundle(bundle_path)
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    x = normalise(pixels[labels == 3][:24], bundle.preprocessing)
    pseudo, confidence = pseudo_label(engine.predict(bundle.weights(), x)[0])
    recipe = Recipe(segment=24, alpha=0, synthetic_rate=30, iterations=40, threshold=0.3)
    it = Learner(engine, bundle.parameters, bundle.weights(), bundle.buffer(), 10, recipe, np.random.default_rng(0))

    def mean_distance(buffer: CondensedBuffer) -> float:
        """Over the same random models for both, with the buffer held still."""
        still = Recipe(alpha=0, synthetic_rate=1e-9, iterations=10)
        rng = np.random.default_rng(9)
        measure = Learner(engine, bundle.parameters, it.theta, buffer, 10, still, rng)
        done = measure.update_buffer(x, np.full(len(x), 3), np.ones(len(x), np.float32), lambda: None)
        return float(np.mean(done.distances))

    before = mean_distance(it.buffer)
    report = it.learn(Segment(x, pseudo, confidence, np.full(len(x), 3)))
    assert report.active == [3]
    assert report.pseudo_accuracy == 1.0
    assert mean_distance(it.buffer) < before
