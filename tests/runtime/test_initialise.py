"""Fresh random models: every parameter from its own distribution, at its own place, the same for the same seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.learning.random_model import Parameter, draw_model, layers
from deco_runtime.storage.bundle import open_bundle
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

N = 20_000
MODEL = (
    Parameter("uniform", (N // 10, 10), 0, "uniform", -0.25, 0.75),
    Parameter("normal", (N,), N, "normal", 3.0, 0.5),
    Parameter("constant", (7,), 2 * N, "constant", 1.5, 0.0),
    Parameter("scalar", (), 2 * N + 7, "uniform", 5.0, 6.0),
)


def test_sizes_and_places() -> None:
    assert [p.size for p in MODEL] == [N, N, 7, 1]
    assert [p.slice for p in MODEL] == [
        slice(0, N),
        slice(N, 2 * N),
        slice(2 * N, 2 * N + 7),
        slice(2 * N + 7, 2 * N + 8),
    ]


def test_each_parameter_has_its_distribution() -> None:
    theta = draw_model(MODEL, np.random.default_rng(0))
    assert theta.shape == (2 * N + 8,)
    assert theta.dtype == np.float32
    uniform, normal, constant, scalar = (theta[p.slice].astype(np.float64) for p in MODEL)
    assert stats.kstest(uniform, stats.uniform(-0.25, 1.0).cdf).pvalue > 0.01
    assert stats.kstest(normal, stats.norm(3.0, 0.5).cdf).pvalue > 0.01
    assert (constant == 1.5).all()
    assert 5 <= scalar[0] < 6
    # and it is these, not any: a tenth off is noticed
    assert stats.kstest(uniform, stats.uniform(-0.25, 1.1).cdf).pvalue < 1e-6
    assert stats.kstest(normal, stats.norm(3.0, 0.55).cdf).pvalue < 1e-6


def test_parameters_are_independent_of_each_other() -> None:
    pair = (Parameter("a", (N,), 0, "normal", 0.0, 1.0), Parameter("b", (N,), N, "normal", 0.0, 1.0))
    theta = draw_model(pair, np.random.default_rng(0))
    assert abs(np.corrcoef(theta[:N], theta[N:])[0, 1]) < 5 / math.sqrt(N)


@given(st.integers(0, 2**64))
def test_the_same_generator_gives_the_same_model(seed: int) -> None:
    small = (Parameter("w", (3, 4), 0, "uniform", -1.0, 1.0), Parameter("v", (5,), 12, "normal", 0.0, 2.0))
    rng = np.random.default_rng(seed)
    first, second = draw_model(small, rng), draw_model(small, rng)
    assert first.tobytes() == draw_model(small, np.random.default_rng(seed)).tobytes()
    assert first.tobytes() != second.tobytes()


def test_a_known_model() -> None:
    """The same on every machine and numpy: learned state goes on with this stream of numbers."""
    small = (Parameter("w", (2,), 0, "uniform", -1.0, 1.0), Parameter("v", (2,), 2, "normal", 1.0, 2.0))
    known = [-0.82149816, 0.547912, -1.664216, 2.1651068]
    np.testing.assert_allclose(draw_model(small, np.random.default_rng(42)), known, rtol=1e-6)


@given(st.floats(-100, 100), st.floats(0, 100))
def test_uniform_keeps_its_bounds(a: float, width: float) -> None:
    theta = draw_model((Parameter("w", (50,), 0, "uniform", a, a + width),), np.random.default_rng(0))
    assert (theta >= np.float32(a) - 1e-4).all()
    assert (theta <= np.float32(a + width) + 1e-4).all()


def test_no_parameters() -> None:
    assert draw_model((), np.random.default_rng(0)).shape == (0,)


def test_layers_are_the_weights_of_two_or_more_dimensions() -> None:
    shapes = [(2, 3, 3, 3), (2,), (4, 2), (), (1, 1)]
    parameters, offset = [], 0
    for shape in shapes:
        parameters.append(Parameter("", shape, offset, "constant", 0.0, 0.0))
        offset += parameters[-1].size
    assert layers(parameters) == [slice(0, 54), slice(56, 64), slice(65, 66)]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_real_model_is_drawn_within_its_bounds(bundle_path: Path, seed: int) -> None:
    bundle = open_bundle(bundle_path)
    theta = draw_model(bundle.parameters, np.random.default_rng(seed))
    assert theta.shape == bundle.weights().shape
    for p in bundle.parameters:
        part = theta[p.slice]
        if p.kind == "uniform":
            assert part.min() >= p.a - 1e-6
            assert part.max() <= p.b + 1e-6
            assert len(np.unique(part)) > p.size // 2
        elif p.kind == "constant":
            assert (part == np.float32(p.a)).all()
    assert len(layers(bundle.parameters)) == 3  # two convolutions and the classifier
