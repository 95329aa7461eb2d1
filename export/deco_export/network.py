"""What the export goes on with, wherever the classifier came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from deco_runtime.learning.random_model import Parameter
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Floats, Ints

from deco_export.forward import Forward
from deco_export.graph_values import Values
from deco_export.images import Arrays, ImageSet
from deco_export.representation import Representation

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


@dataclass(frozen=True)
class Network:
    """A trained classifier.

    parameters, theta: places in θ and its values (P,), of what learns. fresh: a new forward graph of that at each call.
    trunk: the graph in front of it, images → latents, or None. whole: images → logits, features.
    answers: the class (n,) that it gives each image. inputs: what the learning graphs take of images.
    represent: what it shows learners of the training images, given a generator.
    check: golden inputs and values of the graphs in files {set: {graph: file}}, and the largest relative error per
    "set/quantity"; raises ExportError for a graph that is wrong. golden: those of the graphs that work on images, given
    the file of `whole`, the representation and what `check` found.
    made_with: how it came about, for the manifest. reference: what the graphs were checked against.
    """

    preprocessing: Preprocessing
    parameters: tuple[Parameter, ...]
    theta: Floats
    fresh: Callable[[], Forward]
    trunk: onnx.ModelProto | None
    whole: onnx.ModelProto
    answers: Callable[[ImageSet], Ints]
    inputs: Callable[[ImageSet], Arrays]
    represent: Callable[[np.random.Generator], Representation]
    check: Callable[[dict[str, dict[str, Path]]], tuple[Values, dict[str, float]]]
    golden: Callable[[Path, onnx.ModelProto, Values], Values]
    made_with: dict[str, Any]
    reference: str = "torch"
