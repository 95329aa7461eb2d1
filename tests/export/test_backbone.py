"""A public network becomes a bundle: its own pictures, the layers that matter, a trunk, and a rest that learns."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cv2  # noqa: E402
import onnx  # noqa: E402
import public_networks  # noqa: E402
from deco_export import graphs  # noqa: E402
from deco_export.backbone import anatomy, check, finetune, head, phi, probe, split  # noqa: E402
from deco_export.backbone.normal_form import normal_form  # noqa: E402
from deco_export.backbone.pictures import Pictures, of_hugging_face, of_timm, parse  # noqa: E402
from deco_export.backbone.source import open_backbone  # noqa: E402
from deco_export.export import Exported, Options, export  # noqa: E402
from deco_export.graph_values import run_graphs  # noqa: E402
from deco_runtime.engine import EXACT  # noqa: E402
from deco_runtime.engines.golden import golden_check, relative_error  # noqa: E402
from deco_runtime.engines.registry import engines, open_engine  # noqa: E402
from deco_runtime.errors import ExportError, UsageError  # noqa: E402
from deco_runtime.learning import registry  # noqa: E402
from deco_runtime.preprocess import Preprocessing, normalise, preprocess  # noqa: E402
from deco_runtime.storage.bundle import Bundle, open_bundle  # noqa: E402
from deco_runtime.types import Segment  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = "public_networks:tiny"
GREY = ("mean=0.5", "std=0.25")
CLASSES = ("circle", "cross", "stripes")


def draw(kind: int, rng: np.random.Generator, side: int = 40) -> np.ndarray:
    """A picture of one of three things, each a little different."""
    picture = np.full((side, side + 8, 3), rng.integers(0, 80, 3), np.uint8)
    colour, at = tuple(map(int, rng.integers(150, 256, 3))), tuple(map(int, rng.integers(14, side - 14, 2)))
    if kind == 0:
        cv2.circle(picture, at, 10, colour, 3)
    elif kind == 1:
        cv2.line(picture, (at[0] - 9, at[1] - 9), (at[0] + 9, at[1] + 9), colour, 4)
        cv2.line(picture, (at[0] - 9, at[1] + 9), (at[0] + 9, at[1] - 9), colour, 4)
    else:
        picture[:, :: int(rng.integers(4, 6))] = colour
    return picture


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(3)
    for part, count in (("train", 30), ("test", 10)):
        for kind, name in enumerate(CLASSES):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                cv2.imwrite(str(root / part / name / f"{rng.integers(1 << 30):010}{i}.png"), draw(kind, rng))
    return root


def options(photos: Path, out: Path, **more: object) -> Options:
    given = Options(*(str(photos), out, 0.5, "convnet", None, None, 32, 1, None, 0, 0.2), backbone=TINY, pictures=GREY)
    return replace(given, **more)  # type: ignore[arg-type]


def quiet(stage: str, done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def exported(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Exported]:
    path = tmp_path_factory.mktemp("backbone") / "bundle.deco"
    done = export(options(photos, path, cut="auto"), quiet)
    return open_bundle(path), done


@pytest.fixture(scope="module")
def body() -> anatomy.Anatomy:
    return anatomy.read(open_backbone(TINY, None, 32, parse(GREY)).model)


def pictures_of(body: anatomy.Anatomy, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, *body.shapes["x"])).astype(np.float32)


def values(body: anatomy.Anatomy, name: str, x: np.ndarray) -> np.ndarray:
    node = onnx.helper.make_node("Identity", [name], ["out"])
    model = probe.model_of(body, [node], {}, {"out": body.shapes[name]})
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


# --- the bundle


def test_every_engine_gives_the_golden_values_of_trunk_and_rest(exported: tuple[Bundle, Exported]) -> None:
    bundle, done = exported
    assert bundle.trunk
    assert bundle.latent != bundle.image_shape
    assert max(done.errors.values()) < check.TOLERANCE
    assert {"portable/weight_gradient", f"portable/{EXACT}"} <= done.errors.keys()
    tried = [name for name in engines() if engines()[name].unusable(bundle) is None]
    assert "portable" in tried
    for name in tried:
        for graph in ("weight_gradient", "representation"):
            assert golden_check(bundle, open_engine(bundle, name), graph) is None


def test_trunk_and_rest_are_the_network(exported: tuple[Bundle, Exported], body: anatomy.Anatomy) -> None:
    """And what torch's own module says in front of its classifier is what the new one works on."""
    bundle, _ = exported
    engine, x = open_engine(bundle, "portable"), pictures_of(body, 3)
    latents = engine.encode(x)
    assert latents.shape == (3, *bundle.latent)
    logits, features = engine.predict(bundle.weights(), latents)
    seen: dict[str, torch.Tensor] = {}
    network = public_networks.tiny().eval()
    network.classifier.register_forward_pre_hook(lambda _, given: seen.update(features=given[0]))
    with torch.inference_mode():
        network(torch.from_numpy(x))
    assert relative_error(features, seen["features"].numpy()) < 1e-5
    assert relative_error(engine.represent(x)[1], logits) < 1e-5
    assert logits.shape == (3, len(CLASSES))


@pytest.mark.parametrize("cut", ["auto", "features", "x"])
def test_an_extractor_of_maps_is_cut_anywhere(cut: str, photos: Path, tmp_path: Path) -> None:
    """Its features are the mean over its maps; cut there, latents are maps all the same."""
    network = public_networks.extractor().eval()
    read = anatomy.read(open_backbone("public_networks:extractor", None, 32, parse(GREY)).model)
    place = anatomy.features_of(read, None).removeprefix(anatomy.OWN) if cut == "features" else cut
    export(options(photos, tmp_path / "bundle", backbone="public_networks:extractor", cut=place), quiet)
    bundle = open_bundle(tmp_path / "bundle")
    engine, x = open_engine(bundle, "portable"), pictures_of(read, 2)
    latents = engine.encode(x)
    assert latents.shape == (2, *bundle.latent)
    assert bundle.trunk == (cut != "x")
    logits, features = engine.predict(bundle.weights(), latents)
    assert relative_error(engine.represent(x)[1], logits) < 1e-5
    if bundle.made_with["finetune"] == "none":
        with torch.inference_mode():
            expected = network(torch.from_numpy(x)).mean(dim=(2, 3)).numpy()
        assert relative_error(features, expected) < 1e-5
    assert (bundle.made_with["finetune"] == "none") or cut == "auto"
    with np.load(tmp_path / "bundle" / "buffer.npz") as buffer:
        assert buffer["x_syn"].shape == (3, *bundle.latent)


@pytest.mark.parametrize("recipe", registry.names())
def test_every_learner_learns_from_it(recipe: str, exported: tuple[Bundle, Exported], photos: Path) -> None:
    """Each frame goes through the trunk once, and the paper's algorithm sees latents alone."""
    bundle, _ = exported
    engine = open_engine(bundle, "portable")
    kind = registry.learner(recipe)
    learner = kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))
    files = sorted((photos / "train").rglob("*.png"))[:24]
    x = np.stack([preprocess(cv2.imread(str(file)), bundle.preprocessing) for file in files])
    observed = learner.observe(x)
    if recipe == "paper":
        assert observed["x"].shape == (24, *bundle.latent)
    logits = learner.answer(learner.model, observed)
    pseudo, ones = logits.argmax(axis=1), np.ones(24, np.float32)
    learner.learn(Segment(observed, pseudo, ones, np.full(24, -1), None))
    before = learner.model
    learner.retrain()
    assert not np.array_equal(before, learner.model)
    assert np.isfinite(learner.predict(x)).all()


@pytest.mark.parametrize("recipe", ["paper", "deco+"])
def test_deco_run_learns_stops_and_goes_on(
    recipe: str, exported: tuple[Bundle, Exported], photos: Path, tmp_path: Path
) -> None:
    bundle, _ = exported
    command = [sys.executable, "-c", "from deco_runtime.start import run; run()", "--bundle", str(bundle.path)]
    command += ["--images", str(photos), "--test", str(photos), "--state", str(tmp_path / "state"), "--recipe", recipe]
    command += ["--engine", "portable", "--set", "segment=16", "--stc", "8"]
    if recipe == "paper":
        command += ["--set", "retrain_epochs=2", "--set", "retrain_interval=1", "--set", "iterations=2"]
    told = []
    for more in (["--max-segments", "1"], []):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.strip().splitlines()[-1]))
    # Of 45 unseen frames; the last 13 are a segment for a learner that takes less than a whole one.
    assert [each["segments"] for each in told] == [1, 1 if recipe == "paper" else 2]
    assert told[1]["frozen"] > 0.4


# --- pictures


@pytest.mark.parametrize("crop", [0.875, 1.0])
@pytest.mark.parametrize(("height", "width"), [(90, 131), (200, 77), (64, 64), (333, 500)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_device_prepares_pictures_as_timm_does(
    interpolation: str, height: int, width: int, crop: float, tmp_path: Path
) -> None:
    """Logits of the device's pictures are those of the source's own pipeline, from the same JPEG file."""
    timm = public_networks.timm()
    from PIL import Image

    rng = np.random.default_rng(height)
    noise = cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), np.uint8), (0, 0), 2)
    cv2.imwrite(str(tmp_path / "picture.jpg"), cv2.normalize(noise, None, 0, 255, cv2.NORM_MINMAX))
    config = {"input_size": (3, 64, 64), "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
    config |= {"crop_pct": crop, "interpolation": interpolation, "crop_mode": "center"}
    theirs = timm.data.create_transform(**timm.data.resolve_data_config(config))(Image.open(tmp_path / "picture.jpg"))
    ours = preprocess(cv2.imread(str(tmp_path / "picture.jpg")), of_timm(config).preprocessing(64))
    assert ours.shape == theirs.shape == (3, 64, 64)
    network = public_networks.tiny().eval()
    with torch.inference_mode():
        expected, found = network(theirs[None]), network(torch.from_numpy(ours)[None])
    assert relative_error(found.numpy(), expected.numpy()) < 1e-3


def test_what_the_sources_say_of_their_pictures() -> None:
    timm_like = {"input_size": [3, 256, 256], "mean": [0.5] * 3, "std": [0.25] * 3, "crop_pct": 0.9}
    found = of_timm({**timm_like, "interpolation": "bicubic"})
    assert found.preprocessing(256) == Preprocessing(256, (0.5,) * 3, (0.25,) * 3, 284, "bicubic")
    assert found.preprocessing(128) == Preprocessing(128, (0.5,) * 3, (0.25,) * 3, 142, "bicubic")
    hub = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}}
    hub |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225], "resample": 3}
    assert of_hugging_face(hub) == Pictures(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, "bicubic")
    given = parse(["mean=127", "std=128", "colour=bgr", "shorter=40"])
    assert given == Pictures(None, (127 / 255,) * 3, (128 / 255,) * 3, 40, None, True)
    assert given.over(found).size == 256
    assert given.over(found).mean == given.mean


@pytest.mark.parametrize("text", ["mean", "mean=a", "mean=1,2", "std=0", "method=cubic", "colour=red", "size=3", ""])
def test_a_wrong_input_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"^expected --input mean=R,G,B.* but found .*; correct it$"):
        parse([text])


def test_channels_in_the_other_order_are_turned(body: anatomy.Anatomy) -> None:
    turned = anatomy.read(open_backbone(TINY, None, 32, parse([*GREY, "colour=bgr"])).model)
    x = pictures_of(body, 2)
    found = values(turned, turned.output, x)
    expected = values(body, body.output, x[:, ::-1].copy())
    np.testing.assert_allclose(found, expected, atol=1e-5)


# --- where things are


def test_features_maps_and_cuts_of_a_network(body: anatomy.Anatomy) -> None:
    features = anatomy.features_of(body, None)
    assert body.shapes[features] == (24,)
    assert [body.shapes[name][1:] for name in anatomy.maps(body, features)] == [(4, 4), (8, 8), (16, 16)]
    # All of it is cheap, so the earliest place is taken; dearer networks are cut later.
    assert body.made_by[anatomy.cut(body, features, "auto")] == body.made_by[body.alone[0]]
    for name in body.alone:
        if body.made_by[name] <= body.made_by[features]:
            assert anatomy.cut(body, features, name.removeprefix(anatomy.OWN)) == name
    assert anatomy.cut(body, features, "x") == "x"
    for wrong in ("nothing", body.output.removeprefix(anatomy.OWN)):
        with pytest.raises(UsageError, match=r"^expected --cut auto or a value through which everything passes"):
            anatomy.cut(body, features, wrong)
    with pytest.raises(UsageError, match=r"^expected --features to name a value"):
        anatomy.features_of(body, "nothing")


def test_the_cut_leaves_what_may_be_paid_for(body: anatomy.Anatomy, monkeypatch: pytest.MonkeyPatch) -> None:
    features = anatomy.features_of(body, None)
    inner = [name for name in body.alone if body.made_by[name] <= body.made_by[features]]
    classifier = sum(body.cost[body.made_by[features] + 1 :])
    for name in inner:
        monkeypatch.setattr(anatomy, "REST_COST", body.behind(name) - classifier)
        assert body.behind(anatomy.cut(body, features, "auto")) == body.behind(name)


def test_a_transformer_is_seen_by_its_tokens() -> None:
    timm = public_networks.timm()
    torch.manual_seed(0)
    small = {"img_size": 32, "patch_size": 8, "depth": 4, "embed_dim": 24, "num_heads": 2, "num_classes": 0}
    network = timm.create_model("vit_tiny_patch16_224", **small).eval()
    program = torch.onnx.export(
        network,
        (torch.zeros(2, 3, 32, 32),),
        dynamo=True,
        opset_version=18,
        dynamic_shapes=({0: torch.export.Dim("N", min=1)},),
        verbose=False,
    )
    read = anatomy.read(normal_form(program.model_proto, 32).model)
    assert anatomy.classifier(read) is None
    features = anatomy.features_of(read, None)
    assert read.shapes[features] == (24,)
    tokens = anatomy.maps(read, features)
    assert {read.shapes[name] for name in tokens} == {(17, 24)}
    nodes, constants, size = probe.pooled(read, tokens[0], "pooled")
    model = probe.model_of(read, nodes, constants, {"pooled": (size,)})
    import onnxruntime

    x = pictures_of(read, 2)
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    patches = values(read, tokens[0], x)[:, 1:].transpose(0, 2, 1)  # without the class token
    np.testing.assert_allclose(found, patches.reshape(2, -1), atol=1e-6)


def test_a_map_is_averaged_over_a_grid(body: anatomy.Anatomy) -> None:
    features = anatomy.features_of(body, None)
    name = anatomy.maps(body, features)[1]
    nodes, constants, size = probe.pooled(body, name, "pooled")
    model = probe.model_of(body, nodes, constants, {"pooled": (size,)})
    import onnxruntime

    x = pictures_of(body, 2)
    found = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    maps = values(body, name, x)
    expected = torch.nn.functional.avg_pool2d(torch.from_numpy(maps), 2).numpy().reshape(2, -1)
    assert size == expected.shape[1] == 12 * 16
    np.testing.assert_allclose(found, expected, atol=1e-5)


# --- layers and classifier


def test_the_layer_that_knows_is_taken() -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    takes = np.repeat(np.arange(40), 3)
    code = rng.standard_normal((4, 50))[y]
    blind = rng.standard_normal((120, 60)).astype(np.float32)
    knows = (code + 0.7 * rng.standard_normal((120, 50))).astype(np.float32)
    for order in (["blind", "knows", "other"], ["knows", "blind", "other"], ["other", "blind", "knows"]):
        raw = {"blind": blind, "knows": knows, "other": rng.standard_normal((120, 60)).astype(np.float32)}
        chosen, scores = phi.layers({name: raw[name] for name in order}, y, takes, ["other"])
        assert chosen == ("knows",)
        assert scores["knows"] > 0.9 > 0.6 > scores["blind"]
    single, scores = phi.layers({"a": blind, "b": knows, "c": knows}, y, y, ["a", "c"])  # a take each
    assert (single, scores) == (("a", "c"), {})


def test_a_layer_that_knows_takes_and_not_classes_is_not() -> None:
    """Frames of one take are alike: an image's neighbours must not answer for it."""
    rng = np.random.default_rng(1)
    y = np.repeat(np.arange(4), 30)
    takes = np.repeat(np.arange(24), 5)
    by_heart = (3 * rng.standard_normal((24, 50))[takes] + 0.1 * rng.standard_normal((120, 50))).astype(np.float32)
    knows = (rng.standard_normal((4, 50))[y] + rng.standard_normal((120, 50))).astype(np.float32)
    chosen, scores = phi.layers({"by heart": by_heart, "knows": knows}, y, takes, ["by heart"])
    assert chosen == ("knows",)
    assert scores["by heart"] < 0.6


def test_random_directions_fill_the_projection_up() -> None:
    rng = np.random.default_rng(0)
    raw, y = rng.standard_normal((12, 300)).astype(np.float32), np.arange(12) % 3
    found = phi.projection(raw, y, (100, 200), rng)
    assert found.axes.shape == (300, 300)
    shown = (raw - found.mean) @ found.axes
    known = np.abs(shown[:, :11]).mean()
    assert np.abs(shown[:, 11:]).max() < 1e-3 * known  # no labelled image varies along these
    other = np.abs((rng.standard_normal((50, 300)).astype(np.float32) - found.mean) @ found.axes)
    assert 0.1 < other[:, 11:].mean() / other[:, :11].mean() < 10


@pytest.mark.parametrize("classes", [2, 4])
def test_the_head_is_a_penalised_logistic_regression(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    y = np.arange(60) % classes
    f = (5 + 3 * (rng.standard_normal((60, 200)) + 2 * np.eye(classes, 200)[y])).astype(np.float32)
    found = head.fit(f, y, np.arange(60), rng, strength=0.01)
    scaled = (f - f.mean(axis=0)) / f.std()
    expected = LogisticRegression(C=0.01, max_iter=1000, tol=1e-6).fit(scaled, y).predict_proba(scaled)
    logits = found.logits(f)
    softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(softmax / softmax.sum(axis=1, keepdims=True), expected, atol=2e-3)


def test_the_penalty_is_chosen_on_held_out_takes() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    noisy = (rng.standard_normal((80, 300)) + 0.3 * np.eye(2, 300)[y]).astype(np.float32)
    assert head.fit(noisy, y, np.arange(80), rng).strength == min(head.STRENGTHS)
    clear = (0.05 * rng.standard_normal((80, 10)) + np.eye(2, 10)[y]).astype(np.float32)
    assert head.fit(clear, y, np.arange(80), rng).strength == max(head.STRENGTHS)


# --- trunk, rest, fine-tuning, checks


@pytest.mark.parametrize("place", [0, 3, -1])
def test_the_rest_is_differentiated_as_torch_does(place: int, body: anatomy.Anatomy, tmp_path: Path) -> None:
    """Cut early, in the middle and at the features: the gradient of its weights against torch's autograd."""
    features = anatomy.features_of(body, None)
    inner = [name for name in body.alone if body.made_by[name] <= body.made_by[features]]
    rng = np.random.default_rng(0)
    top = head.Head(rng.standard_normal((24, 5)).astype(np.float32), rng.standard_normal(5).astype(np.float32), 1.0)
    fresh, theta, places = split.rest(body, inner[place], 2.0, features, top)
    files = {}
    for name, model in graphs.learning_graphs(fresh).items():
        files[name] = tmp_path / f"{name}.onnx"
        onnx.save_model(model, files[name])
    x, y = pictures_of(body, 3), torch.tensor([0, 3, 4])
    latents = values(body, inner[place], x) / 2
    t = np.eye(5, dtype=np.float32)[y]
    u = rng.standard_normal((3, 24)).astype(np.float32)
    found = run_graphs(files, theta, {"x": latents, "t": t, "u": u})
    network = public_networks.tiny().eval()
    network.classifier = torch.nn.Linear(24, 5)
    with torch.no_grad():
        network.classifier.weight.copy_(torch.from_numpy(top.w.T))
        network.classifier.bias.copy_(torch.from_numpy(top.b))
    logits = network(torch.from_numpy(x))
    loss = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    loss.backward()
    assert relative_error(found["logits"], logits.detach().numpy()) < 1e-5
    assert float(found["loss"]) == pytest.approx(loss.item(), rel=1e-5)
    by_name = {place.name: found["weight_gradient"][place.slice].reshape(place.shape) for place in places}
    assert relative_error(by_name[split.HEAD_W], network.classifier.weight.grad.numpy().T) < 1e-4
    assert relative_error(by_name[split.HEAD_B], network.classifier.bias.grad.numpy()) < 1e-4
    last = network.deep[2]  # a convolution without batch norm, so its weights are those of the graph
    same = [name for name in by_name if by_name[name].shape == tuple(last.weight.shape)]
    assert len(same) == (0 if place == -1 else 1)
    for name in same:
        assert relative_error(by_name[name], last.weight.grad.numpy()) < 1e-4


def test_a_wrong_gradient_is_found(body: anatomy.Anatomy, tmp_path: Path) -> None:
    features = anatomy.features_of(body, None)
    cut = anatomy.cut(body, features, "auto")
    top = head.Head(np.random.default_rng(0).standard_normal((24, 3)).astype(np.float32), np.zeros(3, np.float32), 1.0)
    fresh, theta, places = split.rest(body, cut, 1.0, features, top)
    x = values(body, cut, pictures_of(body, 2))
    made = {**graphs.learning_graphs(fresh), EXACT: graphs.input_gradient_tangent(fresh())}
    files = {}
    for name, model in made.items():
        files[name] = tmp_path / f"{name}.onnx"
        onnx.save_model(model, files[name])
    _, errors = check.check(fresh, theta, places, {"portable": files}, x)
    assert max(errors.values()) < 1e-4
    factors = [(name, np.array(1.05, np.float32)) for name in ("input_gradient", "feature_gradient", EXACT)]
    for place in places:  # of one tensor alone
        factors.append(("weight_gradient", np.ones(len(theta), np.float32)))
        factors[-1][1][place.slice] = 1.05
    for name, factor in factors:
        wrong = onnx.load_model(str(files[name]))
        last = next(node for node in wrong.graph.node if "gradient" in node.output)
        last.output[0] = "right"
        wrong.graph.initializer.append(onnx.numpy_helper.from_array(factor, "factor"))
        wrong.graph.node.append(onnx.helper.make_node("Mul", ["right", "factor"], ["gradient"]))
        onnx.save_model(wrong, tmp_path / "wrong.onnx")
        with pytest.raises(ExportError, match=f"but portable/.*{name}.* is off by"):
            check.check(fresh, theta, places, {"portable": {**files, name: tmp_path / "wrong.onnx"}}, x)


def test_fine_tuning_lowers_the_loss_and_leaves_the_trunk(body: anatomy.Anatomy, tmp_path: Path) -> None:
    features = anatomy.features_of(body, None)
    cut = [name for name in body.alone if body.made_by[name] <= body.made_by[features]][4]
    rng = np.random.default_rng(0)
    y = np.arange(40) % 3
    x = values(body, cut, pictures_of(body, 40) + 2 * np.eye(3, dtype=np.float32)[y][:, :, None, None])
    top = head.Head(10 * rng.standard_normal((24, 3)).astype(np.float32), np.zeros(3, np.float32), 1.0)
    told: list[int] = []
    tuned, tuned_top = finetune.trained(body, features, top, cut, x, y, rng, lambda done, _: told.append(done))
    assert told == list(range(1, finetune.EPOCHS + 1))
    changed = {name for name in body.weights if not np.array_equal(tuned.weights[name], body.weights[name])}
    before_cut = {name for node in body.nodes[: body.made_by[cut] + 1] for name in node.input}
    assert changed
    assert not changed & before_cut

    def loss(network: anatomy.Anatomy, top: head.Head) -> float:
        fresh, theta, _ = split.rest(network, cut, 1.0, features, top)
        onnx.save_model(graphs.weight_gradient(fresh()), tmp_path / "loss.onnx")
        inputs = {"x": x, "t": np.eye(3, dtype=np.float32)[y]}
        return float(run_graphs({"weight_gradient": tmp_path / "loss.onnx"}, theta, inputs)["loss"])

    assert loss(tuned, tuned_top) < 0.98 * loss(body, top)


# --- without torch


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """deco-export where torch and what comes with it cannot be imported."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] in ('torch', 'onnxscript', 'timm', 'torchvision'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from deco_runtime.start import export; export()"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("more", [[], ["--backbone", TINY], ["--backbone", "timm:resnet18"]])
def test_what_needs_torch_says_so(more: list[str], photos: Path, tmp_path: Path) -> None:
    done = without_torch("--data", str(photos), "--out", str(tmp_path / "bundle"), *more)
    assert done.returncode == 5
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: expected torch and onnxscript for ")
    assert last.endswith("or give an ONNX file, --backbone onnx:FILE")


def test_an_onnx_file_needs_no_torch(photos: Path, tmp_path: Path) -> None:
    """The same network as a file gives the same bundle in a process that cannot import torch."""
    program = torch.onnx.export(
        public_networks.tiny().eval(), (torch.zeros(1, 3, 32, 32),), dynamo=True, opset_version=18, verbose=False
    )
    file = tmp_path / "tiny.onnx"
    onnx.save_model(program.model_proto, file)
    arguments = ["--data", str(photos), "--out", str(tmp_path / "bundle"), "--backbone", f"onnx:{file}"]
    arguments += ["--labelled", "0.5", "--val", "0.2", "--input", GREY[0], "--input", GREY[1], "--ipc", "1"]
    done = without_torch(*arguments)
    assert done.returncode == 0, done.stderr
    assert "How well each class is known" in (tmp_path / "bundle-report.html").read_text("utf-8")
    bundle = open_bundle(tmp_path / "bundle")
    export(options(photos, tmp_path / "other"), quiet)
    other = open_bundle(tmp_path / "other")
    x = normalise(np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8), bundle.preprocessing)
    found, expected = (open_engine(each, "portable").represent(x) for each in (bundle, other))
    assert relative_error(found[1], expected[1]) < 1e-3
    assert bundle.engines == ("portable",)  # onnxruntime-training imports torch


def test_a_file_may_call_its_values_as_the_export_calls_its_own(photos: Path, tmp_path: Path) -> None:
    program = torch.onnx.export(
        public_networks.tiny().eval(), (torch.zeros(1, 3, 32, 32),), dynamo=True, opset_version=18, verbose=False
    )
    model, names = program.model_proto, {}
    ours = [
        "features",
        "raw",
        "votes",
        "representation",
        "theta",
        "t",
        "u",
        "gradient",
        "Conv_1",
        "Mul_2",
        "constant_1",
    ]
    made = [name for node in model.graph.node[:-1] for name in node.output]
    names.update(zip(reversed(made), [*ours, "latents", "loss", "logits"], strict=False))
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    del model.graph.value_info[:]
    onnx.save_model(model, tmp_path / "named.onnx")
    export(options(photos, tmp_path / "bundle", backbone=f"onnx:{tmp_path / 'named.onnx'}", finetune="none"), quiet)
    bundle, x = open_bundle(tmp_path / "bundle"), np.random.default_rng(0).standard_normal((2, 3, 32, 32), np.float32)
    assert bundle.made_with["features"] == "features"
    engine = open_engine(bundle, "portable")
    logits, features = engine.predict(bundle.weights(), engine.encode(x))
    assert relative_error(engine.represent(x)[1], logits) < 1e-5
    network, seen = public_networks.tiny().eval(), []
    network.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.inference_mode():
        network(torch.from_numpy(x))
    assert relative_error(features, seen[0].numpy()) < 1e-5


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"backbone": "onnx:nowhere.onnx"}, "nowhere.onnx"),
        ({"backbone": "nothing"}, "expected --backbone onnx:FILE, torchvision:NAME"),
        ({"backbone": "public_networks:missing"}, "public_networks:missing"),
        ({"backbone": "timm:no_such_network"}, "no_such_network"),
        ({"width": 8}, "expected no --width with --backbone"),
        ({"epochs": 3}, "expected no --epochs with --backbone"),
        ({"backbone": None, "pictures": (), "finetune": "all"}, "expected --finetune with a --backbone"),
        ({"backbone": None, "cut": "a"}, "expected --input with a --backbone"),
        ({"weights": Path("w.pt")}, "found --weights too"),
        ({"pictures": ("mean=x",)}, "expected --input mean=R,G,B"),
        ({"cut": "nothing"}, "expected --cut auto"),
        ({"features": "nothing"}, "expected --features to name"),
    ],
)
def test_what_cannot_be_is_one_sentence(more: dict[str, object], words: str, photos: Path, tmp_path: Path) -> None:
    if str(more.get("backbone")).startswith("timm"):
        public_networks.timm()
    with pytest.raises((UsageError, ExportError)) as caught:
        export(options(photos, tmp_path / "bundle", **more), quiet)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "bundle").exists()
