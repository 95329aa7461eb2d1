"""opt_θ: retrain the deployed model on the condensed buffer by SGD with momentum (Algorithm 1, every β segments)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats, Ints


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
    beside: tuple[Floats, Ints] | None = None,
    enough: Callable[[Floats], bool] = lambda theta: False,
) -> tuple[Floats, list[float]]:
    """θ ← opt_θ(θ, S): `retrain_epochs` shuffled passes over the buffer, mean loss per batch, momentum starting at 0.

    Returns the new θ (P,) and the mean loss of each epoch. check: called before each epoch; what it raises ends the
    training with nothing changed. beside: further images x (m, …) and what people said they show (m,), each of which
    counts `taught_weight` times as much as a buffer's image of its class. All classes count alike still: what people
    correct is mostly of one, which the model would answer everything with. enough: asked before each epoch about θ;
    True ends the training there.
    """
    velocity, n = np.zeros_like(theta), len(buffer.y_syn)
    x, y, w = buffer.x_syn, buffer.y_syn, np.ones(len(buffer.y_syn))
    if beside is not None:
        x, y = (np.concatenate([own, more]) for own, more in zip((x, y), beside, strict=True))
        w = np.append(w, np.full(len(beside[1]), recipe.taught_weight))
        w /= w.max()  # their sums are finite, whatever the weight
        w *= n / np.bincount(y, w, classes)[y]
    n = len(y)
    losses = []
    for _ in range(recipe.retrain_epochs):
        check()
        if enough(theta):
            break
        order, total = rng.permutation(n), 0.0
        for start in range(0, n, recipe.retrain_batch):
            batch = order[start : start + recipe.retrain_batch]
            mean = (w[batch] / w[batch].sum()).astype(np.float32)
            loss, gradient = engine.weight_gradient(theta, x[batch], targets(y[batch], mean, classes))
            theta, velocity = sgd_step(
                theta, velocity, gradient, recipe.retrain_rate, recipe.retrain_momentum, recipe.weight_decay
            )
            total += loss * len(batch)
        losses.append(total / n)
    return theta, losses
