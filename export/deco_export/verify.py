"""The last check of an export: every graph against torch autograd, on the very files of the bundle."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from deco_runtime.engines._micro_batches import MICRO_BATCH
from deco_runtime.engines.golden import KINKED, relative_error
from deco_runtime.errors import ExportError
from deco_runtime.learning.random_model import Parameter
from torch import nn

from deco_export.graph_values import TOLERANCE, Values, draw_inputs, run_graphs

BATCHES = (1, MICRO_BATCH, 2)
"""Batch sizes checked, up to the largest that an engine hands to a graph; the golden values are those of the last."""
ATTEMPTS = 3
"""A unit within rounding of a ReLU's kink may fall on either side; other inputs then decide."""


def reference(model: nn.Module, inputs: Values) -> Values:
    """What torch says: logits, features, loss, weight_gradient, input_gradient, feature_gradient.

    And input_gradient_tangent, unless the model has a layer that torch cannot differentiate twice.
    """
    seen: dict[str, torch.Tensor] = {}
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    # The classifier is the one called last, wherever the model keeps it.
    hooks = [m.register_forward_pre_hook(lambda _, args: seen.update(features=args[0])) for m in linear]
    # Leaves of their own: a frozen parameter has a gradient on the device, an unused one has zero.
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    try:
        x, t, u = (torch.from_numpy(inputs[k]) for k in ("x", "t", "u"))
        x.requires_grad_(True)
        logits = torch.func.functional_call(model, weights, (x,))
    finally:
        for hook in hooks:
            hook.remove()
    if "features" not in seen:
        raise ExportError("expected a model whose last layer is a torch.nn.Linear, but it has none; use that module")
    loss = -(t * torch.log_softmax(logits, dim=1)).sum()
    leaves = [*weights.values(), x]
    *by_weight, by_input = torch.autograd.grad(loss, leaves, retain_graph=True, materialize_grads=True)
    (by_feature,) = torch.autograd.grad((seen["features"] * u).sum(), x, retain_graph=True)
    found = {
        "logits": logits,
        "features": seen["features"],
        "loss": loss,
        "weight_gradient": torch.cat([g.reshape(-1) for g in by_weight]),
        "input_gradient": by_input,
        "feature_gradient": by_feature,
    }
    with contextlib.suppress(RuntimeError):  # "derivative … is not implemented"
        by_weight = torch.autograd.grad(loss, leaves[:-1], create_graph=True, materialize_grads=True)
        along = torch.cat([g.reshape(-1) for g in by_weight]) @ torch.from_numpy(inputs["v"])
        (found["input_gradient_tangent"],) = torch.autograd.grad(along, x)
    return {name: value.detach().numpy().astype(np.float32, copy=False) for name, value in found.items()}


class WithSpare(nn.Module):  # type: ignore[misc]
    """A model with spare outputs behind its own, linear in what its last nn.Linear takes; parameters: of these."""

    def __init__(self, model: nn.Module, parameters: Sequence[Parameter]) -> None:
        super().__init__()
        self.model = model
        weight, bias = parameters
        self.spare = nn.Linear(weight.shape[1], weight.shape[0])
        for own, p in ((self.spare.weight, weight), (self.spare.bias, bias)):
            nn.init.constant_(own, p.a)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, K + spare)."""
        seen: dict[str, torch.Tensor] = {}
        linear = [m for m in self.model.modules() if isinstance(m, nn.Linear)]
        hooks = [m.register_forward_pre_hook(lambda _, args: seen.update(features=args[0])) for m in linear]
        try:
            logits = self.model(x)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.cat([logits, self.spare(seen["features"])], dim=1)


def verify(
    model: nn.Module,
    sets: dict[str, dict[str, Path]],
    theta: np.ndarray,
    shape: tuple[int, ...],
    classes: int,
    features: int,
    spare: int = 0,
) -> tuple[Values, dict[str, float]]:
    """Check each set of graphs {set: {graph: file}} against torch at every size of BATCHES.

    A graph that torch cannot check has no error. Returns golden values (the inputs and torch's outputs at N = 2, arrays
    named as in `reference`) and the largest relative error per "set/quantity", above TOLERANCE only where KINKED allows
    it. Raises ExportError naming the graph that disagrees.
    """
    errors: dict[str, float] = {}
    inputs: Values = {}
    expected: Values = {}
    for n in BATCHES:
        for attempt in range(ATTEMPTS):
            inputs.clear()  # before the next are made: large pictures have large gradients
            expected.clear()
            inputs = draw_inputs(shape, classes, features, len(theta), n, seed=attempt)
            inputs["t"] = np.pad(inputs["t"], ((0, 0), (0, spare)))  # nothing is of a masked class
            expected = reference(model, inputs)
            now = _compared(sets, theta, inputs, expected)
            if max(most for most, _ in now.values()) <= TOLERANCE:
                break
        for k, (most, euclidean) in sorted(now.items(), key=lambda item: -item[1][0]):
            kinked = "gradient" in k and euclidean <= KINKED
            if not most <= TOLERANCE and not kinked:
                raise ExportError(
                    f"expected every graph to agree with torch within {TOLERANCE:g}, but {k} is off by {most:.1e} "
                    f"at N = {n}; this is a defect of deco-export for this model, please report it"
                )
        errors = {k: max(most, errors.get(k, 0.0)) for k, (most, _) in now.items()}
    return {**inputs, **expected}, errors


def _compared(
    sets: dict[str, dict[str, Path]], theta: np.ndarray, inputs: Values, expected: Values
) -> dict[str, tuple[float, float]]:
    """Relative error per "set/quantity", of the largest element and in the Euclidean norm.

    One graph after the other, so that no more than one's values are held.
    """
    return {
        f"{label}/{name}": (relative_error(value, expected[name]), relative_error(value, expected[name], order=2))
        for label, files in sets.items()
        for graph, file in files.items()
        for name, value in run_graphs({graph: file}, theta, inputs).items()
        if name in expected
    }
