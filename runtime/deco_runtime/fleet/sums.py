"""What leaves a device: the difference of its sums, A = Σ φφᵀ and B = Σ φtᵀ of frames that the fleet has not yet.

    minus           the difference of two `Statistics`
    packed          as it is sent, in one of HOW
    unpacked        what the other side makes of that
    complaint       why nobody should add this up
    contradiction   why its labels are not to be believed
    digest          of what is sent, to know it again

numpy only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from deco_runtime.learning.arrays import Array
from deco_runtime.learning.regression import TINY, Doubles, Statistics, square, upper
from deco_runtime.types import Floats

HOW = ("fp32", "fp16", "int8")
"""Numbers that a difference is sent in."""
LARGEST = 4.0
"""How far a frame's mean ‖φ‖² may be beyond that of the labelled images, as a factor: cameras differ, but not so."""
ROUNDING = 1e-3
"""Of the largest value that a sum could have: by so much its parts may disagree."""
AGREE = 0.75
"""Share of its frames, at least, in classes that look as the labelled images say. Of honest devices nearly all are."""
_INT8 = 127


def minus(one: Statistics, other: Statistics) -> Statistics:
    """The frames of one without those of the other; `regression.together` is the way back."""
    return Statistics(one.a - other.a, one.b - other.b)


def frames(sums: Statistics) -> float:
    """How many frames they are of; one that may show something unknown counts less."""
    return float(sums.b[-1].sum(dtype=np.float64))


def packed(sums: Statistics, how: str) -> dict[str, Array]:
    """As it is sent, by name.

    "fp32": a, b as they are. Else a and b are parts of the most that they could be, in [−1, 1] by Cauchy and Schwarz,
    |A_ij| ≤ √(A_ii A_jj) and |B_ic| ≤ √(A_ii n_c), as float16 or as int8 of 127 steps, beside the diagonal of A (D,)
    and n (K,) float32. The row of A that belongs to the constant is not sent: it is the sum of B over the classes.
    """
    if how == "fp32":
        return {"a": sums.a, "b": sums.b}
    inner, n = square(sums)[:-1, :-1], np.maximum(sums.b[-1], 0)
    diagonal = np.maximum(np.diag(inner), 0).astype(np.float32)
    root, most = _most(diagonal, n)
    parts = {"a": (inner / np.outer(root, root))[~np.tri(len(inner), dtype=bool)], "b": sums.b[:-1] / most}
    return {"diagonal": diagonal, "n": n} | {name: _small(np.clip(part, -1, 1), how) for name, part in parts.items()}


def unpacked(arrays: Mapping[str, Array], how: str, size: int, classes: int) -> Statistics:
    """What was sent; size: D', classes: K. Raises ValueError unless it is that."""
    count = size * (size + 1) // 2
    if how == "fp32":
        a, b = (_like(arrays, name, np.float32, shape) for name, shape in (("a", (count,)), ("b", (size, classes))))
        return Statistics(a, b)
    kind = np.float16 if how == "fp16" else np.int8
    diagonal, n = _like(arrays, "diagonal", np.float32, (size - 1,)), _like(arrays, "n", np.float32, (classes,))
    inner = _like(arrays, "a", kind, ((size - 1) * (size - 2) // 2,)).astype(np.float64)
    rows = _like(arrays, "b", kind, (size - 1, classes)).astype(np.float64)
    if not (np.isfinite(diagonal).all() and np.isfinite(n).all() and (diagonal >= 0).all() and (n >= 0).all()):
        raise ValueError("its counts are none")
    if how == "int8":
        inner, rows = inner / _INT8, rows / _INT8
    root, most = _most(diagonal, n)
    b = np.vstack([rows * most, n])
    whole = np.zeros((size, size))
    whole[:-1, :-1][~np.tri(size - 1, dtype=bool)] = inner
    whole[:-1, :-1] *= np.outer(root, root)
    np.fill_diagonal(whole[:-1, :-1], diagonal)
    whole[:, -1] = b.sum(axis=1)
    return Statistics(whole[upper(size)].astype(np.float32), b.astype(np.float32))


def complaint(sums: Statistics, known: Statistics, least: float) -> str | None:
    """Why a difference is none that frames give, as a clause; None where it may be one.

    known: those of the bundle's labelled images. least: frames that it must be of.
    """
    if not (np.isfinite(sums.a).all() and np.isfinite(sums.b).all()):
        return "is not finite"
    n = sums.b[-1].astype(np.float64)
    if n.min() < -ROUNDING * max(np.abs(n).max(), 1):
        return "counts frames below none"
    total = frames(sums)
    if total < least:
        return f"is of {total:.0f} frames, where at least {least:.0f} have to be together"
    whole = square(sums)
    diagonal = np.diag(whole)
    if diagonal.min() < -ROUNDING * diagonal.max():
        return "has squares below 0"
    root, most = _most(np.maximum(diagonal, 0), np.maximum(n, 0))
    slack = ROUNDING * root.max()
    if (np.abs(whole) > np.outer(root, root) + slack * root.max()).any():
        return "has products larger than their squares"
    if (np.abs(sums.b) > most + slack * max(np.sqrt(n.max()), 1)).any():
        return "has shares of classes larger than its frames"
    if (np.abs(whole[:, -1] - sums.b.sum(axis=1, dtype=np.float64)) > slack * root[-1]).any():
        return "has frames that are of no class"
    times = per_frame(sums) / per_frame(known)
    if times > LARGEST:
        return f"is of values {times:.0f} times as large as labelled images have"
    return None


def contradiction(sums: Statistics, w: Floats) -> str | None:
    """Why its labels are not what a device of this bundle would have voted, as a clause; None where they may be.

    w: (D + 1, K), the regression on the labelled images. Votes are of that and of the network, so what a device counts
    as a class has a mean that w takes for this class, however one-sided its stream. Labels that were permuted have not,
    nor have sums along other axes; and that can be seen of few frames, and at any scale.
    """
    b = sums.b.astype(np.float64)
    n = np.maximum(b[-1], 0)
    said = (w.T.astype(np.float64) @ (b / np.maximum(n, TINY))).argmax(axis=0)
    share = float(n[said == np.arange(len(n))].sum() / max(n.sum(), TINY))
    if share < AGREE:
        return f"has labels of which {1 - share:.0%} contradict the labelled images"
    return None


def digest(arrays: Mapping[str, Array]) -> str:
    """Of what was sent, 16 letters."""
    of = hashlib.sha256()
    for name in sorted(arrays):
        of.update(name.encode() + b"\0" + np.ascontiguousarray(arrays[name]).tobytes())
    return of.hexdigest()[:16]


def per_frame(sums: Statistics) -> float:
    """Mean of ‖φ‖² of the frames, the constant left out."""
    size = len(sums.b)
    diagonal = sums.a[np.cumsum([0, *range(size, 1, -1)])]  # each row of the triangle begins with it
    return float(diagonal[:-1].sum(dtype=np.float64)) / max(frames(sums), TINY)


def _most(diagonal: Array, n: Array) -> tuple[Doubles, Doubles]:
    """√A_ii (D',), and √(A_ii n_c) (D', K), both above 0 so that one may divide by them."""
    root = np.sqrt(np.maximum(diagonal.astype(np.float64), TINY))
    return root, root[:, None] * np.sqrt(np.maximum(n.astype(np.float64), TINY))


def _small(part: Doubles, how: str) -> Array:
    return part.astype(np.float16) if how == "fp16" else np.rint(part * _INT8).astype(np.int8)


def _like(arrays: Mapping[str, Array], name: str, kind: type, shape: tuple[int, ...]) -> Array:
    if name not in arrays or arrays[name].dtype != kind or arrays[name].shape != shape:
        raise ValueError("its arrays are not those of the bundle")
    return arrays[name]
