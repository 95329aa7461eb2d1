"""One pass of the labelled images through the frozen network: all that the export wants to know of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Floats
from onnx import TensorProto, helper, numpy_helper

from deco_export.backbone.anatomy import Anatomy
from deco_export.images import ImageSet, Inputs, asked, batches
from deco_export.onnx_graph import IR_VERSION, OPSET, needed
from deco_export.representation import run_batches

MOST_VALUES = 4096
"""Of one map, pooled: with more, what is projected would be larger than the network."""
FEATURES, LATENTS = "probe.features", "probe.latents"
GRID = 4
"""Most positions each way that a map is averaged to."""


def model_of(
    anatomy: Anatomy,
    extra: Sequence[onnx.NodeProto],
    weights: Mapping[str, np.ndarray],
    outputs: Mapping[str, tuple[int, ...]],
) -> onnx.ModelProto:
    """The network up to some values, and nodes behind them: x → outputs, names with their sizes without the batch."""
    nodes = needed([*anatomy.nodes, *extra], outputs)
    used = {name for node in nodes for name in node.input}
    everything = {**anatomy.weights, **weights}
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *anatomy.shapes["x"]])],
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, ["N", *v]) for k, v in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in everything.items() if k in used],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="deco-export"
    )
    onnx.checker.check_model(model)
    return model


def pooled(anatomy: Anatomy, value: str, name: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], int]:
    """Nodes, and their constants, that make a vector `name` (N, R) of a value; and R.

    A map (C, H, W) is averaged over the positions of a grid of GRID or, where that gives more than MOST_VALUES, fewer
    each way. Tokens (T, C) are laid out as the square they were cut from, without those in front of it. Of a vector
    nothing is changed.
    """
    shape, nodes, constants = anatomy.shapes[value], list[onnx.NodeProto](), dict[str, np.ndarray]()

    def node(kind: str, given: str, made: str, *values: Sequence[int], **how: object) -> str:
        names = []
        for position, each in enumerate(values):
            names.append(f"{made}.{position}")
            constants[names[-1]] = np.asarray(each, np.int64)
        nodes.append(helper.make_node(kind, [given, *names], [made], **how))
        return made

    if len(shape) == 1:
        node("Identity", value, name)
        return nodes, constants, shape[0]
    if len(shape) == 2:
        tokens, channels = shape
        side = math.isqrt(tokens)
        value = node("Slice", value, f"{name}.patches", [tokens - side * side], [tokens], [1])
        value = node("Transpose", value, f"{name}.channels", perm=[0, 2, 1])
        value = node("Reshape", value, f"{name}.square", [0, channels, side, side])
        shape = (channels, side, side)
    channels, height, width = shape
    grid = max(1, min(GRID, math.isqrt(MOST_VALUES // channels), height, width))
    # As many positions as the grid has, each of the same size; what does not come out even is left out at the end.
    kernel = [height // grid, width // grid]
    value = node("AveragePool", value, f"{name}.grid", kernel_shape=kernel, strides=kernel)
    node("Flatten", value, name, axis=1)
    return nodes, constants, channels * (height // kernel[0]) * (width // kernel[1])


def vector(anatomy: Anatomy, value: str, name: str) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray], int]:
    """Nodes, and their constants, that make the features `name` (N, F) of a value: the mean over its positions."""
    shape = anatomy.shapes[value]
    if len(shape) == 1:
        return [helper.make_node("Identity", [value], [name])], {}, shape[0]
    axes = f"{name}.axes"
    if len(shape) == 2:
        mean = helper.make_node("ReduceMean", [value, axes], [name], keepdims=0)
        return [mean], {axes: np.array([1], np.int64)}, shape[1]
    mean = helper.make_node("ReduceMean", [value, axes], [name], keepdims=0)
    return [mean], {axes: np.array([2, 3], np.int64)}, shape[0]


def run(
    model: onnx.ModelProto, images: ImageSet, preprocessing: Preprocessing, tick: Callable[[int, int], None]
) -> dict[str, Floats]:
    """All outputs of a model (n, …) for these images; tick is called with (done, n)."""
    names, inputs = [output.name for output in model.graph.output], Inputs(images, preprocessing)

    def given() -> Iterator[Floats]:
        for batch in batches(len(images), asked(preprocessing.size)):
            yield inputs[batch]
            tick(min(batch.stop, len(images)), len(images))

    return dict(zip(names, run_batches(model, names, given(), len(images)), strict=True))


class Seen:
    """What one pass of some images through a network found: features (n, F), those at `at`; latents (n, …), what is at
    the cut, or the features where that is x; and maps, name → pooled (n, R), the features first."""

    def __init__(
        self,
        anatomy: Anatomy,
        at: str,
        cut: str,
        maps: Sequence[str],
        images: ImageSet,
        preprocessing: Preprocessing,
        tick: Callable[[int, int], None],
    ) -> None:
        nodes, constants, size = vector(anatomy, at, FEATURES)
        outputs: dict[str, tuple[int, ...]] = {FEATURES: (size,)}
        if cut != "x":
            nodes.append(onnx.helper.make_node("Identity", [cut], [LATENTS]))
            outputs[LATENTS] = anatomy.shapes[cut]
        names = {}
        for number, name in enumerate(maps):
            more, values, count = pooled(anatomy, name, f"probe.map{number}")
            nodes += more
            constants |= values
            outputs[f"probe.map{number}"] = (count,)
            names[f"probe.map{number}"] = name
        found = run(model_of(anatomy, nodes, constants, outputs), images, preprocessing, tick)
        self.features = found[FEATURES]
        self.latents = found.get(LATENTS, self.features)
        self.maps = {at: self.features} | {names[key]: value for key, value in found.items() if key in names}
