"""The device side of DECO: learn from an unlabelled stream on numpy, ONNX Runtime and OpenCV alone."""

import os

__version__ = "0.2.0"

# onnxruntime's newer builds (seen with 1.32) send what they are used for to their maker, and keep an identifier of the
# device in its HOME, unless this is set before they are loaded: their Privacy.md says so.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
