"""The rules of `autodiff` for the operators that do the work: products, convolutions and pooling."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export import winograd
from deco_export.autodiff import Wanted, _unbroadcast, backwards, rule
from deco_export.onnx_graph import Graph, attributes

SMALL_MAP = 4
"""Times that the products of single images must be larger than both their factors, to be taken of all at once."""


@rule("Gemm")
def _gemm(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """y = α·x·w + β·b, with x or w or both transposed where transA and transB say so."""
    how = attributes(node)
    x, w = node.input[:2]
    turned_x, turned_w = int(how.get("transA", 0)), int(how.get("transB", 0))
    scale = {"alpha": how["alpha"]} if how.get("alpha", 1.0) != 1 else {}
    dx = dw = None
    if wanted[0] and turned_x:
        dx = g.op("Gemm", w, dy, transA=turned_w, transB=1, **scale)
    elif wanted[0]:
        dx = g.op("Gemm", dy, w, transB=1 - turned_w, **scale)
    if wanted[1] and turned_w:
        dw = g.op("Gemm", dy, x, transA=1, transB=turned_x, **scale)
    elif wanted[1]:
        dw = g.op("Gemm", x, dy, transA=1 - turned_x, **scale)
    results: list[str | None] = [dx, dw]
    if len(node.input) > 2:
        beta = how.get("beta", 1.0)
        db = dy if beta == 1 or not wanted[2] else g.op("Mul", dy, g.constant(beta))
        results.append(_unbroadcast(g, db, g.shape(node.input[2]), g.shape(node.output[0])) if wanted[2] else None)
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
    if wanted[1] and len(shape_b) == 2 < len(shape_a):
        # A linear layer on tokens: one product over all of them, rather than one matrix per image and their sum.
        rows, by = (g.op("Reshape", v, g.integers([-1, int(s[-1])])) for v, s in ((a, shape_a), (dy, shape_y)))
        db = g.op("Gemm", rows, by, transA=1)
    elif wanted[1]:
        db = _unbroadcast(g, g.op("MatMul", swapped(a, len(shape_a)), dy), shape_b, (*shape_y[:-2], *shape_b[-2:]))
    return [da, db]


def _sliding(g: Graph, node: onnx.NodeProto) -> dict[str, Any]:
    """Sizes of a 2-D convolution or pooling: kernel, stride, dilation, pads (four), input and output sides."""
    how = attributes(node)
    if how.get("ceil_mode", 0):
        raise ExportError(f"expected {node.op_type} in floor mode, but the model rounds its output size up")
    shape, out = g.shape(node.input[0]), g.shape(node.output[0])
    if len(shape) != 4 or not all(isinstance(d, int) for d in (*shape[1:], *out[1:])):
        raise ExportError(f"expected 2-D {node.op_type} with fixed sizes, but found shape {shape}")
    kernel = how.get("kernel_shape") or list(g.shape(node.input[1])[2:])
    sizes: dict[str, Any] = {
        "kernel": [int(k) for k in kernel],
        "stride": how.get("strides", [1, 1]),
        "dilation": how.get("dilations", [1, 1]),
        "group": how.get("group", 1),
        "channels": int(shape[1]),
        "input": [int(shape[2]), int(shape[3])],
        "output": [int(out[2]), int(out[3])],
    }
    return {**sizes, "pads": _pads(sizes, how)}


def _pads(s: dict[str, Any], how: dict[str, Any]) -> list[int]:
    """(top, left, bottom, right), also where the node asks for them with auto_pad; an odd one goes where it says."""
    kind = how.get("auto_pad", b"NOTSET")
    if kind not in (b"SAME_UPPER", b"SAME_LOWER"):
        return list(how.get("pads", [0, 0, 0, 0])) if kind == b"NOTSET" else [0, 0, 0, 0]
    needed = [max(reach - size, 0) for reach, size in zip(_reach(s), s["input"], strict=True)]
    less, more = [n // 2 for n in needed], [n - n // 2 for n in needed]
    return less + more if kind == b"SAME_UPPER" else more + less


def _reach(s: dict[str, Any]) -> list[int]:
    """Rows and columns from the first that a window covers to the last."""
    along = zip(s["output"], s["stride"], s["kernel"], s["dilation"], strict=True)
    return [(count - 1) * stride + (kernel - 1) * dilation + 1 for count, stride, kernel, dilation in along]


@rule("Conv")
def _conv(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    s = _sliding(g, node)
    x, w = node.input[:2]
    results: list[str | None]
    if winograd.suits(s, g.shape(w)):
        results = _conv_winograd(g, x, w, dy, wanted)
    else:
        results = [_conv_input(g, w, dy, s) if wanted[0] else None]
        results.append(_conv_weight(g, x, dy, s, g.shape(w)) if wanted[1] else None)
    if len(node.input) > 2:
        results.append(g.op("ReduceSum", dy, g.integers([0, 2, 3]), keepdims=0) if wanted[2] else None)
    return results


def _conv_winograd(g: Graph, x: str, w: str, dy: str, wanted: Wanted) -> list[str | None]:
    """∂/∂x and ∂/∂W of Winograd's form, which has the same values; what only they would need is left out by `Graph`."""
    start, names = len(g.nodes), [name for name, want in zip((x, w), wanted[:2], strict=True) if want]
    y = winograd.convolution(g, x, w)
    found = backwards(g, g.nodes[start:], {y: dy}, names)
    return [found.get(x), found.get(w)]


def _conv_input(g: Graph, w: str, dy: str, s: dict[str, Any]) -> str:
    """∂/∂x: the transposed convolution; rows the stride never reached are given back as output padding."""
    extra = [
        i + s["pads"][a] + s["pads"][a + 2] - r for a, (i, r) in enumerate(zip(s["input"], _reach(s), strict=True))
    ]
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
    if into == out == 1:
        # Depthwise: with the taps behind the channels nothing needs to be transposed.
        flat = [g.op("Reshape", tap, g.integers([-1, groups, 1, pixels])) for tap in taps]
        columns = g.op("Concat", *flat, axis=2) if len(flat) > 1 else flat[0]
        each = g.op("MatMul", columns, g.op("Reshape", dy, g.integers([-1, groups, pixels, 1])))
        total = g.op("ReduceSum", each, g.integers([0]), keepdims=0)
        return str(g.op("Reshape", total, g.integers([groups, 1, kh, kw])))
    # (N, taps, groups, in/group, pixels): the group axis must come first for the product
    columns = taps[0] if len(taps) == 1 else g.op("Concat", *taps, axis=1)
    if groups == 1 and out * len(taps) * into > SMALL_MAP * (out + len(taps) * into) * pixels:
        # Of a small map a product per image is much larger than what it is made of: one product of all images.
        columns = g.op("Reshape", columns, g.integers([-1, len(taps) * into, pixels]))
        columns = g.op("Reshape", g.op("Transpose", columns, perm=[0, 2, 1]), g.integers([-1, len(taps) * into]))
        flat_dy = g.op("Reshape", dy, g.integers([-1, out, pixels]))
        flat_dy = g.op("Reshape", g.op("Transpose", flat_dy, perm=[0, 2, 1]), g.integers([-1, out]))
        total = g.op("Gemm", flat_dy, columns, transA=1)
        total = g.op("Reshape", total, g.integers([out, kh, kw, into]))
        return str(g.op("Transpose", total, perm=[0, 3, 1, 2]))
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
    padded = any(s["pads"])
    share = g.op("Mul", dy, g.constant(1 / _averaged(s, attributes(node).get("count_include_pad", 0))))
    if s["kernel"] == s["stride"] and not padded:
        return [_spread(g, share, s)]
    ones = g.constant(np.ones((s["channels"], 1, *s["kernel"])))
    return [_conv_input(g, ones, share, {**s, "group": s["channels"]})]


def _averaged(s: dict[str, Any], count_padding: int) -> np.ndarray:
    """How many pixels each output is the mean of: a scalar, or (1, 1, H, W) where windows hang over the border."""
    if count_padding or not any(s["pads"]):
        return np.asarray(float(np.prod(s["kernel"])))
    inside = []
    for before, size, count, stride, kernel in zip(
        s["pads"][:2], s["input"], s["output"], s["stride"], s["kernel"], strict=True
    ):
        start = np.arange(count) * stride - before
        inside.append(np.minimum(start + kernel, size) - np.maximum(start, 0))
    rows, columns = inside
    counts: np.ndarray = rows[:, None] * columns
    return counts[None, None].astype(float)


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


@rule("GlobalAveragePool")
def _global_average_pool(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    x = node.input[0]
    area = np.prod([int(d) for d in g.shape(x)[2:]])
    return [g.op("Expand", g.op("Mul", dy, g.constant(1 / area)), g.op("Shape", x))]


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
