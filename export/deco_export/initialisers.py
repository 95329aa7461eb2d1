"""The distribution each tensor of a fresh model is drawn from, measured on models made afresh.

The device needs random models θ̃ but has no torch. Reading the rules out of torch's modules would miss what a user's
own factory does afterwards, so the factory is asked for models and their values are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from deco_runtime.errors import ExportError
from deco_runtime.learning.random_model import Parameter
from torch import nn

VALUES = 100_000
"""Values looked at per tensor before its distribution is decided."""
MODELS = 64
"""Fresh models made at most."""


def parameters(factory: Callable[[], nn.Module]) -> tuple[Parameter, ...]:
    """Place in θ and distribution of every parameter, in the order of `named_parameters`.

    Uniform and normal are told apart by the kurtosis (−1.2 and 0), a constant by its spread. Bounds are those of the
    largest value seen, widened to the unbiased estimate; symmetric ones are made exactly so. The state of torch's
    generator is left as it was. Raises ExportError when two models differ in their parameters.
    """
    samples: dict[str, list[np.ndarray]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    with torch.random.fork_rng(devices=[]):
        for seed in range(MODELS):
            torch.manual_seed(seed)
            fresh = dict(factory().named_parameters())
            found = {name: tuple(p.shape) for name, p in fresh.items()}
            if shapes and found != shapes:
                raise ExportError("expected the model factory to make the same tensors each time, but they differ")
            shapes = found
            for name, p in fresh.items():
                seen = samples.setdefault(name, [])
                if sum(map(len, seen)) < VALUES:  # 64 copies of a large tensor would fill the memory
                    seen.append(p.detach().numpy().ravel().astype(np.float64))
            if min(sum(map(len, s)) for s in samples.values()) >= VALUES:
                break
    result, offset = [], 0
    for name, shape in shapes.items():
        kind, a, b = distribution(np.concatenate(samples[name]))
        result.append(Parameter(name, shape, offset, kind, a, b))
        offset += result[-1].size
    return tuple(result)


def distribution(values: np.ndarray) -> tuple[str, float, float]:
    """("uniform", low, high), ("normal", mean, std) or ("constant", value, 0) for values (n,) drawn independently."""
    if np.ptp(values) == 0:
        return "constant", float(values[0]), 0.0
    mean, std = float(values.mean()), float(values.std())
    kurtosis = float(np.mean(((values - mean) / std) ** 4)) - 3
    n = len(values)
    centred = abs(mean) < 5 * std / math.sqrt(n)  # no further from 0 than chance puts it
    if kurtosis < -0.6:
        widen = np.ptp(values) / (n - 1)  # the extremes of n uniform values fall short by this much on average
        low, high = float(values.min() - widen), float(values.max() + widen)
        if centred:
            high = float(np.abs(values).max() * (n + 1) / n)
            low = -high
        return "uniform", low, high
    return "normal", 0.0 if centred else mean, std
