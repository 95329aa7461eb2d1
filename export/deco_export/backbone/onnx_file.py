"""Reading an ONNX file of any exporter, and saying the same network in float32 and operators of opset 18."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx.version_converter
from deco_runtime.errors import ExportError, first_line
from onnx import AttributeProto, TensorProto, external_data_helper, helper, numpy_helper

from deco_export.onnx_graph import IR_VERSION, OPSET, attributes

OLDEST = 7  # opset: before it operators did not broadcast as they do today
LARGEST = 2**31 - 2**20  # bytes: a protobuf file ends at 2 GB, and the graph itself needs a little

_TO_FLOAT = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_QUANTIZED = ("DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
_BROKEN_AT_18 = ("GroupNormalization",)  # scale per group there, per channel since 21: only its body says the same


def read(path: Path) -> onnx.ModelProto:
    """The model in a file, with the weights that lie in files beside it.

    Raises ExportError when the file or its external data is missing, is not ONNX, or is larger than 2 GB.
    """
    if not path.is_file():
        raise ExportError(f"expected an ONNX file, but there is none at {path}; give the path of a .onnx file")
    _no_larger_than_protobuf(path.stat().st_size)
    try:
        model = onnx.load(str(path), format="protobuf", load_external_data=False)
    except Exception as error:  # of protobuf, in whichever of its implementations
        raise ExportError(f"expected an ONNX file, but {path} is not one; export the network to ONNX") from error
    if not model.graph.node or not model.ir_version:
        raise ExportError(f"expected an ONNX file, but {path} holds no network; export the network to ONNX")
    _no_larger_than_protobuf(_weights(model))
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        place = next((e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"), "")
        raise ExportError(
            f"expected the weights of {path.name} in the file {place!r} beside it, but they cannot be read; "
            "copy that file too, under the name it was exported with"
        ) from error
    return model


def _weights(model: onnx.ModelProto) -> int:
    """Bytes of the weights as float32: half precision doubles."""
    return 4 * sum(int(prod(t.dims)) for graph in graphs_of(model.graph) for t in graph.initializer)


def _no_larger_than_protobuf(size: int) -> None:
    if size > LARGEST:
        raise ExportError(f"expected at most 2 GB of weights, but there are {size / 1e9:.1f} GB; use a smaller network")


def graphs_of(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and the graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from graphs_of(inner)


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without local functions, and with no weight among its inputs, as IR version 3 has them."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    else:
        model = onnx.ModelProto.FromString(model.SerializeToString())  # the caller's own is left as it is
    weights = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def refuse_special(model: onnx.ModelProto) -> None:
    """Raises ExportError for a quantized model, for operators of other domains than ai.onnx and for sparse weights."""
    for node in (node for graph in graphs_of(model.graph) for node in graph.node):
        if "QuantizeLinear" in node.op_type or node.op_type.startswith("QLinear") or node.op_type in _QUANTIZED:
            raise ExportError(
                f"expected a float model, but {node.op_type} in it makes it a quantized one; "
                "give the model from before its quantization: the export quantizes by itself"
            )
        if node.domain not in ("", "ai.onnx"):
            raise ExportError(
                f"expected standard ONNX operators, but the model needs {node.domain}.{node.op_type}; "
                "export it again without operators of its own and without a runtime's fusions"
            )
        node.domain = ""
    if model.graph.sparse_initializer:
        raise ExportError("expected dense weights, but some are sparse tensors; export the model with dense ones")


def as_float32(model: onnx.ModelProto) -> bool:
    """Turn half, bfloat16 and double into float32 everywhere, in place; whether half or bfloat16 was among them."""
    half = False

    def tensor(t: onnx.TensorProto) -> None:
        nonlocal half
        if t.data_type in _TO_FLOAT:
            half |= t.data_type != TensorProto.DOUBLE
            array, limits = numpy_helper.to_array(t), np.finfo(np.float32)
            if t.data_type == TensorProto.DOUBLE:  # −1e308, as a mask may hold it, is to stay finite
                array = np.where(np.isfinite(array), np.clip(array, limits.min, limits.max), array)
            t.CopyFrom(numpy_helper.from_array(np.asarray(array, np.float32), t.name))

    for graph in graphs_of(model.graph):
        for t in graph.initializer:
            tensor(t)
        for info in [*graph.input, *graph.output, *graph.value_info]:
            kind = info.type.tensor_type
            if kind.elem_type in _TO_FLOAT:
                half |= kind.elem_type != TensorProto.DOUBLE
                kind.elem_type = TensorProto.FLOAT
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    tensor(attribute.t)
                elif attribute.name in ("to", "dtype", "softmax_precision") and attribute.i in _TO_FLOAT:
                    attribute.i = TensorProto.FLOAT
    _no_larger_than_protobuf(_weights(model))
    return half


def at_opset_18(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in operators of opset 18, whatever opset it was written in.

    Raises ExportError naming the operator that has no equal there.
    """
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= version <= newest:
        raise ExportError(
            f"expected an opset from {OLDEST} to {newest}, but the model is written in {version}; export it at {OPSET}"
        )
    model.ir_version = max(model.ir_version, IR_VERSION)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", version))
    if version < OPSET:
        try:
            model = onnx.version_converter.convert_version(model, OPSET)
        except Exception as error:  # the converter throws whatever its C++ does
            raise ExportError(
                f"expected operators that can be said in opset {OPSET}, but from opset {version} they cannot: "
                f"{first_line(error)}; export the model at opset {OPSET}"
            ) from error
    while version > OPSET:
        newer = {n.op_type for graph in graphs_of(model.graph) for n in graph.node if _is_newer(n, version)}
        if not newer:
            break
        model = _inlined(model, sorted(newer), version)
    for graph in graphs_of(model.graph):
        for node in graph.node:
            _relabel(node, version)
    model.opset_import[0].version = OPSET
    model.ir_version = IR_VERSION
    return model


def _is_newer(node: onnx.NodeProto, version: int) -> bool:
    """Whether opset 18 lacks this operator, or has only another of the same name."""
    return not onnx.defs.has(node.op_type, OPSET, "") or (node.op_type in _BROKEN_AT_18 and version > 20)


def _inlined(model: onnx.ModelProto, kinds: list[str], version: int) -> onnx.ModelProto:
    for kind in kinds:
        schema = onnx.defs.get_schema(kind, version, "") if onnx.defs.has(kind, version, "") else None
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            raise ExportError(
                f"expected operators of opset {OPSET}, but {kind} has no equal there; export the model at opset {OPSET}"
            )
        for node in (n for graph in graphs_of(model.graph) for n in graph.node if n.op_type == kind):
            given = {a.name for a in node.attribute}  # the inliner leaves those out that are not
            defaults = [a.default_value for a in schema.attributes.values() if a.name not in given]
            node.attribute.extend(d for d in defaults if d.type != AttributeProto.UNDEFINED)
    # Bodies depend on types, and the inliner looks for those of the weights among the values only.
    known = {info.name for info in model.graph.value_info}
    model.graph.value_info.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
        for t in model.graph.initializer
        if t.name not in known
    )
    try:
        typed = onnx.shape_inference.infer_shapes(model)
        return onnx.inliner.inline_selected_functions(typed, [("", k) for k in kinds], inline_schema_functions=True)
    except Exception as error:
        raise ExportError(
            f"expected operators of opset {OPSET}, but {', '.join(kinds)} cannot be said in it: {first_line(error)}; "
            f"export the model at opset {OPSET}"
        ) from error


def _relabel(node: onnx.NodeProto, version: int) -> None:
    """Make a node of a newer opset one of opset 18, in place, where the operator is the same but for defaults."""
    if version <= OPSET:
        return
    new, old = onnx.defs.get_schema(node.op_type, version, ""), onnx.defs.get_schema(node.op_type, OPSET, "")
    values = attributes(node)
    if node.op_type == "GridSample":  # whose modes opset 20 gave the names that they have for any number of dimensions
        older = {b"linear": "bilinear", b"cubic": "bicubic"}
        for mode in [a for a in node.attribute if a.name == "mode" and a.s in older]:
            mode.CopyFrom(helper.make_attribute("mode", older[mode.s]))
    for name in set(values) - set(old.attributes):
        default = new.attributes[name].default_value
        at_default = default.type != AttributeProto.UNDEFINED and values[name] == helper.get_attribute_value(default)
        if at_default or _says_nothing(node.op_type, name, values[name]):
            node.attribute.remove(next(a for a in node.attribute if a.name == name))
        else:
            raise ExportError(
                f"expected operators of opset {OPSET}, but {node.op_type} has the attribute {name!r} of a newer one; "
                f"export the model at opset {OPSET}"
            )
    if len(node.input) > len(old.inputs) and not any(
        i.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for i in old.inputs
    ):
        raise ExportError(
            f"expected operators of opset {OPSET}, but {node.op_type} has an input of a newer one; "
            f"export the model at opset {OPSET}"
        )


def _says_nothing(kind: str, name: str, value: object) -> bool:
    """Whether an attribute newer than opset 18 changes nothing: whatever it says, in float32 it is the same."""
    if name in ("saturate", "round_mode", "stash_type"):  # of float8 conversions, and of sums in half precision
        return True
    return kind == "AveragePool" and name == "dilations" and set(value) == {1}  # type: ignore[call-overload]
