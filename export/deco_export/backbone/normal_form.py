"""Any ONNX image classifier or feature extractor → one normal form, proved against the file by running both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from deco_runtime.errors import ExportError, first_line
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from deco_export.backbone import onnx_file
from deco_export.backbone.norms import fold
from deco_export.backbone.onnx_file import read
from deco_export.backbone.sizes import Sizes
from deco_export.onnx_graph import IR_VERSION, OPSET, needed

__all__ = ["Normal", "normal_form", "read"]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_SHAPING = ("Identity", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Cast")
_USUAL_SIDE = 224


@dataclass(frozen=True)
class Normal:
    """A network in its normal form.

    model: one input `x` (N, 3, S, S) float32, R, G, B; one output `y`, images first; opset 18 (ai.onnx only), IR
    version 8; every weight a float32 initializer, the batch free everywhere; no local functions and no Constant nodes;
    BatchNormalization folded into the convolution or product before it where there is one, else Mul and Add; no
    Dropout, no Identity, no Softmax or LogSoftmax at the very end. `value_info` gives the sizes of every value, the
    batch as "N" and k times the batch as "k*N".
    side: S.
    raw: whether the network takes pixel values 0 … 255 itself, as one with uint8 input does.
    notes: what was changed that its owner should know, a sentence each.
    """

    model: onnx.ModelProto
    side: int
    raw: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Image:
    """The input of the file: its name, its type, S, the batch it fixes (0: none) and where it has the channels."""

    name: str
    kind: int
    side: int
    batch: int
    channels_last: bool

    @property
    def raw(self) -> bool:
        return bool(self.kind == TensorProto.UINT8)


def normal_form(model: onnx.ModelProto, side: int | None = None, output: str | None = None) -> Normal:
    """The normal form of a model; the model given is left as it is.

    side: S where the file leaves it free, 224 if not given. output: the value wanted as output; by default the
    output "logits" if there are several, else the first float one.

    Raises ExportError when the model is quantized, needs operators or control flow that opset 18 of ai.onnx cannot
    say, has not one input of square RGB images, contradicts `side`, or gives other numbers once its batch is free.
    """
    try:
        return _normal_form(onnx_file.inlined(model), side, output)
    except ExportError:
        raise
    except Exception:  # a file that breaks the rules of ONNX may break anything here
        try:
            onnx.checker.check_model(model)
        except Exception as error:
            raise ExportError(
                f"expected a valid ONNX model, but onnx finds: {first_line(error)}; export the network again"
            ) from error
        raise


def _normal_form(model: onnx.ModelProto, side: int | None, output: str | None) -> Normal:
    """The same of a model that may be changed."""
    notes = []
    if _choose_output(model, output):
        notes.append("The Softmax at the end is left out: what is learnt from are the values before it.")
    onnx_file.refuse_special(model)
    image = _image(model, side)
    original = onnx.ModelProto.FromString(model.SerializeToString())
    half = onnx_file.as_float32(model)
    model = onnx_file.at_opset_18(model)
    if half:
        notes.append("The weights are in half precision; they are computed with in single precision.")
    if image.batch:
        notes.append(f"The file takes batches of {image.batch} only; the network now takes any number of images.")
    if image.channels_last:
        notes.append("The network takes its channels last; they are moved there first.")
    # Reshapes of a file with a free batch are to be trusted, but some exporters free the input and nothing behind it.
    tries = (False,) if image.batch else (True, False)
    failure: ExportError | None = None
    for literal in tries:
        try:
            normal = _rebuilt(model, image, literal)
            _prove(original, normal, image, 1e-2 if half else 1e-3)
            return Normal(normal, image.side, image.raw, tuple(notes))
        except ExportError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _choose_output(model: onnx.ModelProto, output: str | None) -> bool:
    """Leave one output and what it needs, in place, without a Softmax at the end; whether there was one."""
    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    floats = [o for o in graph.output if o.type.tensor_type.elem_type in _FLOATS]
    if output is not None:
        typed = onnx.shape_inference.infer_shapes(model).graph
        info = next((o for o in [*graph.output, *typed.value_info] if o.name == output), None)
        if output not in made:
            there = ", ".join(repr(o.name) for o in graph.output)
            raise ExportError(
                f"expected an output among the values of the model, but {output!r} is none; give one of {there}"
                " or a value before it"
            )
        chosen = info or helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    elif floats:
        chosen = next((o for o in floats if o.name == "logits"), floats[0])
    else:
        raise ExportError("expected a model with a float output, but it has none; export the network with one")
    found = False
    if any(o.name == chosen.name for o in graph.output):
        last = made.get(chosen.name)
        while last is not None and last.op_type in _SHAPING:
            last = made.get(last.input[0])
        if last is not None and last.op_type in ("Softmax", "LogSoftmax"):
            last.CopyFrom(helper.make_node("Identity", list(last.input), list(last.output), name=last.name))
            found = True
    chosen = onnx.ValueInfoProto.FromString(chosen.SerializeToString())
    del graph.output[:]
    graph.output.append(chosen)
    _prune(graph)
    return found


def _prune(graph: onnx.GraphProto) -> None:
    """Drop nodes, weights and inputs that the outputs do not need, in place."""
    wanted, kept = {o.name for o in graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(node.input)
            inner = [a.g for a in node.attribute if a.g.node]
            for below in (g for i in inner for g in onnx_file.graphs_of(i)):
                wanted.update(name for n in below.node for name in n.input)
                wanted.update(o.name for o in below.output)
    for field, keep in (
        (graph.node, kept[::-1]),
        (graph.initializer, [t for t in graph.initializer if t.name in wanted]),
        (graph.input, [i for i in graph.input if i.name in wanted]),
    ):
        copies = [type(k).FromString(k.SerializeToString()) for k in keep]
        del field[:]
        field.extend(copies)


def _image(model: onnx.ModelProto, side: int | None) -> _Image:
    """The input, which is to be one of square images with three channels."""
    inputs = model.graph.input
    do = "give a network of one RGB image"
    if not inputs:
        raise ExportError("expected an output computed from the image, but it is not; give another output")
    if len(inputs) > 1:
        names = ", ".join(repr(i.name) for i in inputs)
        raise ExportError(f"expected one input, an RGB image, but the model has {names}; {do}")
    kind = inputs[0].type.tensor_type
    if kind.elem_type not in (*_FLOATS, TensorProto.UINT8):
        name = TensorProto.DataType.Name(kind.elem_type).lower()
        raise ExportError(f"expected an image as input, float or uint8, but {inputs[0].name!r} is {name}; {do}")
    dims = [d.dim_value if d.dim_value > 0 else 0 for d in kind.shape.dim] if kind.HasField("shape") else [0] * 4
    if len(dims) != 4:
        raise ExportError(f"expected an image as input, of 4 dimensions, but {inputs[0].name!r} has {len(dims)}; {do}")
    last = dims[1] != 3 and dims[3] == 3
    channels, *sides = (dims[3], dims[1], dims[2]) if last else dims[1:]
    if channels not in (0, 3):
        raise ExportError(
            f"expected an input with 3 channels, R, G and B, but {inputs[0].name!r} is {tuple(dims)}; {do}"
        )
    fixed = {s for s in sides if s}
    if len(fixed) > 1:
        raise ExportError(
            f"expected square images, but the model takes {sides[0]}×{sides[1]}; export it for square ones"
        )
    if side is not None and fixed and fixed != {side}:
        own = fixed.pop()
        raise ExportError(
            f"expected images of the model's own size, {own}×{own}, but {side} was asked for; "
            "leave the size out or export the model with a free one"
        )
    return _Image(inputs[0].name, kind.elem_type, fixed.pop() if fixed else side or _USUAL_SIDE, dims[0], last)


def _rebuilt(model: onnx.ModelProto, image: _Image, literal: bool) -> onnx.ModelProto:
    """The normal form of a float32 model of opset 18 with one output; not yet proved."""
    graph = model.graph
    taken = {"x", "y", image.name}
    for each in onnx_file.graphs_of(graph):
        taken.update(t.name for t in each.initializer)
        taken.update(name for node in each.node for name in (*node.input, *node.output))
    sizes = Sizes((3, image.side, image.side), image.batch or 1, literal, taken)
    value = sizes.x
    if image.raw:
        value = sizes.op("Round", value)
        value = sizes.op("Clip", value, *(sizes.constant(np.array(v, np.float32)) for v in (0, 255)))
    if image.channels_last:
        value = sizes.op("Transpose", value, perm=[0, 2, 3, 1])
    if image.raw:
        sizes.as_pixels(value, image.name)
    else:
        sizes.let(image.name, value)
    for t in graph.initializer:
        sizes.constant(numpy_helper.to_array(t), t.name)
    sizes.take(graph.node)
    y = sizes.name(graph.output[0].name)
    nodes = needed(fold(sizes, y), [y])
    if not any(sizes.x in node.input for node in nodes):
        raise ExportError("expected an output computed from the image, but it is not; give another output")
    return _assembled(sizes, nodes, y)


def _assembled(sizes: Sizes, nodes: list[onnx.NodeProto], y: str) -> onnx.ModelProto:
    """The model of these nodes, its input called `x`, its output `y`, every value with its sizes."""
    shape = sizes.symbolic(y)
    if shape is None or shape[:1] != ["N"] or sizes.kinds[y] != TensorProto.FLOAT:
        raise ExportError(
            f"expected a float output with the images first and fixed sizes behind, but its sizes are {shape}; "
            "give another output"
        )
    names = {n: sizes.fresh(n) for n in ("x", "y") if n not in (sizes.x, y)}
    names |= {sizes.x: "x", y: "y"}
    for node in nodes:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    used = {name for node in nodes for name in node.input}
    values = {names.get(n, n): (kind, sizes.symbolic(n)) for n, kind in sizes.kinds.items()}
    inner = [
        name for node in nodes for name in node.output if name != "y" and values.get(name, (0, None))[1] is not None
    ]
    graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info("x", *values["x"])],
        [helper.make_tensor_value_info("y", *values["y"])],
        [numpy_helper.from_array(v, names.get(k, k)) for k, v in sizes.constants.items() if names.get(k, k) in used],
        value_info=[helper.make_tensor_value_info(name, *values[name]) for name in inner],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="deco-export"
    )
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # onnx raises several kinds
        raise ExportError(
            f"expected a model that can be said in opset {OPSET}, but onnx finds: {first_line(error)}; "
            f"export it at opset {OPSET}"
        ) from error
    return model


def _prove(original: onnx.ModelProto, normal: onnx.ModelProto, image: _Image, limit: float) -> None:
    """Raises ExportError unless several images at once give what the file gives for each batch of its own."""
    own = image.batch or 1
    count = 2 if own == 3 else 3  # another batch than the file's
    rng = np.random.default_rng(0)
    shape = (own * -(-count // own), 3, image.side, image.side)
    x = (rng.integers(0, 256, shape) if image.raw else rng.standard_normal(shape)).astype(np.float32)
    given = x.transpose(0, 2, 3, 1) if image.channels_last else x
    given = np.ascontiguousarray(given).astype(helper.tensor_dtype_to_np_dtype(image.kind))
    run = _runner(original)
    try:
        parts = [run({image.name: given[i : i + own]}) for i in range(0, len(x), own)]
    except Exception as error:  # whatever a runtime raises
        raise ExportError(
            f"expected a model that runs on {image.side}×{image.side} images, but it fails with: {first_line(error)}; "
            "give a model that ONNX Runtime runs, and the size it was trained for"
        ) from error
    try:
        found = _session(normal).run(None, {"x": x[:count]})[0]
    except Exception as error:
        raise ExportError(
            f"expected a model that takes any number of images, but at {count} it fails with: {first_line(error)}; "
            "export it with a free batch size"
        ) from error
    expected = np.concatenate([np.asarray(p, np.float32).reshape(own, -1) for p in parts])[:count]
    found = found.reshape(len(found), -1)
    if not np.isfinite(expected).all():
        raise ExportError("expected finite outputs, but random images give others; give a network that is trained")
    if found.shape != expected.shape or np.abs(found - expected).max() > limit * max(np.abs(expected).max(), 1e-30):
        raise ExportError(
            f"expected the same outputs for {count} images at once as in the file, but they differ; "
            "export it with a free batch size, at opset 18, without random operators"
        )


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _runner(model: onnx.ModelProto) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Runs the file as it is: by ONNX Runtime, or by onnx itself where the file is newer than the runtime."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.ir_version = min(copy.ir_version, 10)  # later ones only add types, and older runtimes refuse the number
    try:
        session = _session(copy)
    except Exception:
        return lambda feeds: np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])
    return lambda feeds: np.asarray(session.run(None, feeds)[0])
