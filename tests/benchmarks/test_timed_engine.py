"""The engine that notes its calls: the answers are the other engine's, and the times lie around its work."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from deco_benchmarks.bench.timed_engine import Mark, TimedEngine
from deco_benchmarks.bench.workload import open_work
from deco_runtime.engine import Engine
from deco_runtime.types import Floats
from fake_engine import LinearEngine

CLASSES, SIZE = 3, 12
CALLS = [name for name, member in vars(Engine).items() if callable(member) and not name.startswith("_")]


class ClockedEngine(LinearEngine):
    """Keeps the times at which it predicts, and cannot represent."""

    def __init__(self) -> None:
        super().__init__(CLASSES)
        self.times: list[float] = []

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        self.times.append(time.perf_counter())
        return super().predict(theta, x)

    def represent(self, x: Floats) -> tuple[Floats, Floats]:
        raise RuntimeError("no kernel")


@pytest.fixture
def arguments() -> dict[str, tuple[Floats, ...]]:
    """Of each call; no two arrays are alike."""
    rng = np.random.default_rng(0)
    theta, v = rng.standard_normal((2, CLASSES * SIZE), np.float32)
    x = rng.standard_normal((4, 3, 2, 2), np.float32)
    t, u = rng.uniform(size=(4, CLASSES)).astype(np.float32), rng.standard_normal((4, SIZE), np.float32)
    return {
        "predict": (theta, x),
        "weight_gradient": (theta, x, t),
        "input_gradient": (theta, x, t),
        "feature_gradient": (theta, x, u),
        "input_gradient_tangent": (theta, x, t, v),
        "represent": (x,),
        "encode": (x,),
    }


def test_every_call_is_handed_on_and_noted(arguments: dict[str, tuple[Floats, ...]]) -> None:
    frozen = np.random.default_rng(1).standard_normal(CLASSES * SIZE, np.float32)
    plain = LinearEngine(CLASSES, frozen)
    timed = TimedEngine(plain)
    assert (timed.name, timed.precision) == ("linear", "fp32")
    assert sorted(CALLS) == sorted(arguments)
    for name in CALLS:
        found, expected = (getattr(engine, name)(*arguments[name]) for engine in (timed, plain))
        assert type(found) is type(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert [mark.name for mark in timed.marks] == CALLS
    assert all(mark.begin <= mark.end for mark in timed.marks)
    assert all(before.end <= after.begin for before, after in pairwise(timed.marks))


def test_the_work_lies_between_begin_and_end(arguments: dict[str, tuple[Floats, ...]]) -> None:
    clocked = ClockedEngine()
    timed = TimedEngine(clocked)
    before = time.perf_counter()
    for _ in range(3):
        timed.predict(*arguments["predict"])
    after = time.perf_counter()
    for mark, worked in zip(timed.marks, clocked.times, strict=True):
        assert before <= mark.begin <= worked <= mark.end <= after


def test_a_call_that_raises_is_not_noted(arguments: dict[str, tuple[Floats, ...]]) -> None:
    timed = TimedEngine(ClockedEngine())
    with pytest.raises(RuntimeError, match="no kernel"):
        timed.represent(*arguments["represent"])
    timed.predict(*arguments["predict"])
    assert [mark.name for mark in timed.marks] == ["predict"]


def test_seconds_of_a_call() -> None:
    assert Mark("predict", 2.0, 3.5).seconds == 1.5


@pytest.mark.parametrize("recipe", ["paper", "deco+"])
def test_a_learner_learns_the_same(recipe: str, bundle_path: Path) -> None:
    work = open_work(bundle_path, "portable", recipe)
    timed = TimedEngine(work.engine)
    plain, noted = (each.learner(iterations=2, retrain_epochs=1) for each in (work, replace(work, engine=timed)))
    x = np.random.default_rng(0).standard_normal((128, *work.frame.shape[1:]), np.float32)
    for learner in (plain, noted):
        learner.learn(replace(work.segment, observed=learner.observe(x)))
        learner.retrain()
    np.testing.assert_array_equal(noted.model, plain.model)
    assert not np.array_equal(noted.model, work.learner().model)  # it has learned
    expected = {"weight_gradient", "input_gradient", "feature_gradient"} if recipe == "paper" else {"represent"}
    assert expected <= {mark.name for mark in timed.marks}
