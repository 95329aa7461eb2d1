"""Teaching the paper's recipe: corrections beside the buffer, on top of every update, undone exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.errors import StateError, UsageError
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.guard import Guarded, Unguarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.replay import ENOUGH
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.taught import Taught, few_of
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.running.control import observed_in, taught, undone
from deco_runtime.running.scoring import normalised
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import LearnedState, load, save
from deco_runtime.types import Ints, Observed, Segment
from drawn import boxes
from sentences import one_sentence

RECIPE = Hyperparameters(iterations=1, retrain_epochs=30, retrain_interval=1)
USUAL = Hyperparameters()


def opened(bundle: Bundle, engine: Engine, recipe: Hyperparameters = RECIPE) -> Deco:
    return Deco.open(bundle, engine, recipe, np.random.default_rng(0))


@pytest.fixture
def learner(bundle: Bundle, runs_on: Engine) -> Deco:
    return opened(bundle, runs_on)


@pytest.fixture(scope="module")
def digits(bundle: Bundle, runs_on: Engine) -> tuple[Observed, Ints]:
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    return observed_in(opened(bundle, runs_on), pixels, bundle), labels


def guarded(learner: Deco, bundle: Bundle) -> Guarded:
    """With half of the test images: the bundle's own ten would see nothing."""
    pixels, labels = (each[::2] for each in bundle.labelled_pixels("demo/test.npz"))
    answers = learner.answers_on(lambda check: normalised(pixels, bundle.preprocessing, check))
    return Guarded(learner, Labelled(answers, labels, np.arange(len(labels)), bundle.classes))


def some(observed: Observed, which: Any) -> Observed:
    return {name: array[which] for name, array in observed.items()}


def right(it: Deco, observed: Observed, labels: Ints | int) -> float:
    return float((it.answer(it.model, observed).argmax(axis=1) == labels).mean())


def teach(it: Unguarded, bundle: Bundle, name: str, observed: Observed) -> Any:
    return taught(it, bundle.classes, name, observed, np.arange(len(observed["x"])))


def segment(it: Deco, observed: Observed) -> Segment:
    pseudo, confidence = pseudo_label(it.answer(it.model, observed))
    return Segment(observed, pseudo, confidence, np.full(len(pseudo), -1))


def everything(it: Unguarded) -> dict[str, Any]:
    arrays = {name: (array.shape, array.tobytes()) for name, array in it.arrays().items()}
    return {**arrays, "values": repr(it.values())}


def missed(it: Deco, digits: tuple[Observed, Ints]) -> tuple[int, Ints]:
    """The class that is missed most often, and where."""
    seen, labels = digits
    wrong = np.flatnonzero(it.answer(it.model, seen).argmax(axis=1) != labels)
    which = int(np.bincount(labels[wrong]).argmax())
    return which, wrong[labels[wrong] == which]


def test_corrections_move_answers_and_harm_little(
    bundle: Bundle, runs_on: Engine, digits: tuple[Observed, Ints]
) -> None:
    """With the recipe as it is: most of what was corrected is right then, also of a second teaching, and the rest is
    about as it was."""
    learner = opened(bundle, runs_on, USUAL)
    it, before = Unguarded(learner), right(learner, *digits)
    for _ in range(2):
        which, where = missed(learner, digits)
        assert len(where) > 3
        told = teach(it, bundle, str(which), some(digits[0], where))
        assert (told.refused, told.new, told.classes) == (None, False, bundle.classes)
        learned = where[~few_of(np.arange(len(where)))[1]]
        assert right(learner, some(digits[0], learned), which) >= ENOUGH
        assert right(learner, *digits) > before - 0.02


def test_what_is_answered_so_already_changes_nothing(
    learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints]
) -> None:
    """As people say it to keep it: the updates that follow have to answer so too."""
    it, (seen, labels), model = Unguarded(learner), digits, learner.model
    known = np.flatnonzero((learner.answer(model, seen).argmax(axis=1) == labels) & (labels == 3))[:10]
    teach(it, bundle, "3", some(seen, known))
    assert learner.deployed(learner.model).tobytes() == model.tobytes()
    for first in range(0, 200, 40):
        it.learn(segment(learner, some(seen, slice(first, first + 40))))
        it.retrain()
        assert right(learner, some(seen, known), 3) > 0.5


def test_the_model_is_the_update_with_what_people_said_and_the_one_without(
    learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints]
) -> None:
    """Both parts against `retrain` called by hand, after a teaching, and after updates that follow it."""
    it, size, labels = Unguarded(learner), len(learner.model), np.full(8, 3)
    shown, theta = some(digits[0], slice(0, 10)), learner.model
    teach(it, bundle, "3", shown)
    guards = learner.taught.guards
    assert guards.sum() == 2
    beside = shown["x"][~guards], labels

    def enough(theta: Any) -> bool:
        return bool((learner.engine.predict(theta, beside[0])[0].argmax(axis=1) == labels).sum() >= ENOUGH * 8)

    for _ in range(2):
        rng = np.random.default_rng(0)
        told, _ = retrain(learner.engine, theta, learner.memory, 10, RECIPE, rng, beside=beside, enough=enough)
        assert learner.model.shape == (2 * size,)
        assert learner.deployed(learner.model).tobytes() == told.tobytes()
        assert learner.untaught(learner.model).tobytes() == theta.tobytes()
        answers = learner.engine.predict(told, digits[0]["x"])[0]
        assert learner.answer(learner.model, digits[0]).tobytes() == answers.tobytes()
        it.learn(segment(learner, some(digits[0], slice(40, 80))))
        draws = np.random.default_rng()
        draws.bit_generator.state = learner.rng.bit_generator.state
        theta, _ = retrain(learner.engine, theta, learner.memory, 10, RECIPE, draws)
        it.retrain()


def test_undoing_gives_the_very_same_state(learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints]) -> None:
    """Of every teaching in turn: model, buffer and generator, also after updates."""
    it, (seen, labels) = guarded(learner, bundle), digits
    it.learn(segment(learner, some(seen, slice(0, 40))))
    it.retrain()
    found = [everything(Unguarded(learner))]
    for name in ("3", "5", "3"):
        assert teach(it, bundle, name, some(seen, np.flatnonzero(labels == int(name))[:6])).refused is None
        found.append(everything(Unguarded(learner)))
    for left in (2, 1, 0):
        assert undone(it, bundle.classes).teachings == left
        assert everything(Unguarded(learner)) == found[left]
    with pytest.raises(UsageError, match="found nothing to undo"):
        undone(it, bundle.classes)


def test_what_is_undone_leaves_no_trace_in_the_weights(
    bundle: Bundle, runs_on: Engine, digits: tuple[Observed, Ints]
) -> None:
    """However many updates were made since, if the votes were the same."""
    plain, it = (Unguarded(opened(bundle, runs_on, replace(RECIPE, alpha=0))) for _ in range(2))
    teach(it, bundle, "3", some(digits[0], digits[1] == 3))
    for first in (0, 40, 80):
        given = segment(plain.learner, some(digits[0], slice(first, first + 40)))  # type: ignore[arg-type]
        for each in (plain, it):
            each.learn(given)
            each.retrain()
    assert it.learner.model.shape == (2 * len(plain.learner.model),)
    undone(it, bundle.classes)
    assert everything(it) == everything(plain)


def test_nothing_changes_where_nothing_was_taught(bundle: Bundle, runs_on: Engine) -> None:
    it, plain = (Unguarded(opened(bundle, runs_on)) for _ in range(2))
    it.learner.tell(Taught())
    assert it.learner.model is it.learner.initial()
    assert everything(it) == everything(plain)


def test_what_was_taught_outlasts_an_update_that_is_rejected(
    learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints], monkeypatch: pytest.MonkeyPatch
) -> None:
    it, (seen, labels) = guarded(learner, bundle), digits
    teach(it, bundle, "3", some(seen, np.flatnonzero(labels == 3)[:10]))
    model, memory, said = learner.model, learner.memory, learner.taught
    assert it.kept.memory is memory
    assert len(it._labelled.labels) == 182  # type: ignore[union-attr]
    assert model.size == 2 * bundle.weights().size
    it.learn(segment(learner, some(seen, labels == 7)))
    assert learner.memory is not memory
    monkeypatch.setattr(learner, "solve", lambda check: (np.zeros_like(model), []))
    assert not it.retrain().accepted
    assert learner.memory is memory
    assert learner.model is model
    assert learner.taught is said


def test_a_teaching_with_wrong_labels_is_refused_and_changes_nothing(
    bundle: Bundle, runs_on: Engine, digits: tuple[Observed, Ints]
) -> None:
    learner = opened(bundle, runs_on, replace(RECIPE, retrain_rate=1e-2))
    it, (seen, labels) = guarded(learner, bundle), digits
    assert teach(it, bundle, "3", some(seen, np.flatnonzero(labels == 3)[:5])).refused is None
    before = everything(it)
    same = [learner.model, learner.memory, learner.taught, it.kept, it._labelled]
    told = teach(it, bundle, "8", some(seen, labels == 3))
    assert told.refused is not None
    assert "guard images" in told.refused
    now = [learner.model, learner.memory, learner.taught, it.kept, it._labelled]
    assert all(a is b for a, b in zip(now, same, strict=True))
    assert everything(it) == before


@pytest.mark.parametrize("with_guard", [False, True])
def test_a_teaching_that_is_stopped_changes_nothing(
    with_guard: bool, learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints]
) -> None:
    """At any epoch, as when a signal comes."""
    it = guarded(learner, bundle) if with_guard else Unguarded(learner)
    teach(it, bundle, "3", some(digits[0], slice(0, 6)))
    before, more = everything(it), learner.taught.with_("5", bundle.classes, some(digits[0], slice(6, 9)), np.arange(3))
    for count in (0, 3, 20):
        calls = iter(range(count))

        def check(calls: Any = calls) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            it.teach(more, check)
        assert everything(it) == before
    it.teach(more)
    assert learner.taught.teachings == 2


def test_a_model_that_is_not_finite_is_refused_without_a_guard_too(
    learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = Unguarded(learner)
    before = everything(it)
    monkeypatch.setattr(learner, "retaught", lambda check: np.full(5, np.nan, np.float32))
    assert teach(it, bundle, "3", some(digits[0], slice(0, 6))).refused == "is not finite"
    assert everything(it) == before


def test_a_new_class_is_refused_and_it_is_said_what_to_do(learner: Deco, bundle: Bundle) -> None:
    for it in (Unguarded(learner), guarded(learner, bundle)):
        before = everything(it)
        for name in ("box", "none"):
            with pytest.raises(UsageError) as refused:
                teach(it, bundle, name, observed_in(learner, boxes(bundle, 0, 10), bundle))
            assert name in one_sentence(str(refused.value))
            assert str(refused.value).endswith(" or learn by --recipe deco+ in another --state")
        assert everything(it) == before


def test_a_state_comes_back_bit_for_bit_and_goes_on_alike(
    learner: Deco, bundle: Bundle, runs_on: Engine, digits: tuple[Observed, Ints], tmp_path: Path
) -> None:
    it, again = guarded(learner, bundle), guarded(opened(bundle, runs_on), bundle)
    save(tmp_path / "before", LearnedState.of(it, bundle, "stream", 0))
    start = everything(it)
    teach(it, bundle, "3", some(digits[0], digits[1] == 3))
    it.learn(segment(learner, some(digits[0], slice(0, 40))))
    it.retrain()
    save(tmp_path, LearnedState.of(it, bundle, "stream", 7))
    assert load(tmp_path, bundle, again)[0] is not None
    assert everything(again) == everything(it)
    for each in (it, again):
        each.learn(segment(learner, some(digits[0], slice(40, 80))))
        each.retrain()
        undone(each, bundle.classes)
    assert everything(again) == everything(it)
    teach(again, bundle, "3", some(digits[0], slice(0, 6)))
    load(tmp_path / "before", bundle, again)
    assert everything(again) == start
    teach(again, bundle, "3", some(digits[0], slice(0, 6)))
    again.reset()
    assert everything(again) == start


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("taught_of_x", lambda a: a[:, :, 1:]),
        ("taught_labels", lambda a: a + 9),
        ("model", lambda a: a[: len(a) // 2]),
        ("model", lambda a: a[:-1]),
    ],
)
def test_damaged_state_is_refused_and_changes_nothing(
    name: str, change: Callable[[Any], Any], learner: Deco, bundle: Bundle, digits: tuple[Observed, Ints],
    runs_on: Engine, tmp_path: Path,
) -> None:  # fmt: skip
    it = Unguarded(learner)
    teach(it, bundle, "3", some(digits[0], slice(0, 6)))
    state = LearnedState.of(it, bundle, "stream", 7)
    state.arrays[name] = np.ascontiguousarray(change(state.arrays[name]))
    save(tmp_path, state)
    other = Unguarded(opened(bundle, runs_on))
    before = everything(other)
    with pytest.raises(StateError, match="is damaged"):
        load(tmp_path, bundle, other)
    assert everything(other) == before


def test_frames_so_large_that_few_fit_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip in pixels, of which 32 frames would be more than may be kept of all teachings."""
    monkeypatch.setattr("deco_runtime.learning.taught.MOST_BYTES", 40_000)
    large = {"x": np.arange(32 * 300, dtype=np.float32).reshape(32, 3, 10, 10)}  # 1200 bytes each
    it = Taught().with_("a", ("a", "b"), large, np.zeros(32, np.int64))
    assert len(it) == 16
    kept = it.observed["x"][:, 0, 0, 0] / 300
    assert (kept[0], kept[-1]) == (0, 31)
    assert it.guards.sum() == 3
