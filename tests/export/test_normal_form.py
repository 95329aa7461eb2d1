"""The normal form gives what the file gives, at any batch size; what it cannot say is refused in one sentence."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import public_networks
import pytest
import torch
from deco_export.backbone.normal_form import Normal, normal_form, read
from deco_runtime.errors import ExportError
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import nn

RNG = np.random.default_rng(7)


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def made(text: str, opset: int = 18, ir: int = 8, **weights: np.ndarray) -> onnx.ModelProto:
    """A model of onnx's own text form, with these initializers."""
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """The first output of a model with one input, by ONNX Runtime, or by onnx where the model is newer than that."""
    opset = max(o.version for o in model.opset_import if not o.domain)
    weights = {t.name for t in model.graph.initializer}
    name = next(i.name for i in model.graph.input if i.name not in weights)
    if opset > 21 or x.dtype == np.float64:
        return ReferenceEvaluator(model).run(None, {name: x})[0]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.ir_version = min(copy.ir_version, 10)
    return ort.InferenceSession(copy.SerializeToString(), options).run(None, {name: x})[0]


def one_by_one(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return np.concatenate([run(model, x[i : i + 1]).reshape(1, -1) for i in range(len(x))])


def images(count: int, side: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 3, side, side)).astype(np.float32)


def is_normal(normal: Normal) -> None:
    """All that the docstring of Normal promises of the model's form."""
    model, side = normal.model, normal.side
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 18)]
    assert model.ir_version == 8
    assert not model.functions
    (x,), (y,) = model.graph.input, model.graph.output
    assert (x.name, y.name) == ("x", "y")
    assert [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim] == ["N", 3, side, side]
    assert y.type.tensor_type.shape.dim[0].dim_param == "N"
    assert all(d.dim_value for d in y.type.tensor_type.shape.dim[1:])
    kinds = {n.op_type for n in model.graph.node}
    assert kinds.isdisjoint({"Constant", "Identity", "Dropout", "BatchNormalization", "If"})
    assert {n.domain for n in model.graph.node} == {""}
    assert {t.data_type for t in model.graph.initializer} <= {
        TensorProto.FLOAT,
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.BOOL,
    }
    sized = {v.name for v in model.graph.value_info if v.type.tensor_type.HasField("shape")} | {"y"}
    assert {name for n in model.graph.node for name in n.output} <= sized


def agrees(model: onnx.ModelProto, size: int, limit: float = 1e-4, **options: object) -> Normal:
    """The normal form of a float model with its channels first, having given what the model gives."""
    before = model.SerializeToString()
    normal = normal_form(model, **options)  # type: ignore[arg-type]
    assert model.SerializeToString() == before
    is_normal(normal)
    assert normal.side == size
    assert not normal.raw
    for count in (1, 3):
        x = images(count, size)
        expected, found = one_by_one(model, x), run(normal.model, x)
        assert len(found) == count
        np.testing.assert_allclose(found.reshape(count, -1), expected, atol=limit * np.abs(expected).max())
    return normal


def kinds(normal: Normal) -> list[str]:
    return [n.op_type for n in normal.model.graph.node]


# --- what torch exports -----------------------------------------------------------------------------------------------


class Convolutions(nn.Module):
    """Convolutions and batch norm, a resize to sizes read off a tensor, pooling, dropout and a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish()
        )
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
        self.after = nn.BatchNorm2d(8)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.stem(x)
        deep = nn.functional.interpolate(self.depth(nn.functional.avg_pool2d(wide, 2)), size=wide.shape[2:])
        return self.head(self.after(wide + deep))


class Attention(nn.Module):
    """A class token, and qkv in one product with the batch behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.qkv, self.norm, self.gelu = nn.Linear(16, 48), nn.LayerNorm(16), nn.GELU()
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)
        n, t, c = tokens.shape
        q, k, v = self.qkv(self.norm(tokens)).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = ((q @ k.transpose(-2, -1) / 3).softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        return self.head(self.gelu(tokens + mixed)[:, 0])


class TokensFirst(nn.Module):
    """torch's own attention, which has the batch second and among the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.own = nn.Conv2d(3, 16, 4, stride=4), nn.MultiheadAttention(16, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).permute(2, 0, 1)
        return self.head(self.own(tokens, tokens, tokens, need_weights=False)[0].mean(0))


class Windows(nn.Module):
    """Windows that are as good as images in between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.head = nn.Conv2d(3, 4, 1), nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, side, _ = x.shape
        w = self.conv(x).permute(0, 2, 3, 1).reshape(n, side // 4, 4, side // 4, 4, 4).transpose(2, 3)
        w = w.reshape(-1, 16, 4)
        w = (w @ w.transpose(1, 2)).softmax(-1) @ self.mix(w)
        w = w.reshape(-1, side // 4, side // 4, 4, 4, 4).transpose(2, 3).reshape(n, side, side, 4)
        return self.head(w.tanh().mean((1, 2)))


def trained(network: nn.Module) -> nn.Module:
    """In evaluation mode, with statistics of batch norm that are not 0 and 1."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.bias):
                nn.init.normal_(values)
            for values in (module.running_var, module.weight):
                nn.init.uniform_(values, 0.5, 2)
    return network.eval()


def exported(network: nn.Module, path: Path, side: int, opset: int, dynamo: bool, free: bool) -> onnx.ModelProto:
    x = torch.zeros(2 if free else 1, 3, side, side)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    options: dict[str, object] = {"dynamic_axes": {"image": {0: "batch"}}} if free else {}
    if dynamo:
        options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},) if free else None, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network, (x,), str(path), opset_version=opset, dynamo=dynamo, input_names=["image"], **options
        )
    return read(path)


@pytest.mark.parametrize(
    ("network", "dynamo", "opset", "free"),
    [
        (Convolutions, True, 18, False),
        (Convolutions, True, 20, True),
        (Convolutions, False, 11, False),
        (Convolutions, False, 13, False),
        (Convolutions, False, 17, True),
        (Attention, True, 18, False),
        (Attention, True, 23, True),
        (Attention, False, 11, False),
        (Attention, False, 13, False),
        (Attention, False, 17, True),
        (TokensFirst, True, 18, False),
        (TokensFirst, False, 17, False),
        (Windows, True, 20, False),
        (Windows, False, 11, False),
        (Windows, False, 17, True),
    ],
)
def test_torch(network: type[nn.Module], dynamo: bool, opset: int, free: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = trained(network())
    model = exported(net, tmp_path / "net.onnx", 16, opset, dynamo, free)
    normal = agrees(model, 16)
    with torch.no_grad():
        x = images(3, 16)
        np.testing.assert_allclose(run(normal.model, x), net(torch.from_numpy(x)).numpy(), atol=1e-4)
    assert bool(normal.notes) != free
    if network is Convolutions:
        assert kinds(normal).count("Mul") <= 2  # one batch norm has no layer before it; Hardswish may have one
    static = [t for n in normal.model.graph.node if n.op_type == "Reshape" for t in n.input[1:]]
    assert set(static) <= {t.name for t in normal.model.graph.initializer}


@pytest.mark.parametrize(
    ("name", "dynamo", "opset"),
    [
        ("mobilenetv3_small_050", True, 18),
        ("mobilenetv3_small_050", False, 11),
        ("resnet10t", False, 13),
        ("vit_tiny_patch16_224", True, 23),
    ],
)
def test_networks_of_others(name: str, dynamo: bool, opset: int, tmp_path: Path) -> None:
    timm = public_networks.timm()
    small = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2}
    torch.manual_seed(2)
    network = timm.create_model(name, num_classes=5, **(small if name.startswith("vit") else {}))
    agrees(exported(trained(network), tmp_path / "net.onnx", 32, opset, dynamo, free=False), 32)


# --- what other exporters write ---------------------------------------------------------------------------------------

CONV = {"w": weight(8, 3, 3, 3), "b": weight(8)}
LINEAR = {"k": weight(8, 4), "c": weight(4)}


def pooled(head: str, dims: str = "1,3,8,8", result: str = "1,4", **more: str) -> str:
    """The text of a network: convolution, ReLU, mean over the pixels into `f` (N, 8), then `head` from `f` to `y0`."""
    before, kind = more.get("before", ""), more.get("kind", "float")
    source = "v" if before else "image"
    return f"""net ({kind}[{dims}] image) => (float[{result}] y0) {{
        {before} r = Conv<pads=[1,1,1,1]>({source}, w, b) h = Relu(r) g = GlobalAveragePool(h) f = Flatten(g)
        {head} }}"""


@pytest.mark.parametrize("end", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("batch", ["1", "N"])
def test_what_comes_from_tensorflow(end: str, kind: str, batch: str) -> None:
    text = f"""net ({kind}[{batch},8,8,3] image) => (float[{batch},4] p) {{
        i = Cast<to=1>(image) s = Mul(i, scale) v = Transpose<perm=[0,3,1,2]>(s) r = Conv<pads=[1,1,1,1]>(v, w, b)
        h = Relu(r) g = ReduceMean<axes=[2,3],keepdims=1>(h) f = Squeeze(g, last) m = MatMul(f, k) a = Add(m, c)
        q = {end}(a) p = Identity(q) }}"""
    weights = {**CONV, **LINEAR, "scale": np.array(1 / 255, np.float32), "last": np.array([2, 3])}
    model = made(text, 13, 7, **weights)
    normal = normal_form(model)
    is_normal(normal)
    assert (normal.side, normal.raw) == (8, kind == "uint8")
    assert kinds(normal)[-2:] == ["MatMul", "Add"]
    assert not {"Softmax", "LogSoftmax", "Identity"} & set(kinds(normal))
    assert ("Cast" in kinds(normal)) is False  # the pixels stay float32 all the way
    assert any("Softmax" in note for note in normal.notes)
    for count in (1, 3):
        x = RNG.integers(0, 256, (count, 3, 8, 8)).astype(np.uint8 if kind == "uint8" else np.float32)
        y = run(normal.model, x.astype(np.float32)).astype(np.float64)
        y -= np.log(np.exp(y).sum(-1, keepdims=True))
        expected = one_by_one(model, np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
        np.testing.assert_allclose(y if end == "LogSoftmax" else np.exp(y), expected, atol=1e-4)


def test_transposes_that_undo_each_other_go() -> None:
    model = made(
        pooled("y0 = Gemm(f, k, c)", "1,8,8,3", before="v = Transpose<perm=[0,3,1,2]>(image)"), **CONV, **LINEAR
    )
    normal = normal_form(model)
    assert "Transpose" not in kinds(normal)
    x = images(2, 8)
    np.testing.assert_allclose(run(normal.model, x), one_by_one(model, x.transpose(0, 2, 3, 1)), atol=1e-5)


def test_pixels_that_are_counted_in_whole_numbers() -> None:
    """A uint8 input that is not cast at once is rounded and cut to 0 … 255."""
    model = made(
        pooled("y0 = Gemm(f, k, c)", kind="uint8", before="m = MaxPool<kernel_shape=[2,2]>(image) v = Cast<to=1>(m)"),
        **CONV,
        **LINEAR,
    )
    normal = normal_form(model)
    assert normal.raw
    x = RNG.uniform(-20, 280, (3, 3, 8, 8)).astype(np.float32)
    expected = one_by_one(model, x.round().clip(0, 255).astype(np.uint8))
    np.testing.assert_allclose(run(normal.model, x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [np.float16, np.float64, "bfloat16"])
def test_other_floats(kind: type | str) -> None:
    code = TensorProto.BFLOAT16 if kind == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    text = pooled(
        "u = Cast<to=1>(f) q = ConstantOfShape<value = float[1] {0.5}>(four) a = Add(u, q) y0 = Cast<to=1>(a)"
    )
    model = made(text.replace("y0 = Cast", "m = MatMul(a, k) y0 = Cast").replace("(a) }", "(m) }"), **CONV, **LINEAR)
    model.graph.initializer.append(numpy_helper.from_array(np.array([8]), "four"))
    for t in model.graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(t)
            t.CopyFrom(helper.make_tensor(t.name, code, array.shape, array.ravel()))
    for node in model.graph.node:
        for a in node.attribute:
            if a.name == "to" and node.output[0] != "y0":
                a.i = code
            if a.name == "value":
                a.t.CopyFrom(helper.make_tensor("", code, [1], [0.5]))
    model.graph.input[0].type.tensor_type.elem_type = code
    if kind == "bfloat16":  # ONNX Runtime computes nothing in it
        normal = normal_form(model)
        is_normal(normal)
        assert any("half precision" in note for note in normal.notes)
        return
    normal = normal_form(model)
    is_normal(normal)
    assert any("half precision" in note for note in normal.notes) == (kind == np.float16)
    assert "Cast" not in kinds(normal)
    x = images(3, 8)
    expected = one_by_one(model, x.astype(kind))
    np.testing.assert_allclose(run(normal.model, x), expected, atol=1e-2 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_the_first_exporters(name: str) -> None:
    """Files of Caffe2, opset 9, as onnx tests itself with: all weights are computed by nodes."""
    path = Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"
    if not path.is_file():
        pytest.skip("this onnx comes without its light models")
    normal = normal_form(read(path))
    is_normal(normal)
    assert normal.side == 224
    assert "Softmax" not in kinds(normal)
    assert {n.op_type for n in normal.model.graph.node}.isdisjoint({"ConstantOfShape", "Shape"})


def test_weights_among_the_inputs() -> None:
    model = made(pooled("d = Dropout(f) y0 = Gemm(d, k, c)"), 9, 3, **CONV, **LINEAR)
    model.graph.input.extend(helper.make_tensor_value_info(t.name, 1, t.dims) for t in model.graph.initializer)
    agrees(model, 8)


def test_the_oldest_opset() -> None:
    text = """net (float[1,3,8,8] image) => (float[1,4] y0) {
        r = Conv<kernel_shape=[3,3],pads=[1,1,1,1]>(image, w, b) n = BatchNormalization(r, a, b, b, v)
        h = Clip<min=0.0,max=6.0>(n) u = Upsample<mode="nearest">(h, scales) p = Pad<pads=[0,0,1,1,0,0,1,1]>(u)
        z = Slice<axes=[2],starts=[1],ends=[9]>(p) g = ReduceMean<axes=[2,3],keepdims=0>(z) s = Unsqueeze<axes=[2]>(g)
        q = Squeeze<axes=[2]>(s) one, two = Split<axis=1,split=[4,4]>(q) t = Concat<axis=1>(two, one)
        l = Gemm(t, k, c) y0 = Softmax(l) }"""
    scales = np.array([1, 1, 2, 2], np.float32)
    positive = {"a": weight(8), "v": np.abs(weight(8)) + 1}
    model = made(text, 9, 4, **CONV, **LINEAR, **positive, scales=scales)
    normal = normal_form(model)
    is_normal(normal)
    assert "Softmax" not in kinds(normal)
    x = images(3, 8)
    y = np.exp(run(normal.model, x).astype(np.float64))
    np.testing.assert_allclose(y / y.sum(1, keepdims=True), one_by_one(model, x), atol=1e-5)


@pytest.mark.parametrize("opset", [20, 21, 23, 24, onnx.defs.onnx_opset_version()])
def test_newer_operators_are_said_in_older_ones(opset: int) -> None:
    head = "e = Gelu(f) t = Cast<to=1,saturate=1>(e) y0 = Gemm(t, k, c)"
    more = {}
    if opset >= 21:
        head = "u = GroupNormalization<num_groups=2>(h, a, b) p = GlobalAveragePool(u) o = Flatten(p) j = Add(o, f) "
        head += "e = Gelu<approximate='tanh'>(j) y0 = Gemm(e, k, c)".replace("'", '"')
        more = {"a": weight(8)}
    if opset >= 23:
        head = """n = RMSNormalization(f, a) i = Reshape(h, tokens) o = Transpose<perm=[0,2,1]>(i)
            m = Attention<q_num_heads=2,kv_num_heads=2>(o, o, o) s = ReduceMean<keepdims=0>(m, one) e = Add(n, s)
            y0 = Gemm(e, k, c)"""
        more = {"a": weight(8), "tokens": np.array([1, 8, 64]), "one": np.array([1])}
    if opset >= 24:
        head = head.replace("y0 = Gemm(e", "z = Swish(e) y0 = Gemm(z")
    normal = agrees(made(pooled(head), opset, 10, **CONV, **LINEAR, **more), 8)
    assert all(onnx.defs.has(kind, 18, "") for kind in kinds(normal))


def test_local_functions_are_opened() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "mine" : 1]>
        net (float[N,3,8,8] image) => (float[N,3] y0) { a = mine.twice(image) g = GlobalAveragePool(a) y0 = Flatten(g) }
        <domain: "mine", opset_import: ["" : 18]> twice (v) => (u) { u = Add(v, v) }"""
    )
    normal = agrees(model, 8)
    assert kinds(normal) == ["Add", "GlobalAveragePool", "Reshape"] or "Flatten" in kinds(normal)


@pytest.mark.parametrize("opset", [11, 18])
def test_an_if_that_is_decided_already(opset: int) -> None:
    """As torch writes squeeze: an If on whether a dimension is 1, with a value from outside in each branch."""
    squeeze = "t = Squeeze<axes=[2,3]>(g)" if opset < 13 else "x2 = Constant<value_ints=[2,3]>() t = Squeeze(g, x2)"
    head = f"""s = Shape(g) d = Gather(s, two) o = Equal(d, one)
        z = If(o) <then_branch = yes () => (float[1,8] t) {{ {squeeze} }},
                   else_branch = no () => (float[1,8,1,1] e) {{ e = Identity(g) }}>
        y0 = Gemm(z, k, c)"""
    ints = {"two": np.array(2), "one": np.array(1)}
    agrees(made(pooled(head), opset, 7, **CONV, **LINEAR, **ints), 8)


def test_an_if_inside_an_if() -> None:
    """Their branches use the same names, and values of the branch around them."""
    head = """z = If(yes) <then_branch = a () => (float[1,8] t) { u = Relu(f)
            t = If(yes) <then_branch = c () => (float[1,8] u2) { v = Neg(u) u2 = Add(v, f) },
                         else_branch = d () => (float[1,8] v2) { v2 = Relu(u) }> },
            else_branch = b () => (float[1,8] t) { t = Neg(f) }>
        e = If(no) <then_branch = g2 () => (float[1,8] t) { t = Relu(z) },
                    else_branch = h2 () => (float[1,8] t) { u = Neg(z) v = Tanh(u) t = Add(v, u) }>
        y0 = Gemm(e, k, c)"""
    flags = {"yes": np.array(True), "no": np.array(False)}
    normal = agrees(made(pooled(head), **CONV, **LINEAR, **flags), 8)
    assert kinds(normal)[-7:] == ["Relu", "Neg", "Add", "Neg", "Tanh", "Add", "Gemm"]


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_a_fixed_batch_is_freed(batch: int) -> None:
    head = """i = Reshape(h, flat) o = Transpose<perm=[0,2,1]>(i) z = Expand(token, shape) j = Concat<axis=1>(z, o)
        q = Reshape(j, heads) t = Transpose<perm=[2,0,1,3]>(q) a = Reshape(t, flatter) u = Transpose<perm=[1,0,2]>(a)
        e = Reshape(u, back) l = ReduceMean<keepdims=0>(e, two) d = Reshape(l, rows) y0 = Gemm(d, k, c)"""
    ints = {
        "flat": np.array([batch, 8, 64]),
        "shape": np.array([batch, 1, 8]),
        "heads": np.array([batch, 65, 2, 4]),
        "flatter": np.array([2, batch, 65 * 4]),
        "back": np.array([batch, 2, 65, 4]),
        "two": np.array([2]),
        "rows": np.array([batch, 8]),
    }
    text = pooled(head, f"{batch},3,8,8", f"{batch},4")
    model = made(text, **CONV, **LINEAR, token=weight(1, 1, 8), **ints)
    if batch == 1:
        agrees(model, 8)
        return
    normal = normal_form(model)
    is_normal(normal)
    x = images(batch, 8)
    expected = run(model, x)
    np.testing.assert_allclose(run(normal.model, x), expected, atol=1e-4)
    np.testing.assert_allclose(run(normal.model, x[:1]), expected[:1], atol=1e-4)
    np.testing.assert_allclose(run(normal.model, np.concatenate([x, x]))[batch:], expected, atol=1e-4)


@pytest.mark.parametrize("picked", [np.arange(512), RNG.permutation(512)[:24]])
def test_views_of_one_flattened_image(picked: np.ndarray) -> None:
    """As torch writes a view with strides of its own; windows then lie in one dimension with the batch."""
    head = """i = Reshape(h, all) v = Gather(i, places) q = Reshape(v, windows) e = Expand(q, windows)
        m = ReduceMax<keepdims=0>(e, two) l = Reshape(m, back) d = Transpose<perm=[0,2,1]>(l)
        y1 = ReduceMean<keepdims=0>(d, two) y2 = Concat<axis=1>(y1, f) y0 = Tanh(y2)"""
    ints = {"all": np.array([-1]), "places": picked.reshape(1, 2, 2, -1), "windows": np.array([4, 2, len(picked) // 8])}
    ints |= {"two": np.array([2]), "back": np.array([1, 4, 2])}
    normal = agrees(made(pooled(head, result="1,10"), **CONV, **ints), 8)
    assert ("Gather" in kinds(normal)) == (len(picked) < 512)
    assert "Expand" not in kinds(normal)


def test_a_batch_that_is_free_at_the_input_only() -> None:
    """Some exporters free the input and leave the reshapes at one image."""
    agrees(made(pooled("i = Reshape(g, row) y0 = Gemm(i, k, c)", "N,3,8,8"), **CONV, **LINEAR, row=np.array([1, 8])), 8)


@pytest.mark.parametrize(
    ("layer", "weights", "left"),
    [
        ("r = Conv(image, w, b) n = BatchNormalization(r, s, b, m, v)", {}, 0),
        ("r = Conv(image, w) n = BatchNormalization(r, s, b, m, v)", {}, 0),
        ("r = ConvTranspose<group=3>(image, t, o) n = BatchNormalization<epsilon=0.1>(r, s6, s6, s6, v6)", {}, 0),
        ("r = Conv(image, w) e = Relu(r) n = BatchNormalization(e, s, b, m, v)", {}, 1),
        ("r = Conv(image, w) e = BatchNormalization(r, s, b, m, v) q = Sigmoid(r) n = Mul(e, q)", {}, 1),
        ("f = Flatten(image) r = Gemm<transB=1,beta=0.5>(f, g, b) n = BatchNormalization(r, s, b, m, v)", {}, 0),
        ("f = Flatten(image) r = Gemm<alpha=2.0>(f, k) n = BatchNormalization(r, s, b, m, v)", {}, 0),
        ("f = Flatten(image) r = MatMul(f, k) n = BatchNormalization(r, s, b, m, v)", {}, 0),
        ("f = Flatten(image) r = MatMul(f, k) d = Add(b, r) n = BatchNormalization(d, s, b, m, v)", {}, 0),
        ("f = Flatten(image) r = MatMul(f, k) d = Mul(b, r) n = BatchNormalization(d, s, b, m, v)", {}, 1),
    ],
)
def test_batch_norm_is_part_of_the_layer_before(layer: str, weights: dict[str, np.ndarray], left: int) -> None:
    text = f"net (float[N,3,6,6] image) => (float[N,k] y0) {{ {layer} y0 = Tanh(n) }}"
    if "Flatten" not in layer:
        text = text.replace("[N,k]", "[N,k,l,m]")
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "s": (8,), "m": (8,), "v": (8,), "t": (3, 2, 2, 2), "o": (6,), "s6": (6,)}
    shapes |= {"v6": (6,), "g": (8, 108), "k": (108, 8)}
    every = {k: np.abs(weight(*v)) + 0.5 if k in ("v", "v6") else weight(*v) / 4 for k, v in shapes.items()}
    normal = agrees(made(text, **{k: v for k, v in every.items() if f"{k}," in text or f"{k})" in text}), 6)
    assert kinds(normal).count("Mul") - layer.count(" Mul(") == left
    assert kinds(normal).count("Add") <= 1


def test_constants_are_computed_once() -> None:
    head = """e = Constant<value_float=2.0>() z = Mul(k, e) t = Transpose<perm=[1,0]>(z)
        s = Shape(f) n = Gather(s, zero) u = Unsqueeze(n, zeros) w8 = Constant<value_ints=[8]>()
        j = Concat<axis=0>(u, w8) q = Reshape(g, j) y0 = Gemm<transB=1>(q, t, c)"""
    weights = {"zero": np.array(0), "zeros": np.array([0])}
    normal = agrees(made(pooled(head, "N,3,8,8", "N,4"), **CONV, **LINEAR, **weights), 8)
    assert kinds(normal) == ["Conv", "Relu", "GlobalAveragePool", "Reshape", "Gemm"]


@pytest.mark.parametrize(
    ("output", "shape"),
    [(None, ["N", 4]), ("f", ["N", 8]), ("h", ["N", 8, 8, 8]), ("tokens", ["N", 64, 8])],
)
def test_any_value_can_be_the_output(output: str | None, shape: list[object]) -> None:
    head = "i = Reshape(h, flat) tokens = Transpose<perm=[0,2,1]>(i) y0 = Gemm(f, k, c) y1 = ReduceMax(tokens)"
    model = made(pooled(head), **CONV, **LINEAR, flat=np.array([1, 8, 64]))
    normal = normal_form(model, output=output)
    is_normal(normal)
    assert [d.dim_param or d.dim_value for d in normal.model.graph.output[0].type.tensor_type.shape.dim] == shape
    chosen = onnx.ModelProto.FromString(model.SerializeToString())
    if output:
        chosen.graph.output[0].CopyFrom(helper.make_tensor_value_info(output, TensorProto.FLOAT, None))
    x = images(3, 8)
    np.testing.assert_allclose(run(normal.model, x).reshape(3, -1), one_by_one(chosen, x), atol=1e-4)


def test_logits_are_preferred_and_what_only_others_need_is_dropped() -> None:
    model = made(
        """net (float[1,3,8,8] image, int64[1,7] words) => (int64[1] best, float[1,7] other, float[1,3] logits) {
            other = Cast<to=1>(words) g = GlobalAveragePool(image) logits = Flatten(g)
            best = ArgMax<keepdims=0>(logits) }"""
    )
    normal = normal_form(model)
    x = images(3, 8)
    np.testing.assert_allclose(run(normal.model, x), x.mean((2, 3)), atol=1e-5)


@pytest.mark.parametrize(("given", "side"), [(None, 224), (32, 32)])
def test_the_side_is_the_callers_where_the_file_leaves_it_free(given: int | None, side: int) -> None:
    model = made("net (float[N,3,H,W] image) => (float[N,3] y0) { g = GlobalMaxPool(image) y0 = Flatten(g) }")
    agrees(model, side, side=given)


def test_names_that_are_ours() -> None:
    model = made("net (float[1,3,8,8] y) => (float[1,3] x) { a = Relu(y) g = GlobalMaxPool(a) x = Flatten(g) }")
    agrees(model, 8)


def test_weights_in_a_file_beside(tmp_path: Path) -> None:
    model = made(pooled("y0 = Gemm(f, k, c)"), **CONV, **LINEAR)
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    options = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 0}
    onnx.save(model, str(tmp_path / "net.onnx"), **options)
    assert read(tmp_path / "net.onnx").graph.initializer[0].raw_data == whole.graph.initializer[0].raw_data
    agrees(read(tmp_path / "net.onnx"), 8)
    (tmp_path / "net.bin").unlink()
    refused("net.bin", lambda: read(tmp_path / "net.onnx"))


def test_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import deco_export.backbone.normal_form"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(words: str, call: object) -> None:
    """One sentence: what was expected, what was found, what to do."""
    with pytest.raises(ExportError) as caught:
        call()  # type: ignore[operator]
    message = str(caught.value)
    assert words in message
    assert message.startswith("expected ")
    assert ", but " in message
    assert "; " in message
    assert "\n" not in message


def test_files_that_are_none(tmp_path: Path) -> None:
    refused("nothing.onnx", lambda: read(tmp_path / "nothing.onnx"))
    refused("expected an ONNX file", lambda: read(tmp_path))
    (tmp_path / "text.onnx").write_bytes(b"this is no protobuf" * 9)
    refused("text.onnx", lambda: read(tmp_path / "text.onnx"))
    (tmp_path / "empty.onnx").write_bytes(b"")
    refused("empty.onnx", lambda: read(tmp_path / "empty.onnx"))


def test_more_weights_than_a_file_may_hold(tmp_path: Path) -> None:
    model = made("net (float[1,3,8,8] image) => (float[1,3,8,8] y0) { y0 = Add(image, big) }")
    big = TensorProto(name="big", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    big.dims.extend([2**15, 2**15])
    big.external_data.add(key="location", value="big.bin")
    model.graph.initializer.append(big)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    refused("2 GB", lambda: read(tmp_path / "net.onnx"))
    with (tmp_path / "whole.onnx").open("wb") as file:
        file.truncate(2**31)
    refused("2 GB", lambda: read(tmp_path / "whole.onnx"))


SMALL = "net (float[1,3,8,8] image) => (float[1,3] y0) { %s g = GlobalMaxPool(a) y0 = Flatten(g) }"


@pytest.mark.parametrize(
    ("words", "text", "opset"),
    [
        ("quantized", SMALL % "q = QuantizeLinear(image, s, z) a = DequantizeLinear(q, s, z)", 18),
        ("com.microsoft.FusedMatMul", SMALL % "a = com.microsoft.FusedMatMul(image, image)", 18),
        ("Loop", SMALL % "a = Loop(n, t, image) <body = b (int64 i, bool c, float[1,3,8,8] v) =>"
         " (bool d, float[1,3,8,8] u) { d = Identity(c) u = Relu(v) }>", 18),
        ("If", SMALL % "m = ReduceMax<keepdims=0>(image) q = Greater(m, s) a = If(q) <then_branch = p () =>"
         " (float[1,3,8,8] u) { u = Relu(image) }, else_branch = e () => (float[1,3,8,8] v) { v = Neg(image) }>", 18),
        ("one input", "net (float[1,3,8,8] image, float[8] mask) => (float[1,3,8,8] y) { y = Mul(image, mask) }", 18),
        ("3 channels", "net (float[1,1,8,8] image) => (float[1,1,1,1] y0) { y0 = GlobalMaxPool(image) }", 18),
        ("3 channels", "net (float[1,4,8,8] image) => (float[1,4,1,1] y0) { y0 = GlobalMaxPool(image) }", 18),
        ("int64", "net (int64[1,16] words) => (float[1,16] y0) { y0 = Cast<to=1>(words) }", 18),
        ("4 dimensions", "net (float[1,16] sound) => (float[1,16] y0) { y0 = Relu(sound) }", 18),
        ("float output", "net (float[1,3,8,8] image) => (int64[1,3,8] y0) { y0 = ArgMax<keepdims=0>(image) }", 18),
        ("square", "net (float[1,3,8,9] image) => (float[1,3] y0) { g = GlobalMaxPool(image) y0 = Flatten(g) }", 18),
        ("training mode", SMALL % "a = Dropout(image, half, t)", 18),
        ("training mode", SMALL % "a, b, c = BatchNormalization<training_mode=1>(image, l, l, l, l)", 18),
        ("differ", SMALL % "m = ReduceMax<axes=[0]>(image) a = Add(image, m)", 13),
        ("without chance", SMALL % "r = RandomNormalLike(image) a = Add(image, r)", 18),
        ("any number of images", SMALL % "r = Squeeze(image, zeros) a = Unsqueeze(r, zeros)", 18),
        ("DeformConv", SMALL % "a = DeformConv(image, k, o)", 19),
        ("images first", "n (float[1,3,8,8] image) => (float[3,1,8,8] y) { y = Transpose<perm=[1,0,3,2]>(image) }", 18),
        ("computed from the image", SMALL % "a = Mul(s, s)", 18),
        ("opset", SMALL % "a = Relu(image)", 99),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(words: str, text: str, opset: int) -> None:
    one = {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8), "n": np.array(3), "t": np.array(True)}
    every = one | {"half": one["s"], "l": np.ones(3, np.float32), "zeros": np.array([0]), "k": weight(3, 3, 1, 1)}
    every["o"] = weight(1, 2, 8, 8)
    model = made(text, opset, **{k: v for k, v in every.items() if f"{k}," in text or f"{k})" in text})
    refused(words, lambda: normal_form(model))


def test_sizes_that_contradict() -> None:
    model = made(pooled("y0 = Gemm(f, k, c)"), **CONV, **LINEAR)
    refused("8×8", lambda: normal_form(model, side=16))
    free = made(
        """net (float[N,3,H,W] image) => (float[N,4] y0) { f = Flatten(image) y0 = Gemm(f, k, c) }""",
        k=weight(192, 4),
        c=weight(4),
    )
    refused("16×16", lambda: normal_form(free, side=16))
    agrees(free, 8, side=8)


def test_files_that_break_the_rules() -> None:
    model = made(pooled("y0 = Concat(f, f)", result="1,16"), **CONV)  # without an axis
    refused("valid ONNX", lambda: normal_form(model))


def test_outputs_that_are_none() -> None:
    model = made(pooled("y0 = Gemm(f, k, c)"), **CONV, **LINEAR)
    refused("'y0'", lambda: normal_form(model, output="nothing"))
