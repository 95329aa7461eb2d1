"""`--model`: a built-in family by name, or a user's own `PACKAGE.MODULE:FACTORY`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

import deco_models
import torch
from deco_runtime.errors import UsageError, first_line
from torch import nn


def built_in() -> list[str]:
    """Names of the families in `deco_models`."""
    return sorted(info.name for info in pkgutil.iter_modules(deco_models.__path__))


def factory(name: str, classes: int, image_size: int, width: int | None, depth: int | None) -> Callable[[], nn.Module]:
    """A function that makes a fresh model; called once here, so that a wrong name or size is met early.

    The family's function is called with classes, image_size, and width and depth where given.
    Raises UsageError when it cannot be imported, does not take these, or does not return a torch module that maps
    images of this size to `classes` logits.
    """
    module_name, _, attribute = name.partition(":")
    if not attribute:
        if name not in built_in():
            raise UsageError(
                f"expected --model to be {', '.join(built_in())} or PACKAGE.MODULE:FACTORY, but found {name!r}"
            )
        module_name, attribute = f"deco_models.{name}", "build"
    try:
        build = getattr(import_module(module_name), attribute)
    except Exception as error:  # a user's own module may fail in any way
        raise UsageError(
            f"expected --model {name!r} to name a function that can be imported, but: {first_line(error)}; "
            "is its package installed, or its folder on PYTHONPATH?"
        ) from error
    sizes = {k: v for k, v in (("width", width), ("depth", depth)) if v is not None}

    def make() -> nn.Module:
        return build(classes=classes, image_size=image_size, **sizes)

    try:
        model = make()
        if not isinstance(model, nn.Module):
            raise TypeError(f"it returns {type(model).__name__}, which is no torch.nn.Module")
        with torch.inference_mode():
            logits = model.eval()(torch.zeros(2, 3, image_size, image_size))
        if logits.shape != (2, classes):
            raise ValueError(f"it gives an output of shape {tuple(logits.shape)} for 2 images and {classes} classes")
    except Exception as error:
        raise UsageError(
            f"expected --model {name} to build for these sizes, but: {first_line(error)}; change them or the model"
        ) from error
    return make
