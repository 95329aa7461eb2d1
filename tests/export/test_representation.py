"""What deco+ regresses on: the layers and votes against torch, the projection against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from deco_export import initialisers, models, representation, tracing  # noqa: E402
from deco_runtime.learning import voter  # noqa: E402
from deco_runtime.learning.origin import Labelled, Represented  # noqa: E402
from deco_runtime.learning.regression import Statistics, scores, solve  # noqa: E402
from torch import nn  # noqa: E402

CLASSES, SIZE = 4, 32


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(representation, "SIZE", 40)


def made(name: str, width: int | None = 8):
    make = models.factory(name, CLASSES, SIZE, width, None)
    torch.manual_seed(0)
    model = make().eval()
    return model, tracing.trace(model, initialisers.parameters(make), SIZE), tracing.flatten(model)


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
    found = representation.Projection.fit(raw, np.zeros(200, np.int64), (6,))
    phi = (raw - found.mean) @ found.axes
    moments = phi.T @ phi / len(phi)
    np.testing.assert_allclose(moments, np.diag(np.diag(moments)), atol=1e-4)
    assert moments[0, 0] == pytest.approx(1, rel=1e-4)
    assert (np.diff(np.diag(moments)) <= 1e-6).all()


def test_of_more_axes_than_there_is_room_for_those_that_tell_the_classes_apart_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Axis 0 varies most and says nothing: the classes lie apart along axis 1."""
    noise = np.random.default_rng(0).standard_normal((200, 4)) * [9, 1, 0.5, 0.5]
    raw = np.concatenate([noise + np.float32([0, c, 0, 0]) for c in (-4, 4)]).astype(np.float32)
    monkeypatch.setattr(representation, "SIZE", 1)
    found = representation.Projection.fit(raw, np.repeat([0, 1], 200), (4,))
    along = np.abs(found.axes[:, 0]) / np.linalg.norm(found.axes)
    assert found.axes.shape == (4, 1)
    assert along.argmax() == 1
    assert along[1] > 0.95


@pytest.mark.parametrize("name", models.built_in())
def test_every_family_has_one_that_mirroring_leaves_alone(name: str, tmp_path: Path) -> None:
    _, fresh, theta = made(name, None if name == "mobilenet" else 8)
    x, y = images(24), np.arange(24) % CLASSES
    half = slice(0, 12)
    found = representation.fit(fresh, theta, (x[half], y[half]), CLASSES, True, np.random.default_rng(0))
    phi = representation.run(found.model, "representation", x)
    assert phi.shape == (24, 40)  # 12 images and their shifted copies span more than 11
    for output, values in (("representation", phi), ("votes", representation.run(found.model, "votes", x))):
        mirror = representation.run(found.model, output, x[..., ::-1].copy())
        np.testing.assert_allclose(mirror, values, atol=1e-4)
    assert {i.name for i in found.model.graph.input} == {"x"}
    onnx.checker.check_model(found.model, full_check=True)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("name", models.built_in())
def test_the_votes_are_torchs_mean_of_the_logits_of_image_and_mirror_image(name: str, mirrored: bool) -> None:
    model, fresh, theta = made(name, None if name == "mobilenet" else 8)
    x = images(9)
    found = representation.fit(fresh, theta, (x, np.arange(9) % CLASSES), CLASSES, mirrored, np.random.default_rng(0))
    with torch.inference_mode():
        straight, turned = (model(torch.from_numpy(each)).numpy() for each in (x, x[..., ::-1].copy()))
    expected = (straight + turned) / 2 if mirrored else straight
    votes = representation.run(found.model, "votes", x)
    np.testing.assert_allclose(votes, expected, atol=1e-4 * np.abs(expected).max())
    assert mirrored is not np.allclose(votes, straight, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("most", [representation.MOST, 27])
def test_the_statistics_are_those_of_the_graphs_own_representation(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what the device adds fits what the export began with, float16 axes and all; and of all images, however
    many are taken at a time."""
    monkeypatch.setattr(representation, "MOST", most)
    _, fresh, theta = made("convnet")
    x, y = images(40), np.arange(40) % CLASSES
    for i, c in enumerate(y):
        x[i, :, 8 * c : 8 * c + 8] += 4.0
    found = representation.fit(fresh, theta, (x, y), CLASSES, False, np.random.default_rng(0))
    nothing = Represented(lambda: iter(()), y[:0], y[:0])
    labelled = Labelled(Represented(found.parts, y, np.arange(40)), nothing, nothing, found.size, CLASSES)
    arrays, _ = voter.fit(labelled)
    statistics = Statistics(arrays["a"], arrays["b"])
    z = np.c_[representation.run(found.model, "representation", x), np.ones(40)].astype(np.float64)
    a, b = z.T @ z, z.T @ np.eye(CLASSES)[y]
    np.testing.assert_allclose(statistics.a, a[np.triu_indices(len(a))], atol=2e-2 * np.abs(a).max())
    np.testing.assert_allclose(statistics.b, b, atol=2e-2 * np.abs(b).max())
    assert (scores(solve(statistics), z[:, :-1].astype(np.float32)).argmax(axis=1) == y).all()


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_parts_are_what_the_graph_says_of_all_images_at_each_call(
    mirrored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, MOST at a time."""
    monkeypatch.setattr(representation, "MOST", 27)
    _, fresh, theta = made("convnet")
    x, y = images(40), np.arange(40) % CLASSES
    found = representation.fit(fresh, theta, (x, y), CLASSES, mirrored, np.random.default_rng(0))
    phi, votes = (representation.run(found.model, name, x) for name in ("representation", "votes"))
    assert phi.shape == (40, found.size)
    for _ in range(2):
        parts = list(found.parts())
        assert [len(one) for one, _ in parts] == [27, 13]
        got_phi, got_votes = map(np.concatenate, zip(*parts, strict=True))
        np.testing.assert_allclose(got_phi, phi, atol=2e-2 * np.abs(phi).max())  # the graph's axes are float16
        np.testing.assert_allclose(got_votes, votes, rtol=1e-5, atol=1e-6)
        assert got_phi.dtype == got_votes.dtype == np.float32
