"""Convolutions by Winograd's algorithm: the transforms, which ones it suits, and all gradients against torch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from deco_export import forward, graphs, initialisers, tracing, verify, winograd  # noqa: E402
from deco_export.onnx_graph import Graph  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES, IMAGE = 3, 48
TOLERANCE = 1e-5
BODIES: dict[str, Callable[[], nn.Module]] = {
    "small-map": lambda: nn.Sequential(nn.Conv2d(3, 32, 6, 6), nn.Conv2d(32, 40, 3, padding=1)),
    "no-bias": lambda: nn.Sequential(nn.Conv2d(3, 40, 6, 6), nn.Conv2d(40, 32, 3, padding=1, bias=False)),
    "flat-map": lambda: nn.Sequential(nn.Conv2d(3, 32, 1, (4, 3)), nn.Conv2d(32, 33, 3, padding=1)),
    "two": lambda: nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 36, 3, padding="same"), nn.Tanh(), nn.AvgPool2d(2)),
        nn.Conv2d(36, 34, 3, padding=1),
    ),
}
COUNT = {"small-map": 1, "no-bias": 1, "flat-map": 1, "two": 2}
TWICE = ("input_gradient_tangent",)
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "few-inputs": lambda: nn.Conv2d(31, 32, 3, padding=1),
    "few-outputs": lambda: nn.Conv2d(32, 31, 3, padding=1),
    "stride": lambda: nn.Conv2d(32, 32, 3, stride=2, padding=1),
    "dilation": lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2),
    "groups": lambda: nn.Conv2d(64, 64, 3, padding=1, groups=2),
    "no-border": lambda: nn.Conv2d(32, 32, 3),
    "wide-border": lambda: nn.Conv2d(32, 32, 3, padding=3),
    "wider-kernel": lambda: nn.Conv2d(32, 32, 5, padding=2),
    "one-tap": lambda: nn.Conv2d(32, 32, 1),
}
"""Each on a map of 12 × 12."""


def closed(body: nn.Module, size: int = IMAGE) -> nn.Module:
    """A classifier, smooth, so that no kink makes two right answers differ."""
    with torch.no_grad():
        features = body(torch.zeros(1, 3, size, size)).numel()
    model: nn.Module = nn.Sequential(body, nn.Tanh(), nn.Flatten(), nn.Linear(features, CLASSES)).eval()
    return model


def traced(model: nn.Module, size: int = IMAGE) -> Callable[[], forward.Forward]:
    return tracing.trace(model, initialisers.parameters(lambda: model), size)


def rewritten(proto: onnx.ModelProto) -> int:
    """Convolutions whose gradient is Winograd's: each takes the tiles of its output's cotangent apart."""
    return sum(node.op_type == "SpaceToDepth" for node in proto.graph.node)


@pytest.mark.parametrize("n", [1, 7, 8])
@pytest.mark.parametrize("name", BODIES)
def test_every_gradient_is_torchs(name: str, n: int) -> None:
    torch.manual_seed(0)
    model = closed(BODIES[name]())
    fresh = traced(model)
    f, theta = fresh(), tracing.flatten(model)
    inputs = verify.draw_inputs((3, IMAGE, IMAGE), CLASSES, f.features, len(theta), n, seed=n)
    exact = {key: value.astype(np.float64) for key, value in inputs.items()}
    expected = verify.reference(copy.deepcopy(model).double(), exact)
    protos = {**graphs.learning_graphs(fresh), "input_gradient_tangent": graphs.input_gradient_tangent(fresh())}
    for graph, proto in protos.items():
        assert rewritten(proto) == (0 if graph == "predict" else COUNT[name]) * (1 + (graph in TWICE)), graph
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        given = {"theta": theta, **inputs}
        names = [o.name for o in session.get_outputs()]
        found = session.run(names, {i.name: given[i.name] for i in session.get_inputs()})
        for output, value in zip(names, found, strict=True):
            reference = expected[graph if output == "gradient" else output]
            assert value.shape == reference.shape
            error = np.linalg.norm(value - reference) / np.linalg.norm(reference)
            assert error <= TOLERANCE, (graph, output, error)


@pytest.mark.parametrize("name", PLAIN)
def test_other_convolutions_stay(name: str) -> None:
    layer = PLAIN[name]()
    model = closed(nn.Sequential(nn.Conv2d(3, layer.in_channels, 1), layer), 12)
    assert rewritten(graphs.weight_gradient(traced(model, 12)())) == 0


@pytest.mark.parametrize(("size", "count"), [(4, 0), (7, 0), (8, 1), (10, 0), (12, 1)])
def test_maps_of_whole_tiles_from_eight_pixels_on(size: int, count: int) -> None:
    model = closed(nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 32, 3, padding=1)), size)
    assert rewritten(graphs.weight_gradient(traced(model, size)())) == count


def test_the_form_that_is_differentiated_is_the_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 32, 12, 16), np.float32), rng.standard_normal((40, 32, 3, 3), np.float32)
    g = Graph()
    g.shapes.update({"x": ("N", *x.shape[1:]), "w": w.shape})
    g.nodes.append(onnx.helper.make_node("Identity", [winograd.convolution(g, "x", "w")], ["y"]))
    proto = g.model({"x": g.shape("x"), "w": w.shape}, {"y": ("N", 40, 12, 16)}, "convolution")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x, "w": w})
    expected = torch.conv2d(torch.from_numpy(x).double(), torch.from_numpy(w).double(), padding=1).numpy()
    assert np.linalg.norm(found - expected) / np.linalg.norm(expected) <= TOLERANCE


def test_the_transforms_give_a_convolution() -> None:
    output, filters, patch = winograd.transforms()
    rng = np.random.default_rng(0)
    d, w = rng.standard_normal((6, 6)), rng.standard_normal((3, 3))
    found = output @ ((filters @ w @ filters.T) * (patch @ d @ patch.T)) @ output.T
    expected = [[np.sum(d[i : i + 3, j : j + 3] * w) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
