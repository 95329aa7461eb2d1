"""Time of each stage of the learner, taken inside whole iterations of the device's own code."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.engine import REPRESENTATION
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.condense import gradient_distance
from deco_runtime.learning.deco import Deco, five_passes
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.vote import vote
from deco_runtime.storage import state
from deco_runtime.types import Floats

from deco_benchmarks.bench.jobs import Progress
from deco_benchmarks.bench.timed_engine import Mark, TimedEngine
from deco_benchmarks.bench.timing import WARM_UP, Effort, Quantity, effort, milliseconds, quantity, repeat, stopwatch
from deco_benchmarks.bench.workload import Work, open_work


def measure(path: Path, progress: Progress, engine: str, recipe: str, quick: bool, scratch: str) -> dict[str, Any]:
    """Quantities by name, and under "scaled" what was measured in part. recipe: `paper` measures `deco+` too, where the
    bundle has its graph. scratch: a folder for the state saved."""
    work, how = open_work(path, engine, recipe), effort(quick)
    theta = work.bundle.weights()
    condenses = isinstance(work.learner(), Deco)
    stages = itertools.count()

    def step() -> None:
        progress(f"{engine}: stages", next(stages), 6 if condenses else 2)

    step()
    found = {"predict": milliseconds(repeat(lambda: predicted(work, theta), how.least, how.seconds))}
    saved = state.LearnedState.of(Unguarded(work.learner()), work.bundle, "deco-bench", 0)
    found["state_save"] = milliseconds(repeat(lambda: state.save(Path(scratch), saved), how.least, how.seconds / 3))
    step()
    of_paper, scaled = condensing(work, how, step) if condenses else ({}, {})
    found |= of_paper
    if not condenses:
        found |= observing(work, how)
    elif f"graphs/{REPRESENTATION}.onnx" in work.bundle.files:
        found |= observing(work.by("deco+"), how)
    step()
    return {"quantities": {name: value.to_json() for name, value in found.items()}, "scaled": scaled}


def predicted(work: Work, theta: Floats) -> Floats:
    """Logits (1, K) of one frame, trunk and all."""
    return work.engine.predict(theta, work.engine.encode(work.frame))[0]


def condensing(work: Work, how: Effort, step: Callable[[], None]) -> tuple[dict[str, Quantity], dict[str, Any]]:
    """The paper's recipe: its stages, whole segments and an update, and what of these was measured in part. step: told
    that a fourth of it is done."""
    recipe, classes = work.recipe, len(work.bundle.classes)
    found = {"vote": milliseconds(repeat(lambda: vote(work.segment, classes, recipe), how.least, how.seconds / 10))}
    found |= {name: milliseconds(times) for name, times in iterations(work, how).items()}
    step()
    found["retrain_step"] = milliseconds(retrain_steps(work, how))
    step()
    count = min(how.iterations or recipe.iterations, recipe.iterations)
    learner = work.learner(iterations=count)
    times = [stopwatch(lambda: learner.learn(work.segment)) for _ in range(how.segments)]
    found["segment"] = quantity([seconds * recipe.iterations / count for seconds in times], "s")
    step()
    epochs = min(how.epochs or recipe.retrain_epochs, recipe.retrain_epochs)
    seconds = stopwatch(work.learner(retrain_epochs=epochs).retrain)
    found["update"] = quantity([seconds * recipe.retrain_epochs / epochs], "s")
    step()
    return found, {
        "segment": {"iterations_measured": count, "iterations": recipe.iterations},
        "update": {"epochs_measured": epochs, "epochs": recipe.retrain_epochs},
    }


def observing(work: Work, how: Effort) -> dict[str, Quantity]:
    """A recipe that costs next to nothing beside the network: one frame predicted, and one segment of frames learned,
    which were observed when they were predicted, the update included."""
    learner, name = work.learner(), work.recipe.name.replace("+", "_plus")
    _, segment = learner.step(work.segment)
    return {
        f"{name}_predict": milliseconds(repeat(lambda: learner.predict(work.frame), how.least, how.seconds)),
        f"{name}_learn": quantity(repeat(segment, how.segments, how.seconds), "s"),
    }


def iterations(work: Work, how: Effort) -> dict[str, list[float]]:
    """Seconds of each stage of whole iterations on a segment of one class; the stages add up to `iteration`."""
    engine = TimedEngine(work.engine)
    learner = replace(work, engine=engine).kind_of(Deco)

    def distance_of(g_syn: Floats, g_real: Floats) -> tuple[float, Floats]:
        begin = time.perf_counter()
        found = gradient_distance(g_syn, g_real)
        engine.marks.append(Mark("distance", begin, time.perf_counter()))
        return found

    learner.match = partial(five_passes, epsilon=learner.recipe.epsilon, distance_of=distance_of)
    condensation = learner.begin(work.segment.observed["x"], work.segment.pseudo, work.segment.confidence)
    found: dict[str, list[float]] = {}

    def one() -> dict[str, float]:
        engine.marks.clear()
        started = time.perf_counter()
        model = learner.random_model()
        drawn = time.perf_counter()
        learner.iterate(condensation, model)
        return stages_of(engine.marks, started, drawn, time.perf_counter())

    for _ in range(WARM_UP):
        one()
    while len(found.get("iteration", ())) < how.least or sum(found["iteration"]) < how.seconds:
        for name, seconds in one().items():
            found.setdefault(name, []).append(seconds)
    return found


def stages_of(marks: Sequence[Mark], started: float, drawn: float, ended: float) -> dict[str, float]:
    """Seconds by stage, from the calls of one iteration that began by drawing its random model."""
    g_syn, g_real, distance, plus, minus, features, contrast = marks
    stages = {
        "random_model": drawn - started,
        "g_syn": g_syn.seconds,
        "g_real": g_real.seconds,
        "gradient_distance": distance.seconds,
        "theta_plus_minus": (plus.begin - distance.end) + (minus.begin - plus.end),
        "input_gradients": plus.seconds + minus.seconds,
        "discrimination": contrast.end - features.begin,
    }
    whole = ended - started
    return {**stages, "opt_s": whole - sum(stages.values()), "iteration": whole}


def retrain_steps(work: Work, how: Effort) -> list[float]:
    """Seconds of one batch of opt_θ, from whole epochs."""
    recipe, buffer = replace(work.recipe, retrain_epochs=1), initial(work.bundle)
    theta, classes, rng = work.bundle.weights(), work.bundle.outputs, np.random.default_rng(0)
    batches = -(-len(buffer.y_syn) // recipe.retrain_batch)
    times = repeat(lambda: retrain(work.engine, theta, buffer, classes, recipe, rng), how.least, how.seconds)
    return [seconds / batches for seconds in times]
