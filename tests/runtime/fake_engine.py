"""An engine small enough to be checked by hand: a linear model with softmax, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Floats


class LinearEngine:
    """logits = x·Wᵀ and features = x, both of the flattened image; θ is W (K, D) flattened, so P = K·D.

    The pre-trained model of `represent` is `frozen`, and φ = features. Sums are taken in float64 and rounded to float32
    once, at the end.
    """

    name, precision = "linear", "fp32"

    def __init__(self, classes: int, frozen: Floats | None = None) -> None:
        """classes: K; D follows from the images. frozen: (K·D,), needed to `represent`."""
        self.classes, self.frozen = classes, frozen

    def encode(self, images: Floats) -> Floats:
        return images

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        weights, flat = self._double(theta, x)
        return (flat @ weights.T).astype(np.float32), flat.astype(np.float32)

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        weights, flat = self._double(theta, x)
        loss, slope = _cross_entropy(flat @ weights.T, t)
        return loss, (slope.T @ flat).reshape(-1).astype(np.float32)

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        weights, flat = self._double(theta, x)
        _, slope = _cross_entropy(flat @ weights.T, t)
        return (slope @ weights).reshape(x.shape).astype(np.float32)

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        return u.reshape(x.shape).astype(np.float32)

    def represent(self, images: Floats) -> tuple[Floats, Floats]:
        assert self.frozen is not None
        logits, features = self.predict(self.frozen, images)
        return features, logits

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        """For L = −Σ t·log p: ∇_x L = (p Σt − t)·W, so along V it moves by (ṗ Σt)·W + (p Σt − t)·V."""
        weights, flat = self._double(theta, x)
        along, _ = self._double(v, x)
        _, slope = _cross_entropy(flat @ weights.T, t)
        total = t.astype(np.float64).sum(axis=1, keepdims=True)
        p, moves = (slope + t) / total, flat @ along.T
        p_moves = p * (moves - (p * moves).sum(axis=1, keepdims=True))
        return ((total * p_moves) @ weights + slope @ along).reshape(x.shape).astype(np.float32)

    def _double(self, theta: Floats, x: Floats) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        return theta.astype(np.float64).reshape(self.classes, -1), x.astype(np.float64).reshape(len(x), -1)


def _cross_entropy(logits: npt.NDArray[np.float64], t: Floats) -> tuple[float, npt.NDArray[np.float64]]:
    """L = −Σ t·log softmax(logits) and its gradient on the logits (N, K)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    weights = t.astype(np.float64)
    return float(-(weights * log_p).sum()), np.exp(log_p) * weights.sum(axis=1, keepdims=True) - weights


def fresh(bundle: Bundle, recipe: str = "paper") -> Unguarded:
    """A learner that starts from the bundle, to load states by."""
    kind, engine = registry.learner(recipe), LinearEngine(len(bundle.classes))
    return Unguarded(kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0)))
