"""OpenVINO with gradients in float16, which Arm processors have from v8.2 on; for gradient=exact."""

from functools import partial

from deco_runtime.engines import openvino

NAME = "openvino-fp16"
PRECISION = "fp16"
PACKAGE = openvino.PACKAGE
PREFERENCE = 0

unusable = partial(openvino.unusable, precision=PRECISION)
load = partial(openvino.load, name=NAME, precision=PRECISION)
