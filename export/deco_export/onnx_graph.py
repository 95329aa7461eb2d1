"""A small builder of ONNX graphs: every learning graph is written through it, in standard operators of opset 18."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from deco_runtime.errors import ExportError
from onnx import TensorProto, helper, numpy_helper

OPSET = 18
IR_VERSION = 8  # what ONNX Runtime 1.18 … 1.32 and OpenVINO all read

Shape = tuple["int | str", ...]
"""Static sizes as int, the batch as the string "N"."""


class Graph:
    """Nodes, constants and the shapes of named values, in topological order."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self.shapes: dict[str, Shape] = {}
        self._by_value: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._count = 0

    def fresh(self, hint: str) -> str:
        """A value name not used before."""
        self._count += 1
        return f"{hint}_{self._count}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append one node; returns its output's name, or a tuple of names when `outputs` > 1."""
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """The name of a constant with this value; equal constants share one name."""
        array = np.ascontiguousarray(np.asarray(value, dtype))
        array = array.reshape(np.shape(value))  # ascontiguousarray turns scalars into vectors
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._by_value:
            name = self.fresh("constant")
            self._by_value[key] = name
            self.constants[name] = array
        return self._by_value[key]

    def integers(self, values: Sequence[int]) -> str:
        """An int64 vector constant, as axes, shapes and pads are given."""
        return self.constant(list(values), np.int64)

    def shape(self, name: str) -> Shape:
        """Shape of a constant, or of a value of the forward graph.

        Raises ExportError where a size other than the batch is free.
        """
        if name in self.constants:
            return self.constants[name].shape
        if name not in self.shapes:
            raise ExportError(
                f"expected sizes that are fixed but for the batch, but those of {name!r} are not; "
                "keep the batch first and apart in every reshape of the model"
            )
        return self.shapes[name]

    def model(self, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], name: str) -> onnx.ModelProto:
        """The finished model: only what the outputs need, checked by onnx, all values float32."""
        nodes = needed(self.nodes, outputs)
        for node in nodes:  # ONNX Runtime names what it fuses after them, and refuses two of the same name, as of none
            node.name = node.output[0]
        used = {value for node in nodes for value in node.input}
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in inputs.items()],
            [helper.make_tensor_value_info(k, TensorProto.FLOAT, v) for k, v in outputs.items()],
            [numpy_helper.from_array(v, k) for k, v in self.constants.items() if k in used],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="deco-export",
        )
        onnx.checker.check_model(model)
        return model


def needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that these values depend on, in their order."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if any(name in wanted for name in node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """A node's attributes as Python values."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}
