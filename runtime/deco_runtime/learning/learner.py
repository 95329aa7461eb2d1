"""What a learner is. One file in this package, with a class derived from `Learner` as its LEARNER, is one learner.

A learner observes frames, answers with the deployed model, and learns from what it observed: `update` takes one segment
into its memory, `solve` makes a model of the memory. Around these two, every learner counts, publishes, and can be
stored and brought back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.errors import UsageError
from deco_runtime.learning.arrays import Array, Memory, arrays_of, like, memory_like, whole
from deco_runtime.learning.origin import Bundle, Labelled
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import RetrainReport, SegmentReport, Verdict
from deco_runtime.learning.taught import Taught
from deco_runtime.types import Batches, Check, Floats, Ints, Observed, Segment

COUNTS = ("segments", "since_retrain", "retrains", "dropped", "merges", "offers")


class Learner(ABC):
    """Owns what is learned: the model, the memory it is made of, the generator, the counts of segments, updates, merges
    with a fleet and offers to it, by which the fleet's side knows whether this is an older state than it has seen.

    model: flat float32, what `solve` gives. `learn` and `retrain` either finish or, when `check` raises, leave
    everything as it was. A reader in another thread may answer with `model` at any time: a new one is published by
    swapping one reference.

    classes: K. taught: what people said, see `tell`; its classes are behind the bundle's, of which there are
    bundle_classes.

    scene: what the stream showed at the end of the last segment, (S,) float32, where the learner goes by the order of
    frames and nothing has interrupted the stream since; else None.
    """

    NAME: ClassVar[str]
    """Of its recipe, as for --recipe."""
    TITLE: ClassVar[str]
    """In tables."""
    ABOUT: ClassVar[str]
    """One sentence, and its source."""
    RECIPE: ClassVar[Recipe]
    """Its hyper-parameters and their defaults."""
    GRAPH: ClassVar[str]
    """The graph that it spends its time in, which is checked before a run and timed by --engine auto."""
    IPC: ClassVar[int] = 0
    """Condensed images per class that its bundles hold unless told otherwise; 0 for a learner that needs none."""
    AUGMENT: ClassVar[bool] = True
    """Whether its pre-trained model is trained on varied images unless told otherwise."""
    LEAST: ClassVar[float] = 1.0
    """Share of a segment that can be learned from at the end of a stream."""
    LEARNS: ClassVar[bool] = True
    """False for one that never changes."""
    CAUTIOUS: ClassVar[bool] = False
    """Whether classes that people added can be answered more or less readily, by `Taught.step`."""
    OWN: ClassVar[tuple[str, ...] | None] = ()
    """Attributes, arrays or numbers, that are learned too; None where there is more, and no way back."""

    steps: tuple[str, int]
    """What `learn` does between two calls of `check`, and how often in a segment."""
    solve_steps: tuple[str, int]
    """The same of `retrain`."""
    states = 0
    """S, length of `scene`."""

    def __init__(
        self, engine: Engine, model: Floats, memory: Memory, classes: int, recipe: Recipe, rng: np.random.Generator
    ) -> None:
        self.engine, self.recipe, self.classes, self.bundle_classes = engine, recipe, classes, classes
        self.taught = Taught()
        self.model, self.memory, self.rng = model, memory, rng
        self.segments = self.since_retrain = self.retrains = self.dropped = self.merges = self.offers = 0
        self.scene: Floats | None = None

    # --- what a learner is made of -----------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def open(cls, bundle: Bundle, engine: Engine, recipe: Any, rng: np.random.Generator) -> Learner:
        """A learner that starts from what the bundle holds. Raises BundleError where that is not enough.

        It keeps the engine without calling it: deco-doctor opens learners without one.
        """

    @classmethod
    def fit(cls, labelled: Labelled) -> tuple[dict[str, Array], list[str]]:
        """What the export is to fit for it, and sentences about that; the arrays are in the bundle's `fitted(NAME)`."""
        return {}, []

    @classmethod
    def check_engine(cls, bundle: Bundle, engine: Engine, recipe: Any) -> None:
        """Raise BundleError where the bundle lacks what the recipe needs, UsageError where the engine cannot do it."""
        return

    @abstractmethod
    def observe(self, x: Floats) -> Observed:
        """What it sees in images x (N, C, H, W): all that it answers with and learns from."""

    @abstractmethod
    def answer(self, model: Floats, observed: Observed) -> Floats:
        """Logits (N, K) that a model gives what was observed of N images."""

    @abstractmethod
    def update(self, segment: Segment, check: Check) -> tuple[Memory, SegmentReport]:
        """Vote on a segment and learn from it: the memory with it, and what was done, but for the seconds."""

    @abstractmethod
    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        """A model made of the memory, and the mean loss of each epoch."""

    def strangeness(self, observed: Observed) -> Floats:
        """How likely each of N images shows none of the classes, (N,) in [0, 1); 0 where nobody can say."""
        return np.zeros(len(next(iter(observed.values()))), np.float32)

    def evaluate_memory(self, model: Floats, memory: Memory, check: Check) -> tuple[Floats, Ints] | None:
        """A model's logits (n, K) for what is in a memory, and what they should say (n,); None without images in it."""
        return None

    def known(self) -> dict[str, Floats]:
        """What is known of each class, for people: by name, (K,). "frames" that it has learned from, labelled ones too;
        "share" of an answer that comes of what was learned."""
        return {}

    def step(self, segment: Segment) -> tuple[str, Callable[[], object]]:
        """One step of its learning on a segment, as often as it is called, and the name of many: for who measures."""
        return "segments", lambda: (self.learn(segment), self.retrain())

    def answers_on(self, images: Batches) -> Callable[[Floats, Check], Floats]:
        """A function from a model and a check to its logits (g, K) for these g images."""
        return lambda model, check: np.concatenate([self.answer(model, self.observe(x)) for x in images(check)])

    def tell(self, taught: Taught) -> None:
        """Go by this of what people said, in place of what they said before; the memory has its classes then, the model
        only when the next one is published. Raises UsageError where the recipe cannot."""
        if len(taught) or len(self.taught):
            raise UsageError(
                f"expected a recipe that can be taught, but found {self.NAME!r}, which goes by its own votes alone; "
                "choose another --recipe"
            )

    def retaught(self, check: Check) -> Floats:
        """A model that goes by what people said since `tell`, for as long as no other is published."""
        return self.solve(check)[0]

    def reshaped(self, memory: Memory, classes: int) -> Memory:
        """A memory of so many classes, K, made of one of more or fewer."""
        return memory

    def initial(self) -> Floats:
        """The model that it starts with: of what the bundle holds and people said."""
        return self.model

    # --- what every learner does -------------------------------------------------------------------------------------

    def predict(self, x: Floats) -> Floats:
        """Logits (N, K) that the deployed model gives images x (N, C, H, W)."""
        return self.answer(self.model, self.observe(x))

    def interrupted(self) -> None:
        """The next segment does not follow the last one."""
        self.scene = None

    def learn(self, segment: Segment, check: Check = lambda: None) -> SegmentReport:
        """Take in one segment."""
        started = time.monotonic()
        before = self.rng.bit_generator.state
        try:
            self.memory, report = self.update(segment, check)
        except BaseException:
            self.rng.bit_generator.state = before
            raise
        self.segments += 1
        self.since_retrain += 1
        self.dropped += report.dropped
        return replace(report, seconds=time.monotonic() - started)

    @property
    def retrain_due(self) -> bool:
        """β segments were learned since the last update (t mod β = 0)."""
        return self.since_retrain >= self.recipe.retrain_interval

    def retrain(
        self, check: Check = lambda: None, judge: Callable[[Floats, Check], Verdict] | None = None
    ) -> RetrainReport:
        """Publish a model made of the memory; one that is not finite, or that `judge` rejects, is dropped and
        counted."""
        started = time.monotonic()
        before = self.rng.bit_generator.state
        try:
            model, losses = self.solve(check)
            verdict = judge(model, check) if judge is not None else None
        except BaseException:
            self.rng.bit_generator.state = before
            raise
        accepted = verdict.accepted if verdict is not None else bool(np.isfinite(model).all())
        if accepted:
            self.model = model
        else:
            self.dropped += 1
        self.retrains += 1
        self.since_retrain = 0
        loss = (losses[0], losses[-1]) if losses else None
        return RetrainReport(loss, accepted, time.monotonic() - started, verdict)

    def arrays(self) -> dict[str, Array]:
        """All that it has learned: the model, the memory, and what else it keeps, by name."""
        scene = {} if self.scene is None else {"scene": self.scene}
        own = {f"own_{name}": np.asarray(getattr(self, name)) for name in self.OWN or ()}
        return {"model": self.model, **arrays_of(self.memory), **own, **scene, **self.taught.arrays()}

    def values(self) -> dict[str, Any]:
        """Its counts, and where its generator is, as JSON has them."""
        counts = {name: getattr(self, name) for name in COUNTS}
        classes = {"classes": list(self.taught.classes)} if self.taught.classes else {}
        return {"counts": counts, "generator": self.rng.bit_generator.state, **classes}

    def restore(self, arrays: Mapping[str, Array], values: Mapping[str, Any]) -> None:
        """Go on from what `arrays` and `values` gave. Raises ValueError or KeyError, and changes nothing, where they
        are not those of a learner like this one."""
        before = self.taught, self.memory, self.scene
        self.tell(Taught.of(arrays, values.get("classes", ()), self.bundle_classes))
        try:
            model = like(arrays["model"], self.initial() if len(self.taught) or len(before[0]) else self.model)
            memory = memory_like(arrays, self.memory)
            own = {name: like(arrays[f"own_{name}"], np.asarray(getattr(self, name))) for name in self.OWN or ()}
            scene = like(arrays["scene"], np.zeros(self.states, np.float32)) if "scene" in arrays else None
            counts = {name: whole(values["counts"][name]) for name in COUNTS}
            np.random.default_rng(0).bit_generator.state = values["generator"]  # raises unless it is one
        except BaseException:
            self.tell(before[0])
            self.memory, self.scene = before[1:]
            raise
        self.rng.bit_generator.state = values["generator"]
        self.model, self.memory, self.scene = model, memory, scene
        for name, count in counts.items():
            setattr(self, name, count)
        for name, array in own.items():
            setattr(self, name, array if array.ndim else array.item())


def joined(parts: Sequence[Observed]) -> Observed:
    """What was observed of the images of all parts, of which there is at least one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def seen_once(
    images: Batches, observe: Callable[[Floats], Observed], answer: Callable[[Floats, Observed], Floats]
) -> Callable[[Floats, Check], Floats]:
    """As `Learner.answers_on`, but what was observed is kept: for learners that make little of a large image."""
    kept: Observed = {}

    def answers(model: Floats, check: Check) -> Floats:
        if not kept:
            kept.update(joined([observe(x) for x in images(check)]))
        return answer(model, kept)

    return answers
