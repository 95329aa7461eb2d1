"""ONNX Runtime's own gradient graphs, on onnxruntime-training 1.19 (x86-64 only; the package is discontinued).

Its Module/Optimizer API has no momentum, which opt_θ of the paper needs, so retraining uses the gradient graph and
the momentum SGD of `retrain.py`, as the portable engine does.
"""

from __future__ import annotations

from importlib import util
from typing import TYPE_CHECKING

from deco_runtime.engine import Engine
from deco_runtime.engines.portable import files

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle
    from deco_runtime.storage.bundle_files import Root

NAME = "ort-training"
PRECISION = "fp32"
PACKAGE = "onnxruntime"
PREFERENCE = 10

OWN = ("weight_gradient", "input_gradient", "feature_gradient")


def unusable(bundle: Bundle | None) -> str | None:
    """Needs the training build of onnxruntime, and a bundle exported where that build was installed."""
    if util.find_spec("onnxruntime.training") is None:
        return (
            "expected the training build of onnxruntime for --engine ort-training, but the installed one is for "
            "inference; on x86-64 with Python up to 3.12 install 'deco-edge[ort-training]' in its own environment, "
            "elsewhere use --engine portable"
        )
    if bundle is not None and NAME not in bundle.engines:
        return (
            "expected a bundle with ort-training graphs, but this one was exported without onnxruntime-training; "
            "use --engine portable or export it again where that package is installed"
        )
    return None


def load(root: Root) -> Engine:
    """Open the bundle's `ort_training/` gradient graphs; the others are the common ones."""
    from deco_runtime.engines._sessions import SessionEngine

    own = {graph: root.joinpath("ort_training", f"{graph}.onnx") for graph in OWN}
    return SessionEngine(NAME, files(root) | own)
