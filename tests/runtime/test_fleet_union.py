"""Buffers of several devices, condensed into one by the device's own code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.fleet.union import complaint, condense
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.control import observed_in
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Floats

RECIPE = Hyperparameters(iterations=2, retrain_epochs=2)


@pytest.fixture(scope="module")
def buffers(bundle: Bundle, runs_on: Engine) -> list[CondensedBuffer]:
    """Of two devices, each of which has taken in frames of one class."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    found = []
    for c in (3, 7):
        it = Deco.open(bundle, runs_on, RECIPE, np.random.default_rng(c))
        x = observed_in(it, pixels[labels == c][:20], bundle)["x"]
        found.append(it.taken_in(x, np.full(len(x), c), lambda: None))
    return found


def server(bundle: Bundle, engine: Engine) -> Guarded:
    guarded, _ = open_guard(bundle, Deco.open(bundle, engine, RECIPE, np.random.default_rng(0)))
    return guarded


def moved(one: CondensedBuffer, other: CondensedBuffer) -> Floats:
    """By class, how far the images are from each other."""
    far = np.abs(one.x_syn - other.x_syn).reshape(len(one.y_syn), -1).max(axis=1)
    return np.array([far[one.y_syn == c].max() for c in range(10)])


def test_the_union_moves_the_servers_images(bundle: Bundle, runs_on: Engine, buffers: list[CondensedBuffer]) -> None:
    it = server(bundle, runs_on)
    before = it.learner.memory
    verdict = condense(it, buffers)
    assert verdict is not None
    assert isinstance(it.learner.memory, CondensedBuffer)
    if verdict.accepted:
        np.testing.assert_array_equal(it.learner.memory.y_syn, before.y_syn)
        assert moved(it.learner.memory, before).min() > 0
        assert it.learner.merges == 1
    else:
        assert it.learner.memory is before


def test_nothing_to_condense_changes_nothing(bundle: Bundle, runs_on: Engine) -> None:
    it = server(bundle, runs_on)
    before, model = it.learner.memory, it.learner.model
    assert condense(it, []) is None
    assert it.learner.memory is before
    assert it.learner.model is model


def test_what_cannot_be_taken_in_is_refused(bundle: Bundle, runs_on: Engine, buffers: list[CondensedBuffer]) -> None:
    it = server(bundle, runs_on)
    fine, like = buffers[0], it.learner.memory
    assert complaint(fine, like) is None
    wrong = {
        "does not fit": replace(fine, x_syn=fine.x_syn[:, :, :-1]),
        "has classes": replace(fine, y_syn=fine.y_syn + 1),
        "not finite": replace(fine, x_syn=fine.x_syn * np.float32(np.nan)),
    }
    for words, each in wrong.items():
        assert words in str(complaint(each, like))
        with pytest.raises(UsageError, match=f"one that .*{words}"):
            condense(it, [fine, each])
    assert it.learner.memory is like


def test_sums_have_no_union(bundle: Bundle, runs_on: Engine, buffers: list[CondensedBuffer]) -> None:
    kind = registry.learner("deco+")
    it = Guarded(kind.open(bundle, runs_on, kind.RECIPE, np.random.default_rng(0)), None)
    with pytest.raises(UsageError, match="merge its sums"):
        condense(it, buffers)
