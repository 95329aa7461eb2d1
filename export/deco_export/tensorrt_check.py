"""deco-export --check tensorrt: which operators of a bundle's graphs TensorRT's support matrix lacks; needs no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
from deco_runtime.engine import REPRESENTATION, TRUNK
from deco_runtime.storage.bundle import open_bundle

from deco_export.tensorrt_operators import CONSTANT, SOURCE, SUPPORTED, VERSION

TAKEN = ("inference", REPRESENTATION, TRUNK)
"""What deco-run --provider tensorrt gives TensorRT: the graphs with their weights inside. All others are CUDA's."""
OWN = ("", "ai.onnx")
"""Names of ONNX's own operators' domain."""


def check(path: Path) -> tuple[list[str], bool]:
    """Lines of a table with a row for each graph of the bundle, and whether the matrix has all of their operators.

    Raises BundleError where it cannot be opened.
    """
    bundle = open_bundle(path)
    names = sorted(name for name in bundle.files if name == "inference.onnx" or name.startswith("graphs/"))
    rows, fine = [("graph", "operators", "TensorRT", f"not in the support matrix of TensorRT {VERSION}")], True
    for name in names:
        model = onnx.load_model_from_string(bundle.root.joinpath(name).read_bytes())
        lacking, graph = missing(model), Path(name).stem
        fine &= not lacking
        words = ", ".join(f"{count} {what}" for what, count in lacking.most_common()) or "–"
        rows.append((graph, str(len(model.graph.node)), "yes" if graph in TAKEN else "", words))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]
    return [*lines, "", f"yes: what --provider tensorrt gives TensorRT; the others run on CUDA. Matrix: {SOURCE}"], fine


def missing(model: onnx.ModelProto) -> Counter[str]:
    """Nodes of a graph that the matrix lacks, by operator and why."""
    types = _types(model)
    constants = {each.name for each in model.graph.initializer}
    constants |= {out for node in model.graph.node if node.op_type == "Constant" for out in node.output}
    return Counter(words for node in model.graph.node for words in _complaints(node, types, constants))


def _complaints(node: onnx.NodeProto, types: dict[str, str], constants: set[str]) -> Iterator[str]:
    name = node.op_type
    if node.domain not in OWN or name not in SUPPORTED:
        yield f"{node.domain}.{name}" if node.domain not in OWN else name
        return
    # Of most operators the matrix's types are those of what is computed with, the first input.
    asked = [*node.input[:1]] if node.input and name != "ConstantOfShape" else [*node.output[:1]]
    asked += node.output[:1] if name in ("Cast", "CastLike") else []
    for each in asked:
        if each in types and types[each] not in SUPPORTED[name]:
            yield f"{name} of {types[each].lower()}"
            return
    place = CONSTANT.get(name)
    if place is not None and len(node.input) > place and node.input[place] and node.input[place] not in constants:
        yield f"{name} by what is computed"
    if name == "MaxPool" and len(node.output) > 1 and node.output[1]:
        yield "MaxPool with indices"


def _types(model: onnx.ModelProto) -> dict[str, str]:
    """Type of each tensor, as far as ONNX infers them."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    found = {each.name: onnx.TensorProto.DataType.Name(each.data_type) for each in graph.initializer}
    for each in (*graph.input, *graph.value_info, *graph.output):
        found[each.name] = onnx.TensorProto.DataType.Name(each.type.tensor_type.elem_type)
    return found
