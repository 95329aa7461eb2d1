"""The ort-training side of a bundle: ONNX Runtime's own training artifacts and gradient graphs.

Needs onnxruntime-training 1.19.2 on the workstation. Its gradient builder differentiates the same forward graph as
`autodiff` does, so the two engines answer the same calls with the same inputs and outputs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import util
from pathlib import Path

import numpy as np
import onnx
from deco_runtime.errors import ExportError
from onnx import TensorProto, helper

from deco_export import graphs
from deco_export.autodiff import centre_and_deviation
from deco_export.forward import Forward
from deco_export.onnx_graph import IR_VERSION, Graph, attributes

ARTIFACTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def missing() -> str | None:
    """Why the artifacts cannot be made here, as a sentence; None when they can."""
    if util.find_spec("onnxruntime.training") is None:
        return (
            "expected onnxruntime-training-cpu 1.19.2 on this workstation (x86-64, Python up to 3.12), "
            "but found another onnxruntime"
        )
    return None


def gradient_graphs(fresh: Callable[[], Forward]) -> dict[str, onnx.ModelProto]:
    """The engine's gradient graphs as ONNX Runtime's GradientGraphBuilder makes them; `predict` is the portable one.

    Raises ExportError when the builder has no gradient for an operator of the model.
    """
    f = _trainable(fresh())
    u = f.graph.op("Mul", f.features_name, "u")
    f.graph.nodes.append(helper.make_node("ReduceSum", [u], ["loss"], keepdims=0))
    inputs = {"theta": (f.size,), "x": f.x_shape}
    of_features = f.graph.model({**inputs, "u": ("N", f.features)}, {"loss": ()}, "feature_product")
    f = _trainable(fresh())
    f.graph.nodes.append(helper.make_node("Identity", [graphs.loss(f)], ["loss"]))
    of_loss = f.graph.model({**inputs, "t": ("N", f.classes)}, {"loss": ()}, "loss")
    return {
        "weight_gradient": _differentiate(of_loss, "theta", (f.size,), keep_loss=True),
        "input_gradient": _differentiate(of_loss, "x", f.x_shape, keep_loss=False),
        "feature_gradient": _differentiate(of_features, "x", f.x_shape, keep_loss=False),
    }


def _differentiate(model: onnx.ModelProto, by: str, shape: tuple[int | str, ...], keep_loss: bool) -> onnx.ModelProto:
    from onnxruntime.capi._pybind_state import GradientGraphBuilder

    try:
        with _quiet():
            builder = GradientGraphBuilder(model.SerializeToString(), {"loss"}, {by}, "loss")
            builder.build()
            built = onnx.load_from_string(builder.get_model())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise ExportError(
            f"expected operators that onnxruntime-training can differentiate, but it says: {reason[-200:]}"
        ) from error
    g = built.graph
    found = next(o.name for o in g.output if o.name != "loss")
    g.node.append(helper.make_node("Identity", [found], ["gradient"]))
    del g.output[:]
    if keep_loss:
        g.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, ()))
    g.output.append(helper.make_tensor_value_info("gradient", TensorProto.FLOAT, shape))
    built.ir_version = IR_VERSION
    return built


def write_training_artifacts(fresh: Callable[[], Forward], theta: np.ndarray, destination: Path) -> None:
    """training_model.onnx, eval_model.onnx, optimizer_model.onnx and checkpoint, for `onnxruntime.training.api`.

    The training model's inputs are x (N, C, H, W) and t (N, K); its output is the loss summed over the batch. Its
    weights, one initialiser per tensor of the model, start at theta (P,).
    """
    from onnxruntime.training import artifacts

    f = _trainable(fresh())
    g = f.graph
    # Here the weights are initialisers, as the Module API wants them, in place of the pieces of a flat input.
    names = {f"param:{p.name}": p for p in f.parameters}
    g.nodes = [n for n in g.nodes if "theta" not in n.input and not set(n.output) & names.keys()]
    for name, place in names.items():
        g.constants[name] = theta[place.slice].reshape(place.shape)
    g.nodes.append(helper.make_node("Identity", [graphs.loss(f)], ["loss"]))
    model = g.model({"x": f.x_shape, "t": ("N", f.classes)}, {"loss": ()}, "training")
    destination.mkdir(parents=True, exist_ok=True)
    # Where the bundle is made there is room; a temporary directory may be full, or not there.
    with tempfile.TemporaryDirectory(dir=destination) as scratch, _quiet():
        artifacts.generate_artifacts(
            model,
            requires_grad=list(names),
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=scratch,
            ort_format=False,
        )
        for name in ARTIFACTS:
            data = (Path(scratch) / name).read_bytes()
            if name.endswith(".onnx"):
                proto = onnx.load_from_string(data)
                # The installed onnx stamps its newest IR version, which 1.19.2 refuses.
                proto.ir_version = min(proto.ir_version, IR_VERSION)
                data = proto.SerializeToString()
            (destination / name).write_bytes(data)


def _trainable(f: Forward) -> Forward:
    """Rewrite what onnxruntime-training cannot differentiate with a free batch size.

    InstanceNormalization has no gradient there; AveragePool's needs a fixed batch (it takes its shape from the graph).
    """
    g: Graph = f.graph
    old, g.nodes = g.nodes, []
    for node in old:
        if node.op_type == "InstanceNormalization":
            _as_primitives(g, node)
        elif node.op_type == "AveragePool":
            _as_mean_or_convolution(g, node)
        else:
            g.nodes.append(node)
    return f


def _as_primitives(g: Graph, node: onnx.NodeProto) -> None:
    """(x − μ)/σ over each channel's pixels, then scale and shift, in operators that all have a gradient there."""
    x, scale, bias = node.input
    rank = len(g.shape(x))
    centred, sigma = centre_and_deviation(g, node, g.integers(list(range(2, rank))))
    column = g.integers([-1] + [1] * (rank - 2))
    scaled = g.op("Mul", g.op("Div", centred, sigma), g.op("Reshape", scale, column))
    g.nodes.append(helper.make_node("Add", [scaled, g.op("Reshape", bias, column)], [node.output[0]]))


def _as_mean_or_convolution(g: Graph, node: onnx.NodeProto) -> None:
    how, x = attributes(node), node.input[0]
    (kh, kw), strides, pads = how["kernel_shape"], how.get("strides", [1, 1]), how.get("pads", [0, 0, 0, 0])
    channels, height, width = (int(d) for d in g.shape(x)[1:])
    if [kh, kw] == strides and not any(pads) and height % kh == 0 and width % kw == 0:
        windows = g.op("Reshape", x, g.integers([0, channels, height // kh, kh, width // kw, kw]))
        g.nodes.append(helper.make_node("ReduceMean", [windows, g.integers([3, 5])], [node.output[0]], keepdims=0))
        return
    if any(pads) and not how.get("count_include_pad", 0):
        raise ExportError("expected average pooling that counts its padding, but the model's does not")
    ones = g.fresh("window")
    g.constants[ones] = np.full((channels, 1, kh, kw), 1 / (kh * kw), np.float32)
    sliding = {"kernel_shape": [kh, kw], "strides": strides, "pads": pads, "group": channels}
    g.nodes.append(helper.make_node("Conv", [x, ones], [node.output[0]], **sliding))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the native logger of the gradient builder, which writes to file descriptor 2 at every call."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
