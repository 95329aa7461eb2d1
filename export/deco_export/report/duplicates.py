"""Pictures that are nearly the same though they should not be: of two classes, or one trained on and one not.

    patterns     what pictures are compared by: those of `takes.describe`, without their colour
    candidates   pairs whose patterns are near, which is cheap, and often wrong
    alike        whether two pictures agree in their details

Candidates alone would take two round signs with different numbers for one. Their details are those of 32 × 32 pixels,
less what is left of them when blurred: a copy that was scaled, compressed or brightened keeps these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import cv2
import numpy as np
from deco_runtime.types import Floats, Ints, Pixels

from deco_export.images import ImageSet, batches
from deco_export.report.album import Album, kinds
from deco_export.takes import describe

NEAR = 0.2
"""Distance of two patterns of norm 1: a correlation of 0.98."""
SAME = 0.9
"""Correlation of details: of 30,000 pairs of signs of other kinds none is above 0.87."""
PAIRS = 2000
"""Candidates whose details are looked at, the nearest ones."""
LOOKED = 20_000
"""Most pictures that are compared: each with all others, in a few seconds."""

_SIDE, _BLUR, _COLOURS = 32, 2.0, 3
_ROWS = 128  # of 20,000 pictures that are all alike, 2.5 million pairs at a time


@dataclass(frozen=True)
class Pair:
    """Two pictures, by their places among those looked at, and how well their details agree: up to 1."""

    a: int
    b: int
    correlation: float


@dataclass(frozen=True)
class Twins:
    """A pair by part and place in an album."""

    a: tuple[int, int]
    b: tuple[int, int]
    correlation: float


def patterns(pictures: Iterable[Pixels]) -> Floats:
    """(n, D) float32 of pictures (size, size, 3) uint8; of norm 1 or, where there is hardly any contrast, less."""
    found: Floats = describe(pictures)[:, :-_COLOURS]
    return found


def candidates(x: Floats, kinds: Ints) -> Ints:
    """Pairs (p, 2) int64 of patterns x (n, D) that are near though of different kinds (n,), the nearest PAIRS."""
    square, best = (x * x).sum(axis=1), np.zeros((0, 2), np.int64)
    distances = np.zeros(0, np.float32)
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        apart = square[start : start + _ROWS, None] + square[None, start:] - 2 * rows @ x[start:].T
        a, b = np.nonzero((apart <= NEAR**2) & (kinds[start : start + _ROWS, None] != kinds[None, start:]))
        a, b = a[a < b], b[a < b]
        distances = np.concatenate([distances, apart[a, b]])
        best = np.concatenate([best, np.stack([a, b], axis=1) + start])
        kept = np.argsort(distances, kind="stable")[:PAIRS]
        distances, best = distances[kept], best[kept]
    return best


def alike(a: Pixels, b: Pixels) -> float:
    """Correlation of the details of two pictures (size, size, 3), −1 … 1; 1 for equal ones, 0 for plain ones."""
    if np.array_equal(a, b):
        return 1.0
    x, y = _details(a), _details(b)
    norm = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / norm if norm > 1e-6 else 0.0


def duplicates(x: Floats, kinds: Ints, picture: Callable[[int], Pixels]) -> list[Pair]:
    """The candidates that `alike` confirms, the most alike first. picture: one of the pictures by its place."""
    found = [Pair(int(a), int(b), alike(picture(int(a)), picture(int(b)))) for a, b in candidates(x, kinds)]
    return sorted((pair for pair in found if pair.correlation >= SAME), key=lambda pair: -pair.correlation)


def in_album(album: Album, rng: np.random.Generator) -> tuple[list[Twins], int]:
    """Those among the pictures of an album, or among LOOKED drawn at random; and how many were looked at."""
    kind, part, place = kinds(album)
    some = np.sort(rng.permutation(len(kind))[:LOOKED])
    pictures = (p for each, own in enumerate(album.sets) for p in _of(own, place[some[part[some] == each]]))

    def where(i: int) -> tuple[int, int]:
        return int(part[some[i]]), int(place[some[i]])

    found = duplicates(patterns(pictures), kind[some], lambda i: album.picture(*where(i)))
    return [Twins(where(pair.a), where(pair.b), pair.correlation) for pair in found], len(some)


def _of(images: ImageSet, index: Ints) -> Iterator[Pixels]:
    for batch in batches(len(index)):
        yield from images[index[batch]].pixels


def _details(picture: Pixels) -> Floats:
    small = cv2.resize(picture, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_BGR2GRAY).astype(np.float32)
    fine: Floats = grey - cv2.GaussianBlur(grey, (0, 0), _BLUR)
    fine -= fine.mean()
    return fine
