"""Networks of torchvision, timm, or a function of one's own, as ONNX models."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
import torch
from deco_runtime.errors import ExportError, RuntimeMissingError, UsageError, first_line
from torch import nn

from deco_export.backbone.pictures import SIDE, Pictures, of_timm
from deco_export.tracing import FREE, written


def make(name: str, weights: Path | None, side: int | None) -> tuple[onnx.ModelProto, Pictures]:
    """An ONNX model of the network asked for, with a free batch, and what its source says of its pictures.

    Raises UsageError for a name or file that there is not, RuntimeMissingError for a package that is not installed,
    ExportError where torch cannot write the network as ONNX.
    """
    kind, _, of = name.partition(":")
    if kind == "timm":
        module, pictures = _timm(of, weights, side)
    elif kind == "torchvision":
        module, pictures = _torchvision(of, weights)
    else:
        if weights is not None:
            raise UsageError("expected a function that returns a network with its weights, but found --weights too")
        module, pictures = _own(name, kind, of)
    return _exported(module.eval(), side or pictures.size or SIDE), pictures


def _timm(name: str, weights: Path | None, side: int | None) -> tuple[nn.Module, Pictures]:
    timm = _package("timm", "timm")
    sized = {"img_size": side} if side is not None else {}
    try:
        try:
            module = timm.create_model(name, pretrained=False, **sized)
        except TypeError:  # convolutions take any size
            module = timm.create_model(name, pretrained=False)
    except Exception as error:
        raise UsageError(
            f"expected --backbone timm:NAME with a name that timm has, but {name!r} fails with: {first_line(error)}"
        ) from error
    pictures = of_timm(timm.data.resolve_data_config({}, model=module))
    if weights is not None:
        _load(lambda: timm.models.load_checkpoint(module, str(weights), use_ema=False), weights)
    return module, pictures


def _torchvision(name: str, weights: Path | None) -> tuple[nn.Module, Pictures]:
    models = _package("torchvision", "torchvision.models")
    try:
        module = models.get_model(name, weights=None)
        known = models.get_model_weights(name).DEFAULT.transforms()
    except Exception as error:
        raise UsageError(
            f"expected --backbone torchvision:NAME with a name that torchvision has, but {name!r} fails with: "
            f"{first_line(error)}"
        ) from error
    if weights is not None:
        _load(lambda: module.load_state_dict(_state(weights)), weights)
    size, shorter, method = known.crop_size[0], known.resize_size[0], known.interpolation.value
    return module, Pictures(size, tuple(known.mean), tuple(known.std), shorter, method)


def _own(name: str, module_name: str, attribute: str) -> tuple[nn.Module, Pictures]:
    try:
        module = getattr(import_module(module_name), attribute)()
        if not isinstance(module, nn.Module):
            raise TypeError(f"it returns {type(module).__name__}, which is no torch.nn.Module")
    except Exception as error:  # a user's own module may fail in any way
        raise UsageError(
            f"expected --backbone onnx:FILE, torchvision:NAME, timm:NAME or PKG.MODULE:FACTORY, a function without "
            f"arguments that returns a torch module, but {name!r} fails with: {first_line(error)}; is its package "
            "installed, or its folder on PYTHONPATH?"
        ) from error
    config = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
    return module, of_timm(config) if isinstance(config, dict) else Pictures()


def _package(package: str, module: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # torchvision, built for another torch, raises RuntimeError
        raise RuntimeMissingError(
            f"expected the package {package} for --backbone {package}:NAME, but: {first_line(error)}; install one that "
            "fits the installed torch"
        ) from error


def _load(load: Any, file: Path) -> None:
    try:
        load()
    except Exception as error:  # a file of anybody's
        raise UsageError(
            f"expected --weights to be a file of this network's weights, safetensors or a state dict, but {file} fails "
            f"with: {first_line(error)}; is it of another network?"
        ) from error


def _state(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        loaded: dict[str, torch.Tensor] = load_file(file)
        return loaded
    state = torch.load(file, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        state = state.get(key, state)
    return dict(state)


def _exported(module: nn.Module, side: int) -> onnx.ModelProto:
    parameters = inspect.signature(module.forward).parameters
    if len([p for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]) > 1:
        raise ExportError("expected a network that takes pictures alone, but it wants more than one input; wrap it")
    advice = "; write it as an ONNX file yourself and give that"
    with torch.inference_mode():
        return written(module, (torch.zeros(2, 3, side, side),), (FREE,), "a network", advice)
