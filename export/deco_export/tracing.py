"""torch model → forward graph."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from deco_runtime.errors import ExportError, first_line
from deco_runtime.learning.random_model import Parameter
from torch import nn

from deco_export.forward import Forward, rebuild
from deco_export.onnx_graph import OPSET


def flatten(model: nn.Module) -> np.ndarray:
    """θ (P,) float32 of a model, in the order of `named_parameters`."""
    return np.concatenate([p.detach().cpu().numpy().ravel() for p in model.parameters()]).astype(np.float32)


class _Functional(nn.Module):  # type: ignore[misc]
    """Calls the model with its parameters given as inputs, so the exporter can fold none of them into constants."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = [model], names  # in a list: its parameters are not this module's

    def forward(self, x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(self.model[0], dict(zip(self.names, tensors, strict=True)), (x,))


FREE = {0: torch.export.Dim("N", min=1)}
"""The sizes of an input that are free: the batch."""


def written(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], shapes: Any, what: str, advice: str = "", **names: list[str]
) -> onnx.ModelProto:
    """A module as torch.onnx writes it for such inputs, of which the sizes in `shapes` are free.

    Raises ExportError where it cannot: that `what` was expected, and the advice.
    """
    # The exporter warns about torchvision and its own deprecations; none of it concerns the user.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
                dynamic_shapes=shapes,
                **names,
            )
    except Exception as error:  # whatever the exporter raises, the user needs one sentence
        raise ExportError(
            f"expected {what} that torch.onnx can export with a free batch size, but it failed with: "
            f"{first_line(error)}{advice}"
        ) from error
    model: onnx.ModelProto = program.model_proto
    return model


def trace(model: nn.Module, places: Sequence[Parameter], image_size: int) -> Callable[..., Forward]:
    """Export the model once; each call of the result gives a fresh `Forward` to build a learning graph on, with the
    spare outputs of the parameters it is called with, if any.

    places: the model's parameters and their slices of θ, from `initialisers.parameters`.

    Raises ExportError when the model cannot be traced with a free batch size, does not end with nn.Linear, or keeps
    its classes elsewhere than in that layer's output.
    """
    model = model.eval()
    x = torch.zeros(2, 3, image_size, image_size)
    tensors = tuple(p.detach() for p in model.parameters())
    given: list[dict[int, Any]] = [{} for _ in places]
    named = ["x", *(f"param:{p.name}" for p in places)]
    whole = _Functional(model, [p.name for p in places])
    shapes = (FREE, tuple(given))
    proto = written(whole, (x, *tensors), shapes, "a model", input_names=named, output_names=["logits"])
    if proto.functions:
        raise ExportError("expected a model of plain ONNX operators, but it exports to local functions; simplify it")
    return lambda more=(): rebuild(proto, (*places, *more), ("N", 3, image_size, image_size))
