"""The frozen trunk in 8 bits: less to read and to multiply, where the device has instructions for it.

Only what stays as it is can be kept in 8 bits: what learns needs the small steps that float32 can tell apart. So the
nodes up to the cut are quantized, and their place in the network is taken by the same in QuantizeLinear and
DequantizeLinear of the standard domain, which every runtime reads. Whatever is made of the network later, such as the
trunk, the representation and the classifier, is made of what the device will see.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from deco_runtime.errors import ExportError, RuntimeMissingError, UsageError, first_line
from deco_runtime.types import Floats, Ints
from onnx import numpy_helper

from deco_export.backbone.anatomy import Anatomy
from deco_export.backbone.probe import model_of
from deco_export.images import Arrays

CHOICES = ("none", "int8")
PRODUCTS = ("Conv", "Gemm", "MatMul")
PICKING = ("Relu", "Clip", "MaxPool", "AveragePool", "GlobalAveragePool", "Concat", "Split", "Slice", "Gather", "Pad")
MOVING = ("Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""What is quantized: products, which take the time, and what passes their values on. Sums, norms, gates and attention
stay as they are: a transformer whose sums of blocks are in 8 bits is off seven times as much, and no faster."""
IMAGES, AT_ONCE = 200, 8
"""Labelled images, at most, that ranges are taken from, and how many are looked at at a time."""
SMALLEST = 2.0**-14
"""Weights of a channel count as if they reached this part of its bias at least; smaller ones do not show beside it."""
LARGEST_LOSS, LEAST = 0.01, 1
"""Of the share of right answers: with more, and more images than LEAST, the export is refused."""


@dataclass(frozen=True)
class Loss:
    """What the answers of a network lose by having its trunk in 8 bits.

    agreement: share of equal answers. before, after: share of right ones. images: how many were asked for, held_out or
    trained on. float_bytes, bytes: of the trunk.
    """

    agreement: float
    before: float
    after: float
    images: int
    held_out: bool
    float_bytes: int
    bytes: int

    def note(self) -> str:
        """All of it in a sentence."""
        return (
            f"--quantize int8: the trunk takes {self.bytes / 1e6:.2g} MB instead of {self.float_bytes / 1e6:.2g}; of "
            f"{self.images} {'held-out' if self.held_out else 'training'} images {self.agreement:.1%} get the same "
            f"answer, and {self.after:.1%} are right instead of {self.before:.1%}"
        )

    def figures(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "quantize_agreement": self.agreement,
            "quantize_accuracy": self.after,
            "float_accuracy": self.before,
            "quantize_held_out": self.held_out,
            "quantize_images": self.images,
            "trunk_bytes": self.bytes,
            "float_trunk_bytes": self.float_bytes,
        }


def check(cut: str) -> None:
    """Raise UsageError where there is nothing in front of the cut."""
    if cut == "x":
        raise UsageError(
            "expected --quantize int8 with a frozen part of the network, but --cut x leaves none; leave out one of them"
        )


def compared(before: Ints, after: Ints, labels: Ints, held_out: bool, float_bytes: int, bytes: int) -> Loss:
    """Answers (n,) in float32 and in 8 bits to images of these labels (n,).

    Raises ExportError where more than LARGEST_LOSS of them are lost, and of few images more than one.
    """
    right, still = int((before == labels).sum()), int((after == labels).sum())
    n = len(labels)
    if right - still > max(LARGEST_LOSS * n, LEAST):
        raise ExportError(
            f"expected a trunk in 8 bits to lose at most {LARGEST_LOSS:.0%} of the answers, but of {n} "
            f"{'held-out' if held_out else 'training'} images {still / n:.1%} are right instead of {right / n:.1%}; "
            "leave out --quantize, cut earlier with --cut, or take a network made for 8 bits"
        )
    return Loss(float(np.mean(before == after)), right / n, still / n, n, held_out, float_bytes, bytes)


def trunk(anatomy: Anatomy, cut: str, maps: Sequence[str], x: Arrays) -> Anatomy:
    """The network with everything up to the cut in 8 bits, weights per channel; values keep their names and shapes.

    maps: values of which those in front of the cut are read elsewhere too. x: labelled images x[i] (n, C, H, W).

    The range of a value is from the smallest to the largest seen: the features of EfficientNet-Lite0 are off by a fifth
    of their size then, by 0.44 with percentiles and by 0.7 with entropies, which cut off what is rare and matters; and
    no histogram of every value need be kept. Weights use 7 of the 8 bits, at twice the error and the same accuracy: x86
    processors without VNNI add products in 16 bits, which weights of 8 overflow without a word.

    Raises RuntimeMissingError without the quantizer, and ExportError where it does not understand the network.
    """
    end = anatomy.made_by[cut]
    outputs = {name: anatomy.shapes[name] for name in dict.fromkeys((cut, *maps)) if anatomy.made_by[name] <= end}
    model = model_of(anatomy, [], {}, outputs)
    for node in model.graph.node:  # the quantizer tells nodes apart by their names
        node.name = node.output[0]
    found = _quantized(model, x)
    _rename(found, {"", "x", *anatomy.made_by})
    if not any(node.op_type == "QuantizeLinear" for node in found.graph.node):
        raise ExportError(
            f"expected convolutions or products in front of the cut {cut} to quantize, but there are none; leave out "
            "--quantize, or cut later"
        )
    nodes = [*found.graph.node, *anatomy.nodes[end + 1 :]]
    made_by = {name: index for index, node in enumerate(nodes) for name in node.output}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in found.graph.initializer}
    return replace(
        anatomy,
        nodes=nodes,
        made_by=made_by,
        weights={**anatomy.weights, **weights},
        alone=tuple(name for name in anatomy.alone if name in made_by),
        cost=tuple(anatomy.cost[anatomy.made_by[n.output[0]]] if n.output[0] in anatomy.made_by else 0 for n in nodes),
    )


def _quantized(model: onnx.ModelProto, x: Arrays) -> onnx.ModelProto:
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected ONNX Runtime's quantizer for --quantize int8, but {first_line(error)}; run "
            "pip install 'deco-edge[backbone]'"
        ) from error
    with tempfile.TemporaryDirectory() as folder, _silent():
        given, made = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        onnx.save_model(model, given)
        try:
            quantization.quantize_static(
                str(given),
                str(made),
                _Reader(x),
                op_types_to_quantize=[*PRODUCTS, *PICKING, *MOVING],
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=quantization.CalibrationMethod.MinMax,
                # One batch after the other: it would keep what every layer says of all images else.
                extra_options={"CalibStridedMinMax": 1, "TensorQuantOverrides": _ranges(model)},
            )
        except Exception as error:  # foreign code, which dies in many ways
            raise ExportError(
                f"expected ONNX Runtime to quantize the network in front of the cut, but {first_line(error)}; leave "
                "out --quantize, or cut elsewhere"
            ) from error
        return onnx.load_model(str(made))


def _rename(model: onnx.ModelProto, kept: set[str]) -> None:
    """Names of its own for all but these: what lies behind the cut may use the same weights, in float32."""

    def named(name: str) -> str:
        return name if name in kept else f"int8.{name}"

    for node in model.graph.node:
        node.input[:] = map(named, node.input)
        node.output[:] = map(named, node.output)
    for tensor in model.graph.initializer:
        tensor.name = named(tensor.name)


def _ranges(model: onnx.ModelProto) -> dict[str, list[dict[str, Any]]]:
    """What the weights of channels reach, where that is nothing beside their bias, as after a batch norm that all but
    closed them: a bias is counted in 32 bits in steps of what the weights are counted in, and would overflow."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found: dict[str, list[dict[str, Any]]] = {}
    for node in model.graph.node:
        if node.op_type != "Conv" or len(node.input) < 3 or not {*node.input[1:]} <= values.keys():
            continue
        w, b = (values[name] for name in node.input[1:])
        reach, least = np.abs(w).max(axis=tuple(range(1, w.ndim))), np.abs(b) * SMALLEST
        if (reach < least).any():
            found[node.input[1]] = [{"axis": 0, "rmin": -r, "rmax": r} for r in np.maximum(reach, least)]
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Its advice to run a tool of its own first, which the normal form has done the work of, would be told twice."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


class _Reader:
    """A CalibrationDataReader, which asks for no base class: images evenly from all, a few at a time."""

    def __init__(self, x: Arrays) -> None:
        index = np.unique(np.linspace(0, len(x) - 1, min(len(x), IMAGES)).round().astype(np.int64))
        self._x, self._parts = x, np.array_split(index, -(-len(index) // AT_ONCE))
        self._left: Iterator[Ints] = iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._left = iter(self._parts[start_index:end_index])

    def get_next(self) -> dict[str, Floats] | None:
        part = next(self._left, None)
        return {"x": self._x[part]} if part is not None else None
