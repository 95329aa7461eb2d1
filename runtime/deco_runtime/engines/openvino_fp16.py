"""OpenVINO with gradients in float16, which Arm processors have from v8.2 on; for gradient=exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deco_runtime.engine import Engine
from deco_runtime.engines import openvino
from deco_runtime.engines.portable import files

if TYPE_CHECKING:
    from deco_runtime.bundle import Bundle
    from deco_runtime.bundle_files import Root

NAME = "openvino-fp16"
PRECISION = "fp16"
PREFERENCE = 0


def unusable(bundle: Bundle | None) -> str | None:
    """Needs the package openvino, and a processor that computes in fp16."""
    reason = openvino.unusable(bundle)
    if reason is not None:
        return reason
    from deco_runtime.engines._compiled import lacks

    return lacks(PRECISION)


def load(root: Root) -> Engine:
    """Open the bundle's `graphs/`."""
    from deco_runtime.engines._compiled import CompiledEngine

    return CompiledEngine(NAME, files(root), PRECISION)
