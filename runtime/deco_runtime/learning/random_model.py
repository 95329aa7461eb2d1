"""θ̃, the fresh random model of each iteration, drawn on the device as the workstation's framework would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deco_runtime.types import Floats


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model: its place in θ and the distribution of its fresh values.

    name, shape: as in the training framework. offset: θ[offset : offset + size] holds it.
    kind: "uniform" on [a, b), "normal" with mean a and standard deviation b, or "constant" a.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    kind: str
    a: float
    b: float

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def slice(self) -> slice:
        """Its place in θ."""
        return slice(self.offset, self.offset + self.size)


KINDS = ("uniform", "normal", "constant")

SPARE = "spare.weight", "spare.bias"
"""Names of the last two parameters of a model with outputs for classes to come, (N, F) and (N,). Every fresh model has
them masked but those of classes that people added, so that nothing else is other than without."""
MASKED = -300.0
"""Bias of a masked output: its probability is 0 in float32, and so are all gradients. No lower, since golden logits are
compared in parts of the largest."""


def spares(parameters: Sequence[Parameter]) -> int:
    """N, the number of outputs for classes to come."""
    return parameters[-1].size if tuple(p.name for p in parameters[-2:]) == SPARE else 0


def draw_model(parameters: Sequence[Parameter], rng: np.random.Generator, added: int = 0) -> Floats:
    """A random θ̃ (P,) float32; the same generator state gives the same model on every machine.

    added: how many spare outputs are drawn too, as those of the last layer are, in place of being masked.
    """
    theta = np.empty(sum(p.size for p in parameters), np.float32)
    for p in parameters:
        theta[p.slice] = _drawn(p, p.size, rng)
    for p in parameters[-2:] if added else ():
        like = next((q for q in reversed(parameters[:-2]) if q.shape[1:] == p.shape[1:]), None)
        size = added * (p.size // p.shape[0])
        theta[p.offset : p.offset + size] = 0.0 if like is None else _drawn(like, size, rng)
    return theta


def _drawn(p: Parameter, size: int, rng: np.random.Generator) -> Floats | float:
    """So many fresh values like those of p."""
    if p.kind == "uniform":
        uniform: Floats = p.a + (p.b - p.a) * rng.random(size, np.float32)
        return uniform
    if p.kind == "normal":
        normal: Floats = p.a + p.b * rng.standard_normal(size, np.float32)
        return normal
    return p.a


def layers(parameters: Sequence[Parameter]) -> list[slice]:
    """The slices of θ that `distance=layerwise` compares: weights of two or more dimensions, as gradient matching does.

    Biases and norms are left out: a bias before a norm has no gradient but rounding, whose direction means nothing.
    """
    return [p.slice for p in parameters if len(p.shape) > 1 and p.name not in SPARE]
