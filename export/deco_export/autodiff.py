"""Reverse-mode differentiation of ONNX graphs, written in standard operators, so that any ONNX Runtime can learn.

`gradient` walks the forward nodes backwards and applies one rule per operator; a rule gets the cotangent of the
node's output and returns those of its inputs. A new operator is one more rule here. The rules choose what ONNX
Runtime runs fast on a CPU: see docs/algorithm.md, "Learning graphs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export.onnx_graph import Graph, Shape, attributes

Wanted = Sequence[bool]
"""Per input of the node: is its cotangent needed?"""

Rule = Callable[[Graph, onnx.NodeProto, str, Wanted], "list[str | None]"]
RULES: dict[str, Rule] = {}


def gradient(g: Graph, of: dict[str, str], with_respect_to: str) -> str:
    """Append the nodes that compute Σ_k ⟨∂y_k/∂v, c_k⟩ for outputs y_k with cotangents c_k.

    of: {y_k: c_k}, names of values in `g` with the shape of y_k. with_respect_to: the name v.
    Returns the name of the result, with v's shape. Raises ExportError for an operator that has no rule, and when
    the outputs do not depend on v.
    """
    forward = list(g.nodes)
    depends = _downstream(forward, with_respect_to)
    cotangents: dict[str, str] = dict(of)
    for node in reversed(forward):
        incoming = [cotangents.get(name) for name in node.output]
        if not any(incoming) or not any(name in depends for name in node.input):
            continue
        if node.op_type == "Split":
            results = _split(g, node, incoming)
        elif node.op_type in RULES:
            if incoming[0] is None or any(incoming[1:]):
                raise ExportError(f"expected one used output of {node.op_type}, but the model uses others as well")
            results = RULES[node.op_type](g, node, incoming[0], [name in depends for name in node.input])
        else:
            raise ExportError(
                f"expected operators with a known gradient, but the model uses {node.op_type}; "
                f"replace that layer (known: {', '.join(sorted(RULES))})"
            )
        for name, result in zip(node.input, results, strict=True):
            if result is not None and name in depends:
                cotangents[name] = g.op("Add", cotangents[name], result) if name in cotangents else result
    if with_respect_to not in cotangents:
        raise ExportError(f"expected outputs that depend on {with_respect_to!r}, but they do not")
    return cotangents[with_respect_to]


def _downstream(nodes: Sequence[onnx.NodeProto], source: str) -> set[str]:
    """Every value that depends on `source` through something that carries a gradient."""
    reached = {source}
    for node in nodes:
        if node.op_type != "Shape" and any(name in reached for name in node.input):
            reached.update(node.output)
    return reached


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _split(g: Graph, node: onnx.NodeProto, incoming: Sequence[str | None]) -> list[str | None]:
    parts = [
        part if part is not None else g.op("ConstantOfShape", g.op("Shape", name))  # zeros
        for name, part in zip(node.output, incoming, strict=True)
    ]
    return [g.op("Concat", *parts, axis=attributes(node).get("axis", 0)), *([None] * (len(node.input) - 1))]


def _unbroadcast(g: Graph, cotangent: str, to: Shape, came_from: Shape) -> str:
    """Sum a cotangent of shape `came_from` over the axes along which a value of shape `to` was repeated."""
    padded = (1,) * (len(came_from) - len(to)) + tuple(to)
    axes = [i for i, (a, b) in enumerate(zip(padded, came_from, strict=True)) if a == 1 and b != 1]
    if axes:
        cotangent = g.op("ReduceSum", cotangent, g.integers(axes), keepdims=1)
    if len(to) != len(came_from):
        cotangent = g.op("Reshape", cotangent, g.integers([-1 if d == "N" else int(d) for d in to]))
    return cotangent


# ---------------------------------------------------------------------- element by element


@rule("Add", "Sub", "Mul", "Div")
def _binary(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    a, b = node.input
    y = node.output[0]
    results: list[str | None] = []
    for index, (name, want) in enumerate(zip((a, b), wanted, strict=True)):
        if not want:
            results.append(None)
            continue
        if node.op_type in ("Add", "Sub"):
            d = g.op("Neg", dy) if node.op_type == "Sub" and index == 1 else dy
        elif node.op_type == "Mul":
            d = g.op("Mul", dy, b if index == 0 else a)
        elif index == 0:
            d = g.op("Div", dy, b)
        else:
            d = g.op("Neg", g.op("Div", g.op("Mul", dy, y), b))
        results.append(_unbroadcast(g, d, g.shape(name), g.shape(y)))
    return results


@rule("Neg")
def _neg(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Neg", dy)]


@rule("Relu")
def _relu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    # Where(y > 0, dy, 0) costs several times as much in ONNX Runtime, and Sign(y) twice as much in either runtime.
    positive = g.op("Greater", node.output[0], g.constant(0.0))
    return [g.op("Mul", dy, g.op("Cast", positive, to=onnx.TensorProto.FLOAT))]


@rule("LeakyRelu")
def _leaky_relu(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    slope = attributes(node).get("alpha", 0.01)
    positive = g.op("Greater", node.input[0], g.constant(0.0))
    return [g.op("Mul", dy, g.op("Where", positive, g.constant(1.0), g.constant(slope)))]


@rule("Clip")
def _clip(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    # On the bounds torch.clamp lets the gradient through, as here, and ReLU6 does not; they agree everywhere else.
    inside = g.op("Equal", node.input[0], node.output[0])
    return [
        g.op("Mul", dy, g.op("Cast", inside, to=onnx.TensorProto.FLOAT)),
        *([None] * (len(node.input) - 1)),
    ]


@rule("HardSigmoid")
def _hard_sigmoid(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    slope = attributes(node).get("alpha", 0.2)
    y = node.output[0]
    inside = g.op("And", g.op("Greater", y, g.constant(0.0)), g.op("Less", y, g.constant(1.0)))
    return [g.op("Mul", dy, g.op("Where", inside, g.constant(slope), g.constant(0.0)))]


@rule("HardSwish")
def _hard_swish(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    middle = g.op("Add", g.op("Div", x, g.constant(3.0)), g.constant(0.5))
    slope = g.op("Where", g.op("Less", x, g.constant(-3.0)), g.constant(0.0), middle)
    slope = g.op("Where", g.op("Greater", x, g.constant(3.0)), g.constant(1.0), slope)
    return [g.op("Mul", dy, slope)]


@rule("Sigmoid")
def _sigmoid(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Mul", dy, g.op("Mul", y, g.op("Sub", g.constant(1.0), y)))]


@rule("Tanh")
def _tanh(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Mul", dy, g.op("Sub", g.constant(1.0), g.op("Mul", y, y)))]


@rule("Exp")
def _exp(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Mul", dy, node.output[0])]


@rule("Log")
def _log(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Div", dy, node.input[0])]


@rule("Sqrt")
def _sqrt(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [g.op("Div", dy, g.op("Mul", g.constant(2.0), node.output[0]))]


@rule("Reciprocal")
def _reciprocal(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y = node.output[0]
    return [g.op("Neg", g.op("Mul", dy, g.op("Mul", y, y)))]


@rule("Erf")
def _erf(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    bell = g.op("Exp", g.op("Neg", g.op("Mul", x, x)))
    return [g.op("Mul", dy, g.op("Mul", g.constant(2 / np.sqrt(np.pi)), bell))]


# ---------------------------------------------------------------------- shapes


@rule("Reshape", "Squeeze", "Unsqueeze")
def _reshape(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    shape = g.shape(node.input[0])
    # The batch may sit first only once; anything else asks the value itself for its shape.
    if sum(d == "N" for d in shape) <= 1:
        back = g.integers([-1 if d == "N" else int(d) for d in shape])
    else:
        back = g.op("Shape", node.input[0])
    return [g.op("Reshape", dy, back), *([None] * (len(node.input) - 1))]


@rule("Transpose")
def _transpose(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    rank = len(g.shape(node.input[0]))
    forward = attributes(node).get("perm", list(range(rank))[::-1])
    return [g.op("Transpose", dy, perm=np.argsort(forward).tolist())]


@rule("Concat")
def _concat(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    axis = attributes(node)["axis"]
    sizes = [g.shape(name)[axis] for name in node.input]
    if not all(isinstance(size, int) for size in sizes):
        raise ExportError("expected Concat along a fixed axis, but the model concatenates along the batch")
    return list(g.op("Split", dy, g.integers([int(s) for s in sizes]), outputs=len(sizes), axis=axis))


# ---------------------------------------------------------------------- reductions


def _reduced_axes(g: Graph, node: onnx.NodeProto) -> list[int]:
    rank = len(g.shape(node.input[0]))
    if len(node.input) < 2:
        return list(range(rank))
    if node.input[1] not in g.constants:
        raise ExportError(f"expected constant axes of {node.op_type}, but the model computes them")
    return [int(a) % rank for a in g.constants[node.input[1]]]


@rule("ReduceSum", "ReduceMean")
def _reduce(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    axes = _reduced_axes(g, node)
    if not attributes(node).get("keepdims", 1):
        dy = g.op("Unsqueeze", dy, g.integers(axes))
    if node.op_type == "ReduceMean":
        sizes = [g.shape(x)[a] for a in axes]
        if not all(isinstance(s, int) for s in sizes):
            raise ExportError("expected means over fixed axes, but the model averages over the batch")
        dy = g.op("Mul", dy, g.constant(1 / np.prod([int(s) for s in sizes])))
    return [g.op("Expand", dy, g.op("Shape", x)), *([None] * (len(node.input) - 1))]


@rule("Softmax")
def _softmax(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y, axes = node.output[0], g.integers([attributes(node).get("axis", -1)])
    inner = g.op("ReduceSum", g.op("Mul", dy, y), axes, keepdims=1)
    return [g.op("Mul", y, g.op("Sub", dy, inner))]


@rule("LogSoftmax")
def _log_softmax(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    y, axes = node.output[0], g.integers([attributes(node).get("axis", -1)])
    return [g.op("Sub", dy, g.op("Mul", g.op("Exp", y), g.op("ReduceSum", dy, axes, keepdims=1)))]


# ---------------------------------------------------------------------- norms


def centre_and_deviation(g: Graph, node: onnx.NodeProto, axes: str) -> tuple[str, str]:
    """x − μ and σ = √(variance + ε) of a norm's input over the constant `axes`, kept as axes of size 1."""
    x = node.input[0]
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes, keepdims=1))
    variance = g.op("ReduceMean", g.op("Mul", centred, centred), axes, keepdims=1)
    epsilon = g.constant(attributes(node).get("epsilon", 1e-5))
    return centred, g.op("Sqrt", g.op("Add", variance, epsilon))


@rule("InstanceNormalization")
def _instance_norm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """y = scale·c/σ + bias, c = x − μ over a channel's pixels: dx = (scale/σ)·(dy − mean dy − c·mean(dy·c)/σ²).

    The two means give the gradients of scale and bias as well, so that few operators run over all pixels.
    """
    x, scale = node.input[:2]
    shape = g.shape(x)
    pixels, count = g.integers(list(range(2, len(shape)))), float(np.prod([int(d) for d in shape[2:]]))
    centred, sigma = centre_and_deviation(g, node, pixels)
    mean = g.op("ReduceMean", dy, pixels, keepdims=1)  # (N, C, 1, …)
    along = g.op("Div", g.op("ReduceMean", g.op("Mul", dy, centred), pixels, keepdims=1), sigma)
    batch_and_pixels = g.integers([0, *range(2, len(shape))])
    results: list[str | None] = [None]
    for wants, value in zip(wanted[1:], (along, mean), strict=True):
        total = g.op("Mul", value, g.constant(count))
        results.append(g.op("ReduceSum", total, batch_and_pixels, keepdims=0) if wants else None)
    if wanted[0]:
        factor = g.op("Div", g.op("Reshape", scale, g.integers([-1] + [1] * (len(shape) - 2))), sigma)
        slope = g.op("Div", g.op("Mul", factor, along), sigma)
        rest = g.op("Sub", g.op("Mul", dy, factor), g.op("Mul", centred, slope))
        results[0] = g.op("Sub", rest, g.op("Mul", mean, factor))
    return results


@rule("LayerNormalization")
def _layer_norm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """As instance norm, over the axes from `axis` on, scale and bias having the shape of those axes."""
    x, scale = node.input[:2]
    shape, y_shape = g.shape(x), g.shape(node.output[0])
    first = attributes(node).get("axis", -1) % len(shape)
    axes = g.integers(list(range(first, len(shape))))
    centred, sigma = centre_and_deviation(g, node, axes)
    normal = g.op("Div", centred, sigma)
    d = g.op("Mul", dy, scale)
    along = g.op("ReduceMean", g.op("Mul", d, normal), axes, keepdims=1)
    rest = g.op("Sub", g.op("Sub", d, g.op("ReduceMean", d, axes, keepdims=1)), g.op("Mul", normal, along))
    results: list[str | None] = [g.op("Div", rest, sigma) if wanted[0] else None]
    results.append(_unbroadcast(g, g.op("Mul", dy, normal), g.shape(scale), y_shape) if wanted[1] else None)
    if len(node.input) > 2:
        results.append(_unbroadcast(g, dy, g.shape(node.input[2]), y_shape) if wanted[2] else None)
    return results
