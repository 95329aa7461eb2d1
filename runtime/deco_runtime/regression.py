"""`deco+`: a ridge regression onto one-hot labels that takes each frame in once and forgets none.

    Statistics      A = Σ φφᵀ and B = Σ φtᵀ over every frame so far, φ with a constant 1 behind
    add             one segment's frames and their soft labels
    solve           W = (A + λ·tr(A)/D · I)⁻¹ B

W is what one would get from all frames at once, in whichever order they came: there is nothing to replay. numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deco_runtime.types import Floats

PENALTY = 0.01
"""λ, relative to the mean of A's diagonal, so that it grows with the frames seen."""


@dataclass(frozen=True)
class Statistics:
    """a: (D'(D' + 1)/2,) float32, the upper triangle of A row by row, D' = D + 1. b: (D', K) float32."""

    a: Floats
    b: Floats

    @classmethod
    def zero(cls, size: int, classes: int) -> Statistics:
        """Nothing seen yet; size: D."""
        count = size + 1
        return cls(np.zeros(count * (count + 1) // 2, np.float32), np.zeros((count, classes), np.float32))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.a.nbytes + self.b.nbytes


def with_constant(phi: Floats) -> Floats:
    """φ (n, D) with a constant 1 behind, (n, D + 1)."""
    return np.concatenate([phi, np.ones((len(phi), 1), np.float32)], axis=1)


def add(statistics: Statistics, phi: Floats, t: Floats) -> Statistics:
    """Take in frames φ (n, D) with label shares t (n, K); a row of t that sums to w counts the frame w times."""
    z = with_constant(phi)
    weighted = z * t.sum(axis=1, keepdims=True)
    moments = z.T @ weighted
    return Statistics(statistics.a + moments[np.triu_indices(len(moments))], statistics.b + z.T @ t)


def solve(statistics: Statistics, penalty: float = PENALTY) -> Floats:
    """W (D + 1, K) float32; solved in float64. The constant is penalised as the others are."""
    count = len(statistics.b)
    a: npt.NDArray[np.float64] = np.zeros((count, count))
    a[np.triu_indices(count)] = statistics.a
    a = a + a.T - np.diag(np.diag(a))
    ridge = penalty * max(float(np.trace(a)) / count, 1e-12)
    w: Floats = np.linalg.solve(a + ridge * np.eye(count), statistics.b.astype(np.float64)).astype(np.float32)
    return w


def scores(w: Floats, phi: Floats) -> Floats:
    """φ (n, D), W → regression values (n, K), the largest of which is the answer."""
    values: Floats = with_constant(phi) @ w
    return values
