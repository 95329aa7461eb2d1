"""Every tangent rule, and the exact derivative of the input gradient along v, against torch in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from deco_export import forward, graphs, initialisers, tangent, tracing  # noqa: E402
from deco_export.onnx_graph import Graph  # noqa: E402
from deco_models import convnet, mobilenet, resnet  # noqa: E402
from deco_runtime.errors import ExportError  # noqa: E402
from test_autodiff import CASES, CELL, GRID, Cells, closed, places  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = 3
TOLERANCE = 1e-4

Given = dict[str, np.ndarray]


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def run(proto: onnx.ModelProto, given: Given) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, given)[0]


# ---------------------------------------------------------------------- each rule on its own

Case = tuple[list[tuple[int, ...]], Callable[..., str], Callable[..., "torch.Tensor"]]
PICTURE, COLUMN = (2, 3, 4, 5), (3, 1, 1)
UNARY = {
    "Neg": torch.neg,
    "Identity": lambda x: x,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Exp": torch.exp,
    "Log": torch.log,
    "Sqrt": torch.sqrt,
    "Reciprocal": torch.reciprocal,
    "Erf": torch.erf,
    "Elu": F.elu,
    "Selu": F.selu,
    "Softplus": F.softplus,
    "HardSwish": F.hardswish,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
}
ATTRIBUTED = {
    "LeakyRelu": (lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}),
    "HardSigmoid": (lambda x: (x / 6 + 0.5).clamp(0, 1), {"alpha": 1 / 6, "beta": 0.5}),
    "Softmax": (lambda x: torch.softmax(x, 1), {"axis": 1}),
    "LogSoftmax": (lambda x: torch.log_softmax(x, 2), {"axis": 2}),
    "Transpose": (lambda x: x.permute(0, 2, 3, 1), {"perm": [0, 2, 3, 1]}),
    "Flatten": (lambda x: x.flatten(1), {"axis": 1}),
    "AveragePool": (lambda x: F.avg_pool2d(x, 2), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "MaxPool": (lambda x: F.max_pool2d(x, 2, 1), {"kernel_shape": [2, 2]}),
}
WITH_INTEGERS = {
    "Reshape": (lambda x: x.reshape(2, 12, 5), [0, 12, -1]),
    "Unsqueeze": (lambda x: x.unsqueeze(1), [1]),
    "Expand": (lambda x: x.expand(7, 2, 3, 4, 5), [7, 1, 1, 1, 1]),
    "Tile": (lambda x: x.tile(1, 2, 1, 3), [1, 2, 1, 3]),
    "ReduceSum": (lambda x: x.sum((1, 3), keepdim=True), [1, 3]),
    "ReduceMean": (lambda x: x.mean((2, 3), keepdim=True), [2, 3]),
    "ReduceL2": (lambda x: torch.sqrt((x * x).sum((1, 3), keepdim=True)), [1, 3]),
    "ReduceSumSquare": (lambda x: (x * x).sum((1, 3), keepdim=True), [1, 3]),
    "Gather": (lambda x: x[[1, 0, 1]], [1, 0, 1]),
}
RULES: dict[str, Case] = {
    **{kind: ([PICTURE], lambda g, x, k=kind: g.op(k, x), f) for kind, f in UNARY.items()},
    **{kind: ([PICTURE], lambda g, x, k=kind, a=a: g.op(k, x, **a), f) for kind, (f, a) in ATTRIBUTED.items()},
    **{
        kind: ([PICTURE], lambda g, x, k=kind, i=i: g.op(k, x, g.integers(i)), f)
        for kind, (f, i) in WITH_INTEGERS.items()
    },
    "DepthToSpace": (
        [(2, 8, 3, 5)],
        lambda g, x: g.op("DepthToSpace", x, blocksize=2),
        lambda x: x.reshape(2, 2, 2, 2, 3, 5).permute(0, 3, 4, 1, 5, 2).reshape(2, 2, 6, 10),
    ),
    "SpaceToDepth": (
        [(2, 3, 4, 6)],
        lambda g, x: g.op("SpaceToDepth", x, blocksize=2),
        lambda x: x.reshape(2, 3, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3),
    ),
    "Squeeze": ([(2, 1, 3)], lambda g, x: g.op("Squeeze", x, g.integers([1])), lambda x: x.squeeze(1)),
    "Clip": (
        [PICTURE],
        lambda g, x: g.op("Clip", x, g.constant(-0.5), g.constant(0.8)),
        lambda x: x.clamp(-0.5, 0.8),
    ),
    "Cast": ([PICTURE], lambda g, x: g.op("Cast", g.op("Neg", x), to=onnx.TensorProto.FLOAT), torch.neg),
    "Pow": ([PICTURE], lambda g, x: g.op("Pow", x, g.constant(2.5)), lambda x: x**2.5),
    "Pad-5": (
        [PICTURE],
        lambda g, x: g.op("Pad", x, g.integers([0, 0, 1, 2, 0, 0, 0, 1]), g.constant(5.0)),
        lambda x: F.pad(x, (2, 1, 1, 0), value=5.0),
    ),
    "Pad-reflect": (
        [PICTURE],
        lambda g, x: g.op("Pad", x, g.integers([0, 0, 1, 2, 0, 0, 0, 1]), mode="reflect"),
        lambda x: F.pad(x, (2, 1, 1, 0), mode="reflect"),
    ),
    "Slice": (
        [PICTURE],
        lambda g, x: g.op("Slice", x, g.integers([1]), g.integers([5]), g.integers([3]), g.integers([2])),
        lambda x: x[..., 1:5:2],
    ),
    "Resize": (
        [PICTURE],
        lambda g, x: g.op("Resize", x, "", g.constant([1.0, 1.0, 2.0, 3.0]), mode="nearest"),
        lambda x: x.repeat_interleave(2, 2).repeat_interleave(3, 3),
    ),
    "Split": (
        [PICTURE],
        lambda g, x: g.op("Mul", *g.op("Split", x, g.integers([2, 2]), outputs=2, axis=2)),
        lambda x: x[:, :, :2] * x[:, :, 2:],
    ),
    **{
        f"{kind}-{name}": (shapes, lambda g, a, b, k=kind: g.op(k, a, b), f)
        for kind, f in {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}.items()
        for name, shapes in {"same": [PICTURE, PICTURE], "left": [PICTURE, COLUMN], "right": [COLUMN, PICTURE]}.items()
    },
    "Mul-square": ([PICTURE], lambda g, x: g.op("Mul", x, x), lambda x: x * x),
    "PRelu": ([PICTURE, COLUMN], lambda g, x, s: g.op("PRelu", x, s), lambda x, s: torch.where(x > 0, x, s * x)),
    "Sum": ([PICTURE, COLUMN, (5,)], lambda g, *terms: g.op("Sum", *terms), lambda a, b, c: a + b + c),
    "MatMul": ([(2, 3, 4), (4, 5)], lambda g, a, b: g.op("MatMul", a, b), torch.matmul),
    "MatMul-square": ([(3, 3)], lambda g, a: g.op("MatMul", a, a), lambda a: a @ a),
    "Where": (
        [PICTURE, COLUMN],
        lambda g, a, b: g.op("Where", g.op("Greater", a, g.constant(0.7)), a, b),
        lambda a, b: torch.where(a > 0.7, a, b),
    ),
    "Where-small-condition": (
        [PICTURE, COLUMN],
        lambda g, a, b: g.op("Where", g.constant([[[True]], [[False]], [[True]]], bool), a, b),
        lambda a, b: torch.where(torch.tensor([[[True]], [[False]], [[True]]]), a, b),
    ),
    "Concat": (
        [PICTURE, (2, 1, 4, 5)],
        lambda g, a, b: g.op("Concat", a, b, axis=1),
        lambda a, b: torch.cat([a, b], 1),
    ),
    "ScatterElements-add": (
        [(4,), (3,)],
        lambda g, a, b: g.op("ScatterElements", a, g.integers([1, 1, 3]), b, axis=0, reduction="add"),
        lambda a, b: a.index_add(0, torch.tensor([1, 1, 3]), b),
    ),
    "ScatterElements": (
        [(4,), (3,)],
        lambda g, a, b: g.op("ScatterElements", a, g.integers([3, 0, 2]), b, axis=0),
        lambda a, b: a.index_copy(0, torch.tensor([3, 0, 2]), b),
    ),
    "Gemm": (
        [(2, 3), (4, 3), (4,)],
        lambda g, x, w, b: g.op("Gemm", x, w, b, transB=1, alpha=0.5, beta=2.0),
        lambda x, w, b: 0.5 * x @ w.T + 2 * b,
    ),
    "Conv": (
        [PICTURE, (6, 1, 3, 3), (6,)],
        lambda g, x, w, b: g.op("Conv", x, w, b, group=3, strides=[2, 1], pads=[1, 0, 1, 0]),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), groups=3),
    ),
    "ConvTranspose": (
        [PICTURE, (3, 2, 3, 3)],
        lambda g, x, w: g.op("ConvTranspose", x, w, strides=[2, 2], output_padding=[1, 0]),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=(1, 0)),
    ),
    "InstanceNormalization": (
        [PICTURE, (3,), (3,)],
        lambda g, x, s, b: g.op("InstanceNormalization", x, s, b, epsilon=0.01),
        lambda x, s, b: F.instance_norm(x, weight=s, bias=b, eps=0.01),
    ),
    "InstanceNormalization-plain": (
        [PICTURE],
        lambda g, x: g.op("InstanceNormalization", x, g.constant(np.ones(3)), g.constant(np.zeros(3))),
        lambda x: F.instance_norm(x),
    ),
    "LayerNormalization": (
        [PICTURE, (4, 5), (4, 5)],
        lambda g, x, s, b: g.op("LayerNormalization", x, s, b, axis=-2),
        lambda x, s, b: F.layer_norm(x, (4, 5), s, b),
    ),
}
POSITIVE = {"Log", "Sqrt", "Pow", "Div-same", "Div-left", "Div-right", "Reciprocal"}


@pytest.mark.parametrize("case", RULES)
def test_rule(case: str) -> None:
    """Whichever inputs move."""
    shapes, build, function = RULES[case]
    rng = np.random.default_rng(0)
    names = [f"input{i}" for i in range(len(shapes))]
    values = [(rng.uniform(0.5, 2, s) if case in POSITIVE else 2 * rng.standard_normal(s)) for s in shapes]
    moves = [rng.standard_normal(s) for s in shapes]
    for count in range(1, len(shapes) + 1):
        for moving in combinations(range(len(shapes)), count):
            g = Graph()
            g.shapes.update(zip(names, shapes, strict=True))
            found_name = tangent.tangent(g, {names[i]: f"d{i}" for i in moving}, build(g, *names))
            along = [torch.tensor(m) * (i in moving) for i, m in enumerate(moves)]
            inputs = tuple(map(torch.tensor, values))
            _, expected = torch.autograd.functional.jvp(function, inputs, tuple(along))
            signature = {**dict(zip(names, shapes, strict=True)), **{f"d{i}": shapes[i] for i in moving}}
            given = {k: v.astype(np.float32) for k, v in zip(names, values, strict=True)}
            given |= {f"d{i}": moves[i].astype(np.float32) for i in moving}
            proto = g.model(signature, {found_name: tuple(expected.shape)}, "case")
            used = {name for node in proto.graph.node for name in node.input}
            kept = [i for i in proto.graph.input if i.name in used]
            del proto.graph.input[:]
            proto.graph.input.extend(kept)
            found = run(proto, {i.name: given[i.name] for i in kept})
            assert found.shape == tuple(expected.shape)
            assert relative_error(found, expected.numpy()) <= 1e-5, moving


def test_the_cases_cover_every_rule() -> None:
    assert sorted(set(tangent.RULES) - {case.split("-")[0] for case in RULES}) == []


def test_an_unknown_operator_is_refused_by_name() -> None:
    g = Graph()
    y = g.op("Sin", g.op("Neg", "a"))
    with pytest.raises(ExportError, match="Sin"):
        tangent.tangent(g, {"a": "da"}, y)


def test_what_does_not_move_needs_no_rule() -> None:
    g = Graph()
    y = g.op("Mul", g.op("Sin", "b"), "a")
    before = len(g.nodes)
    g.op("Sin", "a")  # not needed for y
    tangent.tangent(g, {"a": "da"}, y)
    assert [node.op_type for node in g.nodes[before + 1 :]] == ["Mul"]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda g: g.op("Sin", "b"), "depend on a"),
        (lambda g: g.op("Sign", "a"), "depend on a"),
        (lambda g: g.op("Clip", "b", "a"), "only input 0"),
        (lambda g: g.op("Pow", "a", "b"), "exponent"),
        (lambda g: g.op("Cast", "a", to=onnx.TensorProto.INT64), "float32"),
        (lambda g: g.op("ScatterElements", "a", "i", "b", reduction="mul"), "ScatterElements"),
    ],
)
def test_what_has_no_tangent_is_refused(build: Callable[[Graph], str], named: str) -> None:
    g = Graph()
    with pytest.raises(ExportError, match=named):
        tangent.tangent(g, {"a": "da"}, build(g))


# ---------------------------------------------------------------------- the derivative of the input gradient

OPERATORS = (
    *("conv-groups-everything", "avg-pool-overlapping", "max-pool-overlapping", "batch-norm", "group-norm"),
    *("layer-norm", "instance-norm", "leaky-relu", "relu6", "gelu", "silu", "hardswish"),
    *("log-softmax-columns", "chunk", "attention", "mul-div"),
)
"""Cases of the gradient rules: what they write must have tangents too."""
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "convnet": (lambda: convnet.build(CLASSES, 16, width=8, depth=2), 16),
    "resnet": (lambda: resnet.build(CLASSES, 8, width=8, depth=2), 8),
    "mobilenet": (lambda: mobilenet.build(CLASSES, 8, width=8, depth=2), 8),
    "operators": (lambda: closed(Cells([CASES[name]() for name in OPERATORS]), CELL * GRID), CELL * GRID),
    "smooth": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)),
        8,
    ),
}
FAMILIES = ("convnet", "resnet", "mobilenet")


@cache
def traced(name: str) -> tuple[nn.Module, Callable[[], forward.Forward], onnx.ModelProto]:
    """The model with weights as after some training, its forward graph, and the tangent of its input gradient."""
    build, size = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    fresh = tracing.trace(model, initialisers.parameters(build) if name in FAMILIES else places(model), size)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model, fresh, graphs.input_gradient_tangent(fresh())


def draw(name: str, n: int, seed: int) -> Given:
    rng, size = np.random.default_rng(seed), MODELS[name][1]
    theta = tracing.flatten(traced(name)[0])
    return {
        "theta": theta,
        "x": rng.standard_normal((n, 3, size, size), np.float32),
        "t": rng.uniform(0, 1, (n, CLASSES)).astype(np.float32),
        "v": rng.standard_normal(theta.shape, np.float32),
    }


def by_torch(model: nn.Module, given: Given) -> np.ndarray:
    """d/dε ∇_x L(θ + εv) = ∇_x ⟨∇_θ L, v⟩, in float64."""
    model = copy.deepcopy(model).double()
    x, t, v = (torch.from_numpy(given[name]).double() for name in "xtv")
    x.requires_grad_()
    loss = -(t * torch.log_softmax(model(x), 1)).sum()
    by_weight = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return torch.autograd.grad(torch.cat([g.reshape(-1) for g in by_weight]) @ v, x)[0].numpy()


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", [*FAMILIES, "operators"])
def test_the_derivative_is_torchs(name: str, n: int) -> None:
    model, _, proto = traced(name)
    errors = []
    for seed in range(3):
        given = draw(name, n, seed)
        found, expected = run(proto, given), by_torch(model, given)
        assert found.shape == expected.shape
        errors.append(relative_error(found, expected))
    # A unit within rounding of its kink may spoil a single draw.
    assert np.median(errors) <= TOLERANCE, errors


@pytest.mark.parametrize("name", [*FAMILIES, "operators"])
def test_openvino_gives_the_same(name: str) -> None:
    openvino = pytest.importorskip("openvino")
    core, proto = openvino.Core(), traced(name)[2]
    model = core.read_model(proto.SerializeToString())
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
    errors = []
    for n in (1, 5, 2):
        given = draw(name, n, seed=n)
        errors.append(relative_error(compiled(given)[0], run(proto, given)))
    assert np.median(errors) <= TOLERANCE, errors


@pytest.mark.parametrize("name", [*FAMILIES, "operators"])
def test_the_graph_is_standard(name: str) -> None:
    proto = traced(name)[2]
    onnx.checker.check_model(proto, full_check=True)
    assert [(entry.domain, entry.version) for entry in proto.opset_import] == [("", 18)]
    assert proto.ir_version <= 8
    assert {node.domain for node in proto.graph.node} == {""}
    assert not proto.functions
    assert [i.name for i in proto.graph.input] == ["theta", "x", "t", "v"]
    batch = {i.name: i.type.tensor_type.shape.dim[0].dim_param for i in [*proto.graph.input, *proto.graph.output]}
    assert batch == {"theta": "", "v": "", "x": "N", "t": "N", "gradient": "N"}


def test_known_shapes_need_no_broadcasting_at_run_time() -> None:
    """The only Expand nodes are those of the input gradient and their tangents."""
    _, fresh, proto = traced("convnet")
    expands = [sum(n.op_type == "Expand" for n in p.graph.node) for p in (graphs.input_gradient(fresh()), proto)]
    assert expands[1] <= 2 * expands[0]


def test_the_finite_difference_approaches_it() -> None:
    """Where no kink is in between: the error falls with ε², here by 16 for a fourth of ε."""
    _, fresh, proto = traced("smooth")
    given = draw("smooth", 5, seed=0)
    exact, v, theta = run(proto, given), given.pop("v"), given["theta"]
    gradient = graphs.input_gradient(fresh())
    errors = []
    for epsilon in (0.02, 0.005):
        plus, minus = (run(gradient, {**given, "theta": theta + sign * epsilon * v}) for sign in (1, -1))
        errors.append(relative_error((plus - minus) / (2 * epsilon), exact))
    assert errors[1] <= 1e-2
    assert errors[1] <= errors[0] / 12
