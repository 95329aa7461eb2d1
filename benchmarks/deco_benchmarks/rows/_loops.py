"""The inner loop that DECO leaves out: matching along the training of one random model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from deco_runtime.learning.condense import Condensation
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.retrain import sgd_step


class InnerLoop(Deco):
    """A learner that can match along eq:opt1: θ_{t+1} = opt_θ(θ_t, S), for t = 0 … T − 1 with T = L of the recipe."""

    def inner_loop(self, work: Condensation, check: Callable[[], None]) -> None:
        """Draw one random model; update the images at it L times, with one step of opt_θ on S_t^A between two updates.

        opt_θ is that of the deployed model (rate, momentum, weight decay), from rest, on all active images at once.
        """
        model = self.random_model()
        velocity, recipe = np.zeros_like(model), self.recipe
        t = work.t_syn / np.float32(len(work.active))  # the mean loss, as in retraining
        for step in range(recipe.iterations):
            check()
            if step > 0:
                _, gradient = self.engine.weight_gradient(model, work.x_syn[work.active], t)
                model, velocity = sgd_step(
                    model, velocity, gradient, recipe.retrain_rate, recipe.retrain_momentum, recipe.weight_decay
                )
            self.iterate(work, model)
