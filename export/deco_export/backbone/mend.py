"""Nodes of a file with a fixed batch that hold its size: each said again so that it holds for any."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx
from deco_runtime.errors import ExportError
from onnx import helper

from deco_export.onnx_graph import attributes

if TYPE_CHECKING:
    from deco_export.backbone.sizes import Dims, Sizes


def _reshape(g: Sizes, node: onnx.NodeProto) -> None:
    x, target = node.input[:2]
    if x not in g.dims or target not in g.known:
        return
    whole = attributes(node).get("allowzero", 0)
    before, targets = g.dims[x], g.known[target]
    now, other = (_reshaped(d, t, whole) for d, t in zip(before, targets, strict=True))
    place = g.carrying(x)
    if now is not None and place is not None and not g.literal and target in g.constants:
        j, within = _landing(g.batch, prod(before[0][:place]) * g.within.get(x, 1), now, len(before[0]))
        if j is not None:
            other = (*now[:j], now[j] * before[1][place] // before[0][place], *now[j + 1 :])
            g.within[node.output[0]] = within
    if now is None or other is None or sum(a != b for a, b in zip(now, other, strict=True)) > 1:
        raise ExportError(
            f"expected a batch that is kept apart, but {node.op_type} {node.output[0]!r} mixes it with other "
            "sizes; keep the batch first and apart in every reshape of the model"
        )
    sizes = list(other)
    for j, pair in enumerate(zip(now, other, strict=True)):
        if pair[0] != pair[1]:
            same = j < len(before[0]) and pair == (before[0][j], before[1][j])
            sizes[j] = 0 if same else -1
    node.CopyFrom(helper.make_node("Reshape", [x, g.integers(sizes)], list(node.output), name=node.name))


def _landing(batch: int, ahead: int, now: Dims, rank: int) -> tuple[int | None, int]:
    """The dimension that holds the images after a Reshape to `now`, and how many rows are ahead of them in it.

    Row by row, as many elements stay ahead of them as were before it. That leaves a choice at a batch of one,
    (T, 1, C) → (T, C): a dimension of the batch's size first, else T has taken it in if there are fewer
    dimensions than before (`rank`), and else what follows, as the heads of an attention do.
    """
    choices = []
    for j, size in enumerate(now):
        within, rest = divmod(ahead, prod(now[:j]) or 1)
        if not rest and within and size % (within * batch) == 0:
            choices.append((size != batch, within if len(now) >= rank else -within, j, within))
    return min(choices)[2:] if choices else (None, 1)


def _gather(g: Sizes, node: onnx.NodeProto) -> None:
    """Elements picked out of one flattened image, as torch writes a view with strides of its own."""
    x, indices = node.input[:2]
    if g.literal or g.batch != 1 or indices not in g.constants or x not in g.dims:
        return
    places = g.constants[indices]
    if g.carrying(x) != 0 or len(g.dims[x][0]) != 1 or places.ndim < 2 or len(places) != 1:
        return
    rows = g.op("Reshape", x, g.integers([1, -1]))
    if np.array_equal(places.ravel(), np.arange(g.dims[x][0][0])):
        node.CopyFrom(helper.make_node("Reshape", [rows, g.integers(places.shape)], list(node.output)))
        _reshape(g, node)
    else:
        inputs = [rows, g.constant(places[0])]
        node.CopyFrom(helper.make_node("Gather", inputs, list(node.output), axis=1))


def _squeeze(g: Sizes, node: onnx.NodeProto) -> None:
    if len(node.input) < 2 and node.input[0] in g.dims:  # all that are 1: a batch of one is not meant
        ones = [i for i, n in enumerate(g.dims[node.input[0]][1]) if n == 1]
        node.input.append(g.integers(ones))


def _expand(g: Sizes, node: onnx.NodeProto) -> None:
    x, target = node.input[:2]
    if target not in g.constants or x not in g.dims or g.literal:
        return
    sizes, place = g.constants[target].copy(), g.carrying(x)
    if place is None:
        end, size = -len(sizes), g.batch
    else:
        end, size = place - len(g.dims[x][0]), g.dims[x][0][place]
    if len(sizes) >= -end > 0 and sizes[end] == size > 1:  # Expand leaves a dimension be where 1 is asked for
        sizes[end] = 1
        node.input[1] = g.constant(sizes)


def _concat(g: Sizes, node: onnx.NodeProto) -> None:
    """A constant beside values of the images, as a class token is, is repeated for each of them."""
    if any(n not in g.dims for n in node.input):
        return
    rank = len(g.dims[node.input[0]][0])
    axis = attributes(node)["axis"] % max(rank, 1)
    places = {p for p in map(g.carrying, node.input) if p is not None and p != axis}
    if len(places) != 1:
        return
    place = places.pop()
    now, other = next(
        (d[0][place], d[1][place]) for d in map(g.dims.__getitem__, node.input) if d[0][place] != d[1][place]
    )
    for i, name in enumerate(node.input):
        if g.carrying(name) is not None:
            continue
        if name in g.constants and now > 1:
            rows = g.constants[name].take([0], place)
            if np.array_equal(g.constants[name], np.repeat(rows, g.constants[name].shape[place], place)):
                name = g.constant(rows)
        ones = [1] * rank
        target = np.array([ones, ones], np.int64)
        target[:, place] = now, other
        times = g.fresh("times")
        g.learn(times, target[0], target[1])
        node.input[i] = g.op("Expand", name, times)


def _resize(g: Sizes, node: onnx.NodeProto) -> None:
    """Sizes of the pixels alone, so that the batch is not among them."""
    if len(node.input) < 4 or node.input[3] not in g.known or node.input[0] not in g.dims:
        return
    values = attributes(node)
    place = g.carrying(node.input[0])
    if place is None or "axes" in values or values.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        return
    axes = [i for i in range(len(g.dims[node.input[0]][0])) if i != place]
    node.input[3] = g.integers([int(g.known[node.input[3]][0][i]) for i in axes])
    node.attribute.append(helper.make_attribute("axes", axes))


def _reshaped(dims: Dims, target: np.ndarray, allowzero: int) -> Dims | None:
    """The sizes that Reshape gives; None where the elements do not fill them."""
    sizes = [dims[i] if t == 0 and not allowzero and i < len(dims) else int(t) for i, t in enumerate(target)]
    rest = prod(s for s in sizes if s != -1)
    if -1 in sizes and rest and prod(dims) % rest == 0:
        sizes[sizes.index(-1)] = prod(dims) // rest
    return tuple(sizes) if prod(sizes) == prod(dims) and min(sizes, default=0) >= 0 else None


MENDED: dict[str, Callable[[Sizes, onnx.NodeProto], None]] = {
    "Concat": _concat,
    "Expand": _expand,
    "Gather": _gather,
    "Reshape": _reshape,
    "Resize": _resize,
    "Squeeze": _squeeze,
}
"""By operator, what changes a node in place before it is added."""
