"""Where things are in a network: its classifier, its features, the maps on the way, and places to cut it in two.

Graph reading   `Anatomy` of a model in normal form: who makes what, which values pass the whole picture alone
features_of     what the classifier works on
maps            one value per size of map: what the representation may be made of
cut             where the frozen trunk ends
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from deco_runtime.errors import ExportError, UsageError
from onnx import numpy_helper

from deco_export.onnx_graph import needed

REST_COST = 25_000_000
"""Multiplications per image that the part which learns may take, where nobody chose the cut: the paper's recipe passes
thousands of images through it for a segment."""
NARROW = 2
"""Values that pass the whole picture, and have at most this many times the channels of the narrowest at their size,
come from the end of a block: those inside are wider."""
DEPTHS = (0.25, 0.5, 0.75, 1.0)
"""Of a transformer, in parts of its blocks: where its tokens are looked at."""
OWN = "net."
"""In front of the names of the network's values, so that none is that of a value which the export adds."""
PASSED = {"Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Softmax", "LogSoftmax", "Add"}
"""Operators between a classifier and the output."""


@dataclass(frozen=True)
class Anatomy:
    """A model in normal form, read.

    nodes: those the output depends on, in order. made_by: value → index of its node. shapes: value → sizes without the
    batch. weights: initializers. alone: values, in order, through which everything of the picture passes, so that the
    network can be cut there. cost: multiplications per image of each node.
    """

    nodes: Sequence[onnx.NodeProto]
    made_by: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, np.ndarray]
    alone: tuple[str, ...]
    cost: tuple[int, ...]
    output: str

    def behind(self, value: str) -> int:
        """Multiplications per image of all nodes behind a value of `alone`."""
        return sum(self.cost[self.made_by[value] + 1 :])


def read(model: onnx.ModelProto) -> Anatomy:
    """Read a model in normal form, see `normal_form`; its values, but for x, get OWN in front of their names."""
    renamed = _renamed(model)
    graph = renamed.graph
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    output = graph.output[0].name
    nodes = needed(graph.node, [output])
    shapes = {}
    inferred = onnx.shape_inference.infer_shapes(renamed, data_prop=True).graph
    for info in [*inferred.input, *inferred.value_info, *inferred.output]:
        dims = info.type.tensor_type.shape.dim
        if dims and all(d.HasField("dim_value") for d in dims[1:]):
            shapes[info.name] = tuple(d.dim_value for d in dims[1:])
    made_by = {name: index for index, node in enumerate(nodes) for name in node.output}
    cost = tuple(_cost(node, shapes, weights) for node in nodes)
    return Anatomy(nodes, made_by, shapes, weights, _alone(nodes, output), cost, output)


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)

    def own(name: str) -> str:
        return name if name in ("x", "") else OWN + name

    for node in renamed.graph.node:
        node.input[:], node.output[:] = map(own, node.input), map(own, node.output)
    for named in (*renamed.graph.initializer, *renamed.graph.value_info, *renamed.graph.output):
        named.name = own(named.name)
    return renamed


def _alone(nodes: Sequence[onnx.NodeProto], output: str) -> tuple[str, ...]:
    last_use = {name: index for index, node in enumerate(nodes) for name in node.input}
    last_use[output] = len(nodes)
    pictured, live, found = {"x"}, {"x"}, list[str]()
    for index, node in enumerate(nodes):
        if pictured & set(node.input):
            pictured.update(node.output)
            live.update(name for name in node.output if name in last_use)
        live = {name for name in live if last_use[name] > index}
        if len(live) == 1 and live != {"x"}:
            (name,) = live
            if not found or found[-1] != name:
                found.append(name)
    return tuple(found)


def _cost(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, np.ndarray]) -> int:
    """Of convolutions and products with weights; others are small beside them."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.output[0] not in shapes:
        return 0
    out = math.prod(shapes[node.output[0]])
    if node.op_type == "Conv" and node.input[1] in weights:
        return out * math.prod(weights[node.input[1]].shape[1:])
    inner = shapes.get(node.input[0], (1,))
    return out * (inner[-1] if inner else 1)


def classifier(anatomy: Anatomy) -> onnx.NodeProto | None:
    """The product with weights that the output comes from, with nothing behind but what keeps its values; or None."""
    name = anatomy.output
    while name in anatomy.made_by:
        node = anatomy.nodes[anatomy.made_by[name]]
        if node.op_type in ("Gemm", "MatMul"):
            return node if node.input[1] in anatomy.weights and node.input[0] not in anatomy.weights else None
        if node.op_type not in PASSED or (node.op_type == "Add" and not set(node.input) & anatomy.weights.keys()):
            return None
        name = next(given for given in node.input if given not in anatomy.weights)
    return None


def features_of(anatomy: Anatomy, asked: str | None) -> str:
    """The value that is classified: the one asked for, the classifier's input, or the output of a network without one.

    Raises UsageError for a name that there is not, or one that does not hold all there is to know of a picture.
    """
    if asked is not None:
        if OWN + asked not in anatomy.shapes or OWN + asked not in anatomy.made_by:
            raise UsageError(
                f"expected --features to name a value of the network, but found {asked!r}; "
                f"there are, last ones first: {_told(anatomy.alone)}"
            )
        return OWN + asked
    found = classifier(anatomy)
    name = found.input[0] if found is not None else anatomy.output
    if name not in anatomy.shapes:
        raise ExportError(f"expected features of a fixed size, but {name!r} has a free one; fix the input's size")
    return name


def maps(anatomy: Anatomy, features: str) -> list[str]:
    """Values that show where in the picture something is, the deepest first: of each size of map, the last one at the
    end of a block; of a transformer's tokens those at DEPTHS."""
    before = [
        name for name in anatomy.alone if anatomy.made_by[name] < anatomy.made_by.get(features, len(anatomy.nodes))
    ]
    found: dict[tuple[int, int], list[str]] = {}
    tokens = []
    for name in before:
        shape = anatomy.shapes.get(name, ())
        if len(shape) == 3 and shape[1] * shape[2] > 1:
            found.setdefault((shape[1], shape[2]), []).append(name)
        elif len(shape) == 2 and shape[0] > 1:
            tokens.append(name)
    kept = []
    for names in found.values():
        narrowest = min(anatomy.shapes[name][0] for name in names)
        kept.append(next(n for n in reversed(names) if anatomy.shapes[n][0] <= NARROW * narrowest))
    kept += [tokens[max(0, round(depth * len(tokens)) - 1)] for depth in DEPTHS if tokens]
    return sorted(dict.fromkeys(kept), key=lambda name: -anatomy.made_by[name])


def cut(anatomy: Anatomy, features: str, asked: str) -> str:
    """Where the frozen trunk ends: the value asked for, or for "auto" the first one through which everything passes and
    behind which an image costs at most REST_COST; at the latest the features.

    Raises UsageError for a value that there is not, or behind which something reaches past it.
    """
    end = anatomy.made_by.get(features, -1)
    places = [name for name in anatomy.alone if anatomy.made_by[name] <= end and name in anatomy.shapes]
    if asked != "auto":
        if asked == "x" or OWN + asked in places:
            return asked if asked == "x" else OWN + asked
        raise UsageError(
            f"expected --cut auto or a value through which everything passes, but found {asked!r}; "
            f"there are, last ones first: {_told(places)}, and x to train the whole network"
        )
    classified = sum(anatomy.cost[end + 1 :])
    for name in places:
        if anatomy.behind(name) - classified <= REST_COST:
            return name
    return features


def _told(names: Sequence[str]) -> str:
    """The last ones, as the network's file calls them."""
    return ", ".join(name.removeprefix(OWN) for name in reversed(names[-8:]))
