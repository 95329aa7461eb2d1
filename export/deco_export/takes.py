"""Takes: which labelled images were recorded in one go.

Frames of one take show nearly the same picture. A model that is trained on some of them and checked on others is
checked on what it has seen. So labelled images are held out by whole takes, found here class by class. Four things
tell:

- Folders: the images of one folder below the class folder are one take, whatever they look like. This is how people
  can say it themselves.
- Pictures: two images that are nearly the same are of one take, whatever their names.
- Names: `0012_00007.jpg`, `IMG_0001.jpg` or `clip3-frame-17.png` are parts of sequences, which differ in the last
  number only. A sequence alone says nothing: single photographs are numbered too. Its order is believed if neighbours
  are more alike than two images of the class drawn at random. Then neighbours that are alike are linked, however far
  apart their numbers, since only a share of a take may be labelled; and where the rest of the name numbers the
  sequences, each is one take.
- Time stamps in names, `20240131_142530`: after PAUSE seconds without an image another sequence starts.

The times of files are not looked at: copying changes them.

What it cannot do: a class that is one take without any movement looks like a class of alike things, and is left to the
second rule. Of takes with one running number for all, two that look alike where they meet come out as one, and one with
a sudden change comes out as two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

import cv2
import numpy as np
from deco_runtime.types import Bools, Floats, Ints, Pixels

PAUSE = 10
"""Seconds between two time stamps, above which another sequence starts."""

SAME = 0.15
"""Distance (see `describe`) of two pictures of one class up to which they are of one take: a correlation of 0.99."""

ALIKE = 0.1
"""Neighbours are alike if nearer to each other than all but this share of the pairs of images of different classes."""

REACH = 3
"""How far apart in a sequence two alike images may be to link all between them: frames that fail part no take."""

BELIEVED = 0.3
"""Share of a sequence's neighbours, at least, that are nearer than chance explains, for its order to be believed."""

FEW = 16
"""Sequences with fewer pairs of neighbours than this are believed all together or not at all."""

_SIDE = 8
_COLOUR = 3.0  # a difference of 17 in the mean of one channel counts as 0.2
_CONTRAST = 0.01  # below this standard deviation (of 0 … 1) a pattern is taken for noise
_PAIRS = 20_000
_ROWS = 512
_CHANCE = 1.86  # D of Kolmogorov and Smirnov's test of n values is above this / √n once in a thousand times
_STAMP = re.compile(r"(?<!\d)((?:19|20)\d{6})[-_T]?(\d{6})(?=(?:\d{3})?(?!\d))")
_LAST_NUMBER = re.compile(r"(.*?)(\d+(?:\.\d+)?)(\D*)", re.DOTALL)


@dataclass(frozen=True)
class _Sequence:
    """Images of one class whose names differ in the last number only. index: theirs, in the order of that number."""

    label: int
    folder: str
    name: tuple[str, str]
    index: Ints


def find_takes(names: Sequence[str], labels: Ints, x: Floats) -> Ints:
    """The take of each image: (n,) int64, 0 … M−1 in order of first appearance. A take never spans two classes.

    names: n file names relative to the class folder, no two alike in one class. labels: (n,) int64. x: (n, D) float32,
    the pictures as `describe` has them.
    """
    order = np.array(
        sorted(range(len(names)), key=lambda i: (labels[i], names[i])), np.int64
    )  # the input's is no matter
    takes = np.empty(len(names), np.int64)
    takes[order] = _find([names[i] for i in order], labels[order], x[order])
    _, first, inverse = np.unique(takes, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first)).astype(np.int64)[inverse]


def describe(pixels: Iterable[Pixels]) -> Floats:
    """What pictures, each (size, size, 3) uint8, are compared by: (n, D) float32; their distance is Euclidean.

    Each is averaged to 8 × 8 and taken apart into its mean colour and the pattern around it, of norm 1. Of two patterns
    of correlation r the distance is √(2 − 2r): 0 for the same, about 1.4 for unrelated ones.
    """
    small = [cv2.resize(picture, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA) for picture in pixels]
    x = np.asarray(small, np.float32).reshape(len(small), _SIDE * _SIDE, 3) / np.float32(255)
    mean = x.mean(axis=(1, 2), keepdims=True)
    pattern = (x - mean).reshape(len(x), 3 * _SIDE * _SIDE)
    norm = np.linalg.norm(pattern, axis=1, keepdims=True)
    pattern /= np.maximum(norm, _CONTRAST * np.sqrt(pattern.shape[1], dtype=np.float32))
    return np.concatenate([pattern, np.float32(_COLOUR) * x.mean(axis=1)], axis=1)


def nearly_same(a: Floats, b: Floats) -> Iterator[tuple[int, Bools]]:
    """Which pictures of a (n, D) are nearly those of b (m, D), as `describe` has both: for some rows of a at a time,
    the first of them, and (rows, m) whether they are at most SAME apart."""
    square = (b * b).sum(axis=1)
    for start in range(0, len(a), _ROWS):
        rows = a[start : start + _ROWS]
        yield start, (rows * rows).sum(axis=1)[:, None] + square - 2 * rows @ b.T <= SAME**2


def _find(names: Sequence[str], labels: Ints, x: Floats) -> Ints:
    """A number for each image, equal within a take."""
    takes = np.arange(len(names))
    sequences = _sequences(names, labels)
    rng = np.random.default_rng(0)
    believed = _believed(sequences, labels, x, rng)
    alike = _alike(labels, x, rng) if believed else 0.0
    groups = defaultdict(list)
    for s in sequences:
        if s.folder != ".":
            groups[s.label, s.folder].append(s.index)
    links = [np.concatenate(parts) for parts in groups.values()]
    whole = _numbering(believed)
    for s in believed:
        links += [s.index] if (s.label, s.name) in whole else _cut(s.index, x, alike)
    for members in links:
        _join(takes, members)
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        takes[index] = _join_same(takes[index], x[index])
    return takes


def _sequences(names: Sequence[str], labels: Ints) -> list[_Sequence]:
    found = defaultdict(list)
    for i, name in enumerate(names):
        path = PurePosixPath(name)
        time, stem = _time(path.stem)
        match = _LAST_NUMBER.fullmatch(stem)
        before, number, after = match.groups() if match else (stem, "0", "")
        found[int(labels[i]), str(path.parent), (before, after)].append((time, float(number), i))
    sequences = []
    for key, members in found.items():
        times, _, index = zip(*sorted(members), strict=True)
        for part in np.split(np.array(index, np.int64), np.flatnonzero(np.diff(times) > PAUSE) + 1):
            sequences.append(_Sequence(*key, part))
    return sequences


def _time(stem: str) -> tuple[float, str]:
    """Seconds of the time stamp in a name (0 without one), and the name without it."""
    match = _STAMP.search(stem)
    if match is None:
        return 0.0, stem
    try:
        time = datetime.strptime("".join(match.groups()), "%Y%m%d%H%M%S")
    except ValueError:
        return 0.0, stem
    return (time - datetime(1970, 1, 1)).total_seconds(), stem[: match.start()] + stem[match.end() :]


def _believed(sequences: list[_Sequence], labels: Ints, x: Floats, rng: np.random.Generator) -> list[_Sequence]:
    """The sequences whose neighbours are more alike than images of their class drawn at random."""
    of_class = {}
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        a, b = index[rng.integers(0, len(index), (2, _PAIRS))]
        of_class[int(label)] = np.sort(_distances(x, a[a != b], b[a != b]))
    long, few, ranks_of_few = [], [], []
    for s in sequences:
        if len(s.index) < 2:
            continue
        pairs = of_class[s.label]
        ranks = np.searchsorted(pairs, _distances(x, s.index[1:], s.index[:-1]), side="right") / len(pairs)
        if len(ranks) < FEW:
            few.append(s)
            ranks_of_few.append(ranks)
        elif _low(ranks):
            long.append(s)
    return long + few if few and _low(np.concatenate(ranks_of_few)) else long


def _low(ranks: np.ndarray) -> bool:
    """Whether ranks 0 … 1 are lower than chance explains: Kolmogorov and Smirnov's one-sided test against uniform."""
    excess = np.arange(1, len(ranks) + 1) / len(ranks) - np.sort(ranks)
    return bool(excess.max() >= max(BELIEVED, _CHANCE / np.sqrt(len(ranks))))


def _alike(labels: Ints, x: Floats, rng: np.random.Generator) -> float:
    """The distance up to which neighbours of a believed sequence are linked."""
    a, b = rng.integers(0, len(x), (2, _PAIRS))
    other = labels[a] != labels[b] if np.ptp(labels) else a != b
    return float(np.quantile(_distances(x, a[other], b[other]), ALIKE))


def _numbering(believed: list[_Sequence]) -> set[tuple[int, tuple[str, str]]]:
    """(class, name) of the sequences whose names number them.

    A number in the name of a class's only sequence that other classes have too is that of a camera, not of a take.
    """
    numbered = {(s.label, s.name) for s in believed if re.search(r"\d", s.name[0])}
    classes, names = defaultdict(set), defaultdict(set)
    for label, name in numbered:
        classes[name].add(label)
        names[label].add(name)
    return {(label, name) for label, name in numbered if len(names[label]) > 1 or len(classes[name]) == 1}


def _cut(index: Ints, x: Floats, alike: float) -> list[Ints]:
    """A sequence in pieces, between which no two images up to REACH apart are alike."""
    linked = np.zeros(len(index) - 1, bool)
    for step in range(1, min(REACH, len(linked)) + 1):
        near = _distances(x, index[step:], index[:-step]) <= alike
        for offset in range(step):
            linked[offset : offset + len(near)] |= near
    return np.split(index, np.flatnonzero(~linked) + 1)


def _join_same(takes: Ints, x: Floats) -> Ints:
    """Takes of the images of one class, those with nearly the same picture joined."""
    takes = takes.copy()
    for _, same in nearly_same(x, x):
        for row in np.flatnonzero(same.sum(axis=1) > 1):
            _join(takes, np.flatnonzero(same[row]))
    return takes


def _join(takes: Ints, members: Ints) -> None:
    """Make one take of all those that the members are in."""
    joined = np.unique(takes[members])
    if len(joined) > 1:
        takes[np.isin(takes, joined)] = joined[0]


def _distances(x: Floats, a: Ints, b: Ints) -> Floats:
    distances: Floats = np.linalg.norm(x[a] - x[b], axis=1)
    return distances
