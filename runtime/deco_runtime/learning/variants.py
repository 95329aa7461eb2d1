"""What `--recipe paper` can do beside the paper: other distances, scopes, and ways to ∇_{X'} D.

layerwise       D summed over the tensors of the model
exact           eq:opt3 itself, by automatic differentiation, in place of the difference of eq:opt4
per_class       each active class matched on its own
match_features  distribution matching, in place of gradients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from deco_runtime.engine import EXACT, Engine
from deco_runtime.errors import BundleError, UsageError
from deco_runtime.learning.condense import TINY, gradient_distance
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.random_model import Parameter, layers
from deco_runtime.types import Floats

Distance = Callable[[Floats, Floats], tuple[float, Floats]]
"""g_syn, g_real (P,) → D and ∇_{g_syn} D (P,)."""


class Match(Protocol):
    """Arguments and result as those of `deco.five_passes`, but for epsilon."""

    def __call__(
        self, engine: Engine, theta: Floats, x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats, /
    ) -> tuple[float, Floats]: ...


def chosen(
    recipe: Hyperparameters, parameters: Sequence[Parameter], five_passes: Callable[..., tuple[float, Floats]]
) -> Match:
    """How the recipe has it; `five_passes` for the paper's."""
    if recipe.matching == "distribution":
        return match_features
    distance = partial(layerwise, layers(parameters)) if recipe.distance == "layerwise" else gradient_distance
    match: Match = partial(five_passes, epsilon=recipe.epsilon, distance_of=distance)
    if recipe.gradient == "exact":
        match = partial(exact, distance)
    return partial(per_class, match) if recipe.scope == "per-class" else match


def check(bundle: Bundle, engine: Engine, recipe: Hyperparameters) -> None:
    """Raise BundleError where the recipe needs a graph that the bundle lacks, UsageError where the engine is not
    precise enough for it."""
    if engine.precision != "fp32" and recipe.matching == "gradient" and recipe.gradient == "finite-difference":
        raise UsageError(
            f"expected gradients in fp32 for gradient=finite-difference, which divides their rounding by 2ε, but "
            f"--engine {engine.name} computes in {engine.precision}; add --set gradient=exact"
        )
    needed = recipe.matching == "gradient" and recipe.gradient == "exact"
    if needed and f"graphs/{EXACT}.onnx" not in bundle.files:
        raise BundleError(
            f"expected a bundle with the graph {EXACT} for gradient=exact, but {bundle.path} was exported without it; "
            "export it again with this version, or use gradient=finite-difference"
        )


def layerwise(parts: Sequence[slice], g_syn: Floats, g_real: Floats) -> tuple[float, Floats]:
    """D = Σ_parts 1 − cos(g_syn, g_real), each slice of θ compared on its own, and ∇_{g_syn} D (P,)."""
    distance, derivative = 0.0, np.zeros_like(g_syn)
    for part in parts:
        d, derivative[part] = gradient_distance(g_syn[part], g_real[part])
        distance += d
    return distance, derivative


def exact(
    distance_of: Distance, engine: Engine, theta: Floats, x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats
) -> tuple[float, Floats]:
    """As `deco.five_passes`, with ∇_{X'} ⟨∇_{g_syn} D, ∇_θ̃ L⟩ by automatic differentiation in place of passes 4 and 5,
    and so without ε."""
    _, g_syn = engine.weight_gradient(theta, x_syn, t_syn)
    _, g_real = engine.weight_gradient(theta, x_real, t_real)
    distance, v = distance_of(g_syn, g_real)
    return distance, engine.input_gradient_tangent(theta, x_syn, t_syn, v)


def per_class(
    match: Match, engine: Engine, theta: Floats, x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats
) -> tuple[float, Floats]:
    """D summed over the active classes, each matched on its own, and ∇_{X'} D."""
    distance, gradient = 0.0, np.zeros_like(x_syn)
    y_syn, y_real = t_syn.argmax(axis=1), t_real.argmax(axis=1)
    for c in np.unique(y_real):
        syn, real = y_syn == c, y_real == c
        d, gradient[syn] = match(engine, theta, x_syn[syn], t_syn[syn], x_real[real], t_real[real])
        distance += d
    return distance, gradient


def match_features(
    engine: Engine, theta: Floats, x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats
) -> tuple[float, Floats]:
    """D = Σ_c ‖mean f(X') − mean f(X)‖² over the classes c of X', and ∇_{X'} D (Zhao & Bilen 2023, eq. 3).

    f: the encoder at the random model θ̃ = theta. Means are weighted by t. In place of `deco.five_passes`: no weight
    gradient, and the real images need a forward pass only. Shapes as there; every class of t_syn has frames in t_real.
    """
    z_syn, z_real = engine.predict(theta, x_syn)[1], engine.predict(theta, x_real)[1]
    share_syn, share_real = (t / np.maximum(t.sum(axis=0), TINY) for t in (t_syn, t_real))  # of each class's mean
    difference = share_syn.T @ z_syn - share_real.T @ z_real
    difference[t_syn.sum(axis=0) == 0] = 0
    u = (2 * share_syn @ difference).astype(np.float32)
    return float(np.square(difference, dtype=np.float64).sum()), engine.feature_gradient(theta, x_syn, u)
