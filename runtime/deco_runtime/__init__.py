"""The device side of DECO: learn from an unlabelled stream on numpy, ONNX Runtime and OpenCV alone."""
