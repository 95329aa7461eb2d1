"""The rules of `autodiff` for the operators that move, repeat, sum and choose elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from deco_runtime.errors import ExportError

from deco_export.autodiff import Wanted, _unbroadcast, rule
from deco_export.onnx_graph import Graph, Shape, attributes


def _sizes(shape: Sequence[int | str]) -> list[int]:
    """A Reshape target for this shape, of which the batch may be one size."""
    return [-1 if d == "N" else int(d) for d in shape]


# ---------------------------------------------------------------------- the same elements in another shape


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    shape = g.shapes.get(node.input[0])
    # The batch may be one size of its own; anything else, as N·heads in attention, asks the value itself for its shape.
    if shape is not None and sum(d == "N" for d in shape) <= 1:
        back = g.integers(_sizes(shape))
    else:
        back = g.op("Shape", node.input[0])
    return [g.op("Reshape", dy, back), *([None] * (len(node.input) - 1))]


@rule("Transpose")
def _transpose(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    forward = attributes(node).get("perm") or list(range(len(g.shape(node.input[0]))))[::-1]
    return [g.op("Transpose", dy, perm=np.argsort(forward).tolist())]


@rule("Concat")
def _concat(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    axis = attributes(node)["axis"]
    sizes = [g.shape(name)[axis] for name in node.input]
    if not all(isinstance(size, int) for size in sizes):
        raise ExportError("expected Concat along a fixed axis, but the model concatenates along the batch")
    if len(sizes) == 1:
        return [dy]
    return list(g.op("Split", dy, g.integers([int(s) for s in sizes]), outputs=len(sizes), axis=axis))


@rule("DepthToSpace")
def _depth_to_space(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    how = attributes(node)
    if how.get("mode", b"DCR") != b"DCR":
        raise ExportError("expected DepthToSpace of mode DCR, but the model's is CRD; use Reshape and Transpose")
    return [g.op("SpaceToDepth", dy, blocksize=how["blocksize"])]


@rule("Identity")
def _identity(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [dy]


# ---------------------------------------------------------------------- repeated


@rule("Expand")
def _expand(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    return [_unbroadcast(g, dy, g.shape(node.input[0]), g.shape(node.output[0])), None]


@rule("Tile")
def _tile(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """Each repeated axis becomes two, (times, size), and the times are summed."""
    shape = g.shape(node.input[0])
    apart: list[int | str] = []
    times = []
    for size, count in zip(shape, _repeats(g, node, shape), strict=True):
        if count != 1:
            times.append(len(apart))
            apart.append(count)
        apart.append(size)
    if times:
        dy = g.op("ReduceSum", g.op("Reshape", dy, g.integers(_sizes(apart))), g.integers(times), keepdims=0)
    return [dy, None]


def _repeats(g: Graph, node: onnx.NodeProto, shape: Shape) -> list[int | str]:
    """How often a Tile repeats each axis; where it computes that, as for the batch, its output's shape says it."""
    if node.input[1] in g.constants:
        return list(_integers(g, node, 1))
    pairs = zip(shape, g.shape(node.output[0]), strict=True)
    return [1 if to == size else to if size == 1 else int(to) // int(size) for size, to in pairs]


# ---------------------------------------------------------------------- summed


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


@rule("ReduceL2", "ReduceSumSquare")
def _reduce_squares(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """2x, or x/y of a length y > 0."""
    x, y = node.input[0], node.output[0]
    slope = g.op("Div", dy, y) if node.op_type == "ReduceL2" else g.op("Add", dy, dy)
    if not attributes(node).get("keepdims", 1):
        slope = g.op("Unsqueeze", slope, g.integers(_reduced_axes(g, node)))
    return [g.op("Mul", x, slope), *([None] * (len(node.input) - 1))]


# ---------------------------------------------------------------------- a border, and a part


@rule("Pad")
def _pad(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """What was added is cut off, and what was cut off (a negative pad) is zero."""
    if attributes(node).get("mode", b"constant") != b"constant" or any(wanted[1:]):
        raise ExportError("expected padding with a constant, but the model's border depends on the image; use zeros")
    rank = len(g.shape(node.input[0]))
    axes = [a % rank for a in _integers(g, node, 3)] if _given(node, 3) else list(range(rank))
    pads = _integers(g, node, 1)
    before, after = pads[: len(axes)], pads[len(axes) :]
    added = [(axis, max(b, 0), max(a, 0)) for axis, b, a in zip(axes, before, after, strict=True) if max(b, a) > 0]
    if added:
        starts = g.integers([b for _, b, _ in added])
        ends = g.integers([-a if a else END for _, _, a in added])
        dy = g.op("Slice", dy, starts, ends, g.integers([axis for axis, _, _ in added]))
    cut = {axis: (max(-b, 0), max(-a, 0)) for axis, b, a in zip(axes, before, after, strict=True)}
    return [_bordered(g, dy, rank, cut), *([None] * (len(node.input) - 1))]


@rule("Slice")
def _slice(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """dy back in its place among zeros; steps of s > 1 get s − 1 zeros after each element first."""
    shape = g.shape(node.input[0])
    starts, ends = _integers(g, node, 1), _integers(g, node, 2)
    axes = _integers(g, node, 3) if _given(node, 3) else range(len(starts))
    steps = _integers(g, node, 4) if _given(node, 4) else [1] * len(starts)
    taken: dict[int, range] = {}
    for axis, start, end, step in zip((a % len(shape) for a in axes), starts, ends, steps, strict=True):
        size = shape[axis]
        if size == "N" and (start, step) == (0, 1) and end >= BATCH_END:
            continue
        if size == "N":
            raise ExportError(
                "expected slices of whole batches, but the model takes a part of the batch; keep it whole"
            )
        taken[axis] = range(int(size))[start:end:step]
        if step < 0:
            dy = g.op("Slice", dy, g.integers([-1]), g.integers([-END]), g.integers([axis]), g.integers([-1]))
            taken[axis] = taken[axis][::-1]
    sizes = [len(taken[axis]) if axis in taken else size for axis, size in enumerate(shape)]
    for axis, places in taken.items():
        if places.step > 1 and len(places) > 1:
            dy = _stretched(g, dy, sizes, axis, places.step)
            sizes[axis] = places[-1] - places[0] + 1
    border = {axis: (places[0], int(shape[axis]) - 1 - places[-1]) for axis, places in taken.items()}
    return [_bordered(g, dy, len(shape), border), *([None] * (len(node.input) - 1))]


END = 2**63 - 1
"""Past the end of every axis, as an end of Slice; its negative is before the start."""
BATCH_END = 2**31 - 1
"""The least end of Slice by which exporters mean all of an axis."""


def _stretched(g: Graph, dy: str, sizes: Sequence[int | str], axis: int, step: int) -> str:
    """step − 1 zeros between any two neighbours along one axis of dy, whose shape is `sizes`."""
    rank, count = len(sizes), int(sizes[axis])
    column = g.op("Unsqueeze", dy, g.integers([axis + 1]))
    wide = _bordered(g, column, rank + 1, {axis + 1: (0, step - 1)})
    flat = g.op("Reshape", wide, g.integers(_sizes([*sizes[:axis], count * step, *sizes[axis + 1 :]])))
    return str(g.op("Slice", flat, g.integers([0]), g.integers([1 - step]), g.integers([axis])))


def _bordered(g: Graph, value: str, rank: int, border: Mapping[int, tuple[int, int]]) -> str:
    """Zeros around a value: {axis: (before, after)}."""
    before, after = ([border.get(axis, (0, 0))[side] for axis in range(rank)] for side in (0, 1))
    return str(g.op("Pad", value, g.integers([*before, *after]))) if any(before + after) else value


def _given(node: onnx.NodeProto, index: int) -> bool:
    """Whether this optional input is there."""
    return len(node.input) > index and node.input[index] != ""


def _integers(g: Graph, node: onnx.NodeProto, index: int) -> list[int]:
    """The values of a constant integer input. Raises ExportError where the model computes it."""
    found = g.constants.get(node.input[index])
    if found is None:
        raise ExportError(
            f"expected {node.op_type} with constant places, but the model computes {node.input[index]!r}; fix the sizes"
        )
    return [int(value) for value in found.ravel()]


# ---------------------------------------------------------------------- chosen elements


@rule("Gather")
def _gather(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """Each element's cotangent is added where it was taken: a border of zeros where these are neighbours in order."""
    (x, places), axis = node.input, attributes(node).get("axis", 0)
    found, flat = g.constants.get(places), g.integers([-1])
    if found is None:
        if not _is_vector(g, x):
            raise ExportError("expected Gather at constant places, but the model computes them; use a slice instead")
        dx = _added_at(g, x, g.op("Reshape", places, flat), g.op("Reshape", dy, flat), 0)  # of torch.as_strided
        return [dx, None]
    shape = g.shape(x)
    axis %= len(shape)
    size = shape[axis]
    if size == "N":
        raise ExportError("expected whole batches, but the model takes single images out of the batch; keep it whole")
    at = found.ravel() % int(size)
    if found.ndim != 1:
        dy = g.op("Reshape", dy, g.integers(_sizes([*shape[:axis], at.size, *shape[axis + 1 :]])))
    if np.array_equal(at, np.arange(at[0], at[0] + at.size)):
        return [_bordered(g, dy, len(shape), {axis: (int(at[0]), int(size) - int(at[-1]) - 1)}), None]
    column = g.constant(at.reshape([-1] + [1] * (len(shape) - axis - 1)), np.int64)
    return [_added_at(g, x, g.op("Expand", column, g.op("Shape", dy)), dy, axis), None]


def _added_at(g: Graph, like: str, places: str, values: str, axis: int) -> str:
    """Zeros of the shape of `like`, with each value added at its place along the axis."""
    zeros = g.op("ConstantOfShape", g.op("Shape", like))
    return str(g.op("ScatterElements", zeros, places, values, axis=axis, reduction="add"))


def _is_vector(g: Graph, name: str) -> bool:
    """Whether a value has one axis; its length may be unknown, as that of N images in a row."""
    if name in g.shapes:
        return len(g.shapes[name]) == 1
    made = next(node for node in g.nodes if name in node.output)
    return made.op_type == "Reshape" and len(g.constants.get(made.input[1], ())) == 1


@rule("Where")
def _where(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    condition, *branches = node.input
    to, zero = g.shape(node.output[0]), g.constant(0.0)
    results: list[str | None] = [None]
    for name, want, first in zip(branches, wanted[1:], (True, False), strict=True):
        chosen = g.op("Where", condition, *((dy, zero) if first else (zero, dy))) if want else None
        results.append(None if chosen is None else _unbroadcast(g, chosen, g.shape(name), to))
    return results


@rule("Cast")
def _cast(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """What comes from a comparison, the only other source of a Cast to float32, ends at its rule below."""
    if attributes(node)["to"] != onnx.TensorProto.FLOAT:
        raise ExportError("expected a Cast to float32, but the model rounds to another type; keep to float32")
    return [dy]


@rule("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "Or", "Not", "Sign")
def _constant(g: Graph, node: onnx.NodeProto, dy: str, wanted: Wanted) -> list[str | None]:
    """Constant between its jumps."""
    return [None] * len(node.input)
