"""Which image comes when, and in what state: one class after another, mixed scenes, several passes, drift; or as
recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath

import numpy as np
from deco_runtime.errors import UsageError
from deco_runtime.sources.orders import recorded_order, stc_order
from deco_runtime.types import Floats, Ints


@dataclass(frozen=True)
class StreamSpec:
    """A stream, written as "recorded", or "stc=500,interleave=2,drift=3"; what is left out has its default.

    stc: strength of temporal correlation, consecutive images of one class in each scene. interleave: scenes seen at the
    same time, their frames mixed at random. passes: times every image comes, in another order each time. drift:
    severity of corruption at the end of the stream, reached in a straight line from 0 at its start. aligned: 1 to begin
    with a whole run, so that borders fall between segments where the segment divides stc; 0 to let them fall anywhere.
    classes: only the first so many ever come, as a camera sees them that does not meet all; 0 for all. recorded: 1
    for every image once in the order of their file names, whatever the others say.
    Raises UsageError for a value below 1 where 0 means nothing, a drift above 5, and an aligned other than 0 and 1.
    """

    stc: int = 500
    interleave: int = 1
    passes: int = 1
    drift: int = 0
    aligned: int = 0
    classes: int = 0
    recorded: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("drift", "aligned", "classes", "recorded") and value < 1:
                raise UsageError(f"expected --stream {field.name} to be at least 1, but found {value}")
        if not 0 <= self.drift <= 5:
            raise UsageError(f"expected --stream drift to be 0 to 5, but found {self.drift}")
        if self.aligned not in (0, 1):
            raise UsageError(f"expected --stream aligned to be 0 or 1, but found {self.aligned}")


def parse(text: str) -> StreamSpec:
    """The stream of a text such as "stc=100,interleave=2". Raises UsageError naming what is wrong."""
    if text == "recorded":
        return StreamSpec(recorded=1)
    names = [field.name for field in fields(StreamSpec) if field.name != "recorded"]
    values = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in names or not value.isdecimal() or name in values:
            raise UsageError(
                f"expected --stream as recorded alone, or as KEY=NUMBER,… with each of {', '.join(names)} at most "
                f"once, but found {text!r}"
            )
        values[name] = int(value)
    return StreamSpec(**values)


def order(labels: Ints, spec: StreamSpec, seed: int, files: Sequence[PurePath] | None = None) -> Ints:
    """Indices into `labels` (n,) in the order of the stream, (passes · n,) int64, fewer if not all classes come;
    deterministic in the seed.

    Each pass holds every image once, of the classes that come. Unless aligned, the first run of a pass is cut to a
    random length, so that borders between classes fall anywhere in a segment. With interleave = k, the pass is dealt to
    k scenes, run by run in turn, and each next frame comes from a scene drawn at random among those that have frames
    left. As recorded, images come as `recorded_order` says of their files <class>/<image>, which must be given.
    """
    if spec.recorded:
        assert files is not None
        return recorded_order(files)
    come = coming(labels, spec)
    passes = [come[_one_pass(labels[come], spec, seed + 1000 * number)] for number in range(spec.passes)]
    return np.concatenate(passes)


def coming(labels: Ints, spec: StreamSpec) -> Ints:
    """Positions in `labels` (n,) of the classes that come in the stream."""
    return np.flatnonzero(labels < spec.classes) if spec.classes else np.arange(len(labels))


def _one_pass(labels: Ints, spec: StreamSpec, seed: int) -> Ints:
    rng = np.random.default_rng(seed)
    runs = stc_order(labels.tolist(), spec.stc, seed)
    start = int(rng.integers(min(spec.stc, len(runs)))) if len(runs) and not spec.aligned else 0
    runs = np.roll(runs, -start)  # the part cut off the first run comes last
    if spec.interleave == 1:
        return runs
    borders = np.flatnonzero(np.diff(labels[runs])) + 1
    scenes: list[list[Ints]] = [[] for _ in range(spec.interleave)]
    for number, run in enumerate(np.split(runs, borders)):
        scenes[number % spec.interleave].append(run)
    queues = [np.concatenate(scene) for scene in scenes if scene]
    turn = rng.permutation(np.repeat(np.arange(len(queues)), [len(q) for q in queues]))
    mixed = np.empty_like(runs)
    for number, queue in enumerate(queues):
        mixed[turn == number] = queue
    return mixed


def severity(position: Ints, length: int, spec: StreamSpec) -> Floats:
    """Severity (n,) of the corruption at these positions of a stream of `length` frames."""
    ramp: Floats = (spec.drift * position / max(1, length - 1)).astype(np.float32)
    return ramp
