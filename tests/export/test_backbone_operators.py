"""What public backbones need of the gradients: operators one by one, and ten architectures, against torch in float64.

The operators are written here as other exporters write them too; every case checks the operator's gradients, its
tangent, and the tangents of its gradients, which are second derivatives. The architectures are timm's in reduced size,
with random weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import public_networks  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from deco_export import autodiff, graphs, tangent, verify  # noqa: E402
from deco_export.onnx_graph import Graph  # noqa: E402
from deco_export.tracing import flatten, trace  # noqa: E402
from deco_runtime.engine import EXACT  # noqa: E402
from deco_runtime.errors import ExportError  # noqa: E402
from test_autodiff import ALONE, Do, places  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-4

# ---------------------------------------------------------------------- operators, one by one

Case = tuple[list[tuple["int | str", ...]], Callable[..., str], Callable[..., "torch.Tensor"]]
"""Shapes of the inputs, with the batch as "N"; the operator on a graph; and the same in torch."""
PICTURE, COLUMN, TOKENS = ("N", 3, 5, 6), (3, 1, 1), ("N", 5, 4)
LOW, HIGH = -(2**63), 2**63 - 1


def of_one(kind: str, function: Callable[..., torch.Tensor], **attributes: object) -> Case:
    """An operator of one picture."""
    return [PICTURE], lambda g, x: g.op(kind, x, **attributes), function


def with_integers(kind: str, function: Callable[..., torch.Tensor], *vectors: Sequence[int], **attributes: int) -> Case:
    """An operator of one picture and constant vectors of integers."""
    return [PICTURE], lambda g, x: g.op(kind, x, *map(g.integers, vectors), **attributes), function


def gemm(function: Callable[..., torch.Tensor], x: Sequence[int | str], bias: Sequence[int], **how: float) -> Case:
    """x·w + b with w (4, 2), or (2, 4) where it is transposed."""
    w = (2, 4) if how.get("transB") else (4, 2)
    return [tuple(x), w, tuple(bias)], lambda g, *inputs: g.op("Gemm", *inputs, **how), function


def gathered(function: Callable[..., torch.Tensor], at: object, axis: int) -> Case:
    return [PICTURE], lambda g, x: g.op("Gather", x, g.constant(at, np.int64), axis=axis), function


def sliding(kind: str, function: Callable[..., torch.Tensor], **how: object) -> Case:
    """A pooling, or a convolution in three groups, of one picture."""
    weights = [(6, 1, 3, 3), (6,)] if kind == "Conv" else []
    return [PICTURE, *weights], lambda g, *inputs: g.op(kind, *inputs, **how), function


def taken_apart_by_heads(g: Graph, x: str) -> str:
    """As torch.onnx transposes the keys of attention: heads and images as one axis, whose size only the graph knows."""
    whole = g.op("Shape", x)
    turned = g.op("Transpose", g.op("Reshape", g.op("Exp", x), g.integers([-1, 5, 6])), perm=[0, 2, 1])
    sides = [g.op("Slice", whole, g.integers([start]), g.integers([end])) for start, end in ((0, 2), (3, 4), (2, 3))]
    return str(g.op("Reshape", turned, g.op("Concat", *sides, axis=0)))


def one_per_image(g: Graph, token: str, x: str) -> str:
    """A class token (1, 1, 4) before the others, repeated as often as there are images."""
    count = g.op("Shape", x, start=0, end=1)
    repeated = g.op("Expand", token, g.op("Concat", count, g.integers([1]), g.integers([1]), axis=0))
    return str(g.op("Concat", repeated, x, axis=1))


def as_strided(g: Graph, x: str) -> str:
    """x (N, 5, 4) with its last axes exchanged, by the places of its elements among all."""
    images = g.op("Squeeze", g.op("Shape", x, start=0, end=1))
    first = g.op("Mul", g.op("Range", g.constant(0, np.int64), images, g.constant(1, np.int64)), g.integers([20]))
    inside = g.constant(np.arange(20).reshape(5, 4).T[None], np.int64)
    at = g.op("Add", g.op("Unsqueeze", first, g.integers([1, 2])), inside)
    return str(g.op("Gather", g.op("Reshape", x, g.integers([-1])), at))


def masked(g: Graph, a: str, b: str) -> str:
    """a·[a > b or not b < 0] + b, the comparison as a factor."""
    chosen = g.op("Or", g.op("Greater", a, b), g.op("Not", g.op("Less", b, g.constant(0.0))))
    return str(g.op("Add", g.op("Mul", a, g.op("Cast", chosen, to=onnx.TensorProto.FLOAT)), b))


def same(x: torch.Tensor, kernel: int, strides: tuple[int, int], upper: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """x padded so that a window at every stride-th pixel fits, and the same of ones: auto_pad in torch."""
    border = []
    for size, stride in zip(x.shape[:1:-1], strides[::-1], strict=True):
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        border += [missing // 2, missing - missing // 2] if upper else [missing - missing // 2, missing // 2]
    return F.pad(x, border), F.pad(torch.ones_like(x), border)


def mean_of_inside(x: torch.Tensor, ones: torch.Tensor, kernel: int, strides: tuple[int, int]) -> torch.Tensor:
    return F.avg_pool2d(x, kernel, strides) / F.avg_pool2d(ones, kernel, strides)


def grouped(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, strides: tuple[int, int], upper: bool) -> torch.Tensor:
    return F.conv2d(same(x, 3, strides, upper)[0], w, b, strides, groups=3)


SMALL_CONDITION = np.array([[[True]], [[False]], [[True]]])
CASES: dict[str, Case] = {
    # element by element
    "Elu": of_one("Elu", lambda x: F.elu(x, 0.7), alpha=0.7),
    "Selu": of_one("Selu", F.selu),
    "Selu-attributes": of_one("Selu", lambda x: 1.5 * F.elu(x, 0.5), alpha=0.5, gamma=1.5),
    "Softplus": of_one("Softplus", F.softplus),
    "PRelu": ([PICTURE, COLUMN], lambda g, x, s: g.op("PRelu", x, s), lambda x, s: torch.where(x > 0, x, s * x)),
    "PRelu-one": ([PICTURE, (1,)], lambda g, x, s: g.op("PRelu", x, s), lambda x, s: torch.where(x > 0, x, s * x)),
    "Pow-2": ([PICTURE], lambda g, x: g.op("Pow", x, g.constant(2.0)), lambda x: x**2),
    "Pow-3": ([PICTURE], lambda g, x: g.op("Pow", x, g.constant([3.0])), lambda x: x**3),
    "Pow-half": (
        [PICTURE],
        lambda g, x: g.op("Pow", g.op("Exp", x), g.constant(0.5)),
        lambda x: torch.exp(x) ** 0.5,
    ),
    "Sum": ([PICTURE, COLUMN, (6,)], lambda g, *terms: g.op("Sum", *terms), lambda a, b, c: a + b + c),
    "Sum-of-two": ([COLUMN, PICTURE], lambda g, *terms: g.op("Sum", *terms), torch.add),
    "Sum-of-one": of_one("Sum", lambda x: x),
    "Identity": of_one("Identity", lambda x: x),
    "Mul-square": ([PICTURE], lambda g, x: g.op("Mul", x, x), torch.square),
    # choices
    "Where": (
        [PICTURE, COLUMN],
        lambda g, a, b: g.op("Where", g.op("Greater", a, b), a, b),
        lambda a, b: torch.where(a > b, a, b),
    ),
    "Where-small-condition": (
        [PICTURE, PICTURE],
        lambda g, a, b: g.op("Where", g.constant(SMALL_CONDITION, bool), a, b),
        lambda a, b: torch.where(torch.from_numpy(SMALL_CONDITION), a, b),
    ),
    "Where-masked": (
        [PICTURE],
        lambda g, a: g.op("Softmax", g.op("Where", g.op("Less", a, g.constant(1.0)), a, g.constant(-np.inf))),
        lambda a: torch.softmax(torch.where(a < 1, a, -torch.inf), -1),
    ),
    "Cast-Greater-Less-Or-Not": ([PICTURE, COLUMN], masked, lambda a, b: a * ((a > b) | ~(b < 0)) + b),
    "And-GreaterOrEqual-LessOrEqual-Equal": (
        [PICTURE, COLUMN],
        lambda g, a, b: g.op(
            "Where",
            g.op("And", g.op("GreaterOrEqual", a, b), g.op("Equal", g.op("LessOrEqual", b, a), g.constant(True, bool))),
            g.op("Exp", a),
            b,
        ),
        lambda a, b: torch.where(a >= b, torch.exp(a), b),
    ),
    "Sign": ([PICTURE], lambda g, x: g.op("Mul", x, g.op("Sign", x)), torch.abs),
    # the same elements in another shape
    "Flatten": of_one("Flatten", lambda x: x.flatten(1)),
    "Flatten-last": of_one("Flatten", lambda x: x.flatten(0, 2), axis=-1),
    "Reshape-by-heads": ([PICTURE], taken_apart_by_heads, lambda x: torch.exp(x).transpose(2, 3)),
    "Concat-of-one": of_one("Concat", lambda x: x, axis=1),
    # repeated
    "Expand": ([COLUMN], lambda g, x: g.op("Expand", x, g.integers([2, 1, 5, 1])), lambda x: x.expand(2, 3, 5, 1)),
    "Expand-class-token": (
        [(1, 1, 4), TOKENS],
        one_per_image,
        lambda token, x: torch.cat([token.expand(len(x), 1, 4), x], 1),
    ),
    "Tile": with_integers("Tile", lambda x: x.tile(1, 2, 1, 3), [1, 2, 1, 3]),
    "Tile-column": ([COLUMN], lambda g, x: g.op("Tile", x, g.integers([2, 4, 1])), lambda x: x.tile(2, 4, 1)),
    "Tile-once": with_integers("Tile", lambda x: x, [1, 1, 1, 1]),
    # summed
    "ReduceL2": with_integers("ReduceL2", lambda x: x.norm(dim=(2, 3), keepdim=True), [2, 3]),
    "ReduceL2-flat": with_integers("ReduceL2", lambda x: x.norm(dim=(1, 3)), [-1, 1], keepdims=0),
    "ReduceSumSquare": with_integers("ReduceSumSquare", lambda x: x.square().sum((1, 2)), [1, 2], keepdims=0),
    # a border, and a part
    "Pad": with_integers("Pad", lambda x: F.pad(x, (2, 0, 1, 3)), [0, 0, 1, 2, 0, 0, 3, 0]),
    "Pad-none": with_integers("Pad", lambda x: x, [0] * 8),
    "Pad-negative": with_integers("Pad", lambda x: F.pad(x, (-2, 1, 0, -1)), [0, 0, 0, -2, 0, 0, -1, 1]),
    "Pad-axes-value": (
        [PICTURE],
        lambda g, x: g.op("Pad", x, g.integers([1, 0, 2, 3]), g.constant(5.0), g.integers([-1, 1])),
        lambda x: F.pad(x, (1, 2, 0, 0, 0, 3), value=5.0),
    ),
    "Slice": with_integers("Slice", lambda x: x[:, :2, 1:4], [0, 1], [2, 4], [1, 2]),
    "Slice-from-the-end": with_integers("Slice", lambda x: x[..., -4:-1], [-4], [-1], [-1]),
    "Slice-first-axes": with_integers("Slice", lambda x: x[:, 1:], [0, 1], [HIGH, HIGH]),
    "Slice-steps": with_integers("Slice", lambda x: x[:, :, ::2, 1::3], [0, 1], [HIGH, HIGH], [2, 3], [2, 3]),
    "Slice-steps-that-end-early": with_integers("Slice", lambda x: x[..., 1:4:2], [1], [4], [3], [2]),
    "Slice-step-past-the-end": with_integers("Slice", lambda x: x[:, :, ::9], [0], [HIGH], [2], [9]),
    "Slice-backwards": with_integers("Slice", lambda x: x.flip(3), [-1], [LOW], [3], [-1]),
    "Slice-backwards-steps": with_integers("Slice", lambda x: x[:, :, [3, 1]], [3], [0], [2], [-2]),
    "Slice-of-qkv": (
        [(2, "N", 4)],
        lambda g, x: g.op(
            "Squeeze", g.op("Slice", x, g.integers([1]), g.integers([2]), g.integers([0])), g.integers([0])
        ),
        lambda x: x[1],
    ),
    "Split": (
        [PICTURE],
        lambda g, x: g.op("Mul", *g.op("Split", x, outputs=2, axis=3, num_outputs=2)),
        lambda x: x[..., :3] * x[..., 3:],
    ),
    # chosen elements
    "Gather-one": gathered(lambda x: x[:, 1], 1, 1),
    "Gather-last": gathered(lambda x: x[..., -1], -1, -1),
    "Gather-neighbours": gathered(lambda x: x[:, :, 1:4], [1, 2, 3], 2),
    "Gather-repeatedly": gathered(lambda x: x[..., [4, 1, 4, 0]], [4, 1, 4, -6], 3),
    "Gather-table": gathered(lambda x: x[:, [[0, 2, 0], [1, 1, 2]]], [[0, 2, 0], [1, 1, 2]], 1),
    "Gather-of-qkv": ([(3, "N", 4)], lambda g, x: g.op("Gather", x, g.constant(2, np.int64)), lambda x: x[2]),
    "Gather-position-bias": (
        [(7, 2), TOKENS],
        lambda g, table, x: g.op("MatMul", x, g.op("Gather", table, g.constant([6, 0, 6, 3], np.int64))),
        lambda table, x: x @ table[[6, 0, 6, 3]],
    ),
    "Gather-as-strided": ([TOKENS], as_strided, lambda x: x.transpose(1, 2)),
    # products
    "Gemm": gemm(lambda x, w, b: x @ w + b, ("N", 4), (2,)),
    "Gemm-scaled": gemm(lambda x, w, b: 0.5 * x @ w + 3 * b, ("N", 4), (1, 2), alpha=0.5, beta=3.0),
    "Gemm-transB": gemm(lambda x, w, b: 0.5 * x @ w.T + b, ("N", 4), (), transB=1, alpha=0.5),
    "Gemm-transA": gemm(lambda x, w, b: 2 * x.T @ w + b, (4, "N"), (2,), transA=1, alpha=2.0),
    "Gemm-transA-transB": gemm(lambda x, w, b: x.T @ w.T - b, (4, "N"), (1, 1), transA=1, transB=1, beta=-1.0),
    "Gemm-no-bias": ([("N", 4), (4, 2)], lambda g, x, w: g.op("Gemm", x, w, alpha=3.0), lambda x, w: 3 * x @ w),
    "MatMul-tokens": ([TOKENS, (4, 3)], lambda g, x, w: g.op("MatMul", x, w), torch.matmul),
    "MatMul-4d": ([("N", 2, 5, 4), ("N", 2, 4, 3)], lambda g, q, k: g.op("MatMul", q, k), torch.matmul),
    "MatMul-4d-by-one": ([("N", 2, 5, 4), (4, 3)], lambda g, x, w: g.op("MatMul", x, w), torch.matmul),
    # windows
    "Conv-same-upper": sliding(
        "Conv", lambda *xwb: grouped(*xwb, (2, 1), True), group=3, strides=[2, 1], auto_pad="SAME_UPPER"
    ),
    "Conv-same-lower": sliding(
        "Conv", lambda *xwb: grouped(*xwb, (1, 2), False), group=3, strides=[1, 2], auto_pad="SAME_LOWER"
    ),
    "Conv-valid": sliding("Conv", lambda x, w, b: F.conv2d(x, w, b, groups=3), group=3, auto_pad="VALID"),
    "AveragePool-same-upper": sliding(
        "AveragePool",
        lambda x: mean_of_inside(*same(x, 2, (2, 1), True), 2, (2, 1)),
        kernel_shape=[2, 2],
        strides=[2, 1],
        auto_pad="SAME_UPPER",
    ),
    "AveragePool-same-lower": sliding(
        "AveragePool",
        lambda x: mean_of_inside(*same(x, 3, (2, 2), False), 3, (2, 2)),
        kernel_shape=[3, 3],
        strides=[2, 2],
        auto_pad="SAME_LOWER",
    ),
    "AveragePool-padding-not-counted": sliding(
        "AveragePool",
        lambda x: F.avg_pool2d(x, (3, 2), (2, 2), (1, 1), count_include_pad=False),
        kernel_shape=[3, 2],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    ),
    "MaxPool-same-upper": sliding(
        "MaxPool",
        lambda x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1),
        kernel_shape=[2, 2],
        auto_pad="SAME_UPPER",
    ),
    "DepthToSpace": (
        [("N", 8, 3, 5)],
        lambda g, x: g.op("DepthToSpace", x, blocksize=2),
        lambda x: x.reshape(-1, 2, 2, 2, 3, 5).permute(0, 3, 4, 1, 5, 2).reshape(-1, 2, 6, 10),
    ),
    "GlobalAveragePool": of_one("GlobalAveragePool", lambda x: x.mean((2, 3), keepdim=True)),
}


def record_shapes(g: Graph, y: str, rank: int) -> None:
    """Shapes of all values that inference can tell, as `forward` records them. g has those of the inputs."""
    signature, declared = dict(g.shapes), g.op("Identity", y)  # a declared shape would be taken for that of y
    graph = g.model(signature, {declared: free("any", rank)}, "forward")
    g.nodes.pop()
    for info in onnx.shape_inference.infer_shapes(graph, data_prop=True).graph.value_info:
        dims = info.type.tensor_type.shape.dim
        shape = ["N" if d.dim_param == "N" else d.dim_value if d.HasField("dim_value") else None for d in dims]
        if None not in shape:
            g.shapes[info.name] = tuple(shape)


def free(name: str, rank: int) -> tuple[str, ...]:
    """Sizes of this many axes, none of them known."""
    return tuple(f"{name}.{axis}" for axis in range(rank))


def drawn(case: str, n: int) -> dict[str, np.ndarray]:
    """Inputs, a cotangent c of y, and tangents d_… of all of these."""
    shapes, _, function = CASES[case]
    rng = np.random.default_rng(n)
    sizes = [[n if d == "N" else d for d in shape] for shape in shapes]
    sizes.append(function(*map(torch.zeros, sizes)).shape)
    names = [*(f"input{i}" for i in range(len(shapes))), "c"]
    names += [f"d_{name}" for name in names]
    return {
        name: np.asarray(1.5 * rng.standard_normal(size), np.float32)
        for name, size in zip(names, 2 * sizes, strict=True)
    }


@cache
def derived(case: str) -> onnxruntime.InferenceSession:
    """y, its tangent, and of ⟨y, c⟩ for a given c the gradient by every input and that gradient's tangent."""
    shapes, build, _ = CASES[case]
    g, names, rank = Graph(), [f"input{i}" for i in range(len(shapes))], drawn(case, 2)["c"].ndim
    g.shapes.update(zip(names, shapes, strict=True))
    y = build(g, *names)
    record_shapes(g, y, rank)
    moves = {name: f"d_{name}" for name in [*names, "c"]}
    outputs = {"y": y, "dy": tangent.tangent(g, {name: moves[name] for name in names}, y)}
    for name in names:
        gradient = autodiff.gradient(g, {y: "c"}, name)
        outputs |= {f"by_{name}": gradient, f"d_by_{name}": tangent.tangent(g, moves, gradient)}
    g.nodes += [onnx.helper.make_node("Identity", [value], [name]) for name, value in outputs.items()]
    signature = dict(zip(names, shapes, strict=True)) | {"c": free("c", rank)}
    signature |= {f"d_{name}": shape for name, shape in signature.items()}
    axes = {name: rank if name in ("y", "dy") else len(shapes[int(name[-1])]) for name in outputs}
    proto = g.model(signature, {name: free(name, count) for name, count in axes.items()}, "case")
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def by_torch(case: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same in float64. The Hessian is symmetric: a gradient's tangent is the gradient of ⟨gradients, tangents⟩."""
    wide = {name: torch.from_numpy(value).double() for name, value in given.items()}
    moving = [name for name in wide if not name.startswith("d_")]
    points, along = [wide[name].requires_grad_() for name in moving], [wide[f"d_{name}"] for name in moving]
    y = CASES[case][2](*points[:-1])
    slopes = torch.autograd.grad((y * wide["c"]).sum(), points, create_graph=True, materialize_grads=True)
    total = sum((slope * move).sum() for slope, move in zip(slopes, along, strict=True))
    bends = torch.autograd.grad(total, points, materialize_grads=True)
    values = {"y": y, "dy": bends[-1]}
    for name, slope, bend in zip(moving[:-1], slopes, bends, strict=False):
        values |= {f"by_{name}": slope, f"d_by_{name}": bend}
    return {name: value.detach().numpy() for name, value in values.items()}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_differentiated_as_torch_does(case: str, n: int) -> None:
    given = drawn(case, n)
    expected, session = by_torch(case, given), derived(case)
    outputs = [o.name for o in session.get_outputs()]
    found = dict(zip(outputs, session.run(outputs, given), strict=True))
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.shape == expected[name].shape, name
        scale = max(1.0, np.abs(expected[name]).max())  # some are zero
        assert np.abs(value - expected[name]).max() <= 1e-5 * scale, name


def test_the_cases_cover_every_operator() -> None:
    assert ALONE - {kind for case in CASES for kind in case.split("-")} == set()


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda g: g.op("Slice", "x", g.integers([0]), g.integers([1]), g.integers([0])), "whole batches"),
        (lambda g: g.op("Slice", "x", "starts", g.integers([1]), g.integers([1])), "computes 'starts'"),
        (lambda g: g.op("Gather", "x", g.constant(0, np.int64)), "whole batches"),
        (lambda g: g.op("Gather", "x", "places", axis=1), "constant places"),
        (lambda g: g.op("Pad", "x", g.integers([0] * 7 + [1]), mode="reflect"), "zeros"),
        (lambda g: g.op("Pad", "x", g.integers([0] * 7 + [1]), g.op("ReduceSum", "x", keepdims=0)), "zeros"),
        (lambda g: g.op("Tile", "x", "repeats"), "fixed but for the batch"),
        (lambda g: g.op("Pow", "x", "x"), "exponent"),
        (lambda g: g.op("Cast", "x", to=onnx.TensorProto.DOUBLE), "float32"),
        (lambda g: g.op("Concat", "x", "x", axis=0), "along the batch"),
        (lambda g: g.op("Gelu", "x"), "Gelu"),
        (lambda g: g.op("DepthToSpace", "x", blocksize=1, mode="CRD"), "CRD"),
    ],
)
def test_what_cannot_be_differentiated_is_refused(build: Callable[[Graph], str], named: str) -> None:
    g = Graph()
    g.shapes["x"] = PICTURE
    y = build(g)
    with pytest.raises(ExportError, match=named):
        autodiff.gradient(g, {y: "c"}, "x")


@pytest.mark.parametrize(
    ("kind", "sizes", "how", "named"),
    [
        ("Conv", ("N", 3, 9), {"kernel_shape": [2]}, "2-D Conv"),
        ("AveragePool", PICTURE, {"kernel_shape": [2, 2], "ceil_mode": 1}, "floor mode"),
    ],
)
def test_a_window_of_another_kind_is_refused(kind: str, sizes: tuple, how: dict, named: str) -> None:
    g = Graph()
    y = g.op(kind, "x", *(["w"] if kind == "Conv" else []), **how)
    g.shapes.update({"x": sizes, y: sizes, "w": (3, 3, 2)})
    with pytest.raises(ExportError, match=named):
        autodiff.gradient(g, {y: "c"}, "x")


# ---------------------------------------------------------------------- architectures

CLASSES = 5
BLOCKS = {**{f"blocks.{i}": 1 for i in range(7)}, **{f"layer{i}": 1 for i in range(1, 5)}, "blocks.1": 2, "layer2": 2}
"""Blocks that are kept of a stage: tracing takes the time, and the others are of the same kinds."""
NARROW = {"channels": (16, 24, 32, 48)}
PATCHES = {"depth": 2, "embed_dim": 24, "num_heads": 3}
ARCHITECTURES: dict[str, tuple[int, dict[str, object]]] = {
    "mobilenetv2_100": (48, {}),
    "mobilenetv3_small_100": (48, {}),
    "mobilenetv4_conv_small": (48, {}),
    "efficientnet_lite0": (48, {}),
    "efficientnet_b0": (48, {}),
    "resnet18": (48, NARROW),
    "resnet50": (48, NARROW),
    "convnext_tiny": (64, {"depths": (1, 2, 1, 1), "dims": (8, 16, 24, 32)}),
    "vit_tiny_patch16_224": (48, {"img_size": 48, **PATCHES}),
    "vit_small_patch14_dinov2": (42, {"img_size": 42, **PATCHES}),
}
"""Side of the images, and timm's arguments, of each."""
QUANTITIES = {
    *("logits", "features", "loss"),
    *("weight_gradient", "input_gradient", "feature_gradient", "input_gradient_tangent"),
}


@pytest.fixture(scope="module")
def timm() -> ModuleType:
    return public_networks.timm()


@pytest.fixture(scope="module")
def make(timm: ModuleType) -> Callable[[str], tuple[nn.Module, dict[str, onnxruntime.InferenceSession]]]:
    """The model as after some training, of few blocks, and its graphs."""

    @cache
    def made(name: str) -> tuple[nn.Module, dict[str, onnxruntime.InferenceSession]]:
        size, arguments = ARCHITECTURES[name]
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=CLASSES, **arguments).eval()
        for path, module in model.named_modules():
            if isinstance(module, nn.Sequential) and path in BLOCKS:
                del module[BLOCKS[path] :]
        with torch.no_grad():
            for path, values in model.state_dict().items():
                if path.endswith("running_mean"):
                    values.normal_(0, 0.2)
                elif path.endswith(("running_var", "gamma")):  # a fresh layer scale hides its whole branch
                    values.uniform_(0.5, 1.5)
                elif values.is_floating_point():
                    values.add_(0.05 * torch.randn_like(values))
        fresh = trace(model, places(model), size)
        protos = {**graphs.learning_graphs(fresh), EXACT: graphs.input_gradient_tangent(fresh())}
        sessions = {
            graph: onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
            for graph, proto in protos.items()
        }
        return model, sessions

    return made


def twice_differentiable(model: nn.Module) -> nn.Module:
    """The same in float64, without torch's hard sigmoid, which has no second derivative."""
    wide = copy.deepcopy(model).double()
    for path, module in model.named_modules():
        if isinstance(module, nn.Hardsigmoid):
            wide.set_submodule(path, Do(lambda y: F.relu6(y + 3) / 6))
    return wide


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_is_differentiated_as_torch_does(
    name: str, n: int, make: Callable[[str], tuple[nn.Module, dict[str, onnxruntime.InferenceSession]]]
) -> None:
    model, sessions = make(name)
    theta, size = flatten(model), ARCHITECTURES[name][0]
    wide = twice_differentiable(model)
    for attempt in range(verify.ATTEMPTS):
        features = sessions["predict"].get_outputs()[1].shape[1]
        given = verify.draw_inputs((3, size, size), CLASSES, features, len(theta), n, seed=attempt)
        with sdpa_kernel(SDPBackend.MATH):  # torch's fast attention has no second derivative
            expected = verify.reference(wide, {k: v.astype(np.float64) for k, v in given.items()})
        found: verify.Values = {}
        for graph, session in sessions.items():
            outputs = [o.name for o in session.get_outputs()]
            values = session.run(outputs, {i.name: {"theta": theta, **given}[i.name] for i in session.get_inputs()})
            found |= {graph if o == "gradient" else o: v for o, v in zip(outputs, values, strict=True)}
        assert found.keys() == expected.keys() == QUANTITIES
        errors = {k: verify.relative_error(v, expected[k]) for k, v in found.items()}
        if max(errors.values()) <= TOLERANCE:  # else a unit may have been within rounding of its kink
            break
    assert max(errors.values()) <= TOLERANCE, errors
