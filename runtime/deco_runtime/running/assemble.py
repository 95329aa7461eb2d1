"""Open everything a run needs, in the order in which mistakes are cheapest to meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from deco_runtime import sources
from deco_runtime.engine import REPRESENTATION, TRUNK, Engine
from deco_runtime.engines.autoselect import Choice, fastest, kept
from deco_runtime.engines.golden import golden_check
from deco_runtime.engines.providers import PORTABLE, left_to_the_cpu, on, to_build
from deco_runtime.engines.providers import prepare as prepare_engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import BundleError, DecoError
from deco_runtime.host.priority import giving_way
from deco_runtime.host.threads import limit_threads
from deco_runtime.learning import registry
from deco_runtime.learning.frozen import Frozen
from deco_runtime.learning.guard import Guarded, Unguarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe, override
from deco_runtime.page.listener import Page, open_access
from deco_runtime.preprocess import check_method
from deco_runtime.running.autosave import Saver
from deco_runtime.running.control import Control
from deco_runtime.running.door import Door
from deco_runtime.running.limits import Limits, Resources
from deco_runtime.running.loop import Run
from deco_runtime.running.patience import patience
from deco_runtime.running.recent import Recent
from deco_runtime.running.resume import START, Place
from deco_runtime.running.scoring import Scorer, normalised, read_test_folder
from deco_runtime.sources import view
from deco_runtime.sources.together import open_together
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.happenings import PlaceFound, Said, StateFound, StateJudged
from deco_runtime.telemetry.output.outputs import On, Outputs
from deco_runtime.telemetry.redact import redact
from deco_runtime.telemetry.systemd import Notifier
from deco_runtime.telemetry.terminal_view import View
from deco_runtime.types import Check


@dataclass(frozen=True)
class Options:
    """What the user asked of a run; see `deco-run --help`. recipe: None for the bundle's. views: how each source is
    looked at."""

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
    no_learn: bool = False
    guard: bool = True
    provider: str = "auto"
    order: sources.Order = "stc"
    labels: Path | None = None
    threads: int | None = None
    page: str | None = None
    page_tls: tuple[Path, Path] | None = None
    limits: Limits = field(default_factory=Limits)
    views: tuple[view.View, ...] = (view.WHOLE,)
    outputs: tuple[str, ...] = ()
    output_on: On = "change"
    output_after: float = 1.0


def prepare(options: Options, given: Sequence[tuple[str, Any]], started: float) -> tuple[Run, Place]:
    """A run that is ready to go, and the place in its source that the learned state was at.

    given: the source options and their values; several are live, and learned from at once. started: monotonic
    time the program began.
    Raises the DecoError of whatever cannot be used.
    """
    if options.threads is not None:
        limit_threads(options.threads)
        cv2.setNumThreads(options.threads)
    bundle = open_bundle(options.bundle)
    check_method(bundle.preprocessing.method)
    kind = registry.learner(options.recipe or bundle.recipe.name)
    recipe = override(kind.RECIPE, options.settings)
    if options.no_learn:
        kind, recipe = Frozen, replace(Frozen.RECIPE, segment=recipe.segment)
    directory = options.state if options.state is not None else states.beside(options.bundle)
    unwritable, unlocked = states.hold(directory) if not options.no_learn else (None, None)
    opened = open_access(options.page, directory, options.page_tls) if options.page is not None else None
    name, choice = on(options.engine, options.provider), None
    free = options.provider == "auto" and name in ("auto", PORTABLE)
    which, choose = (bundle, directory, kind.GRAPH, options.precision, name), None
    if free and not options.no_learn:  # predictions alone are not worth the seconds of a timing
        if (before := kept(*which)) is not None:
            name, choice = before
        else:  # the first frame does not wait for the times
            choose = partial(fastest, *which)
    engine = open_engine(bundle, name, options.precision, directory)
    kind.check_engine(bundle, engine, recipe)
    bus = Bus(View(f"{options.bundle.name} on {engine.name}"))
    bus.add(Notifier())
    if choice:
        bus.emit(Said(choice))
    _make_ready(bundle, engine, kind, bus, live=sources.are_live(given))
    for words in filter(None, (unwritable, unlocked)):
        bus.emit(Said(words, "warning"))
    bus.add(EventLog(options.events))  # behind those words, since it may say that it cannot be written
    bus.add(Outputs(options.outputs, options.output_on, options.output_after))
    learner = kind.open(bundle, engine, recipe, np.random.default_rng(options.seed))
    guarded, restored, passed_over = Unguarded(learner), None, None
    if not options.no_learn:
        if options.guard:
            guarded, note = open_guard(bundle, learner)
            if note:
                bus.emit(Said(note, "note"))
        restored, passed_over = states.load(directory, bundle, guarded)
        found = restored is not None
        bus.emit(StateFound(directory, found, learner.segments, learner.retrains, passed_over, unwritable))
    names = bundle.classes + learner.taught.classes
    request = sources.SourceRequest(
        classes=names,
        size=bundle.preprocessing.size,
        stc=options.stc,
        seed=options.seed,
        trained_on=bundle.trained_on(),
        bundle=bundle.root,
        order=options.order,
        labels=options.labels,
    )
    openers: list[Callable[[], sources.FrameSource]] = [
        partial(sources.discover()[name].open_source, value, replace(request, view=seen))
        for (name, value), seen in zip(given, options.views, strict=True)
    ]
    reopen = openers[0] if len(openers) == 1 else partial(open_together, openers)
    source, behind = reopen(), START
    if restored and not source.live and restored.source == redact(source.name) and restored.position:
        behind = Place(restored.position, restored.digest)
        bus.emit(PlaceFound(source.name, behind.frames))
    scorer = _scorer(options, given[0][0], source, bundle, names, bus)
    if not behind.frames:
        learner.interrupted()  # another stream, or the same one after a while
    if isinstance(guarded, Guarded) and restored is not None and "guard" not in restored.values:
        bus.emit(StateJudged(learner.retrains, guarded.vet()))  # what was learned without a guard
    saver = Saver(directory, bundle, options.save_every, bus, bool(unwritable), None if passed_over else restored)
    run = Run(
        *(bundle, engine, source, guarded, saver, scorer, Resources(options.limits, bus), bus),
        max_segments=options.max_segments,
        started=started,
        reopen=reopen,
        choose=partial(_faster, choose, bundle, directory, kind, recipe, options.precision, bus) if choose else None,
    )
    control, taught = Control(run, directory, recent := Recent()), not options.no_learn and not unwritable
    if opened is not None or taught:  # else nobody can ask for what was seen
        bus.add(recent)
    if opened is not None:
        bus.add(Page(control, *opened, title=options.bundle.name, engine=engine.name, bus=bus))
    if taught:
        bus.add(Door(directory, control, bus))
    return run, behind


def _make_ready(bundle: Bundle, engine: Engine, kind: type[Learner], bus: Bus, live: bool) -> None:
    """Have an engine build what a learner of this kind needs, check it, and tell what it leaves to the CPU.

    live: a camera's frames are to be predicted meanwhile. Raises BundleError where it computes something else.
    """
    graphs = (kind.GRAPH,) if kind.GRAPH == REPRESENTATION else (TRUNK, "predict", kind.GRAPH)
    with patience(bus, to_build(engine, graphs)):
        without = prepare_engine(engine, graphs)
        check = partial(golden_check, bundle, engine, kind.GRAPH)
        # Which opens the learner's graph: beside a camera its threads give way, but not those of predictions.
        complaint = giving_way(check) if live and kind.GRAPH != REPRESENTATION else check()
    if without is not None:
        bus.emit(Said(without, "note"))
    if complaint is not None:
        raise BundleError(complaint)
    if left := left_to_the_cpu(engine):
        bus.emit(Said(left[0], "warning" if left[1] else "note"))


def _faster(
    choose: Callable[..., Choice],
    bundle: Bundle,
    directory: Path,
    kind: type[Learner],
    recipe: Recipe,
    precision: str,
    bus: Bus,
    now: Engine,
    check: Check,
) -> Engine:
    """The fastest engine, by times that are taken now; the one there is now where another cannot be used."""
    name, words = choose(check=check)
    if words:
        bus.emit(Said(words))
    if name in ("auto", now.name):
        return now
    try:
        engine = open_engine(bundle, name, precision, directory)
        kind.check_engine(bundle, engine, recipe)
        _make_ready(bundle, engine, kind, bus, live=False)  # in the learner's thread, which gives way itself
    except DecoError as error:
        bus.emit(Said(f"goes on with {now.name}: {error}", "warning"))
        return now
    return engine


def open_fresh(bundle: Bundle, recipe: str) -> Guarded:
    """A guarded learner of this recipe as it is, that starts from what the bundle holds, on the preferred engine.

    Raises UsageError for a recipe that nobody knows, BundleError where the bundle lacks what it needs.
    """
    kind, engine = registry.learner(recipe), open_engine(bundle, "auto")
    kind.check_engine(bundle, engine, kind.RECIPE)
    return open_guard(bundle, kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0)))[0]


def open_guard(bundle: Bundle, learner: Learner) -> tuple[Guarded, str | None]:
    """A new learner with its updates guarded by the bundle's held-out images; and a sentence where it has none."""
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
    return Guarded(learner, labelled), note


def _scorer(
    options: Options,
    source_name: str,
    source: sources.FrameSource,
    bundle: Bundle,
    names: tuple[str, ...],
    bus: Bus,
) -> Scorer | None:
    """For `--test`, or for `--demo` the bundle's own test images."""
    if options.test is not None:
        streamed = source.fingerprints() if not options.no_learn else frozenset()
        pixels, labels, note = read_test_folder(options.test, bundle, names, streamed)
        if note:
            bus.emit(Said(note, "note"))
        return Scorer(bundle.preprocessing, pixels, labels)
    if source_name == "demo" and "demo/test.npz" in bundle.files:
        return Scorer(bundle.preprocessing, *bundle.labelled_pixels("demo/test.npz"))
    return None
