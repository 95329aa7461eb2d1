"""The guard: its statistics against scipy, its rules at work, and what it goes back to."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco import Learner
from deco_runtime.learning.guard import (
    CHANCE,
    DOUBLINGS,
    MARGIN,
    PATIENCE,
    Guard,
    Kept,
    Labelled,
    Rehearse,
    by_take,
    compared,
    doubt_per_error,
    effective_classes,
    sign_test,
    smallest_harm,
    worse,
)
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.types import Floats, Ints, Segment
from fake_engine import LinearEngine
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

SHAPE = (3, 2, 2)
WIDE = 12


def answers_as(answers: Ints, classes: int) -> Floats:
    """Logits (g, K) whose largest is at these answers; the model gives them 0.9 or so."""
    logits = np.zeros((len(answers), classes), np.float32)
    logits[np.arange(len(answers)), answers] = np.log(9 * (classes - 1))
    return logits


def rehearsing(engine: LinearEngine) -> Rehearse:
    """What this engine makes of a buffer's images, and what they stand for."""
    return lambda theta, buffer, check: (
        engine.predict(theta, buffer.x_syn)[0],
        buffer.y_syn,
    )


class Scripted:
    """Guard images whose answers under θ are looked up by θ's first weight; the buffer is always right."""

    def __init__(self, labels: Ints, classes: int, takes: Ints | None = None) -> None:
        """takes: each image its own where not given."""
        self.labels, self.classes = labels, classes
        self.takes = np.arange(len(labels)) if takes is None else takes
        self.answers: dict[float, Ints] = {}
        self.scale: dict[float, float] = {}

    def theta(self, answers: Ints, scale: float = 1.0) -> Floats:
        """A model that gives these answers, its logits multiplied."""
        theta = np.zeros(self.classes * WIDE, np.float32)
        theta[0] = len(self.answers)
        self.answers[float(theta[0])] = answers
        self.scale[float(theta[0])] = scale
        return theta

    def logits(self, theta: Floats, check: Callable[[], None]) -> Floats:
        check()
        key = float(theta[0])
        return (self.scale[key] * answers_as(self.answers[key], self.classes)).astype(np.float32)

    def guard(self, frozen: Floats) -> Guard:
        y = np.arange(self.classes)
        buffer = CondensedBuffer.start(np.zeros((self.classes, *SHAPE), np.float32), y)
        names = tuple(f"class {c}" for c in y)
        labelled = Labelled(self.logits, self.labels, self.takes, names)
        return Guard(rehearsing(LinearEngine(self.classes)), frozen, buffer, labelled)


def scripted(classes: int = 10, each: int = 50) -> Scripted:
    return Scripted(np.repeat(np.arange(classes), each), classes)


def with_wrong(labels: Ints, index: Ints, classes: int) -> Ints:
    """These answers, wrong at the places given."""
    answers = labels.copy()
    answers[index] = (answers[index] + 1) % classes
    return answers


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_sign_test_is_scipys(lost: int, gained: int) -> None:
    if lost + gained:
        expected = stats.binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue
        assert sign_test(lost, gained) == pytest.approx(expected, rel=1e-9)
    else:
        assert sign_test(0, 0) == 1.0


def test_the_sign_test_of_thousands_of_changes_is_exact_and_quick() -> None:
    assert sign_test(5100, 4900) == pytest.approx(stats.binom.sf(5099, 10_000, 0.5), rel=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60))
def test_effective_classes_are_the_exponential_of_scipys_entropy(answers: list[int]) -> None:
    expected = np.exp(stats.entropy(np.bincount(answers, minlength=10)))
    assert effective_classes(np.asarray(answers), 10) == pytest.approx(expected)


@given(st.integers(1, 30), st.integers(2, 9), st.integers(0, 2**31), st.floats(0.1, 3000))
def test_doubt_is_that_of_scipys_softmax(n: int, classes: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    logits, right = (scale * rng.standard_normal((n, classes))).astype(np.float32), rng.random(n) < 0.5
    doubt = 1 - special.softmax(logits.astype(np.float64), axis=1).max(axis=1)
    expected = doubt.mean() / max(1 - right.mean(), 1 / n)
    assert doubt_per_error(logits, right) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def judged(n: int, lost: float, gained: float, takes: int = 1, trials: int = 2000) -> float:
    """Part of the updates that are accepted, of which each loses an answer with this probability and gains one with
    that; n takes of so many images each, whose answers change all together."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 10
    it = Scripted(np.repeat(labels, takes), 10, np.repeat(np.arange(n), takes))
    first = rng.random(n) < 0.7
    wrong = (labels + 1) % 10
    frozen = it.theta(np.repeat(np.where(first, labels, wrong), takes))
    guard, accepted = it.guard(frozen), 0
    for _ in range(trials):
        draw = rng.random(n)
        right = np.where(first, draw >= lost / 0.7, draw < gained / 0.3)
        accepted += guard.judge(
            it.theta(np.repeat(np.where(right, labels, wrong), takes)), frozen, guard.kept.memory
        ).accepted
        it.answers = {float(frozen[0]): it.answers[float(frozen[0])]}
        it.scale = {0.0: 1.0}
    return accepted / trials


@pytest.mark.parametrize(("n", "images"), [(18, 1), (18, 30), (100, 1), (500, 1)])
@pytest.mark.parametrize("changed", [0.02, 0.06, 0.2])
def test_an_update_that_changes_nothing_is_accepted_95_times_of_100(n: int, images: int, changed: float) -> None:
    """As many answers are lost as gained, by chance; a take of 30 images is one observation."""
    assert judged(n, changed / 2, changed / 2, images, trials=600) >= 0.95


@pytest.mark.parametrize(
    ("n", "loss", "at_most"), [(500, 0.04, 0.15), (500, 0.05, 0.04), (200, 0.08, 0.1), (18, 0.65, 0.1)]
)
def test_harm_seldom_passes(n: int, loss: float, at_most: float) -> None:
    """Of updates that truly lose this much and change 3 % more both ways, at most so many are published."""
    assert judged(n, loss + 0.015, 0.015, trials=600) <= at_most


def test_what_helps_passes() -> None:
    assert judged(500, 0.02, 0.04, trials=300) >= 0.98


@pytest.mark.parametrize("takes", [1, 5, 6, 9, 18, 50, 500, 10_000])
def test_the_smallest_harm_that_is_seen_is_told(takes: int) -> None:
    """So many takes lost and none gained is rejected, and one take less is not, unless none ever is."""
    told = smallest_harm(takes)
    before = np.ones(takes)
    rejected = [k for k in range(min(takes, 200) + 1) if worse(before, before - (np.arange(takes) < k))]
    if told is None:
        assert rejected == []
    else:
        assert rejected[0] == (round(told * takes) if told > MARGIN else np.floor(MARGIN * takes) + 1)


def test_a_take_counts_once_however_long_it_is() -> None:
    takes = np.array([7, 7, 7, 7, 2, 5])
    before, after = by_take(takes, np.array([1, 1, 1, 1, 1, 0], bool), np.array([1, 0, 0, 0, 1, 1], bool))
    np.testing.assert_allclose(before, [1, 0, 1])
    np.testing.assert_allclose(after, [1, 1, 0.25])
    assert compared(before, after) == (1, 1)
    assert (before - after).mean() == pytest.approx((0.75 - 1) / 3)


@given(st.integers(1, 60), st.data())
def test_the_rule_agrees_with_its_words(n: int, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, n))
    gained = data.draw(st.integers(0, n - lost))
    kind = np.arange(n)
    before, after = (kind < lost).astype(float), ((kind >= lost) & (kind < lost + gained)).astype(float)
    expected = (
        lost - gained > MARGIN * n and stats.binomtest(lost, lost + gained, 0.5, alternative="greater").pvalue < CHANCE
        if lost + gained
        else False
    )
    assert worse(before, after) == expected


def test_an_update_is_published_or_rejected_for_its_answers() -> None:
    it = scripted()
    frozen = it.theta(with_wrong(it.labels, np.arange(0, 500, 3), 10))
    guard = it.guard(frozen)
    buffer = guard.kept.memory
    better = it.theta(with_wrong(it.labels, np.arange(0, 500, 4), 10))
    verdict = guard.judge(better, frozen, buffer)
    assert verdict.accepted
    assert verdict.scores["accuracy"] == 0.75
    assert verdict.scores["frozen_accuracy"] == 333 / 500
    bad = it.theta(with_wrong(it.labels, np.arange(0, 500, 2), 10))
    verdict = guard.judge(bad, frozen, buffer)
    assert not verdict.accepted
    assert verdict.reason == "loses 166 and gains 83 of 500 guard images against the bundle's model"
    assert (verdict.scores["lost"], verdict.scores["gained"]) == (166, 83)
    assert json.dumps(verdict.scores)  # for the event stream


def test_a_hundred_small_losses_do_not_add_up() -> None:
    """Each step loses two images more than the one before, which no test of one step could call harm."""
    it = scripted()
    wrong = np.arange(200)
    frozen = it.theta(with_wrong(it.labels, wrong, 10))
    guard, accepted, published = it.guard(frozen), frozen, 200
    for step in range(1, 101):
        theta = it.theta(with_wrong(it.labels, np.arange(200 + 2 * step), 10))
        verdict = guard.judge(theta, accepted, guard.kept.memory)
        guard.settle(verdict, guard.kept.memory, 10)
        if verdict.accepted:
            accepted, published = theta, 200 + 2 * step
    assert published <= 205  # one point of 500


def test_nor_does_what_was_gained_get_lost_again_little_by_little() -> None:
    it = scripted()
    frozen = it.theta(with_wrong(it.labels, np.arange(200), 10))
    guard, accepted, published = it.guard(frozen), frozen, 200
    for wrong in (150, 100, *range(101, 200)):
        theta = it.theta(with_wrong(it.labels, np.arange(wrong), 10))
        verdict = guard.judge(theta, accepted, guard.kept.memory)
        guard.settle(verdict, guard.kept.memory, 10)
        if verdict.accepted:
            accepted, published = theta, wrong
    assert 100 <= published <= 105
    assert guard.kept.best.sum() == 400


def test_the_luckiest_of_many_updates_is_not_what_the_next_is_measured_by() -> None:
    """A hundred updates that change nothing but by chance: the best so far stays what it was."""
    it, rng = scripted(), np.random.default_rng(0)
    wrong = rng.random(500) < 0.3
    frozen = it.theta(with_wrong(it.labels, np.flatnonzero(wrong), 10))
    guard = it.guard(frozen)
    for _ in range(100):
        moved = np.concatenate([rng.choice(np.flatnonzero(wrong), 10), rng.choice(np.flatnonzero(~wrong), 10)])
        other = wrong.copy()
        other[moved] ^= True
        guard.settle(
            guard.judge(it.theta(with_wrong(it.labels, np.flatnonzero(other), 10)), frozen, guard.kept.memory),
            guard.kept.memory,
            1,
        )
    assert guard.kept.best.sum() <= np.count_nonzero(~wrong) + 10


def test_a_take_that_is_lost_is_told_as_one() -> None:
    labels = np.repeat(np.arange(10), 60)
    it = Scripted(labels, 10, np.repeat(np.arange(20), 30))
    frozen, bad = it.theta(labels), it.theta(with_wrong(labels, np.arange(0, 600, 2), 10))
    verdict = it.guard(frozen).judge(bad, frozen, it.guard(frozen).kept.memory)
    assert verdict.reason == "loses 20 and gains 0 of 20 guard takes against the bundle's model"
    assert (verdict.scores["images"], verdict.scores["takes"]) == (600, 20)


def test_a_class_that_is_lost_is_seen_behind_gains_elsewhere() -> None:
    it = scripted()
    frozen = it.theta(with_wrong(it.labels, np.arange(250, 350), 10))
    forgets = it.theta(with_wrong(it.labels, np.arange(30), 10))  # class 0 mostly wrong, all else right
    guard = it.guard(frozen)
    verdict = guard.judge(forgets, frozen, guard.kept.memory)
    assert verdict.scores["gained"] > verdict.scores["lost"]
    assert verdict.reason == "loses 30 and gains 0 of 50 guard images of 'class 0'"
    assert verdict.scores["worst_class"] == "class 0"
    assert verdict.scores["worst_class_lost"] == 30


def test_confidence_that_explodes_is_seen() -> None:
    it = scripted()
    wrong = with_wrong(it.labels, np.arange(200), 10)
    frozen = it.theta(wrong)
    guard = it.guard(frozen)
    assert guard.judge(it.theta(wrong, scale=1.1), frozen, guard.kept.memory).accepted
    verdict = guard.judge(it.theta(wrong, scale=10.0), frozen, guard.kept.memory)
    assert verdict.reason is not None
    assert verdict.reason.startswith("doubts 0% as much per mistake")


def unlabelled(classes: int = 4) -> tuple[Guard, Floats]:
    """A guard that only has the buffer, whose image of class c is a one at pixel c; θ answers all of it right."""
    x = np.eye(classes, WIDE, dtype=np.float32).reshape(classes, *SHAPE)
    theta = np.eye(classes, WIDE, dtype=np.float32).reshape(-1)
    buffer = CondensedBuffer.start(x, np.arange(classes))
    return Guard(rehearsing(LinearEngine(classes)), theta, buffer, None), theta


def test_without_guard_images_collapse_and_what_is_not_finite_are_met() -> None:
    guard, theta = unlabelled()
    buffer = guard.kept.memory
    assert guard.judge(theta * 2, theta, buffer).accepted
    one = np.zeros_like(theta)
    one[:WIDE] = 1  # answers class 0, whatever it sees
    assert guard.judge(one, theta, buffer).reason == "answers with 1.0 classes where 4.0 are known"
    for broken in (np.nan, np.inf):
        bad = theta.copy()
        bad[5] = broken
        assert guard.judge(bad, theta, buffer).reason == "is not finite"
    image = CondensedBuffer(buffer.x_syn * np.float32(np.nan), buffer.y_syn, buffer.velocity)
    assert guard.judge(theta, theta, image).reason == "is not finite"
    with np.errstate(over="ignore", invalid="ignore"):
        huge = CondensedBuffer(buffer.x_syn * np.float32(1e38), buffer.y_syn, buffer.velocity)
        assert guard.judge(theta * np.float32(1e38), theta, huge).reason == "gives answers that are not finite"


def test_only_a_drop_on_the_buffer_counts() -> None:
    """Condensed images may be taken for something else from the start."""
    guard, theta = unlabelled(10)
    x = np.repeat(guard.kept.memory.x_syn, 10, axis=0)
    y = np.repeat(np.arange(10), 10)
    y[::10] = (y[::10] + 1) % 10  # ten that no model of these takes for what they stand for
    buffer = CondensedBuffer.start(x, y)
    verdict = guard.judge(theta * 2, theta, buffer)
    assert verdict.accepted
    assert verdict.scores["buffer_right"] == 0.9
    swapped = theta.reshape(10, WIDE)[[1, 0, *range(2, 10)]].reshape(-1)
    assert guard.judge(swapped, theta, buffer).reason == "loses 18 and gains 1 of the buffer's 100 images"


def test_after_three_rejections_learning_pauses_ever_longer() -> None:
    it = scripted()
    good, bad = it.theta(it.labels), it.theta(with_wrong(it.labels, np.arange(250), 10))
    guard = it.guard(good)
    first, other = guard.kept.memory, CondensedBuffer.start(np.ones((10, *SHAPE), np.float32), np.arange(10))
    assert guard.settle(guard.judge(good, good, other), other, 5) is other
    pauses = []
    for _ in range(PATIENCE + DOUBLINGS + 3):
        assert guard.settle(guard.judge(bad, good, first), first, 5) is other
        pauses.append(guard.kept.pause)
    assert pauses == [0, 0, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 5120, 5120, 5120]
    guard.kept = Kept(other, guard.kept.best, rejections=2**62)
    guard.settle(guard.judge(bad, good, first), first, 5)
    assert guard.kept.pause == 5120
    for left in range(5119, -1, -1):
        assert guard.pass_over()
        assert guard.kept.pause == left
    assert not guard.pass_over()
    guard.settle(guard.judge(good, good, first), first, 5)
    assert (guard.kept.rejections, guard.kept.pause) == (0, 0)
    assert guard.kept.memory is first


def learner(recipe: Recipe, classes: int = 3, ipc: int = 2, wide: int = WIDE) -> Learner:
    """A linear model on classes that are a direction each, which it knows; guarded by 20 images of each."""
    rng = np.random.default_rng(0)
    means = 3 * rng.standard_normal((classes, wide)).astype(np.float32)

    def draw(each: int) -> tuple[Floats, Ints]:
        y = np.repeat(np.arange(classes), each)
        x = means[y] + rng.standard_normal((len(y), wide)).astype(np.float32)
        return x.reshape(len(y), 3, -1, 2), y

    theta = (means - means.mean(axis=0)).reshape(-1)
    engine = LinearEngine(classes)
    buffer = CondensedBuffer.start(*draw(ipc))
    x, y = draw(20)
    it = Learner(
        engine, (Parameter("weight", (classes, wide), 0, "normal", 0.0, 0.3),), theta, buffer, classes, recipe, rng
    )
    alone, names = np.arange(len(y)), tuple(map(str, range(classes)))
    guarded = Labelled(lambda at, check: engine.predict(at, x)[0], y, alone, names)
    it.guard = Guard(it.rehearse, theta, buffer, guarded)
    return it


def frames(pseudo: list[int], wide: int = WIDE) -> Segment:
    x = np.random.default_rng(1).standard_normal((len(pseudo), 3, wide // 6, 2)).astype(np.float32)
    n = len(pseudo)
    return Segment(x, np.asarray(pseudo, np.int64), np.full(n, 0.9, np.float32), np.full(n, -1))


def test_a_rejected_update_takes_model_and_buffer_back_and_then_learning_pauses() -> None:
    # weight decay at this rate turns θ round
    it = learner(Recipe(iterations=1, retrain_interval=1, retrain_epochs=1, retrain_rate=1e4))
    theta, buffer = it.theta, it.buffer
    for rejections in (1, 2, 3):
        it.learn(frames([1] * 4))
        assert it.buffer is not buffer
        report = it.retrain()
        assert not report.accepted
        assert report.verdict is not None
        assert report.verdict.reason
        assert it.theta is theta
        assert it.buffer is buffer
        assert it.guard is not None
        assert it.guard.kept.rejections == rejections == it.dropped
    generator = it.rng.bit_generator.state
    report = it.learn(frames([1] * 4))
    assert (report.active, report.kept, report.distances) == ([], 0, [])
    assert it.buffer is buffer
    assert it.rng.bit_generator.state == generator
    assert not it.retrain_due
    it.learn(frames([1] * 4))
    assert it.buffer is not buffer
    assert it.segments == 5


def test_stopping_in_the_judgement_leaves_everything_as_it_was() -> None:
    it = learner(Recipe(iterations=1, retrain_interval=1, retrain_epochs=1))
    it.learn(frames([1] * 4))
    theta, buffer, generator, kept = it.theta, it.buffer, it.rng.bit_generator.state, it.guard.kept
    calls = iter(range(100))

    def check() -> None:
        if next(calls) == 2:  # the epoch, then the buffer under the new model
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        it.retrain(check)
    assert it.theta is theta
    assert it.buffer is buffer
    assert it.guard.kept is kept
    assert it.rng.bit_generator.state == generator
    assert it.retrains == 0
    assert it.retrain().verdict is not None


def test_gradients_that_are_not_finite_are_rejected_and_the_buffer_goes_back() -> None:
    class Broken(LinearEngine):
        def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
            loss, gradient = super().weight_gradient(theta, x, t)
            return loss, gradient * np.float32(np.nan)

    it = learner(Recipe(iterations=1, retrain_interval=1, retrain_epochs=2))
    it.engine, theta, buffer = Broken(3), it.theta, it.buffer
    assert it.learn(frames([1] * 4)).dropped == 1
    report = it.retrain()
    assert report.verdict is not None
    assert report.verdict.reason == "is not finite"
    assert it.theta is theta
    assert it.buffer is buffer


@pytest.mark.parametrize("pseudo", [[], [0, 1, 2] * 4])
def test_a_segment_that_is_empty_or_has_no_active_class_changes_nothing(pseudo: list[int]) -> None:
    it = learner(Recipe(iterations=1))
    buffer = it.buffer
    report = it.learn(frames(pseudo))
    assert (report.active, report.kept) == ([], 0)
    assert it.buffer is buffer
    assert it.segments == it.since_retrain == 1


class Counting(LinearEngine):
    """Counts the images it is asked about."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.images = 0

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        self.images += len(x)
        return super().predict(theta, x)

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        self.images += len(x)
        return super().weight_gradient(theta, x, t)


@pytest.mark.parametrize(("classes", "ipc"), [(2, 1), (3, 2), (100, 1), (1000, 1), (1000, 2)])
def test_two_to_a_thousand_classes(classes: int, ipc: int) -> None:
    """The whole round works, and asks the engine about a number of images that grows with the classes, not squared."""
    it = learner(Recipe(iterations=2, retrain_interval=1, retrain_epochs=2, retrain_rate=1e-6), classes, ipc)
    it.engine = engine = Counting(classes)
    before = it.buffer.x_syn.copy()
    last = classes - 1
    report = it.learn(frames([last] * 5 + [0] * 2))
    assert report.active == [last]
    moved = (it.buffer.x_syn != before).reshape(len(before), -1).any(axis=1)
    assert set(it.buffer.y_syn[moved]) == {last}
    report = it.retrain()
    assert report.accepted
    n = classes * ipc
    # the encoder's view of the buffer, 2 epochs, new and accepted model on the buffer; then the few of one segment
    assert engine.images <= n * (1 + 2 + 2) + 100
    assert report.verdict.scores["images"] == 20 * classes
