"""`--backbone`: a network by its package or its file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from deco_runtime.errors import UsageError
from deco_runtime.preprocess import Preprocessing

from deco_export.backbone.normal_form import Normal, normal_form, read
from deco_export.backbone.pictures import Pictures, beside
from deco_export.torch_side import needs_torch

ONNX = "onnx:"


@dataclass(frozen=True)
class Backbone:
    """A public network. model: in normal form, without its last softmax. preprocessing: of its pictures. name: as it
    was asked for. notes: what its owner should know."""

    model: onnx.ModelProto
    preprocessing: Preprocessing
    name: str
    notes: tuple[str, ...]


def open_backbone(name: str, weights: Path | None, side: int | None, given: Pictures) -> Backbone:
    """Read `onnx:FILE`, or make `torchvision:NAME`, `timm:NAME` or what a function `PKG.MODULE:FACTORY` returns.

    weights: a file for a network of torchvision or timm. side: of its input, in pixels, where that is free and not what
    its source says. given: what `--input` says. Raises UsageError for a name that there is not, ExportError for a
    network that cannot be used.
    """
    if name.startswith(ONNX):
        if weights is not None:
            raise UsageError("expected an ONNX file that holds its weights, but found --weights too; leave it out")
        file = Path(name.removeprefix(ONNX))
        known = given.over(beside(file))
        normal = normal_form(read(file), side or known.size)
    else:
        made, own = needs_torch("backbone.torch_source", f"--backbone {name}").make(name, weights, side)
        known = given.over(own)
        normal = normal_form(made, side or known.size)
    return _finished(name, normal, known)


def _finished(name: str, normal: Normal, known: Pictures) -> Backbone:
    notes = list(normal.notes)
    if normal.raw and known.mean is None:
        known = Pictures(mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3).over(known)
    if known.mean is None or known.std is None:
        notes.append(
            "nothing says how this network's pictures are prepared, so they are as ImageNet's are (mean 0.485, 0.456, "
            "0.406 and deviation 0.229, 0.224, 0.225 of 0 … 1); say otherwise with --input"
        )
    model = _reversed(normal.model) if known.bgr else normal.model
    return Backbone(model, known.preprocessing(normal.side), name, tuple(notes))


def _reversed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same for pictures whose channels come as R, G, B, where it was made for B, G, R."""
    for node in model.graph.node:
        node.input[:] = ["x.reversed" if name == "x" else name for name in node.input]
    order = onnx.numpy_helper.from_array(np.array([2, 1, 0]), "x.order")
    model.graph.initializer.append(order)
    model.graph.node.insert(0, onnx.helper.make_node("Gather", ["x", "x.order"], ["x.reversed"], axis=1))
    return model
