"""The learning graphs of both engines on the built-in models: against torch in float64, and what is in the files.

A gradient is defined only where no unit sits at its activation's kink. Where the input of a ReLU is as small as its
rounding error, torch and ONNX Runtime (and torch in float32 and in float64) may put it on different sides, and then
their gradients of that image differ by percents with neither being wrong; at 32 pixels a mobilenet meets such a unit
in about one of ten batches of 17. These tests therefore draw images without such units, and `verify`, which cannot
choose for every model, retries and then falls back to a norm that single units do not move.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
from deco_export import graphs, initialisers, ort_artifacts, tracing, verify  # noqa: E402
from deco_models import convnet, mobilenet, resnet  # noqa: E402
from deco_runtime.engine import EXACT  # noqa: E402
from deco_runtime.errors import ExportError  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

CLASSES = 5
TOLERANCE = 1e-4
GRADIENTS = ("weight_gradient", "input_gradient", "feature_gradient")
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "convnet": (lambda: convnet.build(CLASSES, 32, width=128, depth=3), 32),
    "resnet": (lambda: resnet.build(CLASSES, 16, width=8, depth=3), 16),
    "mobilenet": (lambda: mobilenet.build(CLASSES, 16, width=8, depth=4), 16),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True, eq=False)
class Made:
    """A model with weights as after some training, and its graph files per engine."""

    model: nn.Module
    theta: np.ndarray
    image: tuple[int, int, int]
    features: int
    files: dict[str, dict[str, Path]]

    def run(self, engine: str, inputs: verify.Values) -> verify.Values:
        return verify.run_graphs(self.files[engine], self.theta, inputs)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @cache
    def made(name: str) -> Made:
        build, size = MODELS[name]
        torch.manual_seed(0)
        model = build().eval()
        fresh = tracing.trace(model, initialisers.parameters(build), size)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn_like(p))
        theta, folder = tracing.flatten(model), tmp_path_factory.mktemp(name)
        protos = {"portable": {**graphs.learning_graphs(fresh), EXACT: graphs.input_gradient_tangent(fresh())}}
        if ort_artifacts.missing() is None:
            protos["ort-training"] = ort_artifacts.gradient_graphs(fresh)
        files: dict[str, dict[str, Path]] = {}
        for engine, named in protos.items():
            files[engine] = {graph: folder / f"{engine}-{graph}.onnx" for graph in named}
            for graph, proto in named.items():
                onnx.save_model(proto, files[engine][graph])
        return Made(model, theta, (3, size, size), fresh().features, files)

    return made


@pytest.fixture(params=MODELS)
def made(request: pytest.FixtureRequest, make: Callable[[str], Made]) -> Made:
    return make(request.param)


@pytest.fixture
def small(make: Callable[[str], Made]) -> Made:
    """One model is enough where the graph is not the subject."""
    return make("resnet")


class NearestKink(TorchFunctionMode):
    """While active, the smallest |input| of any ReLU, per image."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.distance = torch.full((n,), torch.inf, dtype=torch.float64)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.relu, nn.functional.relu):
            self.distance = torch.minimum(self.distance, args[0].detach().abs().flatten(1).amin(1))
        return function(*args, **(kwargs or {}))


def away_from_kinks(made: Made, n: int) -> verify.Values:
    """n images at which no unit is within 2e-6 of a kink, several times the rounding error, with targets and u."""
    drawn = verify.draw_inputs(made.image, CLASSES, made.features, len(made.theta), 3 * n + 5, seed=n)
    wide = copy.deepcopy(made.model).double()
    with torch.no_grad(), NearestKink(3 * n + 5) as nearest:
        wide(torch.from_numpy(drawn["x"]).double())
    kept = np.flatnonzero(nearest.distance.numpy() > 2e-6)[:n]
    assert len(kept) == n
    return {name: values if name == "v" else values[kept] for name, values in drawn.items()}


@cache
def compared(made: Made, n: int) -> tuple[verify.Values, dict[str, verify.Values]]:
    """What torch in float64 and what each engine's graphs say of the same n images."""
    inputs = away_from_kinks(made, n)
    wide = {name: value.astype(np.float64) for name, value in inputs.items()}
    expected = verify.reference(copy.deepcopy(made.model).double(), wide)
    return expected, {engine: made.run(engine, inputs) for engine in made.files}


@pytest.mark.parametrize("n", [1, 17])
def test_every_graph_is_torchs(made: Made, n: int) -> None:
    expected, found = compared(made, n)
    assert set(found["portable"]) == {"logits", "features", "loss", *GRADIENTS, EXACT}
    for engine, values in found.items():
        for name, value in values.items():
            assert value.dtype == np.float32
            assert value.shape == expected[name].shape
            error = verify.relative_error(value, expected[name])
            assert error <= TOLERANCE, f"{engine} {name} at N = {n} is off by {error:.1e}"


@pytest.mark.skipif(ort_artifacts.missing() is not None, reason="onnxruntime.training is not installed here")
@pytest.mark.parametrize("n", [1, 17])
def test_both_engines_agree(made: Made, n: int) -> None:
    _, found = compared(made, n)
    assert set(found["ort-training"]) == {"loss", *GRADIENTS}
    for name, value in found["ort-training"].items():
        assert verify.relative_error(value, found["portable"][name]) <= TOLERANCE, name


def test_the_files_load_everywhere(made: Made) -> None:
    for engine, files in made.files.items():
        for file in files.values():
            proto = onnx.load_model(file, load_external_data=False)
            opset = {entry.domain: entry.version for entry in proto.opset_import}
            assert opset[""] <= 18
            assert proto.ir_version <= 9
            assert not proto.functions
            assert all(t.data_location == onnx.TensorProto.DEFAULT for t in proto.graph.initializer)
            assert {
                i.type.tensor_type.shape.dim[0].dim_param for i in proto.graph.input if i.name not in "theta v"
            } == {"N"}
            if engine == "portable":
                assert set(opset) == {""}
                assert {node.domain for node in proto.graph.node} == {""}
                onnx.checker.check_model(proto, full_check=True)
    folder = made.files["portable"]["predict"].parent
    written = {file for files in made.files.values() for file in files.values()}
    assert set(folder.iterdir()) == written  # no weights beside the graphs


# ---------------------------------------------------------------------- the check that closes every export


def tampered(made: Made, graph: str, folder: Path, operator: str, operand: np.ndarray) -> dict[str, Path]:
    """The portable files with the gradient of one graph changed to gradient ∘ operand."""
    proto = onnx.load_model(made.files["portable"][graph])
    last = next(node for node in proto.graph.node if "gradient" in node.output)
    last.output[:] = ["untouched"]
    proto.graph.initializer.append(numpy_helper.from_array(operand.astype(np.float32), "operand"))
    proto.graph.node.append(helper.make_node(operator, ["untouched", "operand"], ["gradient"]))
    onnx.save_model(proto, folder / f"{graph}.onnx")
    return {**made.files["portable"], graph: folder / f"{graph}.onnx"}


def check(made: Made, files: dict[str, Path]) -> tuple[verify.Values, dict[str, float]]:
    return verify.verify(made.model, {"portable": files}, made.theta, made.image, CLASSES, made.features)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest of the batch sizes that `verify` checks; the larger ones differ in time only."""
    monkeypatch.setattr(verify, "BATCHES", (2,))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("graph", [*GRADIENTS, EXACT])
def test_a_wrong_gradient_is_refused_by_name(small: Made, graph: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"portable/{graph}"):
        check(small, tampered(small, graph, tmp_path, "Mul", np.asarray(1.03)))


@pytest.mark.usefixtures("quick")
def test_a_kink_is_no_defect(small: Made, tmp_path: Path) -> None:
    """One element moved by two percent of the largest, as a unit at a kink does: not refused, but in the errors."""
    golden, errors = check(small, small.files["portable"])
    assert max(errors.values()) <= TOLERANCE
    moved = np.zeros((1, *small.image))
    moved[0, 1, 2, 3] = 0.02 * np.abs(golden["input_gradient"]).max()
    _, errors = check(small, tampered(small, "input_gradient", tmp_path, "Add", moved))
    assert errors["portable/input_gradient"] > TOLERANCE
    assert errors["portable/weight_gradient"] <= TOLERANCE


def test_the_golden_values_are_what_the_graphs_give(small: Made) -> None:
    golden, errors = check(small, small.files["portable"])
    assert max(errors.values()) <= TOLERANCE
    assert len(golden["x"]) == 2
    for name, value in small.run("portable", golden).items():
        assert verify.relative_error(value, golden[name]) <= TOLERANCE


class HeadFirst(nn.Module):
    """Keeps its classifier before its body, which has a linear layer too, and one parameter frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(6, CLASSES), nn.Linear(48, 6)
        self.body.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x.flatten(1))))


def test_reference_finds_the_classifier_wherever_it_is_kept() -> None:
    torch.manual_seed(0)
    model = HeadFirst().eval()
    inputs = verify.draw_inputs((3, 4, 4), CLASSES, 6, len(tracing.flatten(model)), 2, seed=0)
    expected = torch.tanh(model.body(torch.from_numpy(inputs["x"]).flatten(1))).detach().numpy()
    found = verify.reference(model, inputs)
    np.testing.assert_allclose(found["features"], expected, rtol=1e-6)
    assert found["weight_gradient"].shape == tracing.flatten(model).shape
    assert not model.body.bias.requires_grad
