"""What people said of frames: kept in order, undone exactly, stored and brought back, and bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.learning import taught as module
from deco_runtime.learning.added import COSTS
from deco_runtime.learning.taught import GUARDS, LONGEST_NAME, OF_A_TAKE, Taught, checked, few_of
from deco_runtime.types import Ints, Observed
from hypothesis import given
from hypothesis import strategies as st
from sentences import one_sentence

KNOWN = ("a", "b", "c")
NAMES = (*KNOWN, "new", "newer", "none")

teachings = st.lists(
    st.tuples(st.sampled_from(NAMES), st.lists(st.integers(-3, 3), min_size=1, max_size=70), st.integers(0, 2)),
    max_size=5,
)


def seen(n: int, seed: int = 0) -> Observed:
    rng = np.random.default_rng(seed)
    return {"phi": rng.standard_normal((n, 4)).astype(np.float32), "logits": rng.random((n, 3), np.float32)}


def history(said: list[tuple[str, list[int], int]]) -> list[Taught]:
    """Before anything was said, and after each of these: a name, takes, and the step that a guard chose."""
    found = [Taught()]
    for number, (name, takes, step) in enumerate(said):
        new = found[-1].with_(name, KNOWN, seen(len(takes), number), np.array(takes, np.int64))
        found.append(new.at_step(max(step, found[-1].step)))
    return found


def bits(of: Taught) -> tuple[Any, ...]:
    arrays = {name: (array.dtype, array.shape, array.tobytes()) for name, array in of.arrays().items()}
    return of.classes, arrays, of.step


@given(teachings)
def test_undoing_goes_back_step_by_step_bit_for_bit(said: list[tuple[str, list[int], int]]) -> None:
    steps = history(said)
    now = steps[-1]
    assert now.teachings == len(said)
    for before in reversed(steps[:-1]):
        now = now.without_last(len(KNOWN))
        assert bits(now) == bits(before)
        assert now.same(before)
    assert bits(Taught().without_last(len(KNOWN))) == bits(Taught())


@given(teachings)
def test_what_is_stored_comes_back(said: list[tuple[str, list[int], int]]) -> None:
    it = history(said)[-1]
    again = Taught.of(it.arrays(), list(it.classes), len(KNOWN))
    assert bits(again) == bits(it)
    assert again.same(it)
    assert again.guards.dtype == np.bool_
    assert bool(it.arrays()) == bool(said)


@given(teachings)
def test_labels_takes_and_guards_are_what_was_said(said: list[tuple[str, list[int], int]]) -> None:
    it = history(said)[-1]
    names = KNOWN + it.classes
    assert it.classes == tuple(dict.fromkeys(name for name, _, _ in said if name not in KNOWN))
    seen_takes: set[int] = set()
    for number, (name, takes, _) in enumerate(said):
        own = it.teaching == number
        kept, guards = few_of(np.array(takes, np.int64))
        assert {names[label] for label in it.labels[own]} == {name}
        assert it.guards[own].tolist() == guards.tolist()
        for key, array in seen(len(takes), number).items():
            assert it.observed[key][own].tobytes() == array[kept].tobytes()
        now = it.takes[own]  # numbered anew, and none of them twice
        assert now.min() >= 0
        assert not seen_takes & set(now.tolist())
        seen_takes |= set(now.tolist())
        pairs = set(zip(now.tolist(), np.array(takes)[kept].tolist(), strict=True))
        assert len(pairs) == len(set(now.tolist())) == len(set(takes))
    observed, labels, takes_of = it.part(it.guards)
    assert len(labels) == len(takes_of) == it.guards.sum()
    assert all(len(array) == len(labels) for array in observed.values())


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=200))
def test_few_frames_of_a_take_are_kept_and_one_of_five_is_the_guards(takes: list[int]) -> None:
    of = np.array(takes, np.int64)
    index, guards = few_of(of)
    assert (np.diff(index) > 0).all()
    for take in set(takes):
        own, kept = np.flatnonzero(of == take), index[of[index] == take]
        assert len(kept) == min(len(own), OF_A_TAKE)
        assert (kept[0], kept[-1]) == (own[0], own[-1] if len(kept) > 1 else own[0])
        places = np.searchsorted(own, kept)
        assert np.diff(places).max(initial=1) - np.diff(places).min(initial=1) <= 1  # evenly spread
    assert guards.sum() == len(index) // GUARDS
    assert not guards[0]  # a single frame is learned from


def damaged(change: dict[str, Any], classes: Any = ("new",)) -> None:
    it = history([("a", [0, 1, 2], 0), ("new", [0, 0], 1)])[-1]
    arrays = {**it.arrays(), **change}
    Taught.of({name: array for name, array in arrays.items() if array is not None}, classes, len(KNOWN))


@pytest.mark.parametrize(
    "change",
    [
        {"taught_labels": np.array([0, 0, 0, 3, 4])},
        {"taught_labels": np.array([0, 0, -1, 3, 3])},
        {"taught_labels": np.array([0, 0, 0, 3])},
        {"taught_labels": np.array([0, 0, 0, 3, 3], np.int32)},
        {"taught_labels": np.zeros((5, 1), np.int64)},
        {"taught_takes": np.zeros(4, np.int64)},
        {"taught_teaching": np.array([0, 0, 1, 1, 0])},
        {"taught_guards": np.array([0, 0, 2, 0, 0])},
        {"taught_steps": np.full(5, len(COSTS))},
        {"taught_steps": np.full(5, -1)},
        {"taught_of_phi": np.zeros((4, 4), np.float32)},
        {"taught_of_phi": np.zeros((5, 4))},
        {"taught_of_phi": np.full((5, 4), np.nan, np.float32)},
        {"taught_of_logits": np.full((5, 3), np.inf, np.float32)},
        {"taught_of_phi": None, "taught_of_logits": None},
        {"taught_guards": None},
        dict.fromkeys(("taught_labels", "taught_of_phi", "taught_of_logits")),
    ],
)
def test_damaged_arrays_are_refused(change: dict[str, Any]) -> None:
    damaged({})
    with pytest.raises((ValueError, KeyError)):
        damaged(change)


@pytest.mark.parametrize("classes", [(), ("new", "new"), (["new"], "new"), 5])
def test_names_that_do_not_fit_are_refused(classes: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        damaged({}, classes)


def test_no_more_is_kept_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that a state file holds of it, since this is what reading one is bound by."""
    monkeypatch.setattr(module, "MOST_BYTES", 4000)
    it, count, takes = Taught(), 0, np.arange(5)
    with pytest.raises(UsageError) as refused:  # noqa: PT012
        while True:
            it = it.with_("new", KNOWN, seen(5), takes)
            count += 5
    one_sentence(str(refused.value))
    assert f"found {count} and 5 more" in str(refused.value)
    size = sum(array.nbytes for array in it.arrays().values())
    assert size <= 4000 < size * (count + 5) / count
    assert it.without_last(len(KNOWN)).with_("b", KNOWN, seen(5), takes).teachings == it.teachings


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_frames_that_are_not_finite_are_refused(value: float) -> None:
    """A state with them could not be read again."""
    bad = seen(3)
    bad["phi"][1, 2] = value
    with pytest.raises(UsageError) as refused:
        Taught().with_("a", KNOWN, bad, np.arange(3))
    one_sentence(str(refused.value))


def test_teachings_that_differ_in_what_was_seen_are_not_the_same() -> None:
    takes: Ints = np.arange(4)
    one, two = (Taught().with_("new", KNOWN, seen(4, seed), takes) for seed in (1, 2))
    assert not one.same(two)
    assert not one.same(one.at_step(1))
    assert not one.same(Taught())


@pytest.mark.parametrize("name", ["badger", " badger\t", "none", "größer als", "x" * LONGEST_NAME, "木"])
def test_names_that_a_class_may_have(name: str) -> None:
    assert checked(name) == name.strip()


@pytest.mark.parametrize("name", ["", "  ", "\t\n", "a\nb", "a\x1b[31m", "a\x00", "\udce9", "x" * (LONGEST_NAME + 1)])
def test_other_names_are_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked(name)
    one_sentence(str(refused.value))
    assert str(refused.value).isprintable()
