"""Forward-mode differentiation of ONNX graphs: how a value moves with its inputs, in standard operators.

`tangent` walks the nodes forwards and applies one rule per operator; a rule gets the node and the tangents known so
far, and returns that of the node's output. Values without a tangent do not move, and cost nothing. Applied to what
`autodiff` wrote, it gives second derivatives. A new operator is one more rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export import autodiff
from deco_export.onnx_graph import Graph, attributes, needed

Tangents = dict[str, str]
"""{value: its tangent}, both names in the graph, of the same shape."""

Rule = Callable[[Graph, onnx.NodeProto, Tangents], str]
RULES: dict[str, Rule] = {}

CONSTANT = {"Shape", "Sign", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"}
"""Operators whose output is constant between its jumps, so that it has no tangent."""

SYMMETRIC = (
    *("Relu", "LeakyRelu", "Elu", "Selu", "Softplus", "Clip", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh"),
    *("Exp", "Log", "Sqrt", "Reciprocal", "Erf", "Softmax"),
)
"""Operators with a symmetric Jacobian: their tangent is the gradient rule of `autodiff`."""

LINEAR = (
    *("Neg", "Identity", "ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool", "Resize"),
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Slice", "Gather"),
    *("DepthToSpace", "SpaceToDepth"),
)
"""Operators that are linear in their first input and constant in the others: they apply to the tangent as they are."""


def tangent(g: Graph, seeds: Tangents, of: str) -> str:
    """Append the nodes that compute Σ_v ⟨∂of/∂v, seeds[v]⟩, the derivative of `of` as each v moves along seeds[v].

    seeds: {v: its tangent}, names of values in `g` of v's shape. Returns the name of the result, with the shape of
    `of`. Raises ExportError for an operator that has no rule, and when `of` does not depend on any v.
    """
    tangents = dict(seeds)
    _walk(g, needed(g.nodes, [of]), tangents)
    if of not in tangents:
        raise ExportError(f"expected {of!r} to depend on {', '.join(seeds)}, but it does not")
    return tangents[of]


def _walk(g: Graph, nodes: Sequence[onnx.NodeProto], tangents: Tangents) -> None:
    for node in nodes:
        if node.op_type in CONSTANT or not any(name in tangents for name in node.input):
            continue
        if node.op_type == "Split":
            moves, count = tangents[node.input[0]], len(node.output)
            parts = g.op("Split", moves, *node.input[1:], outputs=count, **attributes(node))
            tangents.update(zip(node.output, [parts] if isinstance(parts, str) else parts, strict=True))
        elif node.op_type in RULES:
            tangents[node.output[0]] = RULES[node.op_type](g, node, tangents)
        else:
            raise ExportError(
                f"expected operators with a known tangent, but the gradient uses {node.op_type}; "
                f"replace that layer (known: {', '.join(sorted({*RULES, *CONSTANT, 'Split'}))})"
            )


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _sum(g: Graph, terms: Sequence[str]) -> str:
    total = terms[0]
    for term in terms[1:]:
        total = g.op("Add", total, term)
    return total


def _expanded(g: Graph, value: str, like: str, to: str) -> str:
    """A tangent with the shape of `like`, broadcast to that of `to`; nothing to do where both are known and equal."""
    if like in g.shapes and g.shapes[like] == g.shapes.get(to):
        return value
    return str(g.op("Expand", value, g.op("Shape", to)))


def _zeros(g: Graph, like: str) -> str:
    return str(g.op("ConstantOfShape", g.op("Shape", like)))


def _only(node: onnx.NodeProto, tangents: Tangents, index: int = 0) -> str:
    """The tangent of the one input that may have one."""
    if any(name in tangents for i, name in enumerate(node.input) if i != index):
        raise ExportError(
            f"expected a {node.op_type} of which only input {index} depends on the weights, but others do; replace it"
        )
    return tangents[node.input[index]]


# ---------------------------------------------------------------------- linear, and element by element


@rule(*LINEAR)
def _linear(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    return str(g.op(node.op_type, _only(node, tangents), *node.input[1:], **attributes(node)))


@rule(*SYMMETRIC)
def _symmetric(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    result = autodiff.RULES[node.op_type](g, node, _only(node, tangents), [True] * len(node.input))[0]
    assert result is not None
    return result


@rule("PRelu")
def _prelu(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    x, slope = node.input
    positive, terms = g.op("Greater", x, g.constant(0.0)), []
    if x in tangents:
        terms.append(g.op("Mul", tangents[x], g.op("Where", positive, g.constant(1.0), slope)))
    if slope in tangents:
        terms.append(g.op("Mul", g.op("Where", positive, g.constant(0.0), x), tangents[slope]))
    return _sum(g, terms)


@rule("Pad")
def _pad(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    """A constant border does not move: the tangent's is zero, whatever value the border has."""
    constant = attributes(node).get("mode", b"constant") == b"constant"
    rest = ["" if i == 2 and constant else name for i, name in enumerate(node.input)][1:]
    while rest[-1] == "":
        rest.pop()
    return str(g.op("Pad", _only(node, tangents), *rest, **attributes(node)))


@rule("Cast")
def _cast(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    if attributes(node)["to"] != onnx.TensorProto.FLOAT:
        raise ExportError("expected a Cast to float32, but the gradient rounds to another type; keep to float32")
    return _only(node, tangents)


@rule("LogSoftmax")
def _log_softmax(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    y, d = node.output[0], _only(node, tangents)
    axes = g.integers([attributes(node).get("axis", -1)])
    return str(g.op("Sub", d, g.op("ReduceSum", g.op("Mul", g.op("Exp", y), d), axes, keepdims=1)))


@rule("Pow")
def _pow(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    x, d = node.input[0], _only(node, tangents)
    power = autodiff.constant_exponent(g, node)
    slope = g.op("Mul", g.constant(power), g.op("Pow", x, g.constant(power - 1)))
    return _expanded(g, g.op("Mul", d, slope), x, node.output[0])


@rule("ReduceL2", "ReduceSumSquare")
def _reduce_squares(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    x, y = node.input[0], node.output[0]
    inner = g.op("ReduceSum", g.op("Mul", x, _only(node, tangents)), *node.input[1:], **attributes(node))
    return str(g.op("Div", inner, y) if node.op_type == "ReduceL2" else g.op("Add", inner, inner))


@rule("Add", "Sub")
def _add(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    (a, b), y = node.input, node.output[0]
    if a in tangents and b in tangents:
        return str(g.op(node.op_type, tangents[a], tangents[b]))
    moving, other = (a, b) if a in tangents else (b, a)
    change = g.op("Neg", tangents[b]) if node.op_type == "Sub" and moving == b else tangents[moving]
    scalar = other in g.constants and g.constants[other].ndim == 0  # broadcasts nothing, whatever the shapes
    return str(change) if scalar else _expanded(g, change, moving, y)


@rule("Sum")
def _sum_of_many(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    moving = [name for name in node.input if name in tangents]
    change = _sum(g, [tangents[name] for name in moving])
    return change if len(moving) == len(node.input) else str(g.op("Expand", change, g.op("Shape", node.output[0])))


@rule("Mul", "MatMul")
def _product(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    a, b = node.input
    if a == b and node.op_type == "Mul":
        half = g.op("Mul", a, tangents[a])
        return str(g.op("Add", half, half))
    terms = [g.op(node.op_type, tangents[a], b)] if a in tangents else []
    terms += [g.op(node.op_type, a, tangents[b])] if b in tangents else []
    return _sum(g, terms)


@rule("Div")
def _div(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    """y = a/b: (da − y·db)/b."""
    (a, b), y = node.input, node.output[0]
    if b not in tangents:
        return str(g.op("Div", tangents[a], b))
    change = g.op("Mul", y, tangents[b])
    change = g.op("Sub", tangents[a], change) if a in tangents else g.op("Neg", change)
    return str(g.op("Div", change, b))


# ---------------------------------------------------------------------- choices and places


@rule("Where")
def _where(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    condition, *branches = node.input
    moves = [tangents.get(name, g.constant(0.0)) for name in branches]
    chosen = str(g.op("Where", condition, *moves))
    # Without the other branch, and its shape, the result may be smaller than y.
    return chosen if all(name in tangents for name in branches) else _expanded(g, chosen, condition, node.output[0])


@rule("Concat")
def _concat(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    parts = [tangents[name] if name in tangents else _zeros(g, name) for name in node.input]
    return str(g.op("Concat", *parts, **attributes(node)))


@rule("ScatterElements")
def _scatter(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    if attributes(node).get("reduction", b"none") not in (b"none", b"add"):
        raise ExportError("expected ScatterElements that sets or adds, but the gradient uses another; replace it")
    data, indices, updates = node.input
    moves = [tangents[name] if name in tangents else _zeros(g, name) for name in (data, updates)]
    return str(g.op("ScatterElements", moves[0], indices, moves[1], **attributes(node)))


@rule("MaxPool")
def _max_pool(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    """Each maximum moves as the pixel it came from."""
    _, where = g.op("MaxPool", node.input[0], outputs=2, **attributes(node))
    return str(g.op("Gather", g.op("Reshape", _only(node, tangents), g.integers([-1])), where, axis=0))


# ---------------------------------------------------------------------- products and norms


@rule("Conv", "ConvTranspose", "Gemm")
def _affine(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    """y = x∗w + b: dx∗w + x∗dw + db, the db within either product."""
    (x, w), how, y = node.input[:2], attributes(node), node.output[0]
    bias = [tangents[name] for name in node.input[2:] if name in tangents]
    terms = []
    if w in tangents:
        terms.append(g.op(node.op_type, x, tangents[w], *bias, **how))
        bias = []
    if x in tangents:
        terms.append(g.op(node.op_type, tangents[x], w, *bias, **how))
    if terms:
        return _sum(g, terms)
    if node.op_type == "Gemm":
        db = g.op("Mul", bias[0], g.constant(how.get("beta", 1.0)))
    else:
        db = g.op("Reshape", bias[0], g.integers([-1] + [1] * (len(g.shape(w)) - 2)))
    return str(g.op("Expand", db, g.op("Shape", y)))


@rule("InstanceNormalization", "LayerNormalization")
def _norm(g: Graph, node: onnx.NodeProto, tangents: Tangents) -> str:
    """y = scale·x̂ + bias with x̂ = (x − μ)/σ, the tangents of x − μ and σ by the rules of the steps they are made of.

    The gradient of the norm has the same steps, so a runtime that shares equal nodes computes them once.
    """
    (x, scale), y = node.input[:2], node.output[0]
    shape = g.shape(x)
    instance = node.op_type == "InstanceNormalization"
    first = 2 if instance else attributes(node).get("axis", -1) % len(shape)
    start = len(g.nodes)
    centred, sigma = autodiff.centre_and_deviation(g, node, g.integers(list(range(first, len(shape)))))
    _walk(g, g.nodes[start:], tangents)

    def column(name: str) -> str:
        return str(g.op("Reshape", name, g.integers([-1] + [1] * (len(shape) - 2)))) if instance else name

    one = scale in g.constants and bool(np.all(g.constants[scale] == 1))
    zero = len(node.input) < 3 or not np.any(g.constants.get(node.input[2], 1))
    normal = y if one and zero else g.op("Div", centred, sigma)
    terms = []
    if x in tangents:
        change = g.op("Div", g.op("Sub", tangents[centred], g.op("Mul", normal, tangents[sigma])), sigma)
        terms.append(change if one else g.op("Mul", change, column(scale)))
    if scale in tangents:
        terms.append(g.op("Mul", normal, column(tangents[scale])))
    if len(node.input) > 2 and node.input[2] in tangents:
        bias = column(tangents[node.input[2]])
        terms.append(bias if terms else g.op("Expand", bias, g.op("Shape", y)))
    return _sum(g, terms)
