"""Devices and a pool in one process, as the product drives them, on frames that were observed beforehand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial, wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.fleet import device
from deco_runtime.fleet import member as members
from deco_runtime.fleet.pool import Pool
from deco_runtime.fleet.roll import Place
from deco_runtime.fleet.sums import frames, unpacked
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.guard import Guarded, Unguarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.regression import Statistics
from deco_runtime.learning.reports import RetrainReport, SegmentReport, Verdict
from deco_runtime.learning.teachable import TeachableLearner
from deco_runtime.running.scoring import normalised
from deco_runtime.running.segmenter import Segmenter
from deco_runtime.running.stream import Stream
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.state import LearnedState
from deco_runtime.types import Floats, Ints, Observed, Segment

from deco_benchmarks.fleet.footage import Frames, learner_of, read


@dataclass(frozen=True)
class Home:
    """What all devices of an experiment share. stream: frames to learn from; test: to be scored on; segment: frames of
    each; least: that a difference is of."""

    bundle: Bundle
    engine: Engine
    stream: Frames
    test: Frames
    segment: int
    least: float = members.LEAST

    @classmethod
    def open(cls, bundle_path: Path, seen: Path, segment: int | None = None, least: float = members.LEAST) -> Home:
        """seen: what `observe` kept. segment: None for the recipe's. Raises BundleError, and OSError or ValueError for
        another file."""
        bundle = open_bundle(bundle_path)
        with np.load(seen) as file:
            stream, test = read(file, "stream"), read(file, "test")
        return cls(
            bundle,
            open_engine(bundle, "auto"),
            stream,
            test,
            segment or registry.learner("deco+").RECIPE.segment,
            least,
        )

    @cached_property
    def guard(self) -> Labelled | None:
        """The bundle's guard, whose images are observed once for all devices."""
        if "guard.npz" not in self.bundle.files:
            return None
        pixels, labels = self.bundle.labelled_pixels("guard.npz")
        learner = self.scorer
        seen = [learner.observe(x) for x in normalised(pixels, self.bundle.preprocessing, lambda: None)]
        observed = {name: np.concatenate([part[name] for part in seen]) for name in seen[0]}
        return Labelled(
            lambda model, check: learner.answer(model, observed), labels, self.bundle.guard_takes(), self.bundle.classes
        )

    @cached_property
    def scorer(self) -> Learner:
        return learner_of(self.bundle, self.engine)

    def guarded(self) -> Guarded:
        return Guarded(learner_of(self.bundle, self.engine), self.guard)

    def pool(self, kind: type[Pool] = Pool) -> Pool:
        return kind(self.bundle, self.guarded(), self.least)

    @property
    def known(self) -> Statistics:
        """Sums of the labelled images."""
        learner = self.scorer
        assert isinstance(learner, TeachableLearner)
        return learner.start.statistics

    def accuracy(self, model: Floats) -> float:
        """Share of the test images that a model answers right."""
        return float(np.mean(self.scorer.answer(model, self.test.observed).argmax(axis=1) == self.test.labels))

    def start(self) -> float:
        """The same of the bundle's model, before anything was learned."""
        return self.accuracy(self.scorer.model)


class Device(Stream):
    """A learner in a fleet with its state directory, driven as a run drives it; its images are places in the stream."""

    def __init__(self, home: Home, directory: Path, guard: bool = True) -> None:
        super().__init__(home.guarded() if guard else Unguarded(learner_of(home.bundle, home.engine)))
        self.home, self.directory = home, directory
        self.updates = self.rejected = self.paused = self.right = self.frames = 0

    def look(self, x: Any) -> tuple[Observed, Floats]:
        observed = self.home.stream[x].observed
        return observed, self.learner.answer(self.learner.model, observed)

    def watch(self, places: Ints) -> None:
        """See frames of a stream that begins here; what is left of its last segment is not learned."""
        self.learner.interrupted()
        self.segmenters[0] = Segmenter(self.home.segment)
        self.follow([(places, self.home.stream.labels[places])])  # type: ignore[list-item]

    def learn(self, segment: Segment) -> None:
        self.paused += self.guarded.pause > 0
        super().learn(segment)

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        if report.pseudo_accuracy is not None and np.isfinite(report.pseudo_accuracy):
            self.right += round(report.pseudo_accuracy * len(segment))
            self.frames += len(segment)

    def retrain_if_due(self) -> None:
        if isinstance(self.guarded, Guarded):  # else no update changes what is learned: the last one will do
            super().retrain_if_due()

    def updated(self) -> Floats:
        """The model of what was learned."""
        if not isinstance(self.guarded, Guarded):
            self.guarded.retrain()
        return self.learner.model

    def retrained(self, report: RetrainReport) -> None:
        self.updates += 1
        self.rejected += not report.accepted

    def save(self) -> None:
        states.save(self.directory, LearnedState.of(self.guarded, self.home.bundle, "stream", 0))

    def offer(self, how: str = "fp32") -> members.Member:
        self.directory.mkdir(parents=True, exist_ok=True)
        return device.offer(self.directory, self.guarded, self.home.bundle, how, self.home.least, self.save)

    def send(self, pool: Pool, how: str = "fp32") -> str | None:
        """Why the pool refuses it, or None; "nothing" where there is nothing to send."""
        place = self.offer(how)
        if place.sent is None:
            return "nothing"
        return pool.offer(place.name, place.number + 1, place.how, members.payload(place), self.home.bundle.hash)

    def take_up(self, pool: Pool) -> Verdict | None:
        """What its guard says of the pool's sums; None without one."""
        member = members.kept(self.directory, self.guarded.accepted, self.home.bundle.hash)
        assert member is not None
        place = pool.places.get(member.name)
        device.hand_over(self.directory, pool.sums, place.number if place else 0)
        return device.take_up(self.directory, self.guarded, self.home.bundle, self.save)[1]


class Unchecked(Pool):
    """A pool that adds up whatever fits: what there would be without its checks. Of the experiments alone."""

    def _offer(self, name: str, number: int, how: str, arrays: Any, bundle: str) -> str | None:
        sums = unpacked(arrays, how, *self.sums.b.shape)
        self._a, self._b = self._a + sums.a, self._b + sums.b
        place = self.places.get(name) or Place(0, "", 0.0)
        self._new[name] = Place(place.number + 1, "", place.frames + frames(sums))
        return None

    def settle(self) -> Verdict | None:
        self._learner.memory = Statistics(self._a.astype(np.float32), self._b.astype(np.float32))
        self._learner.model = self._learner.solve(lambda: None)[0]
        self.places |= self._new
        self._begin()
        return None


def weights(model: Floats, classes: int) -> Floats:
    """W of a model of deco+, whose shares lie behind it."""
    rows: Floats = model.reshape(-1, classes)[:-1]
    return rows


def apart(one: Array, other: Array) -> float:
    """‖one − other‖ / ‖other‖."""
    wide = np.float64
    return float(np.linalg.norm(one.astype(wide) - other.astype(wide)) / np.linalg.norm(other.astype(wide)))


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "min": float(min(values)), "max": float(max(values))}


def write(out: Path, report: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


path = partial(click.Path, path_type=Path)
with_bundle = click.option("--bundle", "bundle_path", required=True, type=path(), metavar="BUNDLE")
with_out = click.option("--out", required=True, type=path(), metavar="FILE.json", help="Result.")
with_seed = click.option("--seed", default=0, type=click.IntRange(0))


def with_home(function: Callable[..., None]) -> Callable[..., None]:
    """Options of a command that is given a `home`."""

    @with_bundle
    @click.option("--seen", required=True, type=path(), metavar="FILE.npz", help="What `observe` kept.")
    @click.option("--segment", type=click.IntRange(1), help="Frames of each.  [default: the recipe's]")
    @click.option("--least", default=members.LEAST, type=click.FloatRange(0), help="Frames that are sent together.")
    @wraps(function)
    def opened(bundle_path: Path, seen: Path, segment: int | None, least: float, **rest: Any) -> None:
        function(home=Home.open(bundle_path, seen, segment, least), **rest)

    return opened


def seen_file() -> str:
    """That of the command line, for processes of their own."""
    return sys.argv[sys.argv.index("--seen") + 1]


@cache
def home_of(bundle: str, seen: str, segment: int) -> Home:
    """One for all devices that a process is in turn."""
    return Home.open(Path(bundle), Path(seen), segment)
