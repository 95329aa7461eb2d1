"""eq:opt4 on the real network: the device's five passes against the paper's formula in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
from deco_export import forward, graphs, initialisers, ort_artifacts  # noqa: E402
from deco_models import convnet, resnet  # noqa: E402
from deco_runtime.condense import contrastive_loss, match_gradients  # noqa: E402
from deco_runtime.engines._sessions import SessionEngine  # noqa: E402
from deco_runtime.initialise import draw_model  # noqa: E402

CLASSES, SIZE = 10, 32


def engines(build, folder: Path):
    """A fresh torch model, its parameters, and every engine this environment has for it."""
    make = lambda: build(CLASSES, SIZE)  # noqa: E731
    parameters = initialisers.parameters(make)
    model = make().double()
    fresh = forward.trace(make(), parameters, SIZE)
    sets = {"portable": graphs.learning_graphs(fresh)}
    if ort_artifacts.missing() is None:
        sets["ort-training"] = {**sets["portable"], **ort_artifacts.gradient_graphs(fresh)}
    found = {}
    for name, models in sets.items():
        files = {graph: folder / f"{name}-{graph}.onnx" for graph in models}
        for graph, proto in models.items():
            onnx.save_model(proto, files[graph])
        found[name] = SessionEngine(name, files)
    return model, parameters, found


def in_float64(model, theta: np.ndarray):
    """A function (x, t) → loss of the model with weights θ, all in float64."""
    names, shapes = zip(*[(n, p.shape) for n, p in model.named_parameters()], strict=True)
    sizes = [s.numel() for s in shapes]
    weights = [
        part.reshape(s).requires_grad_()
        for part, s in zip(torch.tensor(theta).double().split(sizes), shapes, strict=True)
    ]

    def loss(x, t):
        logits = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (x,))
        return -(t * torch.log_softmax(logits, 1)).sum()

    return loss, weights


@pytest.mark.parametrize(
    "build", [lambda c, s: convnet.build(c, s, width=32, depth=3), resnet.build], ids=["convnet", "resnet"]
)
def test_five_passes_against_float64(build, tmp_path: Path) -> None:
    model, parameters, found = engines(build, tmp_path)
    rng = np.random.default_rng(0)
    theta = draw_model(parameters, rng)
    x_syn, x_real = (rng.standard_normal((n, 3, SIZE, SIZE)).astype(np.float32) for n in (10, 24))
    t_syn = np.eye(CLASSES, dtype=np.float32)[np.repeat(3, 10)]
    t_real = np.eye(CLASSES, dtype=np.float32)[np.repeat(3, 24)] * rng.uniform(0.3, 1, (24, 1)).astype(np.float32)

    def gradients(at: np.ndarray, x: np.ndarray, t: np.ndarray):
        loss, weights = in_float64(model, at)
        image = torch.tensor(x).double().requires_grad_()
        *by_weight, by_image = torch.autograd.grad(loss(image, torch.tensor(t).double()), [*weights, image])
        return torch.cat([g.reshape(-1) for g in by_weight]), by_image.numpy()

    g_syn = gradients(theta, x_syn, t_syn)[0].requires_grad_()
    g_real = gradients(theta, x_real, t_real)[0]
    distance = 1 - torch.nn.functional.cosine_similarity(g_syn, g_real, dim=0)
    v = torch.autograd.grad(distance, g_syn)[0].numpy()
    epsilon = 0.01 / np.linalg.norm(v)
    plus, minus = (gradients(theta.astype(np.float64) + sign * epsilon * v, x_syn, t_syn)[1] for sign in (1, -1))
    expected = (plus - minus) / (2 * epsilon)

    for name, engine in found.items():
        got_distance, got = match_gradients(engine, theta, x_syn, t_syn, x_real, t_real, 0.01, [slice(None)])
        error = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        assert got_distance == pytest.approx(float(distance.detach()), abs=1e-5), name
        assert error <= 1e-3, (name, error)


def test_contrastive_gradient_through_the_encoder(tmp_path: Path) -> None:
    """α∇L_cont of eq:final on the images, against torch autograd through encoder, normalisation and log-sum-exp."""
    model, parameters, found = engines(lambda c, s: convnet.build(c, s, width=16, depth=3), tmp_path)
    rng = np.random.default_rng(1)
    theta = draw_model(parameters, rng)
    y = np.repeat(np.arange(3), 4)
    x = rng.standard_normal((12, 3, SIZE, SIZE)).astype(np.float32)
    anchors, negative = np.flatnonzero(y == 1), np.array([0, 2, 2, 0])

    seen = {}
    list(model.modules())[-1].register_forward_pre_hook(lambda _, args: seen.update(z=args[0]))
    loss, _ = in_float64(model, theta)
    image = torch.tensor(x).double().requires_grad_()
    loss(image, torch.zeros(12, CLASSES).double())
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
