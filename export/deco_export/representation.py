"""The representation φ that learners answer from: two layers of the pre-trained model, pooled, of the image and its
mirror image, projected.

The projection holds those principal axes of the labelled images along which their classes lie furthest apart, so that
their statistics stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from deco_runtime.types import Floats, Ints
from onnx import TensorProto, helper

from deco_export.forward import Forward
from deco_export.images import Inputs, asked, batches

GRID = 4
"""A layer's map is averaged to at most this many positions each way."""
SIZE = 960
"""Most values of a representation: the second moments of so many are 1.8 MB of float32."""
ENOUGH = 2
"""Times SIZE images, at least, to find the axes of."""
MOST = 5000
"""Images in memory at a time as what the layers say of them, which is more than their pixels; and that the axes are
found of: with so many they hardly change any more."""
BATCH = 32

Labelled = tuple[Floats | Inputs, Ints]
"""Images x (n, C, H, W), which may be made when they are asked for, and their labels y (n,)."""


@dataclass(frozen=True)
class Projection:
    """φ = (raw − mean)·axes. mean: (R,) float32. axes: (R, D) float32, D ≤ SIZE."""

    mean: Floats
    axes: Floats

    @classmethod
    def fit(cls, raw: Floats, y: Ints, layers: tuple[int, ...]) -> Projection:
        """Principal axes of raw (n, R), in which each layer, of the sizes `layers`, counts by its own spread.

        Where there are more than SIZE, those stay along which the means of the classes, labels y (n,), vary most. The
        first axis of all has a mean square of 1 over raw. D is also at most n − 1.
        """
        mean = raw.mean(axis=0)
        centred = raw - mean
        spreads = [part.std() + 1e-12 for part in np.split(centred, np.cumsum(layers)[:-1], axis=1)]
        scale = np.repeat(1 / np.array(spreads), layers).astype(np.float32)
        centred *= scale
        left, values, rows = np.linalg.svd(centred, full_matrices=False)
        count = min(len(raw) - 1, raw.shape[1])
        means = np.stack([left[y == c].mean(axis=0) for c in np.unique(y)]) * values
        kept = np.sort(np.argsort(-means[:, :count].var(axis=0), kind="stable")[:SIZE])
        size = max(float(values[0]) / np.sqrt(len(raw)), 1e-12)
        return cls(mean, np.ascontiguousarray((rows[kept] * scale / size).T.astype(np.float32)))


@dataclass(frozen=True)
class Representation:
    """model: the graph x → representation (N, D), logits (N, K). size: D. parts: φ (n, D) and logits (n, K) of the
    labelled images, part by part, at each call."""

    model: onnx.ModelProto
    size: int
    parts: Callable[[], Iterator[tuple[Floats, Floats]]]


def fit(
    fresh: Callable[[], Forward],
    theta: Floats,
    train: Labelled,
    classes: int,
    mirrored: bool,
    rng: np.random.Generator,
) -> Representation:
    """What learners that answer from a representation start from. train: x (n, C, H, W) and y (n,). mirrored: a
    mirrored image shows the same class.

    For the projection, fewer than ENOUGH · SIZE images are joined by shifted copies, and of more than MOST a random
    MOST are taken.
    """
    x, y = train
    raw_model, layers = raw_graph(fresh(), theta, mirrored)
    some = np.arange(len(x)) if len(x) <= MOST else np.sort(rng.choice(len(x), MOST, replace=False))
    copies = max(0, -(-ENOUGH * SIZE // len(x)) - 1)
    (raw,) = run_batches(raw_model, ("raw",), _with_copies(x, some, copies, rng), len(some) * (1 + copies))
    projection = Projection.fit(raw, np.tile(y[some], 1 + copies), layers)
    del raw
    side = x[:1].shape[-1]

    def parts() -> Iterator[tuple[Floats, Floats]]:
        for part in batches(len(x), MOST):
            index = np.arange(len(x))[part]
            given = (x[index[batch]] for batch in _batches(len(index), side))
            raw, logits = run_batches(raw_model, ("raw", "votes"), given, len(index))
            raw -= projection.mean
            yield (raw @ projection.axes).astype(np.float32), logits

    return Representation(projected(raw_model, projection, classes), projection.axes.shape[1], parts)


def _with_copies(x: Floats | Inputs, some: Ints, copies: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Some of the images, a few at a time, and as often again as `copies` says shifted at random."""
    import torch  # a network that is not trained here is exported without it

    from deco_export.augment import shift, shifts

    side = x[:1].shape[-1]
    for batch in _batches(len(some), side):
        yield x[some[batch]]
    for _ in range(copies):
        by = shifts(len(some), side, rng)
        for batch in _batches(len(some), side):
            yield shift(torch.from_numpy(x[some[batch]]), by[batch]).numpy()


def _batches(n: int, side: int) -> Iterator[slice]:
    """Slices of at most BATCH images of this side, together the whole of n."""
    return batches(n, min(BATCH, asked(side)))


def raw_graph(f: Forward, theta: Floats, mirrored: bool) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """x → raw (N, R), logits (N, K); and the sizes of raw's layers.

    raw: the features, and the input of the last convolution that reads the coarsest map. mirrored: the sum of those of
    the image and of its mirror image, and the mean of their logits, so that both get the same.
    """
    g = f.graph
    f.bake(theta)
    layers = [f.features_name]
    place = _coarsest_map(f)
    if place is not None:
        _, _, height, width = g.shape(place)
        k = [max(1, int(height) // GRID), max(1, int(width) // GRID)]
        layers.append(g.op("Flatten", g.op("AveragePool", place, kernel_shape=k, strides=k), axis=1))
    raw = g.op("Concat", *layers, axis=1) if len(layers) > 1 else layers[0]
    inputs, logits = {"x": f.x_shape}, f.logits_name
    if mirrored:
        raw = g.op("Add", *g.op("Split", raw, outputs=2, axis=0, num_outputs=2))
        logits = g.op("Mean", *g.op("Split", logits, outputs=2, axis=0, num_outputs=2))
        flipped = helper.make_node(
            "Slice", ["x", g.integers([-1]), g.integers([-(2**31)]), g.integers([3]), g.integers([-1])], ["mirror"]
        )
        both = helper.make_node("Concat", ["x", "mirror"], ["both"], axis=0)
        for node in g.nodes:
            node.input[:] = ["both" if name == "x" else name for name in node.input]
        g.nodes[:0] = [flipped, both]
    g.nodes.append(helper.make_node("Identity", [raw], ["raw"]))
    g.nodes.append(helper.make_node("Identity", [logits], ["votes"]))
    sizes = [f.features]
    if place is not None:
        _, channels, height, width = (int(d) if d != "N" else 0 for d in g.shape(place))
        sizes.append(channels * (height // max(1, height // GRID)) * (width // max(1, width // GRID)))
    return g.model(inputs, {"raw": ("N", sum(sizes)), "votes": ("N", f.classes)}, "raw"), tuple(sizes)


def _coarsest_map(f: Forward) -> str | None:
    """The input of the last convolution that reads a map of the fewest positions; None for a model without any."""
    shapes = f.graph.shapes
    read = [
        node.input[0]
        for node in f.graph.nodes
        if node.op_type == "Conv" and node.input[0] != "x" and len(shapes.get(node.input[0], ())) == 4
    ]
    several = [name for name in read if int(shapes[name][2]) * int(shapes[name][3]) > 1]
    return min(reversed(several), key=lambda name: int(shapes[name][2]) * int(shapes[name][3]), default=None)


def projected(raw: onnx.ModelProto, projection: Projection, classes: int) -> onnx.ModelProto:
    """The raw graph with the projection behind; the axes are kept as float16, half the file."""
    model = onnx.ModelProto()
    model.CopyFrom(raw)
    graph = model.graph
    graph.initializer.extend(
        [
            onnx.numpy_helper.from_array(projection.mean, "projection.mean"),
            onnx.numpy_helper.from_array(projection.axes.astype(np.float16), "projection.axes16"),
        ]
    )
    graph.node.extend(
        [
            helper.make_node("Cast", ["projection.axes16"], ["projection.axes"], to=TensorProto.FLOAT),
            helper.make_node("Sub", ["raw", "projection.mean"], ["projection.centred"]),
            helper.make_node("MatMul", ["projection.centred", "projection.axes"], ["representation"]),
        ]
    )
    graph.output[0].CopyFrom(
        helper.make_tensor_value_info("representation", TensorProto.FLOAT, ["N", projection.axes.shape[1]])
    )
    graph.name = "representation"
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, output: str, x: Floats) -> Floats:
    """One output (n, …) of a graph whose only input is x, over images x (n, C, H, W), 1 or more."""
    (found,) = run_batches(model, (output,), (x[batch] for batch in _batches(len(x), x.shape[-1])), len(x))
    return found


def run_batches(model: onnx.ModelProto, outputs: Sequence[str], given: Iterable[Floats], n: int) -> list[Floats]:
    """Several outputs (n, …) of such a graph over n images given as batches; filled into one array each, since a list
    of parts would be held twice."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False  # it takes up to twice what it needs
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    shape = {each.name: each.shape[1:] for each in session.get_outputs()}
    found, done = [np.empty((n, *shape[name]), np.float32) for name in outputs], 0
    for x in given:
        for array, values in zip(found, session.run(outputs, {"x": x}), strict=True):
            array[done : done + len(x)] = values
        done += len(x)
    return found
