"""The learning graphs in standard ONNX operators, on any onnxruntime from 1.18."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deco_runtime.engine import EXACT, REPRESENTATION, TRUNK, Engine

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle
    from deco_runtime.storage.bundle_files import Root

NAME = "portable"
PRECISION = "fp32"
PACKAGE = "onnxruntime"
PREFERENCE = 20  # no slower than ort-training where both ran, and not bound to a discontinued package

GRAPHS = ("predict", "weight_gradient", "input_gradient", "feature_gradient", EXACT, REPRESENTATION, TRUNK)


def unusable(bundle: Bundle | None) -> str | None:
    """Always usable where onnxruntime is: every bundle holds these graphs."""
    return None


def load(root: Root) -> Engine:
    """Open the bundle's `graphs/`, each when first used."""
    from deco_runtime.engines._sessions import SessionEngine

    return SessionEngine(NAME, files(root))


def files(root: Root) -> dict[str, Root]:
    """Where the bundle's graphs are."""
    return {graph: root.joinpath("graphs", f"{graph}.onnx") for graph in GRAPHS}
