"""The rules of `autodiff` for the operators that do the work: products, convolutions and pooling."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export.autodiff import Wanted, _unbroadcast, rule
from deco_export.onnx_graph import Graph, attributes


@rule("Gemm")
def _gemm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """y = x·W (or x·Wᵀ with transB) + b."""
    how = attributes(node)
    if how.get("transA", 0) or how.get("alpha", 1.0) != 1 or how.get("beta", 1.0) != 1:
        raise ExportError("expected Gemm as torch.nn.Linear writes it, but the model transposes or scales its input")
    x, w = node.input[:2]
    transposed = how.get("transB", 0)
    dx = g.op("Gemm", dy, w, transB=0 if transposed else 1) if wanted[0] else None
    dw = None
    if wanted[1]:
        dw = g.op("Gemm", dy, x, transA=1) if transposed else g.op("Gemm", x, dy, transA=1)
    results: list[str | None] = [dx, dw]
    if len(node.input) > 2:
        results.append(_unbroadcast(g, dy, g.shape(node.input[2]), g.shape(node.output[0])) if wanted[2] else None)
    return results


@rule("MatMul")
def _matmul(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    a, b = node.input
    shape_a, shape_b, shape_y = g.shape(a), g.shape(b), g.shape(node.output[0])
    if min(len(shape_a), len(shape_b)) < 2:
        raise ExportError("expected MatMul of matrices, but the model multiplies by a vector; use torch.nn.Linear")

    def swapped(name: str, rank: int) -> str:
        return str(g.op("Transpose", name, perm=[*range(rank - 2), rank - 1, rank - 2]))

    da = db = None
    if wanted[0]:
        da = _unbroadcast(g, g.op("MatMul", dy, swapped(b, len(shape_b))), shape_a, (*shape_y[:-2], *shape_a[-2:]))
    if wanted[1]:
        db = _unbroadcast(g, g.op("MatMul", swapped(a, len(shape_a)), dy), shape_b, (*shape_y[:-2], *shape_b[-2:]))
    return [da, db]


def _sliding(g: Graph, node: onnx.NodeProto) -> dict[str, Any]:
    """Sizes of a 2-D convolution or pooling: kernel, stride, dilation, pads (top, left), input and output sides."""
    how = attributes(node)
    if how.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or how.get("ceil_mode", 0):
        raise ExportError(f"expected {node.op_type} with explicit padding and floor mode, but the model uses another")
    shape, out = g.shape(node.input[0]), g.shape(node.output[0])
    if len(shape) != 4 or not all(isinstance(d, int) for d in (*shape[1:], *out[1:])):
        raise ExportError(f"expected 2-D {node.op_type} with fixed sizes, but found shape {shape}")
    kernel = how.get("kernel_shape") or list(g.shape(node.input[1])[2:])
    pads = how.get("pads", [0, 0, 0, 0])
    return {
        "kernel": [int(k) for k in kernel],
        "stride": how.get("strides", [1, 1]),
        "dilation": how.get("dilations", [1, 1]),
        "pads": pads,
        "group": how.get("group", 1),
        "channels": int(shape[1]),
        "input": [int(shape[2]), int(shape[3])],
        "output": [int(out[2]), int(out[3])],
    }


@rule("Conv")
def _conv(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    s = _sliding(g, node)
    x, w = node.input[:2]
    results: list[str | None] = [_conv_input(g, w, dy, s) if wanted[0] else None]
    results.append(_conv_weight(g, x, dy, s, g.shape(w)) if wanted[1] else None)
    if len(node.input) > 2:
        results.append(g.op("ReduceSum", dy, g.integers([0, 2, 3]), keepdims=0) if wanted[2] else None)
    return results


def _conv_input(g: Graph, w: str, dy: str, s: dict[str, Any]) -> str:
    """∂/∂x: the transposed convolution; rows the stride never reached are given back as output padding."""
    reach = [
        (o - 1) * st + (k - 1) * d + 1
        for o, st, k, d in zip(s["output"], s["stride"], s["kernel"], s["dilation"], strict=True)
    ]
    extra = [i + s["pads"][a] + s["pads"][a + 2] - r for a, (i, r) in enumerate(zip(s["input"], reach, strict=True))]
    return str(
        g.op(
            "ConvTranspose",
            dy,
            w,
            kernel_shape=s["kernel"],
            strides=s["stride"],
            dilations=s["dilation"],
            pads=s["pads"],
            group=s["group"],
            output_padding=extra,
        )
    )


def _conv_weight(g: Graph, x: str, dy: str, s: dict[str, Any], w_shape: tuple[Any, ...]) -> str:
    """∂/∂W: gather each kernel tap's shifted image (im2col) and multiply it with dy, one GEMM per image.

    Written as a Conv with batch and channels swapped, the same product runs at a fraction of the speed.
    """
    top, left, bottom, right = s["pads"]
    padded = x
    if any(s["pads"]):
        padded = g.op("Pad", x, g.integers([0, 0, top, left, 0, 0, bottom, right]))
    (kh, kw), (sh, sw), (dh, dw), (oh, ow) = s["kernel"], s["stride"], s["dilation"], s["output"]
    taps = []
    for i, j in product(range(kh), range(kw)):
        start = [i * dh, j * dw]
        stop = [i * dh + (oh - 1) * sh + 1, j * dw + (ow - 1) * sw + 1]
        whole = start == [0, 0] and stop == [s["input"][0] + top + bottom, s["input"][1] + left + right]
        if whole and (sh, sw) == (1, 1):
            taps.append(padded)
        else:
            taps.append(
                g.op(
                    "Slice",
                    padded,
                    g.integers(start),
                    g.integers(stop),
                    g.integers([2, 3]),
                    g.integers([sh, sw]),
                )
            )
    groups, pixels = s["group"], oh * ow
    into, out = s["channels"] // groups, int(w_shape[0]) // groups
    # (N, taps, groups, in/group, pixels): the group axis must come first for the product
    columns = taps[0] if len(taps) == 1 else g.op("Concat", *taps, axis=1)
    if groups == 1:
        columns = g.op("Reshape", columns, g.integers([-1, len(taps) * into, pixels]))
        flat_dy = g.op("Reshape", dy, g.integers([-1, out, pixels]))
        each = g.op("MatMul", flat_dy, g.op("Transpose", columns, perm=[0, 2, 1]))  # (N, out, taps·in)
        total = g.op("ReduceSum", each, g.integers([0]), keepdims=0)
        total = g.op("Reshape", total, g.integers([out, kh, kw, into]))
        return str(g.op("Transpose", total, perm=[0, 3, 1, 2]))
    columns = g.op("Reshape", columns, g.integers([-1, len(taps), groups, into, pixels]))
    columns = g.op("Transpose", columns, perm=[0, 2, 4, 1, 3])
    columns = g.op("Reshape", columns, g.integers([-1, groups, pixels, len(taps) * into]))
    flat_dy = g.op("Reshape", dy, g.integers([-1, groups, out, pixels]))
    total = g.op("ReduceSum", g.op("MatMul", flat_dy, columns), g.integers([0]), keepdims=0)
    total = g.op("Reshape", total, g.integers([groups * out, kh, kw, into]))
    return str(g.op("Transpose", total, perm=[0, 3, 1, 2]))


@rule("AveragePool")
def _average_pool(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    s = _sliding(g, node)
    area = s["kernel"][0] * s["kernel"][1]
    share = g.op("Mul", dy, g.constant(1 / area))
    padded = any(s["pads"])
    if padded and not attributes(node).get("count_include_pad", 0):
        raise ExportError("expected average pooling that counts its padding, but the model's does not")
    if s["kernel"] == s["stride"] and not padded:
        return [_spread(g, share, s)]
    ones = g.constant(np.ones((s["channels"], 1, *s["kernel"])))
    return [_conv_input(g, ones, share, {**s, "group": s["channels"]})]


def _spread(g: Graph, share: str, s: dict[str, Any]) -> str:
    """Repeat each value over its window: nearest Resize, which runs several times faster than Expand."""
    scales = g.constant([1.0, 1.0, *map(float, s["kernel"])])
    spread = g.op(
        "Resize",
        share,
        "",
        scales,
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    missing = [i - o * k for i, o, k in zip(s["input"], s["output"], s["kernel"], strict=True)]
    if any(missing):
        spread = g.op("Pad", spread, g.integers([0, 0, 0, 0, 0, 0, *missing]))
    return str(spread)


@rule("MaxPool")
def _max_pool(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """The gradient goes to the one pixel the maximum came from, the first among equals, as torch has it."""
    x = node.input[0]
    _, where = g.op("MaxPool", x, outputs=2, **attributes(node))
    flat = g.integers([-1])
    size = g.op("ReduceProd", g.op("Shape", x), keepdims=1)
    zeros = g.op("ConstantOfShape", size, value=onnx.helper.make_tensor("zero", onnx.TensorProto.FLOAT, [1], [0.0]))
    scattered = g.op(
        "ScatterElements",
        zeros,
        g.op("Reshape", where, flat),
        g.op("Reshape", dy, flat),
        axis=0,
        reduction="add",
    )
    return [g.op("Reshape", scattered, g.op("Shape", x))]
