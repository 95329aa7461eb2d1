"""What people said of frames, apart from what was voted: as the learner observed them, never as pictures of its own.

    Taught     every teaching so far; `with_`, `without_last`
    few_of     which frames of a teaching are kept, and which of them the guard has
    checked    a name for a class

numpy only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deco_runtime.errors import UsageError
from deco_runtime.learning.added import COSTS, UNJUDGED
from deco_runtime.learning.arrays import Array
from deco_runtime.types import Bools, Ints, Observed

NONE = "none"
"""The class of what shows none of the classes; answered as unknown."""
OF_A_TAKE = 32
"""Frames of one take that are kept, evenly spread: neighbours say the same."""
GUARDS = 5
"""Of so many frames of a teaching the guard has one, which is not learned from."""
MOST_BYTES = 16 << 20
"""Of all that was taught; the bound is what reading a state file takes at most."""
LONGEST_NAME = 100
_PREFIX = "taught_"
_OF_FRAMES = ("labels", "takes", "teaching", "guards", "steps")


@dataclass(frozen=True)
class Taught:
    """classes: names that the bundle lacks, in the order of their teaching; their numbers go on behind the bundle's.
    observed: name → (m, …) float32. labels: (m,) int64, class. takes: (m,) int64, the same number for frames of one
    take. teaching: (m,) int64, which teaching, never falling. guards: (m,) bool, those that judge updates. steps: (m,)
    int64, which of `added.COSTS` the classes could take of the others since this teaching."""

    classes: tuple[str, ...] = ()
    observed: Observed = field(default_factory=dict)
    labels: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    takes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    teaching: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    guards: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def teachings(self) -> int:
        """How many there were that are not undone."""
        return len(np.unique(self.teaching))

    @property
    def step(self) -> int:
        """Which of `added.COSTS` its classes may take of the others."""
        return int(self.steps[-1]) if len(self) else UNJUDGED

    def at_step(self, step: int) -> Taught:
        """The same with another step since the last teaching; that before it is gone back to when this is undone."""
        return replace(self, steps=np.where(self.teaching < self.teaching.max(initial=0), self.steps, step))

    def same(self, other: Taught) -> bool:
        """Whether both are the same teachings."""
        mine, its = self.arrays(), other.arrays()
        alike = mine.keys() == its.keys() and all(np.array_equal(array, its[name]) for name, array in mine.items())
        return alike and self.classes == other.classes

    def part(self, which: Bools) -> tuple[Observed, Ints, Ints]:
        """Frames (m,) of these: what was observed of them, labels and takes."""
        return {name: array[which] for name, array in self.observed.items()}, self.labels[which], self.takes[which]

    def with_(self, name: str, known: tuple[str, ...], observed: Observed, takes: Ints) -> Taught:
        """And one teaching more: that frames, observed (n, …) and of these takes (n,), show the class of that name.

        known: names of the bundle's classes. Raises UsageError where there is no room for more, and for frames of which
        what was observed is not finite.
        """
        names = known + self.classes
        classes = self.classes if name in names else (*self.classes, name)
        label = (known + classes).index(name)
        most = MOST_BYTES // 2 // max(1, sum(array[:1].nbytes for array in observed.values()))
        kept, guards = few_of(takes, most)
        took = {key: array[kept] for key, array in observed.items()}
        if not all(np.isfinite(array).all() for array in took.values()):
            raise UsageError("expected frames that the network can see, but found numbers not finite; choose others")
        count, takes = len(kept), np.unique(takes[kept], return_inverse=True)[1] + 1 + self.takes.max(initial=-1)
        if self.observed:
            took = {key: np.concatenate([self.observed[key], array]) for key, array in took.items()}
        found = Taught(
            classes,
            took,
            np.append(self.labels, np.full(count, label, np.int64)),
            np.append(self.takes, takes),
            np.append(self.teaching, np.full(count, self.teaching.max(initial=-1) + 1)),
            np.append(self.guards, guards),
            np.append(self.steps, np.full(count, self.step)),
        )
        if sum(array.nbytes for array in found.arrays().values()) > MOST_BYTES:
            raise UsageError(
                f"expected at most {MOST_BYTES >> 20} MiB of taught frames, but found {len(self)} and {count} more "
                "frames; undo some, or export the bundle again with these pictures as labelled ones"
            )
        return found

    def without_last(self, known: int) -> Taught:
        """Before the last teaching. A class that nothing is left of goes with it; known: K of the bundle."""
        left = self.teaching < self.teaching.max(initial=0)
        observed, labels, takes = self.part(left)
        classes = self.classes[: max(0, int(labels.max(initial=-1)) + 1 - known)]
        return Taught(classes, observed, labels, takes, self.teaching[left], self.guards[left], self.steps[left])

    def arrays(self) -> dict[str, Array]:
        """As they are stored; {} where nothing was taught."""
        if not len(self):
            return {}
        seen = {f"{_PREFIX}of_{name}": array for name, array in self.observed.items()}
        return {**seen, **{_PREFIX + name: getattr(self, name).astype(np.int64) for name in _OF_FRAMES}}

    @classmethod
    def of(cls, arrays: Mapping[str, Array], classes: Any, known: int) -> Taught:
        """From what `arrays` gave. Raises KeyError or ValueError where it is not that; known: K of the bundle."""
        names = tuple(classes)
        if not all(type(name) is str and name == name.strip() and _fine(name) for name in names):
            raise ValueError("its taught classes have no names")
        if _PREFIX + "labels" not in arrays:
            if names:
                raise ValueError("classes that were taught by no frame")
            return cls()
        labels, takes, teaching, guards, steps = (arrays[_PREFIX + name] for name in _OF_FRAMES)
        count, begin = len(labels), f"{_PREFIX}of_"
        observed = {name[len(begin) :]: array for name, array in arrays.items() if name.startswith(begin)}
        numbers = labels, takes, teaching, guards, steps
        flat = all(each.shape == (count,) and each.dtype == np.int64 for each in numbers)
        fits = all(len(a) == count and a.dtype == np.float32 and np.isfinite(a).all() for a in observed.values())
        ordered = (np.diff(teaching) >= 0).all() if flat else False
        if not (flat and fits and ordered and observed and count):
            raise ValueError("its taught frames do not fit each other")
        if labels.min() < 0 or labels.max() >= known + len(names) or len(set(names)) < len(names):
            raise ValueError("its taught frames are of other classes")
        if not (((guards == 0) | (guards == 1)).all() and steps.min() >= 0 and steps.max() < len(COSTS)):
            raise ValueError("its taught frames are not what a teaching gives")
        return cls(names, observed, labels, takes, teaching, guards > 0, steps)


def few_of(takes: Ints, most: int = MOST_BYTES) -> tuple[Ints, Bools]:
    """Which frames (n,) of these takes are kept, (k,) indices that rise, `most` in all; and which of them the guard
    has, (k,)."""
    kept: list[int] = []
    for take in np.unique(takes):
        own = np.flatnonzero(takes == take)
        spread = np.linspace(0, len(own) - 1, min(len(own), OF_A_TAKE)).round().astype(np.int64)
        kept += own[spread].tolist()
    index = np.asarray(sorted(kept), np.int64)
    if len(index) > most:
        index = index[np.linspace(0, len(index) - 1, max(most, 1)).round().astype(np.int64)]
    return index, np.arange(1, len(index) + 1) % GUARDS == 0


def checked(name: str) -> str:
    """A name that a class may be taught under, without spaces around. Raises UsageError for any other."""
    name = name.strip()
    if not _fine(name):
        raise UsageError(
            f"expected a class's name of 1 to {LONGEST_NAME} printable characters, but found {name[:40]!r}; correct it"
        )
    return name


def _fine(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()
