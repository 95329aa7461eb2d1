"""The learner of deco+: its W against the regression written out, and that nothing happens by halves."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning.arrays import Memory, arrays_of
from deco_runtime.learning.chain import decode
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Guarded, Unguarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.regression import PENALTY, Start, Statistics, add, scores
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.voter import Voter
from deco_runtime.learning.voter import start as starts_with
from deco_runtime.preprocess import normalise
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.scoring import normalised
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Bools, Floats, Ints, Observed, Segment
from fake_engine import LinearEngine
from hypothesis import given, settings
from hypothesis import strategies as st

RECIPE = DecoPlus.RECIPE


@pytest.fixture
def learner(bundle: Bundle) -> DecoPlus:
    return start(bundle, open_engine(bundle, "portable"))


def start(bundle: Bundle, engine: Engine) -> DecoPlus:
    return DecoPlus.open(bundle, engine, RECIPE, np.random.default_rng(0))


def images(bundle: Bundle, classes: list[int], n: int = 20) -> tuple[Floats, Ints]:
    """The first n test images of these classes, mixed, and their labels."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    index = np.flatnonzero(np.isin(labels, classes))[:n]
    return normalise(pixels[index], bundle.preprocessing), labels[index]


def segment(it: DecoPlus, x: Floats, y: Ints) -> Segment:
    """These images as the learner sees them; the votes of the deployed model are not looked at."""
    n = len(x)
    return Segment(it.observe(x), np.zeros(n, np.int64), np.full(n, 0.5, np.float32), y)


def digits(it: DecoPlus, bundle: Bundle, classes: list[int], n: int = 20) -> Segment:
    """The first n test images of these classes, mixed."""
    return segment(it, *images(bundle, classes, n))


def same_memory(a: Memory, b: Memory) -> bool:
    pairs = zip(arrays_of(a).values(), arrays_of(b).values(), strict=True)
    return type(a) is type(b) and all(np.array_equal(one, other) for one, other in pairs)


def everything(of: Unguarded) -> tuple[Any, ...]:
    it = of.learner
    counts = (it.segments, it.since_retrain, it.retrains, it.dropped)
    kept = of.kept if isinstance(of, Guarded) else None
    return it.model.tobytes(), it.memory, it.scene, counts, it.rng.bit_generator.state, kept


def test_w_is_the_regression_on_all_frames(engine: Engine, bundle: Bundle) -> None:
    """In float64, by the normal equations for classes in equal shares, on the labelled images and every frame since."""
    it, given = start(bundle, engine), starts_with(bundle)
    count = len(given.statistics.b)
    a, b = np.zeros((count, count)), given.statistics.b.astype(np.float64)
    a[np.triu_indices(count)] = given.statistics.a
    a = a + np.triu(a, 1).T
    first_w, carried = it.model[:-10].reshape(count, 10).astype(np.float64), None
    variances = np.diag(a - (b / b[-1]) @ b.T)[:-1] / b[-1].sum()  # within classes
    seen = [images(bundle, c, n) for c, n in (([3], 20), ([1, 7], 40), ([3, 8], 30), ([0], 20))]
    for x, y in seen:
        phi, votes = engine.represent(x)
        log_q = scipy.special.log_softmax(
            np.c_[phi, np.ones(len(phi))] @ first_w / given.regression_temperature, axis=1
        )
        log_p = scipy.special.log_softmax(votes.astype(np.float64) / given.network_temperature, axis=1)
        both = given.worth * log_q + (1 - given.worth) * log_p
        r = 1 - (np.diff(phi, axis=0) ** 2).sum(axis=1).mean() / (2 * variances.sum())
        p = scipy.special.softmax(both / (max(1.5, (1 + r) / (1 - r)) * given.mixed_temperature), axis=1)
        decoded = decode(p.astype(np.float32), carried)
        t, carried = decoded.posterior, decoded.last
        z = np.c_[phi, np.ones(len(phi))].astype(np.float64)
        a += z.T @ z
        b += z.T @ t
        it.learn(segment(it, x, y))
        assert it.retrain().accepted
    each, frames = b[-1].sum() / 10, b[-1]
    a += sum((each - n) * np.outer(mean, mean) for n, mean in zip(frames, (b / frames).T, strict=True))
    known = given.statistics.b[-1].sum()
    assert given.prior > 0  # fewer labelled images than axes
    strength = (PENALTY + given.prior * known / frames.sum()) * np.trace(a) / count
    w = scipy.linalg.solve(a + strength * np.eye(count), each * b / frames, assume_a="pos")
    np.testing.assert_allclose(it.model[:-10].reshape(count, 10), w, atol=1e-5 * np.abs(w).max())
    x, _ = seen[1]
    phi, votes = engine.represent(x)
    now, first = given.worth * frames, (1 - given.worth) * given.statistics.b[-1]
    log_q = scipy.special.log_softmax(np.c_[phi, np.ones(len(x))] @ w / given.regression_temperature, axis=1)
    log_p = scipy.special.log_softmax(votes / given.network_temperature, axis=1)
    expected = (now * log_q + first * log_p) / (now + first)
    np.testing.assert_allclose(it.predict(x), expected, atol=1e-4 * np.abs(expected).max())
    assert (it.segments, it.retrains, it.dropped) == (4, 4, 0)


def test_the_order_of_segments_does_not_matter(bundle: Bundle) -> None:
    engine, found = open_engine(bundle, "portable"), []
    for order in (range(4), range(3, -1, -1)):
        it = start(bundle, engine)
        for c in order:
            it.learn(
                replace(digits(it, bundle, [c], 10 + c), cut=np.arange(10 + c) == 0)
            )  # else the chain goes on from one to the next
        it.retrain()
        found.append(it.model)
    np.testing.assert_allclose(*found, atol=1e-5 * np.abs(found[0]).max())


def test_the_model_changes_with_an_update_only(learner: DecoPlus, bundle: Bundle) -> None:
    before = learner.model
    learner.learn(digits(learner, bundle, [3]))
    assert learner.model is before
    assert learner.retrain_due
    report = learner.retrain()
    assert (report.accepted, report.loss, report.verdict) == (True, None, None)
    assert not np.array_equal(learner.model, before)
    assert not learner.retrain_due


def test_a_segment_of_one_class_is_given_that_class(learner: DecoPlus, bundle: Bundle) -> None:
    report = learner.learn(digits(learner, bundle, [3]))
    assert report.active == [3]
    assert (report.kept, report.pseudo_accuracy, report.dropped) == (1.0, 1.0, 0)
    assert (report.figures, report.words) == ({"unknown": 0}, {})


def test_true_labels_score_and_do_nothing_else(bundle: Bundle) -> None:
    seeing, blind = (start(bundle, open_engine(bundle, "portable")) for _ in range(2))
    given = digits(seeing, bundle, [1, 7], 40)
    assert seeing.learn(given).pseudo_accuracy is not None
    assert blind.learn(replace(given, labels=np.full(40, -1))).pseudo_accuracy is None
    assert same_memory(seeing.memory, blind.memory)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_frames_that_are_not_finite_change_nothing_and_are_counted(
    value: float, learner: DecoPlus, bundle: Bundle
) -> None:
    """One of them spoils its segment: φ of it is what no sum recovers from."""
    x, y = images(bundle, [3])
    good = segment(learner, x, y)
    x[7, 0, 2, 2] = value
    memory, model = learner.memory, learner.model
    report = learner.learn(segment(learner, x, y))
    assert (report.active, report.kept, report.dropped) == ([], 0.0, 1)
    assert learner.memory is memory
    assert (learner.segments, learner.dropped) == (1, 1)
    assert learner.retrain().accepted
    np.testing.assert_array_equal(learner.model, model)
    assert learner.learn(good).kept == 1.0


@pytest.mark.parametrize("guarded", [False, True])
def test_stopping_half_way_leaves_everything_as_it_was(guarded: bool, bundle: Bundle) -> None:
    """At each call of `check`, of which a guard makes some more; doing it again gives what undisturbed learners get."""
    engine = open_engine(bundle, "portable")
    it, other = (
        open_guard(bundle, each)[0] if guarded else Unguarded(each)
        for each in (start(bundle, engine), start(bundle, engine))
    )
    assert isinstance(it, Guarded) == guarded
    given, stops = digits(it.learner, bundle, [3]), []

    for do in (lambda each, check: each.learn(given, check), lambda each, check: each.retrain(check)):
        for count in range(100):
            before, calls = everything(it), iter(range(count))

            def check(calls: Any = calls) -> None:
                if next(calls, None) is None:
                    raise KeyboardInterrupt

            try:
                do(it, check)
            except KeyboardInterrupt:
                after = everything(it)
                assert all(a is b or a == b for a, b in zip(before, after, strict=True))
            else:
                break
        stops.append(count)
        do(other, lambda: None)
        assert it.learner.model.tobytes() == other.learner.model.tobytes()
        assert same_memory(it.learner.memory, other.learner.memory)
    assert stops == [1, 1 if guarded else 0]  # the guard images are one batch


def test_answers_on_are_answers_and_represent_images_once(bundle: Bundle) -> None:
    class Counting:
        def __init__(self, engine: Engine) -> None:
            self.engine, self.images = engine, 0

        def represent(self, x: Floats) -> tuple[Floats, Floats]:
            self.images += len(x)
            return self.engine.represent(x)

    engine: Any = Counting(open_engine(bundle, "portable"))
    it, checks = start(bundle, engine), list[None]()
    pixels, _ = bundle.labelled_pixels("demo/test.npz")
    pixels = pixels[:100]
    answers = it.answers_on(partial(normalised, pixels, bundle.preprocessing))
    assert engine.images == 0
    for model in (it.model, -it.model):
        found = answers(model, lambda: checks.append(None))
        expected = it.answer(model, it.observe(normalise(pixels, bundle.preprocessing)))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    assert engine.images == 3 * 100  # once by `answers`, twice by `observe`
    assert len(checks) == 2  # batches of 64, the first time


class Mirrored(DecoPlus):
    """Its votes for class c are votes for class K − 1 − c."""

    def likelihood(self, observed: Observed, cut: Bools | None) -> Floats:
        return super().likelihood(observed, cut)[:, ::-1]


def test_the_guard_rejects_what_harms_and_goes_back(bundle: Bundle) -> None:
    engine = open_engine(bundle, "portable")
    it, free = (Mirrored(engine, Voter(starts_with(bundle), 10), RECIPE, np.random.default_rng(0)) for _ in range(2))
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    held = pixels[-100:]  # the bundle's own ten are too few to tell harm from chance
    logits = it.answers_on(lambda check: normalised(held, bundle.preprocessing, check))
    guarded = Guarded(it, Labelled(logits, labels[-100:], np.arange(100), bundle.classes))
    unseen, true = images(bundle, list(range(10)), 250)

    def accuracy(of: DecoPlus) -> float:
        return float(np.mean(of.predict(unseen).argmax(axis=1) == true))

    first, memory, mixed = it.model, it.memory, digits(it, bundle, list(range(10)), 200)
    for number in range(1, 4):
        for each in (guarded, free):
            each.learn(mixed)
        assert it.memory is not memory
        report = guarded.retrain()
        assert not report.accepted
        assert report.verdict is not None
        assert "guard images" in str(report.verdict.reason)
        assert it.model is first
        assert it.memory is memory
        assert (guarded.kept.rejections, report.rejections, it.dropped) == (number, number, number)
        assert free.retrain().accepted
    assert accuracy(free) < accuracy(it) - 0.1
    assert guarded.pause == report.pause == 1
    three = digits(it, bundle, [3])
    assert (guarded.learn(three).active, it.memory) == ([], memory)  # it pauses
    assert guarded.learn(three).active == [6]


def test_without_guard_images_only_what_is_not_finite_is_rejected(learner: DecoPlus, bundle: Bundle) -> None:
    bare = replace(bundle, files={name: digest for name, digest in bundle.files.items() if name != "guard.npz"})
    guarded, note = open_guard(bare, learner)
    assert note is not None
    guarded.learn(digits(learner, bundle, [3]))
    assert guarded.retrain().accepted
    memory, model = learner.memory, learner.model
    assert guarded.kept.memory is memory
    learner.memory = Statistics(learner.memory.a, learner.memory.b * np.float32(np.inf))
    with np.errstate(invalid="ignore"):
        report = guarded.retrain()
    assert report.verdict is not None
    assert (report.accepted, report.verdict.reason) == (False, "is not finite")
    assert learner.memory is memory
    assert learner.model is model


def linear(
    classes: int, seen: int, temperatures: tuple[float, float, float] = (1.0, 1.0, 1.0), worth: float = 0.5
) -> DecoPlus:
    """Images of `classes` directions in 12 dimensions; the first `seen` of the classes are among the labelled ones."""
    rng = np.random.default_rng(0)
    means = 4 * np.eye(classes, 12, dtype=np.float32)
    y = np.repeat(np.arange(seen), 20)
    x = means[y] + rng.standard_normal((len(y), 12)).astype(np.float32)
    known = add(Statistics.zero(12, classes), x, np.eye(classes, dtype=np.float32)[y])
    voter = Voter(Start(known, *temperatures, worth), classes)
    return DecoPlus(LinearEngine(classes, means.ravel()), voter, RECIPE, rng)


def frames(y: list[int], classes: int, seed: int = 1) -> Floats:
    """Images of these classes, as `linear` knows them."""
    rng, n = np.random.default_rng(seed), len(y)
    x = 4 * np.eye(classes, 12)[y] + rng.standard_normal((n, 12))
    return x.reshape(n, 3, 2, 2).astype(np.float32)


def learn(it: DecoPlus, y: list[int]) -> SegmentReport:
    return it.learn(segment(it, frames(y, it.classes), np.asarray(y)))


def test_two_classes() -> None:
    it = linear(2, 2)
    for y in ([0] * 30, [1] * 30, [0, 1] * 15):
        report = learn(it, y)
        assert report.active == sorted(set(y))
        it.retrain()
    assert it.model.shape == (13 * 2 + 2,)
    unseen = frames([0, 1] * 20, 2, seed=2)
    assert np.mean(it.predict(unseen).argmax(axis=1) == [0, 1] * 20) > 0.9


def test_a_class_without_a_labelled_image_is_none_of_the_regressions_until_the_votes_bring_it() -> None:
    it, unseen = linear(3, 2), frames([2] * 20, 3, seed=2)
    phi, _ = it.engine.represent(unseen)
    assert np.isfinite(it.model).all()
    assert not np.any(scores(it.model[:-3].reshape(13, 3), phi)[:, 2])
    assert learn(it, [2] * 60).active == [2]
    it.retrain()
    assert np.mean(scores(it.model[:-3].reshape(13, 3), phi).argmax(axis=1) == 2) > 0.9


def up_to_a_constant(logits: Floats) -> Floats:
    """Of each row, which changes no probability."""
    return logits - logits.mean(axis=1, keepdims=True)


def test_the_temperatures_divide_what_both_models_say() -> None:
    plain, wide, cold = linear(3, 3), linear(3, 3, (1.0, 4.0, 1.0)), linear(3, 3, (20.0, 1.0, 1.0))
    x = frames([0, 1, 2], 3)
    _, votes = plain.engine.represent(x)
    hot, answer, broad, cool = (up_to_a_constant(z) for z in (votes, *(it.predict(x) for it in (plain, wide, cold))))
    np.testing.assert_allclose(4 * (broad - hot / 2), answer - hot / 2, atol=1e-4)
    np.testing.assert_allclose(cool - hot / 2 / 20, answer - hot / 2, atol=1e-4)


@pytest.mark.parametrize("worth", [0.0, 0.3, 1.0])
def test_the_votes_are_what_the_bundle_starts_with_whatever_was_learned_since(worth: float) -> None:
    """Softened by the temperature of both, and by how alike neighbours are."""
    it, y = linear(3, 3, (2.0, 0.5, 1.3), worth), [0] * 6 + [1] * 6 + [2] * 6
    observed = it.observe(frames(y, 3))
    phi, votes = observed["phi"], observed["logits"]
    w = it.model[:-3].reshape(13, 3)
    log_q = scipy.special.log_softmax(np.c_[phi, np.ones(18)] @ w / 0.5, axis=1)
    both = worth * log_q + (1 - worth) * scipy.special.log_softmax(votes / 2.0, axis=1)
    # the labelled images of `linear`, whose classes have a covariance of 1 but for chance
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((60, 12)).reshape(3, 20, 12)
    r = 1 - (np.diff(phi, axis=0) ** 2).sum(axis=1).mean() / (2 * noise.var(axis=1).mean(axis=0).sum())
    expected = scipy.special.softmax(both / (max(1.5, (1 + r) / (1 - r)) * 1.3), axis=1)
    np.testing.assert_allclose(it.likelihood(observed, None), expected, rtol=1e-4, atol=1e-6)
    first = it.memory
    t = decode(expected.astype(np.float32)).posterior
    learn(it, y)
    np.testing.assert_allclose(it.memory.b, add(first, phi, t).b, rtol=1e-3, atol=1e-3)
    it.retrain()
    for _ in range(3):  # of another class, as the votes have it
        learn(it, [1] * 40)
        it.retrain()
    np.testing.assert_allclose(it.likelihood(observed, None), expected, rtol=1e-4, atol=1e-6)


def test_a_scene_goes_on_in_the_next_segment_unless_the_stream_was_cut_or_a_segment_passed_over() -> None:
    def learned(cut: bool, lost: bool) -> Floats:
        it = linear(3, 3)
        learn(it, [1] * 40)
        assert it.scene is not None
        assert it.scene.argmax() == 1
        if lost:
            it.interrupted()
        y = [1] * 8 + [0] * 24
        x = frames(y, 3)
        x[:8] = (np.eye(12)[1] + np.eye(12)[2]).reshape(3, 2, 2)  # may be 1 or 2
        before = it.memory.b[-1]
        it.learn(replace(segment(it, x, np.asarray(y)), cut=np.arange(32) == 0 if cut else None))
        return it.memory.b[-1] - before

    assert learned(False, False)[1] > learned(True, False)[1] + 2
    np.testing.assert_array_equal(learned(True, False), learned(False, True))


@given(st.integers(1, 30), st.integers(2, 6), st.integers(0, 2**31), st.floats(0, 1e4))
@settings(max_examples=30)
def test_any_frames_are_counted_once_each(n: int, classes: int, seed: int, size: float) -> None:
    """The constant's moment is the number of frames, and every frame's shares sum to 1."""
    rng, it = np.random.default_rng(seed), linear(classes, classes)
    x = (size * rng.standard_normal((n, 3, 2, 2))).astype(np.float32)
    report = it.learn(segment(it, x, np.full(n, -1)))
    assert report.kept == 1
    assert it.memory.a[-1] == pytest.approx(20 * classes + n, rel=1e-5)
    assert it.memory.b[-1].sum() == pytest.approx(20 * classes + n, rel=1e-5)
    it.retrain()
    assert np.isfinite(it.model).all()
