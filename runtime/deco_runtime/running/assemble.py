"""Open everything a run needs, in the order in which mistakes are cheapest to meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np

from deco_runtime import sources
from deco_runtime.engine import Engine
from deco_runtime.engines.autoselect import fastest
from deco_runtime.engines.golden import golden_check
from deco_runtime.engines.registry import check_recipe, open_engine
from deco_runtime.errors import BundleError
from deco_runtime.host.threads import limit_threads
from deco_runtime.learning.deco import Learner
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Guard, Labelled
from deco_runtime.learning.learner import BaseLearner
from deco_runtime.learning.recipe import Recipe, named, override
from deco_runtime.running.autosave import Saver
from deco_runtime.running.limits import Limits, Resources
from deco_runtime.running.loop import Run
from deco_runtime.running.resume import START, Place
from deco_runtime.running.scoring import Scorer, normalised, read_test_folder
from deco_runtime.sources.images import Images
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.happenings import PlaceFound, Said, StateFound, StateJudged
from deco_runtime.telemetry.redact import redact
from deco_runtime.telemetry.systemd import Notifier
from deco_runtime.telemetry.terminal_view import View

L = TypeVar("L", bound=Learner)


@dataclass(frozen=True)
class Options:
    """What the user asked of a run; see `deco-run --help`. recipe: None for the bundle's."""

    bundle: Path
    state: Path | None
    engine: str
    precision: str
    recipe: str | None
    settings: tuple[str, ...]
    max_segments: int | None
    test: Path | None
    stc: int
    seed: int
    events: Path | None
    save_every: int
    learn: bool
    guard: bool = True
    order: sources.Order = "stc"
    labels: Path | None = None
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)


def prepare(options: Options, source_name: str, source_value: Any, started: float) -> tuple[Run, Place]:
    """A run that is ready to go, and the place in its source that the learned state was at.

    source_name, source_value: the source option given and its value. started: monotonic time the program began.
    Raises the DecoError of whatever cannot be used.
    """
    if options.threads is not None:
        limit_threads(options.threads)
        cv2.setNumThreads(options.threads)
    bundle = open_bundle(options.bundle)
    recipe = override(named(options.recipe or bundle.recipe.name), options.settings)
    whole = options.bundle.resolve()
    directory = options.state if options.state is not None else whole.with_name(whole.name + "-state")
    unwritable, unlocked = states.hold(directory) if options.learn else (None, None)
    name, choice = options.engine, None
    if name == "auto" and options.learn:  # predictions alone are not worth the seconds of a timing
        name, choice = fastest(bundle, directory, recipe.method, options.precision)
    engine = open_engine(bundle, name, options.precision)
    if options.learn:
        check_recipe(bundle, engine, recipe)
    if (complaint := golden_check(bundle, engine, recipe.method if options.learn else None)) is not None:
        raise BundleError(complaint)
    bus = Bus(View(f"{options.bundle.name} on {engine.name}"))
    if choice:
        bus.emit(Said(choice))
    for words in filter(None, (unwritable, unlocked)):
        bus.emit(Said(words, "warning"))
    bus.add(EventLog(options.events))  # behind those words, since it may say that it cannot be written
    bus.add(Notifier())
    learner = restored = note = None
    if options.learn:
        learner = new_learner(bundle, engine, recipe, options.seed)
        if options.guard:
            learner.guard, note = open_guard(bundle, learner)
            if note:
                bus.emit(Said(note, "note"))
        restored, note = states.load(directory, bundle, learner)
        if restored:
            restored.restore(learner)
        found = restored is not None
        bus.emit(StateFound(directory, found, learner.segments, learner.retrains, note, unwritable))
    request = sources.SourceRequest(
        classes=bundle.classes,
        size=bundle.preprocessing.size,
        stc=options.stc,
        seed=options.seed,
        trained_on=bundle.trained_on(),
        bundle=bundle.root,
        order=options.order,
        labels=options.labels,
    )
    reopen: Callable[[], sources.FrameSource] = partial(
        sources.discover()[source_name].open_source, source_value, request
    )
    source, behind = reopen(), START
    if restored and not source.live and restored.source == redact(source.name) and restored.position:
        behind = Place(restored.position, restored.digest)
        bus.emit(PlaceFound(source.name, behind.frames))
    scorer = _scorer(options, source_name, source, bundle, bus)
    if learner is not None and not behind.frames:
        learner.scene = None  # another stream, or the same one after a while
    if learner is not None and learner.guard is not None and restored is not None and restored.guard is None:
        _vet(learner, learner.guard, bus)
    run = Run(
        bundle,
        engine,
        source,
        learner,
        Saver(directory, bundle, options.save_every, bus, bool(unwritable), None if note else restored),
        scorer,
        Resources(options.limits, bus),
        bus,
        options.max_segments,
        recipe.segment,
        started,
        reopen,
    )
    return run, behind


def new_learner(bundle: Bundle, engine: Engine, recipe: Recipe, seed: int) -> BaseLearner:
    """A learner by this recipe that starts from what the bundle holds."""
    if recipe.method == "regression":
        return DecoPlus(engine, bundle.regression(), len(bundle.classes), recipe, np.random.default_rng(seed))
    return condensing(Learner, bundle, engine, recipe, seed)


def condensing(kind: type[L], bundle: Bundle, engine: Engine, recipe: Recipe, seed: int) -> L:
    """A learner of this kind that starts from the bundle's model and buffer."""
    theta, buffer, rng = bundle.weights(), bundle.buffer(), np.random.default_rng(seed)
    return kind(engine, bundle.parameters, theta, buffer, len(bundle.classes), recipe, rng)


def open_guard(bundle: Bundle, learner: BaseLearner) -> tuple[Guard, str | None]:
    """The guard of a new learner's updates, on the bundle's held-out images; and a sentence where it has none."""
    labelled = note = None
    if "guard.npz" in bundle.files:
        pixels, labels = bundle.labelled_pixels("guard.npz")
        images = partial(normalised, pixels, bundle.preprocessing)
        labelled = Labelled(learner.answers_on(images), labels, bundle.guard_takes(), bundle.classes)
    else:
        note = (
            "the bundle holds no labelled images for the guard, so updates are only checked for numbers that are not "
            "finite and, with --recipe paper, for the buffer and for collapse; export it again with more labels to "
            "have them scored"
        )
    return Guard(learner.rehearse, learner.model, learner.memory, labelled), note


def _vet(learner: BaseLearner, guard: Guard, bus: Bus) -> None:
    """Judge what was learned without a guard, and go back to the model and memory that the guard, and so the bundle,
    starts with if it does harm."""
    verdict = guard.judge(learner.model, guard.frozen, learner.memory)
    learner.memory = guard.settle(verdict, learner.memory, learner.recipe.retrain_interval)
    if not verdict.accepted:
        learner.model = guard.frozen
    bus.emit(StateJudged(learner.retrains, verdict))


def _scorer(options: Options, source_name: str, source: sources.FrameSource, bundle: Bundle, bus: Bus) -> Scorer | None:
    """For `--test`, or for `--demo` the bundle's own test images."""
    if options.test is not None:
        streamed = source.fingerprints() if options.learn and isinstance(source, Images) else frozenset()
        pixels, labels, note = read_test_folder(options.test, bundle, streamed)
        if note:
            bus.emit(Said(note, "note"))
        return Scorer(bundle.preprocessing, pixels, labels)
    if source_name == "demo" and "demo/test.npz" in bundle.files:
        return Scorer(bundle.preprocessing, *bundle.labelled_pixels("demo/test.npz"))
    return None
