"""Algorithm 1 of the paper, DECO: efficient on-device dataset condensation. Read it from top to bottom.

    θ ← θ_0; S from the labelled images                           replay.ReplayLearner.open
    for I_t in the stream, its frames pseudo-labelled:            running/stream.py, for every learner
        C_t^A by majority vote; I_t^A, S_t^A                      update       eq:filter, eq:active
        for l ← 1 to L:                                           condense
            θ̃ at random                                           random_model
            g_syn, g_real; ∇_{X'} D in five passes                five_passes  eq:opt2 to eq:opt4
            L_cont                                                contrast     eq:contrast
            S ← opt_S                                             iterate      eq:final
        if t % β = 0: θ ← opt_θ(θ, S)                             solve, when `retrain_due`

The formulas are in `condense.py`, the vote in `vote.py`; what is not the paper's is in `variants.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deco_runtime.engine import Engine
from deco_runtime.learning import condense as formulas
from deco_runtime.learning import variants
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensation, Condensed, dot, gradient_distance
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.random_model import draw_model
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.vote import vote
from deco_runtime.types import Check, Floats, Ints, Segment


class Deco(ReplayLearner):
    """The model is θ (P,), the memory is S."""

    NAME, TITLE = "paper", "DECO"
    ABOUT = "Condenses voted frames into synthetic images (Xu et al.): the paper's own learner."
    RECIPE = Hyperparameters()
    GRAPH, IPC, AUGMENT = "weight_gradient", 10, False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.steps = ("condensing, iteration", self.recipe.iterations)
        self.solve_steps = ("retraining, epoch", self.recipe.retrain_epochs)
        self.match = variants.chosen(self.recipe, self.parameters, five_passes)

    @classmethod
    def check_engine(cls, bundle: Bundle, engine: Engine, recipe: Hyperparameters) -> None:
        variants.check(bundle, engine, recipe)

    def update(self, segment: Segment, check: Check) -> tuple[CondensedBuffer, SegmentReport]:
        """One turn of the loop over I_t, up to the update of θ."""
        active = vote(segment, self.classes, self.recipe)  # C_t^A of eq:filter, I_t^A of eq:active
        done = Condensed(self.memory)
        if len(active):
            done = self.condense(segment.observed["x"][active.index], active.y, active.w, check)
        return done.buffer, SegmentReport(
            active=active.classes.tolist(),
            kept=len(active) / max(len(segment), 1),
            pseudo_accuracy=active.accuracy(segment.labels),
            dropped=done.dropped,
            figures={"distances": done.distances, "contrastive": done.contrastive[-1] if done.contrastive else None},
            words={"matching loss": f"{done.distances[0]:.3f} → {done.distances[-1]:.3f}"} if done.distances else {},
        )

    def condense(self, x: Floats, y: Ints, w: Floats, check: Check) -> Condensed:
        """S from active frames x (m, C, H, W), m ≥ 1, their labels y (m,) and weights w (m,). Other ways to keep a
        buffer override this one step."""
        work = self.begin(x, y, w)
        for _ in range(self.recipe.iterations):  # l = 1 … L
            check()
            self.iterate(work, self.random_model())
        return work.done()

    def begin(self, x: Floats, y: Ints, w: Floats) -> Condensation:
        """I_t^A and S_t^A of eq:active, with nothing done yet."""
        work = Condensation(self.memory, x, y, w, self.outputs)
        if self._contrasts:
            work.z = self.engine.predict(self.deployed(self.model), work.x_syn)[1]
        return work

    def random_model(self) -> Floats:
        """θ̃ (P,), a fresh one at each call."""
        return draw_model(self.parameters, self.rng, self.classes - self.bundle_classes)

    def iterate(self, work: Condensation, theta: Floats) -> None:
        """Match at the random model θ̃ = theta, contrast, and update S; a step that is not finite is dropped."""
        recipe, active = self.recipe, work.active
        x_syn = work.x_syn[active]
        distance, gradient = self.match(self.engine, theta, x_syn, work.t_syn, work.x_real, work.t_real)
        work.distances.append(distance)
        if self._contrasts:
            loss, d_x = self.contrast(work, x_syn)
            work.contrastive.append(loss)
            gradient += recipe.alpha * d_x  # ∇_{X'} (D + α L_cont)
        moved = recipe.synthetic_momentum * work.velocity[active] + gradient  # opt_S of eq:final
        x = x_syn - recipe.synthetic_rate * moved
        if np.isfinite(x).all():
            work.velocity[active], work.x_syn[active] = moved, x
        else:
            work.dropped += 1

    def contrast(self, work: Condensation, x_syn: Floats) -> tuple[float, Floats]:
        """L_cont of eq:contrast over S, and its gradient on the active images x_syn (a, C, H, W)."""
        theta = self.deployed(self.model)
        work.z[work.active] = self.engine.predict(theta, x_syn)[1]  # z' = f_θ(x'); the others have not moved
        negative = formulas.draw_negative_classes(work.y_syn, self.classes, self.rng)  # c_i^neg
        loss, d_z = formulas.contrastive_loss(work.z, work.buffer.y_syn, work.active, negative, self.recipe.temperature)
        return loss, self.engine.feature_gradient(theta, x_syn, d_z[work.active])

    def taken_in(self, x: Floats, y: Ints, check: Check) -> CondensedBuffer:
        return self.condense(x, y, np.ones(len(y), np.float32), check).buffer

    def step(self, segment: Segment) -> tuple[str, Callable[[], object]]:
        work = self.begin(segment.observed["x"], segment.pseudo, segment.confidence)
        return "iterations", lambda: self.iterate(work, self.random_model())

    @property
    def _contrasts(self) -> bool:
        return self.recipe.alpha > 0 and self.classes > 1

    def solve(self, check: Check) -> tuple[Floats, list[float]]:
        """θ ← opt_θ(θ, S), and what people said on top of that."""
        theta, own = self.untaught(self.model), self.reshaped(self.memory, self.bundle_classes)
        theta, losses = retrain(self.engine, theta, own, self.outputs, self.recipe, self.rng, check)
        return self.with_taught(self.masked(theta), check), losses


def five_passes(
    engine: Engine,
    theta: Floats,
    x_syn: Floats,
    t_syn: Floats,
    x_real: Floats,
    t_real: Floats,
    epsilon: float,
    distance_of: Callable[[Floats, Floats], tuple[float, Floats]] = gradient_distance,
) -> tuple[float, Floats]:
    """D(g_syn, g_real) of eq:opt2 and ∇_{X'} D of eq:opt3 by the central difference of eq:opt4, at θ̃ = theta (P,).

    x_syn (a, C, H, W), t_syn (a, K); x_real (m, C, H, W), t_real (m, K) with their weights. epsilon: numerator of
    ε = epsilon / ‖∇_{g_syn} D‖₂. distance_of: D and ∇_{g_syn} D. Returns D and an array like x_syn.
    """
    _, g_syn = engine.weight_gradient(theta, x_syn, t_syn)  # pass 1
    _, g_real = engine.weight_gradient(theta, x_real, t_real)  # pass 2
    distance, v = distance_of(g_syn, g_real)  # pass 3: v = ∇_{g_syn} D
    ε = epsilon / (dot(v, v) ** 0.5 + formulas.TINY)
    step = (ε * v).astype(np.float32)
    plus = engine.input_gradient(theta + step, x_syn, t_syn)  # pass 4: at θ̃⁺
    minus = engine.input_gradient(theta - step, x_syn, t_syn)  # pass 5: at θ̃⁻
    return distance, ((plus - minus) / (2 * ε)).astype(np.float32)


LEARNER = Deco
