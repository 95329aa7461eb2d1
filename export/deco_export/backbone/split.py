"""A network cut in two: a trunk that stays as it is, and the rest with its weights as one flat input, which learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import onnx
from deco_runtime.learning.random_model import Parameter
from deco_runtime.types import Floats
from onnx import TensorProto, helper, numpy_helper

from deco_export.backbone.anatomy import Anatomy
from deco_export.backbone.head import Head
from deco_export.backbone.probe import model_of, vector
from deco_export.forward import Forward, rebuild
from deco_export.onnx_graph import IR_VERSION, OPSET, needed

HEAD_W, HEAD_B = "head.w", "head.b"
P = TypeVar("P", onnx.ModelProto, onnx.NodeProto)


def whole(anatomy: Anatomy, features: str, head: Head) -> onnx.ModelProto:
    """x → logits, features: the network with this head in place of its own."""
    nodes, constants, size = vector(anatomy, features, "features")
    nodes.append(helper.make_node("Gemm", ["features", HEAD_W, HEAD_B], ["logits"]))
    outputs = {"logits": (len(head.b),), "features": (size,)}
    return model_of(anatomy, nodes, {**constants, HEAD_W: head.w, HEAD_B: head.b}, outputs)


def trunk(anatomy: Anatomy, cut: str, scale: float) -> onnx.ModelProto:
    """x → latents: the value at the cut, divided by what makes its mean square 1.

    The recipe's rates are chosen for inputs of that size.
    """
    node = helper.make_node("Mul", [cut, "latents.scale"], ["latents"])
    factor = {"latents.scale": np.array(1 / scale, np.float32)}
    return model_of(anatomy, [node], factor, {"latents": anatomy.shapes[cut]})


def rest(
    anatomy: Anatomy, cut: str, scale: float, features: str, head: Head
) -> tuple[Callable[[], Forward], Floats, tuple[Parameter, ...]]:
    """What learns, behind the cut: its forward graph, a fresh one at each call; θ (P,); and the parameters in it."""
    pool, constants, _ = vector(anatomy, features, "rest.features")
    classified = "rest.features"
    if len(anatomy.shapes[features]) == 1:
        pool, classified = [], features
    nodes = [*anatomy.nodes, *pool, helper.make_node("Gemm", [classified, HEAD_W, HEAD_B], ["logits"])]
    values = {**anatomy.weights, **constants, HEAD_W: head.w, HEAD_B: head.b}
    if cut != "x":
        nodes = [node for node in nodes if cut not in node.output]
        nodes.insert(0, helper.make_node("Mul", ["x", "latents.scale"], [cut]))
        values["latents.scale"] = np.array(scale, np.float32)
    nodes = needed(nodes, ["logits"])
    places, theta = _parameters(nodes, values)
    names = {place.name for place in places}
    given = {name for node in nodes for name in node.input}
    nodes = [_copy(node) for node in nodes]
    for node in nodes:
        node.input[:] = [f"param:{name}" if name in names else name for name in node.input]
    latent = anatomy.shapes[cut]
    graph = helper.make_graph(
        nodes,
        "rest",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *latent]),
            *(helper.make_tensor_value_info(f"param:{p.name}", TensorProto.FLOAT, p.shape) for p in places),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", len(head.b)])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in values.items() if k in given - names],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return lambda: rebuild(_copy(proto), places, ("N", *latent)), theta, places


def _copy(proto: P) -> P:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def _parameters(nodes: list[onnx.NodeProto], values: dict[str, np.ndarray]) -> tuple[tuple[Parameter, ...], Floats]:
    """Every float tensor of more than one value, in the order of use, and how a fresh one is drawn."""
    places, parts, offset = list[Parameter](), [], 0
    for node in nodes:
        for position, name in enumerate(node.input):
            value = values.get(name)
            if value is None or value.dtype != np.float32 or value.size < 2 or name in [p.name for p in places]:
                continue
            kind, a, b = _fresh(node, position, value)
            places.append(Parameter(name, tuple(value.shape), offset, kind, a, b))
            parts.append(value.ravel())
            offset += value.size
    return tuple(places), np.concatenate(parts).astype(np.float32)


def _fresh(node: onnx.NodeProto, position: int, value: np.ndarray) -> tuple[str, float, float]:
    """The distribution of a tensor of a random model: He et al. 2015 for weights, so that what passes a layer keeps its
    size, 0 for biases, and for what scales values their mean."""
    if node.op_type in ("Conv", "Gemm", "MatMul") and position == 1:
        transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
        inputs = math.prod(value.shape[1:]) if node.op_type == "Conv" else value.shape[1 if transposed else -2]
        return "normal", 0.0, math.sqrt(2 / inputs)
    if node.op_type in ("Add", "Sub") or position == 2:
        return "constant", 0.0, 0.0
    return "constant", float(value.mean()), 0.0
