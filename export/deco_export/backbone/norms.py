"""Batch norm at inference is a scale and a shift per channel: part of the layer before it where that is linear."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
from onnx import helper

from deco_export.backbone.sizes import Sizes
from deco_export.onnx_graph import attributes


def fold(sizes: Sizes, output: str) -> list[onnx.NodeProto]:
    """The nodes without BatchNormalization: folded into the layer before, or left as Mul and Add.

    A layer whose output is used elsewhere too, or is the output of the network, keeps its weights.
    """
    uses = Counter(name for node in sizes.nodes for name in node.input) + Counter([output])
    nodes: list[onnx.NodeProto] = []
    for node in sizes.nodes:
        if node.op_type != "BatchNormalization" or not all(n in sizes.constants for n in node.input[1:5]):
            nodes.append(node)
            continue
        scale, shift, mean, variance = (sizes.constants[n].astype(np.float64) for n in node.input[1:5])
        a = scale / np.sqrt(variance + attributes(node).get("epsilon", 1e-5))
        b = shift - mean * a
        before = next((n for n in nodes if node.input[0] in n.output), None)
        if before is None or uses[node.input[0]] > 1 or not _into(sizes, nodes, before, a, b, node.output[0], uses):
            column = (-1,) + (1,) * (len(sizes.dims[node.input[0]][0]) - 2)
            _mul_add(sizes, nodes, node.input[0], a.reshape(column), b.reshape(column), node.output[0])
    return nodes


def _into(
    sizes: Sizes,
    nodes: list[onnx.NodeProto],
    before: onnx.NodeProto,
    a: np.ndarray,
    b: np.ndarray,
    out: str,
    uses: Counter[str],
) -> bool:
    """Let a layer give a·y + b, per channel, under the name `out`; whether it is one that can."""
    kind, constants, values = before.op_type, sizes.constants, attributes(before)
    if kind == "Add" and len(sizes.dims[out][0]) == 2:  # MatMul and Add, as other exporters write a linear layer
        bias = next((n for n in before.input if n in constants), "")
        product = next((n for n in nodes if set(n.output) & set(before.input)), None)
        if bias and product is not None and product.op_type == "MatMul" and uses[product.output[0]] == 1:
            if product.input[1] not in constants:
                return False
            product.input[1] = _float(sizes, constants[product.input[1]] * a)
            before.input[:] = [product.output[0], _float(sizes, constants[bias] * a + b)]
            before.output[0] = out
            return True
    if kind not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or before.input[1] not in constants:
        return False
    if kind == "MatMul" and len(sizes.dims[out][0]) != 2:
        return False
    bias = before.input[2] if len(before.input) > 2 else ""
    if bias and bias not in constants:
        return False
    weight = constants[before.input[1]]
    tail = (1,) * (weight.ndim - 2)
    if kind == "Conv" or (kind == "Gemm" and values.get("transB", 0)):
        weight = weight * a.reshape(-1, 1, *tail)
    elif kind == "ConvTranspose":  # (inputs, outputs of a group, …): each group's inputs meet its own outputs
        groups = values.get("group", 1)
        each = a.reshape(groups, -1).repeat(len(weight) // groups, 0)
        weight = weight * each.reshape(*each.shape, *tail)
    else:
        weight = weight * a
    before.input[1] = _float(sizes, weight)
    if kind == "MatMul":
        before.output[0] = sizes.fresh("MatMul")
        sizes.kinds[before.output[0]], sizes.dims[before.output[0]] = sizes.kinds[out], sizes.dims[out]
        nodes.append(helper.make_node("Add", [before.output[0], _float(sizes, b)], [out]))
        return True
    added = constants[bias] * (values.get("beta", 1.0) * a) + b if bias else b
    before.input[:] = [*before.input[:2], _float(sizes, added)]
    for beta in [x for x in before.attribute if x.name == "beta"]:
        before.attribute.remove(beta)
    before.output[0] = out
    return True


def _mul_add(sizes: Sizes, nodes: list[onnx.NodeProto], x: str, a: np.ndarray, b: np.ndarray, out: str) -> None:
    scaled = sizes.fresh("Mul")
    sizes.kinds[scaled], sizes.dims[scaled] = sizes.kinds[out], sizes.dims[out]
    nodes.append(helper.make_node("Mul", [x, _float(sizes, a)], [scaled]))
    nodes.append(helper.make_node("Add", [scaled, _float(sizes, b)], [out]))


def _float(sizes: Sizes, array: np.ndarray) -> str:
    return sizes.constant(array.astype(np.float32))
