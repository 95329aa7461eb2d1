"""--quantize int8: the frozen trunk in 8 bits, all that is made of it made of those, and a bound on what that loses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cv2  # noqa: E402
import onnx  # noqa: E402
from deco_export.backbone import anatomy, check, quantize  # noqa: E402
from deco_export.backbone.pictures import parse  # noqa: E402
from deco_export.backbone.source import open_backbone  # noqa: E402
from deco_export.export import Exported, export  # noqa: E402
from deco_runtime.engine import EXACT, REPRESENTATION, TRUNK  # noqa: E402
from deco_runtime.engines.golden import compare, golden_check, read_golden, relative_error  # noqa: E402
from deco_runtime.engines.registry import engines, open_engine  # noqa: E402
from deco_runtime.errors import ExportError, RuntimeMissingError, UsageError  # noqa: E402
from deco_runtime.preprocess import normalise  # noqa: E402
from deco_runtime.storage.bundle import Bundle, open_bundle  # noqa: E402
from onnx import TensorProto  # noqa: E402
from test_backbone import GREY, TINY, options, pictures_of, quiet, values  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
BITS = {"QuantizeLinear", "DequantizeLinear"}


def draw(kind: int, rng: np.random.Generator) -> np.ndarray:
    """Noise with more of one colour, which even a network of random weights can tell."""
    picture = rng.integers(0, 120, (40, 40, 3), np.uint8)
    picture[..., kind] += np.uint8(rng.integers(40, 120))
    return picture


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    for part, count in (("train", 60), ("test", 10)):
        for kind, name in enumerate(("blue", "green", "red")):
            (root / part / name).mkdir(parents=True)
            for _ in range(count):
                cv2.imwrite(str(root / part / name / f"{rng.integers(1 << 40):013}.png"), draw(kind, rng))
    return root


def read(network: str = TINY) -> anatomy.Anatomy:
    return anatomy.read(open_backbone(network, None, 32, parse(GREY)).model)


def cut_of(body: anatomy.Anatomy) -> str:
    """The last of those maps that have as many channels as the last block makes."""
    return next(name for name in reversed(body.alone) if body.shapes[name] == (16, 4, 4))


@pytest.fixture(scope="module")
def body() -> anatomy.Anatomy:
    return read()


@pytest.fixture(scope="module")
def exported(
    photos: Path, body: anatomy.Anatomy, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bundle, Bundle, Exported]:
    """The same in 8 bits and in float32, and what the export said of the first."""
    folder, done = tmp_path_factory.mktemp("quantized"), []
    for name in ("int8", "none"):
        given = options(
            photos, folder / name, cut=cut_of(body).removeprefix(anatomy.OWN), finetune="none", quantize=name
        )
        done.append(export(given, quiet))
    return open_bundle(folder / "int8"), open_bundle(folder / "none"), done[0]


def some_photos(photos: Path, bundle: Bundle) -> np.ndarray:
    rng = np.random.default_rng(8)
    pixels = [draw(i % 3, rng)[:32, :32] for i in range(12)]
    return normalise(np.stack(pixels), bundle.preprocessing)


# --- the bundle


def test_trunk_and_representation_are_of_one_network(exported: tuple[Bundle, Bundle, Exported], photos: Path) -> None:
    """Both in 8 bits, to the last bit the same; and float32 says nearly what they do."""
    engine, plain = (open_engine(bundle, "portable") for bundle in exported[:2])
    bundle = exported[0]
    x = some_photos(photos, bundle)
    found = engine.predict(bundle.weights(), engine.encode(x))[0]
    assert relative_error(engine.represent(x)[1], found) < 1e-3
    off = relative_error(engine.encode(x), plain.encode(x), order=2)
    assert 1e-4 < off < 0.1
    assert relative_error(found, plain.represent(x)[1], order=2) < 0.2


def test_what_is_frozen_is_in_8_bits_and_nothing_else(exported: tuple[Bundle, Bundle, Exported]) -> None:
    bundle, _, _ = exported
    for file in sorted((bundle.path / "graphs").glob("*.onnx")):
        model = onnx.load_model(str(file))
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 18)]
        assert model.ir_version == 8
        kinds = [node.op_type for node in model.graph.node]
        if file.stem not in (TRUNK, REPRESENTATION):
            assert not BITS & set(kinds)
            continue
        types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
        maker = {name: node for node in model.graph.node for name in node.output}
        of_weights = {n.input[1]: n for n in model.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")}
        frozen = [name for name in of_weights if name in maker and maker[name].op_type == "DequantizeLinear"]
        assert len(frozen) == 4
        for name in frozen:
            assert of_weights[name].op_type == "Conv"
            assert maker[of_weights[name].input[0]].op_type == "DequantizeLinear"
            assert types[maker[name].input[0]] == TensorProto.INT8
            assert onnx.helper.get_node_attr_value(maker[name], "axis") == 0  # per channel
        # Behind the cut: the last convolution and the head, whose weights are floats, and the projection's, of float16.
        behind = [of_weights[name].op_type for name in of_weights if name not in frozen]
        assert sorted(behind) == (["Conv", "Gemm", "MatMul"] if file.stem == REPRESENTATION else [])
        assert all(types.get(name, TensorProto.FLOAT) == TensorProto.FLOAT for name in {*of_weights} - {*frozen})


def test_every_engine_gives_the_golden_values(exported: tuple[Bundle, Bundle, Exported]) -> None:
    """And the gradients of the rest are those of finite differences."""
    bundle, _, done = exported
    assert max(done.errors.values()) < check.TOLERANCE
    assert {"portable/weight_gradient", f"portable/{EXACT}"} <= done.errors.keys()
    tried = [name for name in engines() if engines()[name].unusable(bundle) is None]
    assert "portable" in tried
    for name in tried:
        for graph in ("weight_gradient", REPRESENTATION):
            assert golden_check(bundle, open_engine(bundle, name), graph) is None


def test_golden_values_of_8_bits_alone_may_be_rounded_elsewhere(exported: tuple[Bundle, Bundle, Exported]) -> None:
    bundle, plain, _ = exported
    assert (bundle.quantized, plain.quantized) == (True, False)
    engine, theta = open_engine(bundle, "portable"), bundle.weights()
    for graph, names in ((TRUNK, ("x",)), (REPRESENTATION, (REPRESENTATION, "votes")), ("predict", ("logits",))):
        golden = read_golden(bundle, graph)
        assert golden is not None
        for off, fine in ((0.05, graph != "predict"), (0.5, False)):
            wrong = golden | {name: golden[name] * np.float32(1 + off) for name in names}
            assert compare(engine, graph, theta, wrong, bundle.quantized).agrees is fine
            assert not compare(engine, graph, theta, wrong).agrees


def test_what_it_costs_is_told(exported: tuple[Bundle, Bundle, Exported]) -> None:
    bundle, plain, done = exported
    made = bundle.made_with
    assert (made["quantize"], plain.made_with["quantize"]) == ("int8", "none")
    assert made["quantize_held_out"]
    assert made["quantize_images"] == made["validation_images"]
    assert made["quantize_accuracy"] == made["validation_accuracy"]
    assert made["float_accuracy"] == plain.made_with["validation_accuracy"]
    assert 0.8 < made["quantize_agreement"] <= 1
    (note,) = [note for note in done.notes if "--quantize" in note]
    assert f"{made['quantize_accuracy']:.1%} are right instead of {made['float_accuracy']:.1%}" in note


@pytest.mark.parametrize("tuning", ["last-block", "all"])
def test_a_network_that_was_trained_on_is_quantized_too(
    tuning: str, photos: Path, body: anatomy.Anatomy, tmp_path: Path
) -> None:
    given = options(
        photos, tmp_path / "bundle", cut=cut_of(body).removeprefix(anatomy.OWN), finetune=tuning, quantize="int8", ipc=0
    )
    export(replace(given, validation=0.0), quiet)
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.made_with["finetune"] == tuning
    assert not bundle.made_with["quantize_held_out"]
    engine, x = open_engine(bundle, "portable"), some_photos(photos, bundle)
    found = engine.predict(bundle.weights(), engine.encode(x))[0]
    assert relative_error(engine.represent(x)[1], found) < 1e-3


# --- the network


def test_names_shapes_and_what_lies_behind_stay(body: anatomy.Anatomy) -> None:
    cut, x = cut_of(body), pictures_of(body, 24)
    maps = anatomy.maps(body, anatomy.features_of(body, None))
    found = quantize.trunk(body, cut, maps, x)
    assert found.shapes == body.shapes
    assert {*maps, cut} <= found.made_by.keys()
    assert found.behind(cut) == body.behind(cut)
    behind = found.nodes[found.made_by[cut] + 1 :]
    assert [node.op_type for node in behind if node.op_type in BITS] == []
    assert all(found.weights[name] is value for name, value in body.weights.items())
    for name in (cut, *maps, body.output):
        assert relative_error(values(found, name, x), values(body, name, x), order=2) < 0.15


def test_a_channel_that_its_norm_closed_keeps_its_bias(body: anatomy.Anatomy) -> None:
    """Its weights are almost nothing, and its bias in steps of them more than 32 bits hold."""
    cut, x = cut_of(body), pictures_of(body, 16)
    first = next(node for node in body.nodes if node.op_type == "Conv")
    w, b = body.weights[first.input[1]].copy(), body.weights[first.input[2]].copy()
    w[2] *= 1e-20
    w[3], b[2], b[3] = 0, 0.7, 0.4
    closed = replace(body, weights={**body.weights, first.input[1]: w, first.input[2]: b})
    found = quantize.trunk(closed, cut, [first.output[0]], x)
    off = values(found, first.output[0], x) - values(closed, first.output[0], x)
    assert np.abs(off[:, 2:4]).max() < 0.03
    assert relative_error(values(found, cut, x), values(closed, cut, x), order=2) < 0.15


@pytest.mark.parametrize("n", [1, 7, 199, 450])
def test_a_few_images_are_looked_at_at_a_time(n: int) -> None:
    reader, seen = quantize._Reader(np.arange(n, dtype=np.float32)[:, None]), list[float]()
    for start in range(len(reader)):
        reader.set_range(start, start + 1)
        while (given := reader.get_next()) is not None:
            assert 0 < len(given["x"]) <= quantize.AT_ONCE
            seen += given["x"].ravel().tolist()
    assert len(seen) == len(set(seen)) == min(n, quantize.IMAGES)
    assert (min(seen), max(seen)) == (0, n - 1)


# --- what is refused


def test_a_network_that_needs_more_than_8_bits_is_refused(photos: Path, tmp_path: Path) -> None:
    network = "public_networks:far"
    given = options(
        photos,
        tmp_path / "bundle",
        backbone=network,
        cut=cut_of(read(network)).removeprefix(anatomy.OWN),
        quantize="int8",
    )
    with pytest.raises(ExportError) as caught:
        export(replace(given, finetune="none"), quiet)
    assert str(caught.value).startswith("expected a trunk in 8 bits to lose at most 1% of the answers, but of 18 held-")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(("images", "lost", "fine"), [(10, 1, True), (10, 2, False), (400, 4, True), (400, 5, False)])
def test_one_image_of_few_may_be_lost(images: int, lost: int, fine: bool) -> None:
    labels = np.zeros(images, np.int64)
    after = labels.copy()
    after[:lost] = 1
    assert quantize.compared(after, labels, labels, True, 4, 1).after == 1.0  # more may be right than before
    if fine:
        found = quantize.compared(labels, after, labels, True, 4, 1)
        assert (found.before, found.after, found.agreement) == (1.0, 1 - lost / images, 1 - lost / images)
        return
    with pytest.raises(ExportError, match=r"^expected .*, but of .*; leave out --quantize, .*bits$"):
        quantize.compared(labels, after, labels, True, 4, 1)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cut": "x", "quantize": "int8"}, "but --cut x leaves none"),
        ({"quantize": "fp16"}, "expected --quantize int8 or none, but found 'fp16'"),
        ({"backbone": None, "pictures": (), "quantize": "int8"}, "expected --quantize with a --backbone"),
    ],
)
def test_what_cannot_be_is_one_sentence(more: dict[str, object], words: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        export(options(photos, tmp_path / "bundle", **more), quiet)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_quantizer_its_package_is_named(body: anatomy.Anatomy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization", None)
    monkeypatch.delattr("onnxruntime.quantization", raising=False)
    with pytest.raises(RuntimeMissingError, match=r"^expected ONNX Runtime's quantizer .*'deco-edge\[backbone\]'$"):
        quantize.trunk(body, cut_of(body), [], pictures_of(body, 2))


def test_what_the_quantizer_does_not_understand_is_one_sentence(body: anatomy.Anatomy) -> None:
    with pytest.raises(ExportError, match=r"^expected ONNX Runtime to quantize .*; leave out --quantize, or cut else"):
        quantize.trunk(body, cut_of(body), [], np.zeros((2, 3, 32), np.float32))
