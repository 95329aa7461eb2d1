"""Algorithm 1 as a whole: what a segment changes, when the model is updated, and that nothing happens by halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer, initial
from deco_runtime.learning.condense import TINY, contrastive_loss, dot, draw_negative_classes, gradient_distance
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.random_model import Parameter, draw_model
from deco_runtime.learning.reports import RetrainReport, SegmentReport, Verdict
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import normalise
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Floats, Ints, Segment
from fake_engine import LinearEngine

CLASSES, SHAPE = 3, (3, 2, 2)
PARAMETERS = (Parameter("weight", (CLASSES, 12), 0, "normal", 0.0, 0.3),)


def learner(recipe: Hyperparameters, engine=None, ipc: int = 2) -> Deco:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(CLASSES), ipc)
    buffer = CondensedBuffer.start(rng.standard_normal((len(y), *SHAPE)).astype(np.float32), y)
    theta = 0.1 * rng.standard_normal(36).astype(np.float32)
    return Deco(engine or LinearEngine(CLASSES), PARAMETERS, theta, buffer, CLASSES, recipe, rng)


def segment(pseudo: list[int], labels: list[int] | None = None, seed: int = 1) -> Segment:
    rng = np.random.default_rng(seed)
    n = len(pseudo)
    x = rng.standard_normal((n, *SHAPE)).astype(np.float32)
    true = np.asarray(labels if labels is not None else [-1] * n)
    return Segment({"x": x}, np.asarray(pseudo), rng.uniform(0.4, 1, n).astype(np.float32), true)


def snapshot(of: Deco):
    return of.model.copy(), of.memory.x_syn.copy(), of.rng.bit_generator.state, of.segments, of.retrains


def test_a_segment_moves_its_active_class_only() -> None:
    it = learner(Hyperparameters(iterations=2))
    before = it.memory.x_syn.copy()
    report = it.learn(segment([1] * 7 + [0, 2, 2]))
    moved = (it.memory.x_syn != before).reshape(6, -1).any(1)
    assert moved.tolist() == [False, False, True, True, False, False]
    assert report.active == [1]
    assert report.kept == pytest.approx(0.7)
    assert report.pseudo_accuracy is None


def test_true_labels_score_and_do_nothing_else() -> None:
    blind, seeing = learner(Hyperparameters(iterations=2)), learner(Hyperparameters(iterations=2))
    blind.learn(segment([1] * 7 + [0] * 3))
    report = seeing.learn(segment([1] * 7 + [0] * 3, labels=[1] * 6 + [2] + [0] * 3))
    assert report.pseudo_accuracy == pytest.approx(6 / 7)
    assert np.array_equal(blind.memory.x_syn, seeing.memory.x_syn)


def test_a_segment_without_a_majority_teaches_nothing_but_counts() -> None:
    it = learner(Hyperparameters())
    before = snapshot(it)
    report = it.learn(segment([0, 0, 1, 1, 2, 2]))
    after = snapshot(it)
    assert report.active == []
    assert report.kept == 0
    assert (report.figures, report.words) == ({"distances": [], "contrastive": None}, {})
    assert np.array_equal(before[1], after[1])
    assert it.segments == 1


def test_the_model_is_due_every_beta_segments() -> None:
    it = learner(Hyperparameters(iterations=1, retrain_interval=2, retrain_epochs=2))
    due = []
    for _ in range(5):
        it.learn(segment([1] * 4))
        due.append(it.retrain_due)
        if it.retrain_due:
            before = it.model.copy()
            assert it.retrain().accepted
            assert not np.array_equal(before, it.model)
    assert due == [False, True, False, True, False]
    assert it.retrains == 2


@pytest.mark.parametrize("what", ["learn", "retrain"])
def test_stopping_half_way_leaves_everything_as_it_was(what: str) -> None:
    it = learner(Hyperparameters())
    before, calls = snapshot(it), iter(range(3))

    def check() -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        it.learn(segment([1] * 6), check) if what == "learn" else it.retrain(check)
    for old, new in zip(before, snapshot(it), strict=True):
        assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new
    # and doing it again gives what an undisturbed learner gets
    other = learner(Hyperparameters())
    for each in (it, other):
        each.learn(segment([1] * 6)) if what == "learn" else each.retrain()
    assert np.array_equal(it.memory.x_syn, other.memory.x_syn)
    assert np.array_equal(it.model, other.model)


def test_an_update_that_is_not_finite_is_dropped_and_counted() -> None:
    class Broken(LinearEngine):
        def weight_gradient(self, theta, x, t):
            loss, gradient = super().weight_gradient(theta, x, t)
            return loss, gradient * np.float32(np.nan)

    it = learner(Hyperparameters(iterations=2, retrain_epochs=2), Broken(CLASSES))
    before = it.model.copy()
    report = it.learn(segment([1] * 4))
    assert report.dropped == 2
    assert np.isfinite(it.memory.x_syn).all()
    assert not it.retrain().accepted
    assert np.array_equal(it.model, before)
    assert it.dropped == 3


def test_an_update_that_is_judged_harmful_is_dropped_and_counted() -> None:
    """A judge is asked once, about the new model; what it raises leaves everything as it was."""
    it = learner(Hyperparameters(retrain_epochs=2))
    before, asked = snapshot(it), list[Floats]()

    def judge(model: Floats, check: object) -> Verdict:
        asked.append(model)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return Verdict("is no good" if len(asked) == 2 else None, {}, np.zeros(0, bool))

    with pytest.raises(KeyboardInterrupt):
        it.retrain(judge=judge)
    for old, new in zip(before, snapshot(it), strict=True):
        assert np.array_equal(old, new) if isinstance(old, np.ndarray) else old == new
    report = it.retrain(judge=judge)
    assert (report.accepted, report.verdict and report.verdict.reason) == (False, "is no good")
    assert it.model.tobytes() == before[0].tobytes()
    assert (it.retrains, it.dropped, it.since_retrain) == (1, 1, 0)
    assert it.retrain(judge=judge).accepted
    assert it.model is asked[-1]
    assert len(asked) == 3
    assert asked[0].tobytes() == asked[1].tobytes()  # from the same generator
    assert (it.retrains, it.dropped) == (2, 1)


def test_the_memory_is_evaluated_in_batches_and_answers_are_those_of_any_model() -> None:
    """150 images are three batches, with a check before each; what they stand for is what they should say."""
    it, checks = learner(Hyperparameters(), ipc=50), list[None]()
    other = -it.model
    found = it.evaluate_memory(other, it.memory, lambda: checks.append(None))
    assert len(checks) == 3
    expected = it.engine.predict(other, it.memory.x_syn)[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[1], it.memory.y_syn)
    batches = np.split(it.memory.x_syn, [64, 128])
    np.testing.assert_allclose(it.answers_on(lambda check: iter(batches))(other, lambda: None), expected, rtol=1e-6)
    np.testing.assert_allclose(it.answer(other, it.observe(it.memory.x_syn)), expected, rtol=1e-6)


@pytest.mark.parametrize("ipc", [1, 3])
def test_one_image_per_class_works_as_many_do(ipc: int) -> None:
    it = learner(Hyperparameters(iterations=2), ipc=ipc)
    before = it.memory.x_syn.copy()
    it.learn(segment([2] * 5))
    assert not np.array_equal(before, it.memory.x_syn)
    assert np.isfinite(it.memory.x_syn).all()


def test_real_images_through_a_real_engine(engine, bundle_path) -> None:
    """Matching real digits of one class with a fitting rate brings the buffer's gradients closer to theirs."""
    bundle = open_bundle(bundle_path)
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    x = normalise(pixels[labels == 3][:24], bundle.preprocessing)
    pseudo, confidence = pseudo_label(engine.predict(bundle.weights(), x)[0])
    recipe = Hyperparameters(segment=24, alpha=0, synthetic_rate=30, iterations=40, threshold=0.3)
    it = Deco.open(bundle, engine, recipe, np.random.default_rng(0))

    def mean_distance(buffer: CondensedBuffer) -> float:
        """Over the same random models for both, with the buffer held still."""
        still = Hyperparameters(alpha=0, synthetic_rate=1e-9, iterations=10)
        rng = np.random.default_rng(9)
        measure = Deco(engine, bundle.parameters, it.model, buffer, 10, still, rng)
        done = measure.condense(x, np.full(len(x), 3), np.ones(len(x), np.float32), lambda: None)
        return float(np.mean(done.distances))

    before = mean_distance(it.memory)
    report = it.learn(Segment({"x": x}, pseudo, confidence, np.full(len(x), 3)))
    assert report.active == [3]
    assert report.pseudo_accuracy == 1.0
    assert mean_distance(it.memory) < before


def algorithm_1(
    engine: Engine,
    parameters: Sequence[Parameter],
    theta: Floats,
    x_syn: Floats,
    y_syn: Ints,
    stream: Floats,
    classes: int,
    recipe: Hyperparameters,
    rng: np.random.Generator,
) -> Iterator[tuple[Floats, Floats, Floats, list[float], list[float]]]:
    """Algorithm 1 of the paper from top to bottom, on frames (N, C, H, W): behind each I_t, θ, S, the momentum of
    opt_S, and D and L_cont of each iteration."""
    one_hot = np.eye(classes, dtype=np.float32)
    x_syn, velocity = x_syn.copy(), np.zeros_like(x_syn)
    for t in range(1, len(stream) // recipe.segment + 1):
        frames = stream[(t - 1) * recipe.segment : t * recipe.segment]  # I_t
        logits = np.concatenate([engine.predict(theta, frame[None])[0] for frame in frames])  # as a camera brings them
        pseudo = logits.argmax(axis=1)  # ŷ
        p = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)  # p(x)_ŷ
        votes = np.array([np.count_nonzero(pseudo == c) for c in range(classes)])
        active = np.isin(pseudo, np.flatnonzero(votes > recipe.threshold * recipe.segment))  # eq:filter
        x_real, t_real = frames[active], p[active, None] * one_hot[pseudo[active]]  # I_t^A, weighted
        of_class = np.flatnonzero(np.isin(y_syn, pseudo[active]))  # S_t^A of eq:active
        t_syn, distances, losses = one_hot[y_syn[of_class]], list[float](), list[float]()
        z = engine.predict(theta, x_syn)[1]
        for _ in range(recipe.iterations if active.any() else 0):  # l = 1 … L
            model = draw_model(parameters, rng)  # θ̃
            x = x_syn[of_class]
            _, g_syn = engine.weight_gradient(model, x, t_syn)
            _, g_real = engine.weight_gradient(model, x_real, t_real)
            distance, v = gradient_distance(g_syn, g_real)
            epsilon = recipe.epsilon / (dot(v, v) ** 0.5 + TINY)
            ahead = engine.input_gradient(model + (epsilon * v).astype(np.float32), x, t_syn)
            behind = engine.input_gradient(model - (epsilon * v).astype(np.float32), x, t_syn)
            gradient = ((ahead - behind) / (2 * epsilon)).astype(np.float32)  # eq:opt4
            z[of_class] = engine.predict(theta, x)[1]
            negative = draw_negative_classes(y_syn[of_class], classes, rng)
            loss, d_z = contrastive_loss(z, y_syn, of_class, negative, recipe.temperature)  # eq:contrast
            gradient = gradient + recipe.alpha * engine.feature_gradient(theta, x, d_z[of_class])
            velocity[of_class] = recipe.synthetic_momentum * velocity[of_class] + gradient  # opt_S of eq:final
            x_syn[of_class] = x - recipe.synthetic_rate * velocity[of_class]
            distances.append(distance)
            losses.append(loss)
        if t % recipe.retrain_interval == 0:
            moving = np.zeros_like(theta)
            for _ in range(recipe.retrain_epochs):  # opt_θ
                order = rng.permutation(len(y_syn))
                for start in range(0, len(order), recipe.retrain_batch):
                    batch = order[start : start + recipe.retrain_batch]
                    mean = one_hot[y_syn[batch]] * np.float32(1 / len(batch))
                    _, slope = engine.weight_gradient(theta, x_syn[batch], mean)
                    moving = recipe.retrain_momentum * moving + slope + recipe.weight_decay * theta
                    theta = theta - recipe.retrain_rate * moving
        yield theta, x_syn.copy(), velocity.copy(), distances, losses


class Watched(Stream):
    """Keeps what the learner was behind each segment, and what it said."""

    def __init__(self, guarded: Unguarded) -> None:
        super().__init__(guarded)
        self.seen: list[tuple[Floats, Floats, Floats]] = []
        self.reports: list[SegmentReport] = []
        self.retrains: list[RetrainReport] = []

    def learn(self, segment: Segment) -> None:
        super().learn(segment)
        memory: Any = self.learner.memory
        self.seen.append((self.learner.model, memory.x_syn.copy(), memory.velocity.copy()))

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        self.reports.append(report)

    def retrained(self, report: RetrainReport) -> None:
        self.retrains.append(report)


def follows_algorithm_1(it: Deco, stream: Floats) -> Watched:
    """The learner before these frames, once it is sure that it did what the paper says, bit for bit."""
    recipe, rng = it.recipe, np.random.default_rng(0)
    rng.bit_generator.state = it.rng.bit_generator.state
    start = it.engine, it.parameters, it.model, it.memory.x_syn.copy(), it.memory.y_syn.copy()
    watched = Watched(Unguarded(it))
    watched.follow((frame[None], np.array([-1])) for frame in stream)
    expected = list(algorithm_1(*start, stream, it.classes, recipe, rng))
    assert len(watched.seen) == len(expected) == len(stream) // recipe.segment
    for found, report, (*arrays, distances, losses) in zip(watched.seen, watched.reports, expected, strict=True):
        for one, other in zip(found, arrays, strict=True):
            assert one.dtype == other.dtype == np.float32
            assert one.tobytes() == other.tobytes()
        assert report.figures == {"distances": distances, "contrastive": losses[-1] if losses else None}
        assert report.dropped == 0
    assert it.rng.bit_generator.state == rng.bit_generator.state
    assert len(watched.retrains) == len(expected) // recipe.retrain_interval
    return watched


@pytest.mark.parametrize("ipc", [1, 2, 5])
@pytest.mark.parametrize("interval", [1, 2, 10])
def test_over_a_stream_it_is_algorithm_1_bit_for_bit(ipc: int, interval: int) -> None:
    """Scenes of one class, of two in turn, and of all, in which no vote has a majority."""
    recipe = Hyperparameters(
        *("paper", 10, interval), iterations=4, retrain_epochs=5, retrain_batch=4, retrain_rate=0.02, synthetic_rate=0.1
    )
    rng = np.random.default_rng(3)
    it = learner(recipe, ipc=ipc)
    means = 2 * np.eye(CLASSES, 12, dtype=np.float32)
    it.model = (0.5 * means + 0.05 * rng.standard_normal((CLASSES, 12))).astype(np.float32).reshape(-1)
    x_syn = means[it.memory.y_syn] + 0.3 * rng.standard_normal((len(it.memory.y_syn), 12))
    it.memory = CondensedBuffer.start(x_syn.astype(np.float32).reshape(-1, *SHAPE), it.memory.y_syn)
    scenes = [[0], [1], [2, 0], [0, 1, 2], [2], [1, 2], [0, 1, 2], [0], [1], [2]]
    y = np.concatenate([np.resize(scene, recipe.segment) for scene in scenes] + [np.zeros(7, np.int64)])
    stream = (means[y] + 0.3 * rng.standard_normal((len(y), 12))).astype(np.float32).reshape(-1, *SHAPE)
    watched = follows_algorithm_1(it, stream)
    found = [report.active for report in watched.reports]
    assert found == [active if len(active) < CLASSES else [] for active in map(sorted, scenes)]
    assert watched.segmenter.count == 7  # an incomplete segment is not I_t
    assert it.retrains == 10 // interval


def test_over_real_images_and_through_a_real_engine_too(engine, bundle_path) -> None:
    bundle = open_bundle(bundle_path)
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    order = np.concatenate([np.flatnonzero(np.isin(labels, scene))[:16] for scene in ([3], [1, 7], [0], [3])])
    recipe = Hyperparameters(segment=16, retrain_interval=2, iterations=2, retrain_epochs=3, retrain_rate=0.01)
    it = Deco.open(bundle, engine, recipe, np.random.default_rng(0))
    first = it.memory
    assert first.x_syn.tobytes() == initial(bundle).x_syn.tobytes()
    watched = follows_algorithm_1(it, normalise(pixels[order], bundle.preprocessing))
    assert [3] in [report.active for report in watched.reports]
    assert not np.array_equal(it.memory.x_syn, first.x_syn)
    assert not np.array_equal(it.model, bundle.weights())
