"""The guard: its statistics against scipy, its rules at work, and what it goes back to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from deco_runtime.learning.arrays import Array, Memory
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.guard import DOUBLINGS, PATIENCE, Guarded, Kept, Unguarded
from deco_runtime.learning.harm import (
    CHANCE,
    MARGIN,
    Labelled,
    by_take,
    compared,
    doubt_per_error,
    effective_classes,
    sign_test,
    smallest_harm,
    worse,
)
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.learning.reports import SegmentReport, Verdict
from deco_runtime.types import Check, Floats, Ints, Segment
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


class Told(ReplayLearner):
    """Its next update is the model it is told; a segment only counts, and ends with a scene."""

    RECIPE = Recipe("told")
    told: Floats
    seen = 0
    states = 1

    def update(self, segment: Segment, check: Check) -> tuple[Memory, SegmentReport]:
        self.seen += 1
        self.scene = np.ones(1, np.float32)
        return self.memory, SegmentReport(active=[0], kept=1.0)

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        return self.told, []


def told(buffer: CondensedBuffer, model: Floats, classes: int, interval: int = 1) -> Told:
    recipe = Recipe("told", retrain_interval=interval)
    return Told(LinearEngine(classes), (), model, buffer, classes, recipe, np.random.default_rng(0))


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

    def guarded(self, frozen: Floats, interval: int = 1) -> Guarded:
        """A learner that starts with a model, which none is published below."""
        y = np.arange(self.classes)
        buffer = CondensedBuffer.start(np.zeros((self.classes, *SHAPE), np.float32), y)
        names = tuple(f"class {c}" for c in y)
        labelled = Labelled(self.logits, self.labels, self.takes, names)
        return Guarded(told(buffer, frozen, self.classes, interval), labelled)


def updated(guarded: Guarded, model: Floats) -> bool:
    """Whether an update to this model is published; if so, and only then, it is the learner's."""
    learner = guarded.learner
    assert isinstance(learner, Told)
    before, learner.told = learner.model, model
    report = guarded.retrain()
    assert report.verdict is not None
    assert report.accepted == report.verdict.accepted
    assert learner.model is (model if report.accepted else before)
    assert (report.rejections, report.pause) == (guarded.kept.rejections, guarded.pause)
    return report.accepted


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
    guarded, accepted = it.guarded(frozen), 0
    for _ in range(trials):
        draw = rng.random(n)
        right = np.where(first, draw >= lost / 0.7, draw < gained / 0.3)
        accepted += guarded.judge(it.theta(np.repeat(np.where(right, labels, wrong), takes))).accepted
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
    guarded = it.guarded(frozen)
    kept = guarded.kept
    better = it.theta(with_wrong(it.labels, np.arange(0, 500, 4), 10))
    verdict = guarded.judge(better)
    assert verdict.accepted
    assert verdict.scores["accuracy"] == 0.75
    assert verdict.scores["frozen_accuracy"] == 333 / 500
    bad = it.theta(with_wrong(it.labels, np.arange(0, 500, 2), 10))
    verdict = guarded.judge(bad)
    assert not verdict.accepted
    assert verdict.reason == "loses 166 and gains 83 of 500 guard images against the bundle's model"
    assert (verdict.scores["lost"], verdict.scores["gained"]) == (166, 83)
    assert json.dumps(verdict.scores)  # for the event stream
    assert guarded.kept is kept  # judging changes nothing
    assert not updated(guarded, bad)
    assert updated(guarded, better)


def test_a_hundred_small_losses_do_not_add_up() -> None:
    """Each step loses two images more than the one before, which no test of one step could call harm."""
    it = scripted()
    wrong = np.arange(200)
    guarded, published = it.guarded(it.theta(with_wrong(it.labels, wrong, 10))), 200
    for step in range(1, 101):
        if updated(guarded, it.theta(with_wrong(it.labels, np.arange(200 + 2 * step), 10))):
            published = 200 + 2 * step
    assert published <= 205  # one point of 500


def test_nor_does_what_was_gained_get_lost_again_little_by_little() -> None:
    it = scripted()
    guarded, published = it.guarded(it.theta(with_wrong(it.labels, np.arange(200), 10))), 200
    for wrong in (150, 100, *range(101, 200)):
        if updated(guarded, it.theta(with_wrong(it.labels, np.arange(wrong), 10))):
            published = wrong
    assert 100 <= published <= 105
    assert guarded.kept.best.sum() == 400


def test_the_luckiest_of_many_updates_is_not_what_the_next_is_measured_by() -> None:
    """A hundred updates that change nothing but by chance: the best so far stays what it was."""
    it, rng = scripted(), np.random.default_rng(0)
    wrong = rng.random(500) < 0.3
    guarded = it.guarded(it.theta(with_wrong(it.labels, np.flatnonzero(wrong), 10)))
    for _ in range(100):
        moved = np.concatenate([rng.choice(np.flatnonzero(wrong), 10), rng.choice(np.flatnonzero(~wrong), 10)])
        other = wrong.copy()
        other[moved] ^= True
        updated(guarded, it.theta(with_wrong(it.labels, np.flatnonzero(other), 10)))
    assert guarded.kept.best.sum() <= np.count_nonzero(~wrong) + 10


def test_a_take_that_is_lost_is_told_as_one() -> None:
    labels = np.repeat(np.arange(10), 60)
    it = Scripted(labels, 10, np.repeat(np.arange(20), 30))
    frozen, bad = it.theta(labels), it.theta(with_wrong(labels, np.arange(0, 600, 2), 10))
    verdict = it.guarded(frozen).judge(bad)
    assert verdict.reason == "loses 20 and gains 0 of 20 guard takes against the bundle's model"
    assert (verdict.scores["images"], verdict.scores["takes"]) == (600, 20)


def test_a_class_that_is_lost_is_seen_behind_gains_elsewhere() -> None:
    it = scripted()
    frozen = it.theta(with_wrong(it.labels, np.arange(250, 350), 10))
    forgets = it.theta(with_wrong(it.labels, np.arange(30), 10))  # class 0 mostly wrong, all else right
    verdict = it.guarded(frozen).judge(forgets)
    assert verdict.scores["gained"] > verdict.scores["lost"]
    assert verdict.reason == "loses 30 and gains 0 of 50 guard images of 'class 0'"
    assert verdict.scores["worst_class"] == "class 0"
    assert verdict.scores["worst_class_lost"] == 30


def test_confidence_that_explodes_is_seen() -> None:
    it = scripted()
    wrong = with_wrong(it.labels, np.arange(200), 10)
    frozen = it.theta(wrong)
    guarded = it.guarded(frozen)
    assert guarded.judge(it.theta(wrong, scale=1.1)).accepted
    verdict = guarded.judge(it.theta(wrong, scale=10.0))
    assert verdict.reason is not None
    assert verdict.reason.startswith("doubts 0% as much per mistake")


def unlabelled(classes: int = 4) -> tuple[Guarded, Floats]:
    """A guard that only has the buffer, whose image of class c is a one at pixel c; θ answers all of it right."""
    x = np.eye(classes, WIDE, dtype=np.float32).reshape(classes, *SHAPE)
    theta = np.eye(classes, WIDE, dtype=np.float32).reshape(-1)
    return Guarded(told(CondensedBuffer.start(x, np.arange(classes)), theta, classes), None), theta


def judged_with(guarded: Guarded, model: Floats, memory: CondensedBuffer) -> Verdict:
    """What is said of a model made of this memory."""
    guarded.learner.memory = memory
    return guarded.judge(model)


def test_without_guard_images_collapse_and_what_is_not_finite_are_met() -> None:
    guarded, theta = unlabelled()
    buffer = guarded.kept.memory
    assert guarded.judge(theta * 2).accepted
    one = np.zeros_like(theta)
    one[:WIDE] = 1  # answers class 0, whatever it sees
    assert guarded.judge(one).reason == "answers with 1.0 classes where 4.0 are known"
    for broken in (np.nan, np.inf):
        bad = theta.copy()
        bad[5] = broken
        assert guarded.judge(bad).reason == "is not finite"
    image = CondensedBuffer(buffer.x_syn * np.float32(np.nan), buffer.y_syn, buffer.velocity)
    assert judged_with(guarded, theta, image).reason == "is not finite"
    moving = CondensedBuffer(buffer.x_syn, buffer.y_syn, buffer.velocity + np.float32(np.inf))
    assert judged_with(guarded, theta, moving).reason == "is not finite"
    with np.errstate(over="ignore", invalid="ignore"):
        huge = CondensedBuffer(buffer.x_syn * np.float32(1e38), buffer.y_syn, buffer.velocity)
        verdict = judged_with(guarded, theta * np.float32(1e38), huge)
    assert verdict.reason == "gives answers that are not finite"


def test_only_a_drop_on_the_buffer_counts() -> None:
    """Condensed images may be taken for something else from the start."""
    guarded, theta = unlabelled(10)
    x = np.repeat(guarded.kept.memory.x_syn, 10, axis=0)
    y = np.repeat(np.arange(10), 10)
    y[::10] = (y[::10] + 1) % 10  # ten that no model of these takes for what they stand for
    buffer = CondensedBuffer.start(x, y)
    verdict = judged_with(guarded, theta * 2, buffer)
    assert verdict.accepted
    assert verdict.scores["buffer_right"] == 0.9
    swapped = theta.reshape(10, WIDE)[[1, 0, *range(2, 10)]].reshape(-1)
    assert judged_with(guarded, swapped, buffer).reason == "loses 18 and gains 1 of the buffer's 100 images"


def test_after_three_rejections_learning_pauses_ever_longer() -> None:
    it = scripted()
    good, bad = it.theta(it.labels), it.theta(with_wrong(it.labels, np.arange(250), 10))
    guarded = it.guarded(good, interval=5)
    learner = guarded.learner
    first, other = learner.memory, CondensedBuffer.start(np.ones((10, *SHAPE), np.float32), np.arange(10))
    learner.memory = other
    assert updated(guarded, good)
    assert learner.memory is guarded.kept.memory is other
    pauses = []
    for _ in range(PATIENCE + DOUBLINGS + 3):
        learner.memory = first
        assert not updated(guarded, bad)
        assert learner.memory is guarded.kept.memory is other
        pauses.append(guarded.pause)
    assert pauses == [0, 0, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 5120, 5120, 5120]
    guarded.kept = Kept(other, guarded.kept.best, rejections=2**62)
    learner.memory = first
    assert not updated(guarded, bad)
    assert guarded.pause == 5120
    for left in range(5119, -1, -1):
        learner.scene = np.ones(1, np.float32)
        report = guarded.learn(frames([0]))
        assert (report.active, report.kept, learner.seen) == ([], 0, 0)
        assert guarded.pause == guarded.kept.pause == left
        assert learner.scene is None  # the next segment does not follow the last one that was learned
    assert (learner.segments, learner.since_retrain) == (5120, 0)
    assert guarded.learn(frames([0])).kept == 1
    assert (learner.seen, learner.segments, learner.since_retrain) == (1, 5121, 1)
    learner.memory = first
    assert updated(guarded, good)
    assert (guarded.kept.rejections, guarded.kept.pause) == (0, 0)
    assert guarded.kept.memory is first


def guarded_deco(recipe: Hyperparameters, classes: int = 3, ipc: int = 2, wide: int = WIDE) -> Guarded:
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
    weight = Parameter("weight", (classes, wide), 0, "normal", 0.0, 0.3)
    it = Deco(engine, (weight,), theta, buffer, classes, recipe, rng)
    alone, names = np.arange(len(y)), tuple(map(str, range(classes)))
    return Guarded(it, Labelled(lambda at, check: engine.predict(at, x)[0], y, alone, names))


def frames(pseudo: list[int], wide: int = WIDE) -> Segment:
    x = np.random.default_rng(1).standard_normal((len(pseudo), 3, wide // 6, 2)).astype(np.float32)
    n = len(pseudo)
    return Segment({"x": x}, np.asarray(pseudo, np.int64), np.full(n, 0.9, np.float32), np.full(n, -1))


def test_a_rejected_update_takes_model_and_buffer_back_and_then_learning_pauses() -> None:
    # weight decay at this rate turns θ round
    guarded = guarded_deco(Hyperparameters(iterations=1, retrain_interval=1, retrain_epochs=1, retrain_rate=1e4))
    it = guarded.learner
    model, buffer = it.model, it.memory
    for rejections in (1, 2, 3):
        guarded.learn(frames([1] * 4))
        assert it.memory is not buffer
        report = guarded.retrain()
        assert not report.accepted
        assert report.verdict is not None
        assert report.verdict.reason
        assert it.model is model
        assert it.memory is buffer
        assert guarded.kept.rejections == report.rejections == rejections == it.dropped
    assert report.pause == 1
    generator = it.rng.bit_generator.state
    assert guarded.learn(frames([1] * 4)) == SegmentReport()
    assert it.memory is buffer
    assert it.rng.bit_generator.state == generator
    assert not it.retrain_due
    guarded.learn(frames([1] * 4))
    assert it.memory is not buffer
    assert it.segments == 5


def test_stopping_in_the_judgement_leaves_everything_as_it_was() -> None:
    guarded = guarded_deco(Hyperparameters(iterations=1, retrain_interval=1, retrain_epochs=1))
    it = guarded.learner
    guarded.learn(frames([1] * 4))
    model, buffer, generator, kept = it.model, it.memory, it.rng.bit_generator.state, guarded.kept
    calls = iter(range(100))

    def check() -> None:
        if next(calls) == 2:  # the epoch, then the buffer under the new model
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded.retrain(check)
    assert it.model is model
    assert it.memory is buffer
    assert guarded.kept is kept
    assert it.rng.bit_generator.state == generator
    assert it.retrains == 0
    assert guarded.retrain().verdict is not None


def test_gradients_that_are_not_finite_are_rejected_and_the_buffer_goes_back() -> None:
    class Broken(LinearEngine):
        def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
            loss, gradient = super().weight_gradient(theta, x, t)
            return loss, gradient * np.float32(np.nan)

    guarded = guarded_deco(Hyperparameters(iterations=1, retrain_interval=1, retrain_epochs=2))
    it = guarded.learner
    it.engine, model, buffer = Broken(3), it.model, it.memory
    assert guarded.learn(frames([1] * 4)).dropped == 1
    report = guarded.retrain()
    assert report.verdict is not None
    assert report.verdict.reason == "is not finite"
    assert it.model is model
    assert it.memory is buffer


@pytest.mark.parametrize("pseudo", [[], [0, 1, 2] * 4])
def test_a_segment_that_is_empty_or_has_no_active_class_changes_nothing(pseudo: list[int]) -> None:
    guarded = guarded_deco(Hyperparameters(iterations=1))
    it = guarded.learner
    model, buffer, generator = it.model, it.memory, it.rng.bit_generator.state
    report = guarded.learn(frames(pseudo))
    assert (report.active, report.kept) == ([], 0)
    assert it.memory is buffer
    assert it.model is model
    assert it.rng.bit_generator.state == generator
    assert it.segments == it.since_retrain == 1


RECIPE = Hyperparameters(iterations=1, retrain_interval=2, retrain_epochs=2)
Stored = tuple[dict[str, Array], dict[str, Any]]


def stored(guarded: Unguarded) -> Stored:
    """What is saved, as it comes back from the disk."""
    arrays = {name: array.copy() for name, array in guarded.arrays().items()}
    return arrays, json.loads(json.dumps(guarded.values()))


def same(one: Stored, other: Stored) -> bool:
    alike = one[0].keys() == other[0].keys() and all(np.array_equal(one[0][name], other[0][name]) for name in one[0])
    return alike and one[1] == other[1]


def test_a_guard_goes_on_where_another_was_stored() -> None:
    """In the middle between two updates, after a rejected one, and in a pause; from there on both do the same."""
    guarded = guarded_deco(RECIPE)
    it = guarded.learner
    good, harmful = it.model, -it.model  # answers what it knew least

    def go_on(each: Guarded, number: int) -> None:
        each.learn(frames([number % 3] * 6 + [2]))
        if each.learner.retrain_due:
            each.learner.model = good if number < 6 else harmful  # where the update starts
            each.retrain()
            each.learner.model = good

    apart, paused, rejected = [], [], []
    for number in range(16):
        kept = stored(guarded)
        again = guarded_deco(RECIPE)
        again.restore(*kept)
        assert same(stored(again), kept)
        assert (again.kept.memory is again.learner.memory) == (guarded.kept.memory is it.memory)
        assert (again.pause, again.kept.rejections) == (guarded.pause, guarded.kept.rejections)
        apart.append("guard_x_syn" in kept[0])
        paused.append(guarded.pause > 0)
        rejected.append(guarded.kept.rejections)
        for each in (guarded, again):
            go_on(each, number)
        assert same(stored(again), stored(guarded))
    assert apart[:3] == [False, True, False]  # the memory of the last accepted update is stored where it is another
    assert any(paused)
    assert max(rejected) >= PATIENCE


def test_without_a_guard_its_part_is_passed_over_and_none_is_stored() -> None:
    guarded, plain = guarded_deco(RECIPE), Unguarded(guarded_deco(RECIPE).learner)
    for number in range(2):
        guarded.learn(frames([number] * 5))
    guarded.kept = Kept(guarded.kept.memory, guarded.kept.best, rejections=4, pause=3)
    plain.restore(*stored(guarded))
    assert plain.pause == 0
    arrays, values = stored(plain)
    assert set(arrays) == {"model", "x_syn", "y_syn", "velocity"}
    assert set(values) == {"counts", "generator"}
    assert np.array_equal(plain.learner.memory.x_syn, guarded.learner.memory.x_syn)
    assert plain.learn(frames([0] * 5)).active == [0]
    assert plain.retrain().verdict is None


@pytest.mark.parametrize("harmful", [False, True])
def test_what_was_learned_without_a_guard_is_vetted_against_the_bundles_model(harmful: bool) -> None:
    plain = Unguarded(guarded_deco(RECIPE).learner)
    for number in range(4):
        plain.learn(frames([number % 3] * 5))
    plain.learner.model = -plain.learner.model if harmful else 1.01 * plain.learner.model
    plain.learner.offers = 2
    guarded = guarded_deco(RECIPE)
    it = guarded.learner
    model, memory = it.model, it.memory
    guarded.restore(*stored(plain))
    assert guarded.kept.memory is memory  # to go back to: that of the bundle
    verdict = guarded.vet()
    assert verdict.accepted == (not harmful)
    assert guarded.kept.rejections == int(harmful)
    assert guarded.kept.memory is it.memory
    if harmful:
        assert "against the bundle's model" in str(verdict.reason)
        assert it.memory is memory
        assert it.model is model
    else:
        assert np.array_equal(it.memory.x_syn, plain.learner.memory.x_syn)
        assert np.array_equal(it.model, plain.learner.model)
        assert guarded.kept.best is verdict.best
    assert it.segments == 4
    assert it.offers == (0 if harmful else 2)  # what a fleet was given is no more in what is left


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays, values: arrays.update(guard_best=arrays["guard_best"][:-1]),
        lambda arrays, values: arrays.update(guard_best=arrays["guard_best"].astype(bool)),
        lambda arrays, values: arrays.pop("guard_best"),
        lambda arrays, values: arrays.update(guard_x_syn=arrays["guard_x_syn"][1:]),
        lambda arrays, values: arrays.update(guard_velocity=arrays["guard_velocity"] * np.float32(np.nan)),
        lambda arrays, values: arrays.update(guard_y_syn=arrays["guard_y_syn"][::-1].copy()),
        lambda arrays, values: arrays.pop("guard_velocity"),
        lambda arrays, values: arrays.update(model=arrays["model"] * np.float32(np.inf)),
        lambda arrays, values: values["guard"].update(rejections=-1),
        lambda arrays, values: values["guard"].update(pause=0.5),
        lambda arrays, values: values["guard"].pop("pause"),
        lambda arrays, values: values["counts"].update(segments=True),
        lambda arrays, values: values["generator"].update(bit_generator="MT19937"),
    ],
)
def test_what_is_damaged_is_refused_and_changes_nothing(damage: Callable[[Any, Any], object]) -> None:
    guarded = guarded_deco(RECIPE)
    guarded.learn(frames([1] * 5))
    arrays, values = stored(guarded)
    assert "guard_x_syn" in arrays
    with np.errstate(invalid="ignore"):
        damage(arrays, values)
    other = guarded_deco(RECIPE)
    before, kept = stored(other), other.kept
    with pytest.raises((ValueError, KeyError)):
        other.restore(arrays, values)
    assert same(stored(other), before)
    assert other.kept is kept


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
    recipe = Hyperparameters(iterations=2, retrain_interval=1, retrain_epochs=2, retrain_rate=1e-6)
    guarded = guarded_deco(recipe, classes, ipc)
    it = guarded.learner
    it.engine = engine = Counting(classes)
    before = it.memory.x_syn.copy()
    last = classes - 1
    report = guarded.learn(frames([last] * 5 + [0] * 2))
    assert report.active == [last]
    moved = (it.memory.x_syn != before).reshape(len(before), -1).any(axis=1)
    assert set(it.memory.y_syn[moved]) == {last}
    update = guarded.retrain()
    assert update.accepted
    n = classes * ipc
    # the encoder's view of the buffer, 2 epochs, new and accepted model on the buffer; then the few of one segment
    assert engine.images <= n * (1 + 2 + 2) + 100
    assert update.verdict is not None
    assert update.verdict.scores["images"] == 20 * classes
