"""What deco+ regresses on: the layers against torch, the projection against its definition, the choice of mirroring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from deco_export import forward, initialisers, models, representation  # noqa: E402
from deco_export.pretrain import temperature  # noqa: E402
from deco_runtime.regression import scores, solve  # noqa: E402
from torch import nn  # noqa: E402

CLASSES, SIZE = 4, 32


def made(name: str, width: int | None = 8):
    make = models.factory(name, CLASSES, SIZE, width, None)
    torch.manual_seed(0)
    model = make().eval()
    return model, forward.trace(model, initialisers.parameters(make), SIZE), forward.flatten(model)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 3, SIZE, SIZE)).astype(np.float32)


def layers_by_torch(model: nn.Module, x: np.ndarray) -> np.ndarray:
    """ConvNet: the features, and the input of its last convolution averaged to 4 × 4."""
    z, kept = torch.from_numpy(x), None
    *body, _, _ = model.children()
    last = max(i for i, layer in enumerate(body) if isinstance(layer, nn.Conv2d))
    with torch.no_grad():
        for i, layer in enumerate(body):
            if i == last:
                kept = nn.functional.avg_pool2d(z, z.shape[-1] // 4)
            z = layer(z)
    return torch.cat([z.flatten(1), kept.flatten(1)], 1).numpy()


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_layers_are_torchs(mirrored: bool) -> None:
    model, fresh, theta = made("convnet")
    x = images(5)
    graph, sizes = representation.raw_graph(fresh(), theta, mirrored)
    expected = layers_by_torch(model, x) + (layers_by_torch(model, x[..., ::-1].copy()) if mirrored else 0)
    assert sum(sizes) == expected.shape[1]
    np.testing.assert_allclose(representation.run(graph, "raw", x), expected, atol=1e-5)


def test_the_projection_holds_the_principal_axes() -> None:
    rng = np.random.default_rng(0)
    raw = (rng.standard_normal((200, 6)) * [9, 3, 1, 0.1, 0.1, 0.1] + 5).astype(np.float32)
    found = representation.Projection.fit(raw, (6,))
    phi = (raw - found.mean) @ found.axes
    moments = phi.T @ phi / len(phi)
    np.testing.assert_allclose(moments, np.diag(np.diag(moments)), atol=1e-4)
    assert moments[0, 0] == pytest.approx(1, rel=1e-4)
    assert (np.diff(np.diag(moments)) <= 1e-6).all()


@pytest.mark.parametrize("name", models.built_in())
def test_every_family_has_one_that_mirroring_leaves_alone(name: str, tmp_path: Path) -> None:
    _, fresh, theta = made(name, None if name == "mobilenet" else 8)
    x, y = images(24), np.arange(24) % CLASSES
    half = slice(0, 12)
    found = representation._fit(fresh, theta, (x[half], y[half]), CLASSES, mirrored=True)
    phi = representation.run(found.model, "representation", x)
    assert phi.shape == (24, 11)  # one less than the images it was fitted to
    mirror = representation.run(found.model, "representation", x[..., ::-1].copy())
    np.testing.assert_allclose(mirror, phi, atol=1e-4)
    assert {i.name for i in found.model.graph.input} == {"x"}
    onnx.checker.check_model(found.model, full_check=True)


def test_mirroring_is_chosen_where_validation_images_gain_by_it() -> None:
    """Classes of left and right halves: what is right of the middle says nothing once both directions are summed."""
    _, fresh, theta = made("convnet")
    y = np.arange(120) % CLASSES
    told, same = images(120), images(120, seed=1)
    for i, c in enumerate(y):
        told[i, :, 8 * c : 8 * c + 8, :8] += 4.0  # the row tells the class, the side never changes
        same[i, :, 8 * (c // 2) : 8 * (c // 2) + 8, slice(0, 16) if c % 2 else slice(16, 32)] += 4.0  # the side tells
    sides = representation.fit(fresh, theta, (same[:60], y[:60]), (same[60:], y[60:]), CLASSES)
    assert not sides.mirrored
    phi = representation.run(sides.model, "representation", same[60:])
    assert np.mean(scores(solve(sides.statistics), phi).argmax(axis=1) == y[60:]) > 0.7
    assert not representation.fit(fresh, theta, (told[:60], y[:60]), (told[:0], y[:0]), CLASSES).mirrored


def test_the_temperature_makes_a_model_as_sure_as_it_is_right() -> None:
    """Logits three times too large, of frames whose true posterior is softmax(z): T is 3, and 1 without labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, 4000)
    z = 1.5 * (1.5 * np.eye(CLASSES)[y] + rng.standard_normal((4000, CLASSES)))  # exact for Gaussians at 1.5
    found = temperature(lambda logits: logits, (3 * z).astype(np.float32), y)
    assert found == pytest.approx(3, rel=0.1)
    assert temperature(lambda logits: logits, np.zeros((0, CLASSES), np.float32), y[:0]) == 1
