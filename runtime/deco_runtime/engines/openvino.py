"""The same graphs in standard ONNX operators on OpenVINO, an extra; its wheels exist for x86-64 and aarch64."""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING

from deco_runtime.engine import Engine
from deco_runtime.engines.portable import files

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle
    from deco_runtime.storage.bundle_files import Root

NAME = "openvino"
PRECISION = "fp32"
PACKAGE = "openvino"
PREFERENCE = 5  # without a timing; its rounding is not ONNX Runtime's


def unusable(bundle: Bundle | None, precision: str = PRECISION) -> str | None:
    """Needs the package openvino, and for less than fp32 a processor that computes in it; any bundle will do."""
    if util.find_spec("openvino") is None:
        return (
            "expected the package openvino for --engine openvino, but it is not installed; "
            "run pip install 'deco-edge[openvino]', or use --engine portable"
        )
    if precision == PRECISION:
        return None
    from deco_runtime.engines._compiled import lacks

    return lacks(precision)


def load(root: Root, name: str = NAME, precision: str = PRECISION) -> Engine:
    """Open the bundle's `graphs/`."""
    from deco_runtime.engines._compiled import CompiledEngine

    return CompiledEngine(name, files(root), precision)
