"""The same work in eager torch, as the method's authors would write it: what the device would run without engines."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deco_runtime.running.assemble  # noqa: F401  (OpenCV, the sources, the view: needed on torch as on engines)
import numpy as np
import torch
from deco_export import models
from deco_runtime.errors import BundleError
from deco_runtime.host.machine import peak_memory_mb
from deco_runtime.host.threads import threads
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.condense import TINY
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats
from torch import nn
from torch.nn.functional import cosine_similarity, log_softmax

from deco_benchmarks.bench.jobs import Progress


def build(bundle: Bundle) -> nn.Module:
    """The bundle's model with its weights, on as many threads as the engines have.

    Raises BundleError when the manifest does not say which model it is, UsageError when that cannot be built.
    """
    made = bundle.made_with
    if "model" not in made:
        raise BundleError(
            "expected a bundle whose manifest names its model, but it does not; leave out --against torch or export "
            "the bundle again"
        )
    torch.set_num_threads(threads())
    size = bundle.preprocessing.size
    make = models.factory(made["model"], len(bundle.classes), size, made.get("width"), made.get("depth"))
    model = make().eval()
    found = sum(p.numel() for p in model.parameters())
    if found != bundle.weight_count:
        raise BundleError(
            f"expected the model {made['model']} to have {bundle.weight_count} weights, but it has {found}; "
            "install the deco-edge version that the bundle was exported with"
        )
    load(model, bundle.weights())
    return model


def load(model: nn.Module, theta: Floats) -> None:
    """Copy θ (P,) into the model."""
    parameters = list(model.parameters())
    parts = torch.from_numpy(theta).split([p.numel() for p in parameters])
    with torch.no_grad():
        for p, part in zip(parameters, parts, strict=True):
            p.copy_(part.view_as(p))


@dataclass(frozen=True)
class Matching:
    """x_syn (n, C, H, W), t_syn (n, K), x_real (m, C, H, W), t_real (m, K) as tensors; epsilon of eq:opt4."""

    x_syn: torch.Tensor
    t_syn: torch.Tensor
    x_real: torch.Tensor
    t_real: torch.Tensor
    epsilon: float


def match_gradients(model: nn.Module, data: Matching, micro_batch: int | None = None) -> torch.Tensor:
    """∇_{X'} D by eq:opt4 at the model's weights, as `deco.five_passes`: four passes, (n, C, H, W).

    micro_batch: images per pass; None takes all at once. The weights are afterwards what they were, up to rounding.
    """
    parameters = list(model.parameters())
    g_syn = _weight_gradient(model, data.x_syn, data.t_syn, micro_batch).requires_grad_()
    g_real = _weight_gradient(model, data.x_real, data.t_real, micro_batch)
    distance = 1 - cosine_similarity(g_syn, g_real, dim=0)
    (v,) = torch.autograd.grad(distance, g_syn)
    ε = data.epsilon / (float(v.norm()) + TINY)
    parts = [part.view_as(p) for part, p in zip(v.split([p.numel() for p in parameters]), parameters, strict=True)]

    def move(by: float) -> None:
        with torch.no_grad():
            for p, part in zip(parameters, parts, strict=True):
                p.add_(part, alpha=by)

    move(ε)
    plus = _input_gradient(model, data.x_syn, data.t_syn, micro_batch)
    move(-2 * ε)
    minus = _input_gradient(model, data.x_syn, data.t_syn, micro_batch)
    move(ε)
    return (plus - minus) / (2 * ε)


def retrain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, recipe: Hyperparameters, epochs: int) -> None:
    """opt_θ: shuffled epochs over the buffer x (n, C, H, W), y (n,) by torch's own SGD."""
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.retrain_rate, recipe.retrain_momentum, weight_decay=recipe.weight_decay
    )
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(recipe.retrain_batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def _loss(model: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return -(t * log_softmax(model(x), 1)).sum()


def _weight_gradient(model: nn.Module, x: torch.Tensor, t: torch.Tensor, micro_batch: int | None) -> torch.Tensor:
    parameters, n = list(model.parameters()), micro_batch or len(x)
    total: torch.Tensor | None = None
    for xs, ts in zip(x.split(n), t.split(n), strict=True):
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(_loss(model, xs, ts), parameters)])
        total = gradient if total is None else total + gradient
    assert total is not None
    return total


def _input_gradient(model: nn.Module, x: torch.Tensor, t: torch.Tensor, micro_batch: int | None) -> torch.Tensor:
    n, parts = micro_batch or len(x), []
    for xs, ts in zip(x.split(n), t.split(n), strict=True):
        image = xs.clone().requires_grad_()
        parts.append(torch.autograd.grad(_loss(model, image, ts), image)[0])
    return torch.cat(parts)


def matching(x_syn: Floats, t_syn: Floats, x_real: Floats, t_real: Floats, epsilon: float) -> Matching:
    """The same arrays as tensors."""
    syn, real = (torch.from_numpy(x_syn), torch.from_numpy(t_syn)), (torch.from_numpy(x_real), torch.from_numpy(t_real))
    return Matching(*syn, *real, epsilon)


def start(path: Path, progress: Progress) -> dict[str, Any]:
    """As `processes.start`, with torch in place of an engine."""
    bundle = open_bundle(path)
    with torch.inference_mode():
        build(bundle)(torch.zeros(1, *bundle.image_shape))
    return {"predicted": time.monotonic(), "peak_mib": peak_memory_mb()}


def memory(path: Path, progress: Progress) -> dict[str, Any]:
    """As `processes.memory`, with whole batches in torch: predict, two iterations, one epoch.

    Saving and the contrastive term are left out, which can only make this side smaller.
    """
    bundle, recipe = open_bundle(path), Deco.RECIPE
    model, rng, buffer = build(bundle), np.random.default_rng(0), initial(bundle)
    x = rng.standard_normal((recipe.segment, *bundle.image_shape), np.float32)
    with torch.inference_mode():
        model(torch.from_numpy(x[:1]))
    one_hot = np.eye(len(bundle.classes), dtype=np.float32)
    y = buffer.y_syn[buffer.y_syn == 0]
    data = matching(buffer.x_syn[buffer.y_syn == 0], one_hot[y], x, one_hot[np.zeros(len(x), int)], recipe.epsilon)
    for _ in range(2):
        match_gradients(model, data)
    retrain(model, torch.from_numpy(buffer.x_syn), torch.from_numpy(buffer.y_syn), recipe, 1)
    return {"peak_mib": peak_memory_mb()}


def multiply_adds(model: nn.Module, image_shape: tuple[int, int, int]) -> int:
    """Of all convolutions for the weight gradient of one image: forward, by weights, and by input but at the image."""
    total = 0

    def count(layer: nn.Conv2d, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        nonlocal total
        passes = 3 if inputs[0].requires_grad else 2
        per_output = layer.in_channels // layer.groups * layer.kernel_size[0] * layer.kernel_size[1]
        total += passes * output.numel() * per_output

    hooks = [m.register_forward_hook(count) for m in model.modules() if isinstance(m, nn.Conv2d)]
    model(torch.zeros(1, *image_shape))
    for hook in hooks:
        hook.remove()
    return total
