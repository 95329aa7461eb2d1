"""Which distribution fresh weights come from, found by looking at fresh models, against torch's documentation."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deco_export.initialisers import MODELS, distribution, parameters  # noqa: E402
from deco_models import convnet, resnet  # noqa: E402
from deco_runtime.errors import ExportError  # noqa: E402
from deco_runtime.learning.random_model import draw_model  # noqa: E402
from scipy import stats  # noqa: E402
from torch import nn  # noqa: E402


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_constants_are_exact() -> None:
    assert distribution(np.full(10, 0.1)) == ("constant", 0.1, 0.0)
    assert distribution(np.zeros(1)) == ("constant", 0.0, 0.0)


@pytest.mark.parametrize("n", [200, 20_000])
def test_symmetric_uniform(n: int) -> None:
    kind, low, high = distribution(rng().uniform(-0.3, 0.3, n))
    assert kind == "uniform"
    assert low == -high
    assert high == pytest.approx(0.3, rel=5 / n)


def test_uniform_away_from_zero() -> None:
    kind, low, high = distribution(rng().uniform(0.2, 0.9, 20_000))
    assert kind == "uniform"
    assert (low, high) == pytest.approx((0.2, 0.9), abs=5 * 0.7 / 20_000)


def test_centred_normal() -> None:
    kind, mean, std = distribution(rng().normal(0, 0.02, 50_000))
    assert (kind, mean) == ("normal", 0.0)
    assert std == pytest.approx(0.02, rel=5 / math.sqrt(2 * 50_000))


def test_normal_away_from_zero() -> None:
    kind, mean, std = distribution(rng().normal(1, 0.02, 50_000))
    assert kind == "normal"
    assert mean == pytest.approx(1, abs=5 * 0.02 / math.sqrt(50_000))
    assert std == pytest.approx(0.02, rel=5 / math.sqrt(2 * 50_000))


def test_convnet_has_torchs_documented_defaults() -> None:
    """Conv2d and Linear: U(−1/√fan_in, 1/√fan_in) for weight and bias; norms: 1 and 0."""

    def make() -> nn.Module:
        # As many classes as channels, so that even the smallest tensor gives 64 · 128 values in all.
        return convnet.build(classes=128, image_size=8, width=128, depth=2)

    found = parameters(make)
    model = make()
    assert [(p.name, p.shape) for p in found] == [(n, tuple(p.shape)) for n, p in model.named_parameters()]
    assert found[0].offset == 0
    assert all(b.offset == a.offset + a.size for a, b in pairwise(found))
    for p in found:
        layer = model.get_submodule(p.name.rpartition(".")[0])
        if isinstance(layer, nn.GroupNorm):
            assert (p.kind, p.a) == ("constant", float(p.name.endswith("weight")))
        else:
            bound = 1 / math.sqrt(layer.weight[0].numel())
            assert p.kind == "uniform"
            assert (p.a, p.b) == pytest.approx((-bound, bound), rel=1e-3)


@pytest.mark.parametrize(
    "make",
    [lambda: convnet.build(5, 16, width=16, depth=2), lambda: resnet.build(5, 16, width=8, depth=2)],
    ids=["convnet", "resnet"],
)
def test_the_device_draws_models_as_torch_does(make) -> None:
    """Two-sample Kolmogorov–Smirnov test per tensor, on seeds that `parameters` did not look at."""
    found = parameters(make)
    torch.manual_seed(10 * MODELS)
    theirs = [dict(make().named_parameters()) for _ in range(20)]
    generator = rng()
    ours = [draw_model(found, generator) for _ in range(20)]
    for p in found:
        a = np.concatenate([model[p.name].detach().numpy().ravel() for model in theirs])
        b = np.concatenate([theta[p.slice] for theta in ours])
        if p.kind == "constant":
            np.testing.assert_array_equal(a, b)
        else:
            assert stats.ks_2samp(a, b).pvalue > 1e-3, p.name


def normal_factory() -> nn.Module:
    """A user's own: what the modules did by themselves is overwritten."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 30), nn.ReLU(), nn.Linear(30, 3))
    nn.init.normal_(model[1].weight, 0.5, 0.02)
    nn.init.normal_(model[3].weight, std=0.1)
    nn.init.constant_(model[1].bias, 0.25)
    nn.init.zeros_(model[3].bias)
    return model


def test_a_users_own_initialisation_is_seen() -> None:
    first, first_bias, second, second_bias = parameters(normal_factory)
    assert (first.kind, second.kind) == ("normal", "normal")
    assert (first.a, first.b) == pytest.approx((0.5, 0.02), rel=0.02)
    assert second.a == 0
    assert second.b == pytest.approx(0.1, rel=0.05)
    assert (first_bias.kind, first_bias.a) == ("constant", 0.25)
    assert (second_bias.kind, second_bias.a) == ("constant", 0.0)


def test_torchs_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    found = parameters(normal_factory)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert parameters(normal_factory) == found  # nor does its state matter


def test_a_large_model_does_not_fill_the_memory() -> None:
    """Small tensors need many models; of a large one, a few are enough."""
    tracemalloc.start()
    try:
        weight, bias = parameters(lambda: nn.Linear(500, 1000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (weight.kind, bias.kind) == ("uniform", "uniform")
    assert peak < 8 * 500_000 * 8  # eight copies in float64, of the 64 models made


def test_a_factory_that_changes_its_mind_is_refused() -> None:
    widths = iter(range(3, 100))
    with pytest.raises(ExportError, match="the same tensors each time"):
        parameters(lambda: nn.Linear(4, next(widths)))
