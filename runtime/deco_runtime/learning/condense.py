"""Efficient on-device dataset condensation: section 4.3 and 4.4 of the paper, equation by equation.

    gradient_distance   D(g_syn, g_real) and ∇_{g_syn} D                      eq:opt2, D
    match_gradients     ∇_{X'} D, by a central difference or exactly          eq:opt3, eq:opt4
    match_features      in place of these: distribution matching              not in the paper
    contrastive_loss    L_cont and its gradient on the features               eq:contrast
    Condensation        one iteration: match, contrast, opt_S                 eq:final
    condense            the loop over l of Algorithm 1

numpy only; the engine does the forward and backward passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats, Ints

TINY = 1e-12
"""Keeps a division by a vanishing norm finite; far below any norm that carries information."""


def dot(a: npt.NDArray[np.floating[Any]], b: npt.NDArray[np.floating[Any]]) -> float:
    """⟨a, b⟩ without BLAS, whose threads wait for each other longer than the sum takes when the cores are busy."""
    return float(np.sum(a * b, dtype=np.float64))


def gradient_distance(g_syn: Floats, g_real: Floats, parts: Sequence[slice]) -> tuple[float, Floats]:
    """D(g_syn, g_real) = Σ_parts 1 − cos(g_syn, g_real) and ∇_{g_syn} D, in closed form.

    g_syn, g_real: (P,) float32. parts: the slices of θ that are compared each on its own; one slice over all of it is
    the paper's distance. Sums are taken in float64.
    """
    distance, derivative = 0.0, np.zeros_like(g_syn)
    for part in parts:
        a, b = g_syn[part].astype(np.float64), g_real[part].astype(np.float64)
        norm_a, norm_b = dot(a, a) ** 0.5 + TINY, dot(b, b) ** 0.5 + TINY
        cosine = dot(a, b) / (norm_a * norm_b)
        distance += 1.0 - cosine
        derivative[part] = (cosine * a / norm_a - b / norm_b) / norm_a
    return float(distance), derivative


def match_gradients(
    engine: Engine,
    theta: Floats,
    x_syn: Floats,
    t_syn: Floats,
    x_real: Floats,
    t_real: Floats,
    epsilon: float,
    parts: Sequence[slice],
    exact: bool = False,
) -> tuple[float, Floats]:
    """D(g_syn, g_real) and ∇_{X'} D at the random model θ̃ = theta: by eq:opt4 in five passes, or by eq:opt3 itself.

    theta: (P,). x_syn (n, C, H, W), t_syn (n, K); x_real (m, C, H, W), t_real (m, K) with their weights.
    epsilon: numerator of ε = epsilon / ‖∇_{g_syn} D‖₂. exact: ∇_{X'} ⟨∇_{g_syn} D, ∇_θ̃ L⟩ by automatic differentiation
    in place of passes 4 and 5, without ε. Returns D and an array like x_syn.
    """
    _, g_syn = engine.weight_gradient(theta, x_syn, t_syn)  # pass 1
    _, g_real = engine.weight_gradient(theta, x_real, t_real)  # pass 2
    distance, v = gradient_distance(g_syn, g_real, parts)  # pass 3: v = ∇_{g_syn} D
    if exact:
        return distance, engine.input_gradient_tangent(theta, x_syn, t_syn, v)
    ε = epsilon / (dot(v, v) ** 0.5 + TINY)
    step = (ε * v).astype(np.float32)
    plus = engine.input_gradient(theta + step, x_syn, t_syn)  # pass 4: at θ̃⁺
    minus = engine.input_gradient(theta - step, x_syn, t_syn)  # pass 5: at θ̃⁻
    return distance, ((plus - minus) / (2 * ε)).astype(np.float32)


def match_features(
    engine: Engine, theta: Floats, x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats
) -> tuple[float, Floats]:
    """D = Σ_c ‖mean f(X') − mean f(X)‖² over the classes c of X', and ∇_{X'} D (Zhao & Bilen 2023, eq. 3).

    f: the encoder at the random model θ̃ = theta. Means are weighted by t. In place of `match_gradients`: no weight
    gradient, and the real images need a forward pass only. Shapes as there; every class of t_syn has frames in t_real.
    """
    z_syn, z_real = engine.predict(theta, x_syn)[1], engine.predict(theta, x_real)[1]
    share_syn, share_real = (t / np.maximum(t.sum(axis=0), TINY) for t in (t_syn, t_real))  # of each class's mean
    difference = share_syn.T @ z_syn - share_real.T @ z_real
    difference[t_syn.sum(axis=0) == 0] = 0
    u = (2 * share_syn @ difference).astype(np.float32)
    return float(np.square(difference, dtype=np.float64).sum()), engine.feature_gradient(theta, x_syn, u)


def contrastive_loss(
    z: Floats, y: Ints, anchors: Ints, negative_class: Ints, temperature: float
) -> tuple[float, Floats]:
    """L_cont of eq:contrast over L2-normalised features, and its gradient with respect to z.

    z: (n, F) features of all of S under the deployed model; y: (n,) labels. anchors: (a,) indices A of the active
    samples. negative_class: (a,) c_i^neg, a class other than y_i for each anchor. Returns the loss and an array like z.
    An anchor without positives (IpC 1) or without negatives contributes nothing.
    """
    norm = np.linalg.norm(z, axis=1, keepdims=True) + TINY
    unit = z / norm
    similarity = unit[anchors] @ unit.T / temperature  # z_i · z_j / τ, (a, n)
    positive = y[None, :] == y[anchors, None]  # P(i)
    positive[np.arange(len(anchors)), anchors] = False
    negative = y[None, :] == negative_class[:, None]  # N(i)
    counted = positive.any(axis=1) & negative.any(axis=1)
    positive, negative = positive & counted[:, None], negative & counted[:, None]
    mean_positive = positive / np.maximum(positive.sum(axis=1, keepdims=True), 1)  # 1/|P(i)|
    # log Σ_n exp(z_i · z_n / τ), shifted by the largest term so that it cannot overflow
    masked = np.where(negative, similarity, -np.inf)
    largest = np.where(counted, masked.max(axis=1), 0.0)[:, None]
    exponential = np.exp(masked - largest)
    total = exponential.sum(axis=1, keepdims=True)
    log_total = np.where(counted[:, None], np.log(np.where(counted[:, None], total, 1.0)) + largest, 0.0)
    loss = float(log_total.sum() - (mean_positive * similarity).sum())
    d_similarity = (exponential / np.where(total > 0, total, 1.0) - mean_positive) / temperature
    d_unit = d_similarity.T @ unit[anchors]
    np.add.at(d_unit, anchors, d_similarity @ unit)
    d_z = (d_unit - unit * (d_unit * unit).sum(axis=1, keepdims=True)) / norm
    return loss, d_z.astype(np.float32)


def draw_negative_classes(labels: Ints, classes: int, rng: np.random.Generator) -> Ints:
    """For each label a class drawn uniformly from the others, (n,) int64; there must be at least two classes."""
    drawn = rng.integers(0, classes - 1, size=len(labels))
    return drawn + (drawn >= labels)


@dataclass(frozen=True)
class Condensed:
    """What `condense` did: the new buffer, D and L_cont of each iteration (L,), and how many updates were dropped."""

    buffer: CondensedBuffer
    distances: list[float]
    contrastive: list[float]
    dropped: int


class Condensation:
    """Condensing one segment: active real data `I_t^A` into the buffer's active images `S_t^A`, step by step.

    theta: (P,) the deployed model, whose encoder the contrastive term uses. x_real (m, C, H, W), y_real (m,) and
    w_real (m,): active frames, m ≥ 1. parts: slices of θ per layer, for `distance=layerwise`.
    active: A, (a,) indices of S_t^A in S. x_syn: (n, C, H, W), all of S as it is now. t_syn: (a, K), targets of S_t^A.
    The buffer given is not touched.
    """

    def __init__(
        self,
        engine: Engine,
        theta: Floats,
        buffer: CondensedBuffer,
        x_real: Floats,
        y_real: Ints,
        w_real: Floats,
        classes: int,
        recipe: Recipe,
        parts: Sequence[slice],
        rng: np.random.Generator,
    ) -> None:
        self.engine, self.theta, self.buffer, self.recipe, self.rng = engine, theta, buffer, recipe, rng
        self.x_real, self.y_real, self.t_real = x_real, y_real, targets(y_real, w_real, classes)
        self.x_syn, self.velocity, self.classes = buffer.x_syn.copy(), buffer.velocity.copy(), classes
        self.active = np.flatnonzero(np.isin(buffer.y_syn, y_real))
        self.y_syn = buffer.y_syn[self.active]
        self.t_syn = targets(self.y_syn, np.ones(len(self.active), np.float32), classes)
        self._compared = parts if recipe.distance == "layerwise" else [slice(None)]
        self._scopes = [np.ones(classes, bool)]
        if recipe.scope == "per-class":
            self._scopes = [np.arange(classes) == c for c in np.unique(y_real)]
        self._use_contrast = recipe.alpha > 0 and classes > 1
        self._z = engine.predict(theta, self.x_syn)[1] if self._use_contrast else np.zeros((0, 0), np.float32)
        self._distances: list[float] = []
        self._contrastive: list[float] = []
        self._dropped = 0

    def update_images(self, model: Floats) -> None:
        """One iteration at the random model θ̃ (P,); a step that is not finite is dropped and counted."""
        recipe, active = self.recipe, self.active
        x_syn = self.x_syn[active]
        distance, gradient = self._match(model, x_syn)
        if self._use_contrast:
            loss, d_x = self._contrast(x_syn)
            gradient += recipe.alpha * d_x
            self._contrastive.append(loss)
        self._distances.append(distance)
        moved = recipe.synthetic_momentum * self.velocity[active] + gradient  # opt_S of eq:final
        x = x_syn - recipe.synthetic_rate * moved
        if not np.isfinite(x).all():
            self._dropped += 1
            return
        self.velocity[active], self.x_syn[active] = moved, x

    def done(self) -> Condensed:
        """The result; nothing may follow it, since it shares the arrays."""
        buffer = replace(self.buffer, x_syn=self.x_syn, velocity=self.velocity)
        return Condensed(buffer, self._distances, self._contrastive, self._dropped)

    def _match(self, model: Floats, x_syn: Floats) -> tuple[float, Floats]:
        """D and ∇_{X'} D over the scope: all active classes at once, or each on its own."""
        if self.recipe.matching == "distribution":
            return match_features(self.engine, model, x_syn, self.t_syn, self.x_real, self.t_real)
        distance, gradient = 0.0, np.zeros_like(x_syn)
        for scope in self._scopes:
            syn, real = scope[self.y_syn], scope[self.y_real]
            d, g = match_gradients(
                self.engine,
                model,
                x_syn[syn],
                self.t_syn[syn],
                self.x_real[real],
                self.t_real[real],
                self.recipe.epsilon,
                self._compared,
                self.recipe.gradient == "exact",
            )
            distance += d
            gradient[syn] = g
        return distance, gradient

    def _contrast(self, x_syn: Floats) -> tuple[float, Floats]:
        """L_cont and its gradient on the active images."""
        self._z[self.active] = self.engine.predict(self.theta, x_syn)[1]  # the other images have not moved
        negative = draw_negative_classes(self.y_syn, self.classes, self.rng)
        loss, d_z = contrastive_loss(self._z, self.buffer.y_syn, self.active, negative, self.recipe.temperature)
        return loss, self.engine.feature_gradient(self.theta, x_syn, d_z[self.active])


def condense(
    work: Condensation, draw_model: Callable[[], Floats], check: Callable[[], None] = lambda: None
) -> Condensed:
    """The inner loop of Algorithm 1: L iterations, each with a fresh random model θ̃ (P,) from draw_model.

    check: called before each iteration; what it raises ends the loop with nothing changed.
    """
    for _ in range(work.recipe.iterations):
        check()
        work.update_images(draw_model())
    return work.done()
