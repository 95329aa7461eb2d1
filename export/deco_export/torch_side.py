"""The modules that need torch, which a network from an ONNX file does not."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from deco_runtime.errors import RuntimeMissingError, first_line


def needs_torch(module: str, why: str) -> ModuleType:
    """The module of this package. Raises RuntimeMissingError where torch, or what its exporter needs, is not there.

    why: what it is needed for.
    """
    try:
        return import_module(f"deco_export.{module}")
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected torch and onnxscript for {why}, but {first_line(error)}; run pip install 'deco-edge[export]', "
            "or give an ONNX file, --backbone onnx:FILE"
        ) from error
