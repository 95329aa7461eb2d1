"""eq:opt4 on the real network: the device's five passes against the paper's formula in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deco_benchmarks.parity import CLASSES, SIZE, engines, five_pass_errors, five_passes_by_torch, matching_data  # noqa: E402
from deco_export import initialisers  # noqa: E402
from deco_models import convnet, resnet  # noqa: E402
from deco_runtime.learning.condense import contrastive_loss  # noqa: E402
from deco_runtime.learning.deco import five_passes  # noqa: E402
from deco_runtime.learning.random_model import draw_model  # noqa: E402


def made(build, folder: Path):
    """A fresh torch model, its parameters, and every engine this environment has for it."""
    make = lambda: build(CLASSES, SIZE)  # noqa: E731
    parameters = initialisers.parameters(make)
    model = make().eval()
    return model, parameters, engines(model, parameters, folder)[0]


@pytest.mark.parametrize(
    "build", [lambda c, s: convnet.build(c, s, width=32, depth=3), resnet.build], ids=["convnet", "resnet"]
)
def test_five_passes_against_float64(build, tmp_path: Path) -> None:
    model, parameters, found = made(build, tmp_path)
    errors = [five_pass_errors(model, parameters, found, seed) for seed in range(5)]
    for name in found:
        # A unit within rounding of a ReLU's kink spoils single draws, also those of torch in float32.
        assert np.median([e[name] for e in errors]) <= 1e-4, (name, errors)
        assert max(e[name] for e in errors) <= 0.1, (name, errors)


def test_the_distance_of_the_five_passes(tmp_path: Path) -> None:
    model, parameters, found = made(resnet.build, tmp_path)
    theta, data = draw_model(parameters, np.random.default_rng(0)), matching_data(0)
    expected, _ = five_passes_by_torch(model, theta, *data, 0.01)
    for name, engine in found.items():
        assert five_passes(engine, theta, *data, 0.01)[0] == pytest.approx(expected, abs=1e-5), name


def test_contrastive_gradient_through_the_encoder(tmp_path: Path) -> None:
    """α∇L_cont of eq:final on the images, against torch autograd through encoder, normalisation and log-sum-exp."""
    model, parameters, found = made(lambda c, s: convnet.build(c, s, width=16, depth=3), tmp_path)
    rng = np.random.default_rng(1)
    theta = draw_model(parameters, rng)
    y = np.repeat(np.arange(3), 4)
    x = rng.standard_normal((12, 3, SIZE, SIZE)).astype(np.float32)
    anchors, negative = np.flatnonzero(y == 1), np.array([0, 2, 2, 0])

    seen = {}
    list(model.modules())[-1].register_forward_pre_hook(lambda _, args: seen.update(z=args[0]))
    image = torch.tensor(x).double().requires_grad_()
    sizes = [p.numel() for p in model.parameters()]
    with torch.no_grad():
        for p, part in zip(model.double().parameters(), torch.tensor(theta).double().split(sizes), strict=True):
            p.copy_(part.reshape(p.shape))
    model(image)
    unit = torch.nn.functional.normalize(seen["z"], dim=1)
    total = torch.zeros((), dtype=torch.float64)
    for i, c in zip(anchors, negative, strict=True):
        positives = torch.tensor([j for j in anchors if j != i])
        below = torch.logsumexp(unit[torch.tensor(np.flatnonzero(y == c))] @ unit[i] / 0.07, 0)
        total = total - (unit[positives] @ unit[i] / 0.07 - below).mean()
    (expected,) = torch.autograd.grad(total, image)

    for name, engine in found.items():
        got_loss, d_z = contrastive_loss(engine.predict(theta, x)[1], y, anchors, negative, 0.07)
        got = engine.feature_gradient(theta, x, d_z)
        assert got_loss == pytest.approx(float(total.detach()), rel=1e-4), name
        assert np.linalg.norm(got - expected.numpy()) <= 1e-3 * np.linalg.norm(expected.numpy()), name
