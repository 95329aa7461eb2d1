"""TensorRT's published support matrix of ONNX operators, as far as our graphs' types go.

Source: onnx/onnx-tensorrt, docs/operators.md, of the version below, for opsets 9 to 24. Types are ONNX's names.
"""

from __future__ import annotations

VERSION = "10.15"
SOURCE = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"

_HALVES = frozenset({"FLOAT", "FLOAT16"})
_FLOATS = _HALVES | {"BFLOAT16"}
_NUMBERS = _FLOATS | {"INT32", "INT64"}
_ANY = _NUMBERS | {"BOOL"}

_GROUPS = (
    (frozenset({"BOOL"}), "And Not Or Xor"),
    (frozenset({"FLOAT"}), "STFT"),
    (_HALVES, "BlackmanWindow DeformConv GridSample HammingWindow HannWindow Mish NonMaxSuppression NonZero RoiAlign"),
    (
        _FLOATS,
        "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Conv ConvTranspose Cos Cosh "
        "CumSum Dropout Einsum Elu Erf Exp Floor Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization "
        "GRU HardSigmoid HardSwish Hardmax ImageScaler InstanceNormalization IsInf LayerNormalization LeakyRelu Log "
        "LogSoftmax LRN LSTM LpNormalization LpPool MatMul MaxPool MeanVarianceNormalization ParametricSoftplus PRelu "
        "QuantizeLinear RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal Resize "
        "RMSNormalization RNN RotaryEmbedding Round ScaledTanh Scan Selu Sigmoid Sin Sinh Softmax Softplus Softsign "
        "Sqrt Tan Tanh ThresholdedRelu Upsample",
    ),
    (
        _NUMBERS,
        "Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max Mean Min Mod "
        "Mul Neg Pad Pow Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
        "ReduceProd ReduceSum ReduceSumSquare Relu Scatter ScatterElements ScatterND Shrink Sign SpaceToDepth Sub Sum "
        "TopK",
    ),
    (
        _ANY,
        "Concat Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop OneHot Reshape ReverseSequence "
        "Shape Size Slice Split Squeeze Tile Transpose Trilu Unsqueeze Where",
    ),
    (_ANY | {"INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"}, "Constant ConstantOfShape"),
    (_ANY | {"UINT8"}, "Cast CastLike"),
    (_NUMBERS | {"INT8"}, "Gelu"),
    (_FLOATS | {"INT8", "FLOAT8E4M3FN"}, "Attention"),
    (_FLOATS | {"INT32"}, "TensorScatter"),
    (frozenset({"INT8", "INT4", "FLOAT8E4M3FN", "FLOAT4E2M1"}), "DequantizeLinear"),
)
SUPPORTED = {name: types for types, names in _GROUPS for name in names.split()}
"""Types of each operator that the matrix lists as supported."""

CONSTANT = {
    "CumSum": 1,
    **{name: 1 for name in SUPPORTED if name.startswith("Reduce")},
    **dict.fromkeys(("Squeeze", "Unsqueeze"), 1),
    "OneHot": 1,
}
"""Operators and the number of the input that has to be a constant."""
