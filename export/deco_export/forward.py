"""The forward graph with θ as one flat input: the common root of every learning graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from deco_runtime.errors import ExportError
from deco_runtime.learning.random_model import MASKED, SPARE, Parameter, spares
from onnx import numpy_helper

from deco_export import fuse
from deco_export.onnx_graph import Graph, Shape, attributes


@dataclass(frozen=True)
class Forward:
    """The forward graph: inputs `theta` (P,) and `x` (N, …); `logits` (N, K) and `features` (N, F)."""

    graph: Graph
    parameters: Sequence[Parameter]
    x_shape: Shape
    classes: int
    features: int
    logits_name: str
    features_name: str

    @property
    def size(self) -> int:
        """P, the length of θ."""
        return sum(p.size for p in self.parameters)

    def bake(self, theta: np.ndarray) -> None:
        """Put the weights θ (P,) into the graph, in place of the input."""
        split = next(node for node in self.graph.nodes if "theta" in node.input)
        self.graph.nodes.remove(split)
        for place, part in zip(self.parameters, split.output, strict=True):
            self.graph.constants[part] = theta[place.slice]


def rebuild(proto: onnx.ModelProto, places: Sequence[Parameter], x_shape: Shape) -> Forward:
    """The forward graph of a model whose weights are its inputs `param:NAME`, whose images or latents are its input `x`
    of shape x_shape, and whose output `logits` comes from a product with the features.

    places: the parameters and their slices of θ. Raises ExportError for anything else.
    """
    g = Graph()
    _record_shapes(g, proto)
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        g.constants[tensor.name] = array
        g.shapes[tensor.name] = array.shape
    sizes = g.integers([p.size for p in places])
    parts = g.op("Split", "theta", sizes, outputs=len(places), axis=0)
    parts = (parts,) if len(places) == 1 else parts
    for place, part in zip(places, parts, strict=True):
        shaped = f"param:{place.name}"
        g.shapes[part] = (place.size,)
        g.nodes.append(onnx.helper.make_node("Reshape", [part, g.integers(place.shape)], [shaped]))
        g.shapes[shaped] = place.shape
    for node in proto.graph.node:
        if node.domain:
            raise ExportError(
                f"expected standard ONNX operators, but the model needs {node.domain}.{node.op_type}; replace it"
            )
        kept = onnx.helper.make_node(node.op_type, list(node.input), list(node.output), **attributes(node))
        if kept.op_type == "BatchNormalization":
            _batch_norm_as_affine(g, kept)
        else:
            g.nodes.append(kept)
    last = next((n for n in reversed(g.nodes) if "logits" in n.output), None)
    if last is None or last.op_type not in ("Gemm", "MatMul"):  # MatMul is a Linear without bias
        found = "nothing" if last is None else last.op_type
        raise ExportError(
            f"expected a model that ends with torch.nn.Linear on (N, F) features, but it ends with {found}"
        )
    classes, features = g.shape("logits")[-1], g.shape(last.input[0])[-1]
    if not isinstance(classes, int) or not isinstance(features, int):
        raise ExportError("expected fixed numbers of classes and features, but the model leaves them free")
    _static_reshapes(g)  # with these, the inference below follows the batch through the graph
    whole = g.model({"theta": (sum(p.size for p in places),), "x": x_shape}, {"logits": g.shape("logits")}, "forward")
    _record_shapes(g, whole)
    _static_reshapes(g)
    fuse.instance_norms(g)
    made = Forward(g, places, x_shape, classes, features, "logits", last.input[0])
    return _with_spare(made) if spares(places) else made


def spare_parameters(spare: int, features: int, offset: int) -> tuple[Parameter, ...]:
    """Places and fresh values of `spare` masked outputs, behind the `offset` weights of a model."""
    weight = Parameter(SPARE[0], (spare, features), offset, "constant", 0.0, 0.0)
    return weight, Parameter(SPARE[1], (spare,), offset + weight.size, "constant", MASKED, 0.0)


def _with_spare(f: Forward) -> Forward:
    """The logits, and behind them those of the spare outputs, linear in the features as the others are."""
    g, n = f.graph, spares(f.parameters)
    more = g.op("Gemm", f.features_name, *(f"param:{name}" for name in SPARE), transB=1)
    g.shapes[more] = ("N", n)
    logits = g.op("Concat", f.logits_name, more, axis=1)
    g.shapes[logits] = ("N", f.classes + n)
    g.nodes = _renamed(g.nodes, {f.logits_name: f"{f.logits_name}.known", logits: f.logits_name})
    g.shapes[f"{f.logits_name}.known"], g.shapes[f.logits_name] = ("N", f.classes), ("N", f.classes + n)
    return replace(f, classes=f.classes + n)


def _renamed(nodes: Sequence[onnx.NodeProto], names: dict[str, str]) -> list[onnx.NodeProto]:
    return [
        onnx.helper.make_node(
            node.op_type,
            [names.get(name, name) for name in node.input],
            [names.get(name, name) for name in node.output],
            **attributes(node),
        )
        for node in nodes
    ]


def _batch_norm_as_affine(g: Graph, node: onnx.NodeProto) -> None:
    """In evaluation mode batch norm is x·a + b per channel; its running statistics stay those of pre-training."""
    x, scale, bias, mean, variance = node.input
    rank = len(g.shape(x))
    a = g.op("Div", scale, g.op("Sqrt", g.op("Add", variance, g.constant(attributes(node).get("epsilon", 1e-5)))))
    b = g.op("Sub", bias, g.op("Mul", mean, a))
    column = g.integers([-1] + [1] * (rank - 2))
    product = g.op("Mul", x, g.op("Reshape", a, column))
    g.nodes.append(onnx.helper.make_node("Add", [product, g.op("Reshape", b, column)], [node.output[0]]))


def _record_shapes(g: Graph, proto: onnx.ModelProto) -> None:
    """Shapes of all values that inference can tell, the batch as "N"; values with other free sizes are left out."""
    graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    batch = next(i for i in graph.input if i.name == "x").type.tensor_type.shape.dim[0].dim_param
    for info in [*graph.input, *graph.value_info, *graph.output]:
        dims = info.type.tensor_type.shape.dim
        shape = ["N" if d.dim_param == batch else d.dim_value if d.HasField("dim_value") else None for d in dims]
        if None not in shape:
            g.shapes.setdefault(info.name, tuple(d for d in shape if d is not None))


def _static_reshapes(g: Graph) -> None:
    """A target computed from Shape nodes, or with a −1, hides the sizes from every later reader: make it constant."""
    for index, node in enumerate(g.nodes):
        if node.op_type != "Reshape":
            continue
        before, after = g.shapes.get(node.input[0]), g.shapes.get(node.output[0]) or _batch_kept(g, node)
        if before and after and after.count("N") <= 1:
            keeps_batch = before[0] == after[0] == "N"
            target = g.integers([int(d) if d != "N" else (0 if keeps_batch else -1) for d in after])
            g.nodes[index] = onnx.helper.make_node("Reshape", [node.input[0], target], list(node.output))
            g.shapes[node.output[0]] = after


def _batch_kept(g: Graph, node: onnx.NodeProto) -> Shape | None:
    """The shape that a Reshape to (−1, sizes) gives, where the −1 can only be the batch; None elsewhere."""
    before, target = g.shapes.get(node.input[0], ()), g.constants.get(node.input[1])
    if target is None or len(target) < 2 or before[:1] != ("N",) or "N" in before[1:]:
        return None
    sizes = [int(d) for d in target[1:]]
    same = target[0] == -1 and min(sizes) > 0 and np.prod(sizes) == np.prod([int(d) for d in before[1:]])
    return ("N", *sizes) if same else None
