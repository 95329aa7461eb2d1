"""OpenVINO with gradients in bfloat16, which newer x86-64 processors have, and Arm from v8.6 on; for gradient=exact."""

from functools import partial

from deco_runtime.engines import openvino

NAME = "openvino-bf16"
PRECISION = "bf16"
PACKAGE = openvino.PACKAGE
PREFERENCE = 0

unusable = partial(openvino.unusable, precision=PRECISION)
load = partial(openvino.load, name=NAME, precision=PRECISION)
