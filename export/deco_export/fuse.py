"""Group norm with a group per channel, in one operator.

torch.onnx writes it as Reshape to (N, C, pixels), InstanceNormalization without scale and shift, Reshape back, Mul and
Add. InstanceNormalization with both is the same; it passes over the pixels once, and so does more of its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from deco_export.onnx_graph import Graph, attributes

Chain = tuple[onnx.NodeProto, str, str, str]


def instance_norms(g: Graph) -> None:
    """Rewrite every such chain of the forward graph. What nothing needs any more is left to `Graph.model`."""
    made_by = {name: node for node in g.nodes for name in node.output}
    nodes, g.nodes = g.nodes, []
    for node in nodes:
        chain = _chain(g, node, made_by)
        if chain is None:
            g.nodes.append(node)
            continue
        norm, x, *affine = chain
        channels = int(g.shape(x)[1])
        vectors = [g.op("Reshape", name, g.integers([channels])) for name in affine]
        g.shapes.update(dict.fromkeys(vectors, (channels,)))
        g.nodes.append(onnx.helper.make_node(norm.op_type, [x, *vectors], list(node.output), **attributes(norm)))


def _chain(g: Graph, last: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto]) -> Chain | None:
    """The norm, its input before the Reshape, its scale and its shift, where `last` is the Add of such a chain."""
    nodes = [last]
    for kind in ("Add", "Mul", "Reshape", "InstanceNormalization", "Reshape"):
        if nodes[-1].op_type != kind or nodes[-1].input[0] not in made_by:
            return None
        nodes.append(made_by[nodes[-1].input[0]])
    add, product, back, norm, flat, _ = nodes
    x, normal, scale, shift = flat.input[0], back.output[0], product.input[1], add.input[1]
    return (norm, x, scale, shift) if _is_plain(g, norm, x, normal, scale, shift) else None


def _is_plain(g: Graph, norm: onnx.NodeProto, x: str, normal: str, scale: str, shift: str) -> bool:
    """Whether each channel of x (N, C, …) is normalised on its own and back in its place, and scale and shift are C."""
    shape, ones, zeros = g.shapes.get(x, ()), *(g.constants.get(name) for name in norm.input[1:])
    if len(shape) < 3 or g.shapes.get(normal) != shape or ones is None or zeros is None:
        return False
    per_channel = [(*lead, shape[1], *[1] * (len(shape) - 2)) for lead in ((), (1,))]
    return (
        g.shape(norm.input[0])[:2] == shape[:2]
        and bool((ones == 1).all() and (zeros == 0).all())
        and all(g.shapes.get(name) in per_channel for name in (scale, shift))
    )
