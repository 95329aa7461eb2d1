"""A classifier trained from scratch on the labelled images, by torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from deco_runtime.engine import REPRESENTATION
from deco_runtime.engines.golden import relative_error
from deco_runtime.errors import ExportError
from deco_runtime.types import Floats

from deco_export import graphs, models, pretrain, representation, tracing, verify
from deco_export.data import Data
from deco_export.forward import spare_parameters
from deco_export.graph_values import TOLERANCE, Values, run_graphs
from deco_export.images import Inputs
from deco_export.initialisers import parameters as measure_parameters
from deco_export.network import Network, Progress


def train(
    model: str,
    width: int | None,
    depth: int | None,
    size: int,
    epochs: int | None,
    seed: int,
    augment: bool,
    loaded: Data,
    progress: Progress,
    spare: int = 0,
) -> Network:
    """Train the model family, or factory, of this name on loaded.train. augment: as for `pretrain.pretrain`. spare:
    outputs of the learning graphs for classes to come.

    Raises UsageError for a name or size that there is not, ExportError for a model that cannot be exported.
    """
    torch.manual_seed(seed)
    classes = len(loaded.classes)
    make = models.factory(model, classes, size, width, depth)
    module, preprocessing = make(), pretrain.statistics(loaded.train, size)
    epochs = epochs if epochs is not None else pretrain.default_epochs(len(loaded.train), augment)
    mirrored = pretrain.pretrain(
        module,
        loaded.train,
        preprocessing,
        epochs,
        seed,
        lambda done, _: progress("pre-training", done, epochs),
        loaded.validation,
        augment,
    )
    parameters = measure_parameters(make)
    fresh, theta = tracing.trace(module, parameters, size), tracing.flatten(module)
    traced = fresh()
    more = spare_parameters(spare, traced.features, len(theta)) if spare else ()
    learning = partial(fresh, more)
    weights = np.concatenate([theta, *(np.full(p.size, p.a, np.float32) for p in more)])
    checked = verify.WithSpare(module, more) if spare else module

    def check(sets: dict[str, dict[str, Path]]) -> tuple[Values, dict[str, float]]:
        return verify.verify(checked, sets, weights, (3, size, size), classes, traced.features, spare)

    return Network(
        preprocessing,
        (*parameters, *more),
        weights,
        learning,
        None,
        graphs.inference(fresh(), theta),
        lambda images: pretrain.answers(module, images, preprocessing),
        lambda images: Inputs(images, preprocessing),
        lambda rng: representation.fit(
            fresh, theta, (Inputs(loaded.train, preprocessing), loaded.train.labels), classes, mirrored, rng
        ),
        check,
        partial(_golden, module, mirrored),
        {"model": model, "width": width, "depth": depth, "epochs": epochs, "mirrored": mirrored},
    )


def _golden(
    module: torch.nn.Module, mirrored: bool, whole: Path, represented: onnx.ModelProto, golden: Values
) -> Values:
    """Golden values of the representation: its votes are torch's, φ is the graph's own."""
    x = golden["x"]
    found = run_graphs({"inference": whole}, np.zeros(0, np.float32), golden)
    _agree("inference.onnx", found["logits"], golden["logits"][:, : found["logits"].shape[1]])
    with torch.inference_mode():
        both = [module(torch.from_numpy(each)).numpy() for each in ((x, x[..., ::-1].copy()) if mirrored else (x,))]
    votes = np.mean(both, axis=0)
    _agree("the votes of deco+", representation.run(represented, "votes", x), votes)
    return {"votes": votes, REPRESENTATION: representation.run(represented, REPRESENTATION, x)}


def _agree(what: str, found: Floats, expected: Floats) -> None:
    if (error := relative_error(found, expected)) > TOLERANCE:
        raise ExportError(f"expected {what} to agree with torch, but it is off by {error:.1e}; please report it")
