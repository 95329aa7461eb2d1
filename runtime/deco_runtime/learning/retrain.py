"""opt_θ: retrain the deployed model on the condensed buffer by SGD with momentum (Algorithm 1, every β segments)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats


def sgd_step(
    theta: Floats, velocity: Floats, gradient: Floats, rate: float, momentum: float, weight_decay: float
) -> tuple[Floats, Floats]:
    """One step of SGD as torch.optim.SGD defines it: v ← μv + (g + λθ), θ ← θ − ηv. All arrays (P,) float32."""
    velocity = momentum * velocity + gradient + weight_decay * theta
    return (theta - rate * velocity).astype(np.float32), velocity.astype(np.float32)


def retrain(
    engine: Engine,
    theta: Floats,
    buffer: CondensedBuffer,
    classes: int,
    recipe: Hyperparameters,
    rng: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> tuple[Floats, list[float]]:
    """θ ← opt_θ(θ, S): `retrain_epochs` shuffled passes over the buffer, mean loss per batch, momentum starting at 0.

    Returns the new θ (P,) and the mean loss of each epoch. check: called before each epoch; what it raises ends the
    training with nothing changed.
    """
    velocity = np.zeros_like(theta)
    n = len(buffer.y_syn)
    losses = []
    for _ in range(recipe.retrain_epochs):
        check()
        order, total = rng.permutation(n), 0.0
        for start in range(0, n, recipe.retrain_batch):
            batch = order[start : start + recipe.retrain_batch]
            mean = np.full(len(batch), 1 / len(batch), np.float32)
            t = targets(buffer.y_syn[batch], mean, classes)
            loss, gradient = engine.weight_gradient(theta, buffer.x_syn[batch], t)
            theta, velocity = sgd_step(
                theta, velocity, gradient, recipe.retrain_rate, recipe.retrain_momentum, recipe.weight_decay
            )
            total += loss * len(batch)
        losses.append(total / n)
    return theta, losses
