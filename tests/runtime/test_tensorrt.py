"""TensorRT without a GPU: what engines are kept by, the plan of a build, and what is said where nothing can be built.

What needs a GPU is skipped without one, with that reason.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from deco_runtime.engine import REPRESENTATION, TRUNK
from deco_runtime.engines import _engine_cache, _tensorrt, providers
from deco_runtime.engines._engine_cache import LIST, EngineCache, driver, gpu, key
from deco_runtime.engines._predictor import Predictor
from deco_runtime.engines._tensorrt import BATCH, TensorRTEngine, plan
from deco_runtime.engines._weights_inside import WeightsInside, noise
from deco_runtime.engines.golden import golden_check
from deco_runtime.engines.portable import files
from deco_runtime.engines.registry import open_engine
from deco_runtime.running.patience import patience
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry.bus import Bus, Hears, Listener
from deco_runtime.telemetry.happenings import Doing, Said, Stepped
from deco_runtime.types import Floats

GIVEN = {"tensorrt": "101500", "driver": "580.1", "gpu": "NVIDIA L4", "onnxruntime": "1.24.1", "trt_fp16_enable": "0"}


def test_a_key_is_of_the_weights_and_all_versions(bundle: Bundle) -> None:
    model = files(bundle.root)[REPRESENTATION].read_bytes()
    other = bytearray(model)
    other[-200] ^= 1  # one bit of a weight
    keys = {key(model, GIVEN), key(bytes(other), GIVEN), *(key(model, GIVEN | {name: "x"}) for name in GIVEN)}
    assert len(keys) == 2 + len(GIVEN)
    assert key(model, dict(reversed(GIVEN.items()))) == key(model, GIVEN)


def built(cache: EngineCache, name: str = "TensorrtExecutionProvider_0_sm89.engine") -> None:
    """As a build that came to its end leaves it."""
    cache.prepare()
    (cache.folder / name).write_bytes(b"engine")
    cache.finish()


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "tensorrt", "representation", b"graph", GIVEN)


def test_what_was_built_is_there_at_the_next_start(cache: EngineCache, tmp_path: Path) -> None:
    assert not cache.complete()
    built(cache)
    again = EngineCache(tmp_path / "tensorrt", "representation", b"graph", GIVEN)
    assert again.complete()
    again.prepare()
    assert [file.name for file in again.folder.glob("*.engine")] == ["TensorrtExecutionProvider_0_sm89.engine"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / LIST).unlink(),
        lambda folder: (folder / LIST).write_text("{"),
        lambda folder: (folder / LIST).write_text("{}"),
        lambda folder: next(folder.glob("*.engine")).write_bytes(b"engin"),
        lambda folder: next(folder.glob("*.engine")).unlink(),
        lambda folder: (folder / "other.engine").write_bytes(b"another"),
    ],
    ids=["half-built", "list-cut", "list-empty", "engine-cut", "engine-gone", "engine-more"],
)
def test_what_is_damaged_is_built_anew(harm, cache: EngineCache) -> None:
    built(cache)
    harm(cache.folder)
    assert not cache.complete()
    cache.prepare()
    assert list(cache.folder.iterdir()) == []
    built(cache)
    assert cache.complete()


def test_one_folder_for_each_graph(tmp_path: Path) -> None:
    place = tmp_path / "tensorrt"
    old, trunk = EngineCache(place, "representation", b"old", GIVEN), EngineCache(place, "trunk", b"old", GIVEN)
    given_up, new = (EngineCache(place, "representation", model, GIVEN) for model in (b"given up", b"new"))
    built(old)
    built(trunk)
    given_up.prepare()
    new.prepare()  # until it is complete, the old one may be needed again
    assert (old.complete(), given_up.folder.exists(), new.complete()) == (True, False, False)
    built(new)
    assert (old.folder.exists(), trunk.complete(), new.complete()) == (False, True, True)


def test_nothing_built_is_not_complete(cache: EngineCache) -> None:
    cache.prepare()
    cache.finish()
    assert not cache.complete()


def test_timings_do_not_grow_without_end(cache: EngineCache, monkeypatch: pytest.MonkeyPatch) -> None:
    built(cache)
    (cache.timing / "sm89.timing").write_bytes(b"12345")
    cache.prepare()
    assert (cache.timing / "sm89.timing").exists()
    monkeypatch.setattr(_engine_cache, "LARGEST_TIMING", 4)
    cache.prepare()
    assert list(cache.timing.iterdir()) == []


def test_a_place_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):  # noqa: PT011  (which one differs between systems)
        EngineCache(tmp_path / "file" / "tensorrt", "trunk", b"", {}).prepare()


def test_what_the_machine_says(tmp_path: Path) -> None:
    assert (driver(tmp_path), gpu(tmp_path)) == ("", "")
    information = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t\t 186\n")
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc\n"
    )
    assert (driver(tmp_path), gpu(tmp_path)) == ("535.183.01", "NVIDIA GeForce RTX 4090")
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    )
    assert driver(tmp_path) == "580.95.05"


def test_what_a_jetson_says(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").write_text("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic\n")
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"NVIDIA Jetson Orin Nano Developer Kit\0")
    assert driver(tmp_path).startswith("R36 (release), REVISION: 4.3")
    assert gpu(tmp_path) == "NVIDIA Jetson Orin Nano Developer Kit"


def test_the_plan(cache: EngineCache) -> None:
    assert plan(False, None) == {"device_id": "0", "trt_fp16_enable": "0"}
    assert plan(True, cache) == {
        "device_id": "0",
        "trt_fp16_enable": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(cache.folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(cache.timing),
    }


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with a GPU; this one has none to tell of."""
    monkeypatch.setattr(_tensorrt, "facts", lambda: {name: GIVEN[name] for name in ("tensorrt", "driver", "gpu")})


def on_the_cpu(bundle: Bundle, directory: Path | None) -> TensorRTEngine:
    """The engine with the CPU in TensorRT's place, which takes the same sessions."""
    cpu = providers.Provider("tensorrt", "CPUExecutionProvider", "")
    return TensorRTEngine("portable/tensorrt", bundle, cpu, "fp32", directory)


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_images_go_one_by_one_through_graphs_of_one_shape(bundle: Bundle, tmp_path: Path, known: None) -> None:
    engine, usual = on_the_cpu(bundle, tmp_path / "tensorrt"), open_engine(bundle, "portable")
    x = np.random.default_rng(0).standard_normal((11, *bundle.image_shape), np.float32)
    for found, expected in zip(engine.represent(x), usual.represent(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    opened = engine._opened(REPRESENTATION)
    assert opened.get_inputs()[0].shape == [1, *bundle.image_shape]
    assert engine.predict(bundle.weights(), x)[0].shape == (11, len(bundle.classes))
    assert engine.to_build((REPRESENTATION, TRUNK)) == [REPRESENTATION]  # the CPU has built none


def test_the_free_dimension_of_every_graph_has_one_name(bundle: Bundle) -> None:
    for graph, file in files(bundle.root).items():
        if file.is_file():
            session = onnxruntime.InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
            free = {side for each in session.get_inputs() for side in each.shape if not isinstance(side, int)}
            assert free == {BATCH}, graph


def test_what_is_to_be_built(bundle: Bundle, tmp_path: Path, known: None) -> None:
    assert providers.to_build(open_engine(bundle, "portable"), (REPRESENTATION,)) == []
    engine = on_the_cpu(bundle, tmp_path)
    assert providers.to_build(engine, ("weight_gradient",)) == []  # θ is its input
    assert providers.to_build(engine, (TRUNK, REPRESENTATION)) == [REPRESENTATION]
    built(engine._cache(REPRESENTATION, files(bundle.root)[REPRESENTATION].read_bytes()))
    assert providers.to_build(engine, (TRUNK, REPRESENTATION)) == []
    assert providers.to_build(on_the_cpu(bundle, None), (REPRESENTATION,)) == [REPRESENTATION]


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_nothing_is_kept_by_what_is_not_known(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tensorrt, "facts", lambda: {"tensorrt": "101500", "driver": "", "gpu": "NVIDIA L4"})
    engine = on_the_cpu(bundle, tmp_path / "tensorrt")
    engine.represent(np.zeros((1, *bundle.image_shape), np.float32))
    assert not (tmp_path / "tensorrt").exists()


class Heard(Listener):
    def __init__(self) -> None:
        self.told: list[object] = []

    def hears(self) -> Hears:
        return dict.fromkeys((Doing, Said, Stepped), self.told.append)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    monkeypatch.setattr("deco_runtime.running.patience.EVERY_S", 0.05)
    before = threading.active_count()
    yield Heard()
    assert threading.active_count() == before


def test_a_build_is_told_of_while_it_lasts(heard: Heard) -> None:
    with patience(Bus(heard), ["trunk", "representation"]):
        time.sleep(0.3)
    what = "builds TensorRT engines for trunk, representation"
    assert heard.told[:2] == [Doing(what), Said(f"{what}; that takes minutes, and is kept for the next start")]
    assert sum(isinstance(each, Stepped) for each in heard.told) > 2  # systemd waits
    assert Said(f"{what}, for 0 s now") in heard.told
    assert heard.told[-2:] == [Doing("starting"), Said("that took 0 s")]


def test_nothing_to_build_is_nothing_told(heard: Heard) -> None:
    with patience(Bus(heard), []):
        pass
    assert heard.told == []


def test_a_build_that_fails_leaves_no_thread(heard: Heard) -> None:
    with pytest.raises(ZeroDivisionError), patience(Bus(heard), ["trunk"]):
        _ = 1 / 0


class Reopened:
    """In the place of a refitted engine: a session on the file with θ in it, opened anew for each θ."""

    def __init__(self, weights: WeightsInside, off: float = 0.0) -> None:
        self.weights, self.fits, self.off = weights, 0, off

    def fit(self, theta: Floats) -> None:
        self.fits += 1
        self.session = onnxruntime.InferenceSession(
            self.weights.with_theta(theta + self.off), providers=["CPUExecutionProvider"]
        )

    def predict(self, image: Floats) -> tuple[Floats, Floats]:
        return tuple(self.session.run(["logits", "features"], {"x": image}))


@pytest.fixture(scope="module")
def inside(bundle: Bundle) -> WeightsInside:
    model = bundle.root.joinpath("inference.onnx").read_bytes()
    return WeightsInside(model, bundle.weights(), [each.size for each in bundle.parameters])


def test_new_weights_are_put_in_the_place_of_the_old_ones(bundle: Bundle, inside: WeightsInside) -> None:
    """What an engine is refitted with gives the answers that θ as an input gives, without the package onnx."""
    usual, theta = open_engine(bundle, "portable"), bundle.weights()
    x = np.random.default_rng(1).standard_normal((3, *bundle.image_shape), np.float32)
    assert inside.with_theta(theta) == bundle.root.joinpath("inference.onnx").read_bytes()
    for each in (noise(theta), np.random.default_rng(2).standard_normal(len(theta), np.float32) / 10):
        session = onnxruntime.InferenceSession(inside.with_theta(each), providers=["CPUExecutionProvider"])
        for found, right in zip(session.run(["logits", "features"], {"x": x}), usual.predict(each, x), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
    assert np.abs(noise(theta) - theta).max() > 0


def test_weights_that_are_not_in_the_file(bundle: Bundle) -> None:
    model, theta = bundle.root.joinpath("inference.onnx").read_bytes(), bundle.weights()
    sizes = [each.size for each in bundle.parameters]
    with pytest.raises(ValueError, match=r"^no weights like those of θ from 0 on"):
        WeightsInside(model, theta + 1, sizes)
    with pytest.raises(ValueError, match=r"^no weights like those of θ from "):
        WeightsInside(model, np.concatenate([theta[sizes[0] :], theta[: sizes[0]]]), [*sizes[1:], sizes[0]])
    with pytest.raises(ValueError, match=r"^(the file is cut short|no weights like|no protobuf at byte)"):
        WeightsInside(model[: len(model) // 2], theta, sizes)
    with pytest.raises(ValueError, match=r"^no protobuf at byte 1$"):
        WeightsInside(b"\x0f", theta, sizes)


def test_a_predictor_follows_the_camera_and_nothing_else(bundle: Bundle, inside: WeightsInside) -> None:
    usual, start = open_engine(bundle, "portable"), bundle.weights()
    asked: list[int] = []
    engine = Reopened(inside)
    predictor = Predictor(engine, lambda theta, x: asked.append(len(x)) or usual.predict(theta, x))
    predictor.check(start, bundle.image_shape)
    assert engine.fits == len(asked) == 2  # another θ, and that of the bundle
    x = np.random.default_rng(3).standard_normal((4, *bundle.image_shape), np.float32)
    candidate, deployed = noise(start), noise(noise(start))

    def predicts(theta: Floats, images: Floats, by_the_usual: bool) -> None:
        asked.clear()
        for found, right in zip(predictor(theta, images), usual.predict(theta, images), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
        assert bool(asked) == by_the_usual

    predicts(start.copy(), x, False)
    predicts(candidate, x, True)  # judged by the guard, again and again
    predicts(candidate, x, True)
    predicts(start, x[:1], False)
    assert engine.fits == 2
    predicts(deployed, x[:1], True)  # published: the first frame
    predicts(candidate, x, True)
    predicts(deployed, x[:1], False)  # the second one
    predicts(deployed, x, False)
    assert engine.fits == 3


def test_an_engine_with_other_answers_is_not_taken(bundle: Bundle, inside: WeightsInside) -> None:
    wrong = Predictor(Reopened(inside, off=0.01), open_engine(bundle, "portable").predict)
    with pytest.raises(RuntimeError, match=r"^its answers are not those of the usual graph$"):
        wrong.check(bundle.weights(), bundle.image_shape)


def test_a_refit_that_fails_leaves_it_to_the_usual_graph(bundle: Bundle, inside: WeightsInside) -> None:
    usual = open_engine(bundle, "portable")
    engine = Reopened(inside)
    predictor = Predictor(engine, usual.predict)
    predictor.check(bundle.weights(), bundle.image_shape)
    engine.fit = lambda theta: 1 / 0
    x = np.zeros((1, *bundle.image_shape), np.float32)
    theta = noise(bundle.weights())
    for _ in range(3):
        np.testing.assert_array_equal(predictor(theta, x)[0], usual.predict(theta, x)[0])


def test_why_nothing_is_refitted(bundle: Bundle) -> None:
    engine = on_the_cpu(bundle, None)
    assert engine.prepare((REPRESENTATION,)) is None  # deco+ does not predict with θ
    if "cuda" not in providers.offered():
        reason = "the installed onnxruntime does not offer cuda"
    elif util.find_spec("tensorrt") is None:
        reason = "the Python package tensorrt is not installed"
    else:
        pytest.skip("tensorrt is here")
    words = f"predict computes on CUDA or the CPU, not in an engine that is refitted: {reason}"
    assert engine.prepare(("predict", "weight_gradient")) == words
    assert providers.to_build(engine, ("predict",)) == []
    assert providers.prepare(open_engine(bundle, "portable"), ("predict",)) is None


WITH_TENSORRT = pytest.mark.skipif(
    "tensorrt" not in providers.offered() or not _engine_cache.tensorrt_version() or not gpu(),
    reason="needs a GPU of NVIDIA's, TensorRT and onnxruntime-gpu",
)


@WITH_TENSORRT
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_golden_values_of_tensorrt_and_its_cache(precision: str, bundle: Bundle, tmp_path: Path) -> None:
    for first in (True, False):
        engine = open_engine(bundle, "portable/tensorrt", precision, tmp_path)
        assert bool(providers.to_build(engine, (REPRESENTATION,))) == first
        assert golden_check(bundle, engine, REPRESENTATION) is None
        assert not engine.placed[REPRESENTATION].idle
    listed = json.loads(next(tmp_path.glob(f"tensorrt/*/{LIST}")).read_text("utf-8"))
    assert any(name.endswith(".engine") for name in listed)


@WITH_TENSORRT
@pytest.mark.skipif(util.find_spec("tensorrt") is None, reason="needs the Python package tensorrt")
def test_an_engine_that_is_refitted(bundle: Bundle, tmp_path: Path) -> None:
    usual, x = open_engine(bundle, "portable"), np.zeros((1, *bundle.image_shape), np.float32)
    engine = open_engine(bundle, "portable/tensorrt", directory=tmp_path)
    assert providers.prepare(engine, ("predict",)) is None
    for theta in (noise(bundle.weights()), bundle.weights()):
        for _ in range(3):
            np.testing.assert_allclose(engine.predict(theta, x)[0], usual.predict(theta, x)[0], rtol=1e-3, atol=1e-3)
