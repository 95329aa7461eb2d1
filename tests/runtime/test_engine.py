"""Engines: which one is opened, what is said when none can be, and what they compute."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata, util
from pathlib import Path
from typing import Any

import deco_runtime
import numpy as np
import pytest
from deco_runtime.engine import EXACT, PRECISIONS, REPRESENTATION, Engine
from deco_runtime.engines.packages import runtime_packages
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import BundleError, RuntimeMissingError, UsageError
from deco_runtime.host.threads import threads
from deco_runtime.learning import registry
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.random_model import draw_model
from deco_runtime.learning.recipe import Recipe
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats

RUNTIME = Path(deco_runtime.__file__).parents[1]
HAS_TRAINING = util.find_spec("onnxruntime.training") is not None


def inputs(bundle: Bundle, n: int) -> dict[str, Floats]:
    """x, t, u of n images; weights t are not one-hot and do not sum to 1."""
    rng = np.random.default_rng(n)
    shapes = {"x": bundle.image_shape, "t": (len(bundle.classes),), "u": (bundle.features,)}
    return {name: rng.random((n, *shape), np.float32) for name, shape in shapes.items()}


def direction(theta: Floats) -> Floats:
    """v (P,), always the same."""
    return np.random.default_rng(9).standard_normal(len(theta), np.float32)


def outputs(
    engine: Engine, theta: Floats, x: Floats, t: Floats, u: Floats, v: Floats | None = None
) -> dict[str, Floats]:
    logits, features = engine.predict(theta, x)
    loss, weight_gradient = engine.weight_gradient(theta, x, t)
    representation, votes = engine.represent(x)
    return {
        "logits": logits,
        "features": features,
        "loss": np.asarray(loss),
        "weight_gradient": weight_gradient,
        "input_gradient": engine.input_gradient(theta, x, t),
        "feature_gradient": engine.feature_gradient(theta, x, u),
        EXACT: engine.input_gradient_tangent(theta, x, t, direction(theta) if v is None else v),
        REPRESENTATION: representation,
        "votes": votes,
    }


def difference(found: Floats, expected: Floats) -> float:
    """Largest difference, relative to the largest value."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def test_engines_are_found_by_their_files() -> None:
    assert set(engines()) == {"portable", "ort-training", "openvino", "openvino-bf16", "openvino-fp16"}
    assert {module.PRECISION for module in engines().values()} == set(PRECISIONS)


def test_an_engine_by_name(engine: Engine, bundle: Bundle) -> None:
    assert open_engine(bundle, engine.name).name == engine.name


def test_auto_takes_the_preferred_one_that_is_usable(bundle: Bundle) -> None:
    usable = [module for module in engines().values() if module.unusable(bundle) is None]
    assert open_engine(bundle).name == max(usable, key=lambda module: module.PREFERENCE).NAME
    assert open_engine(bundle).precision == "fp32"


@pytest.mark.parametrize("name", ["", "Portable", "cuda", "_sessions"])
def test_an_unknown_engine(bundle: Bundle, name: str) -> None:
    with pytest.raises(
        UsageError, match=rf"expected --engine auto or one of openvino, .*, ort-training, portable, but found '{name}'"
    ):
        open_engine(bundle, name)


@pytest.mark.skipif(HAS_TRAINING, reason="needs the inference build of onnxruntime")
def test_ort_training_needs_its_own_runtime(bundle: Bundle) -> None:
    with pytest.raises(
        RuntimeMissingError,
        match=r"^expected the training build of onnxruntime for --engine ort-training, but the installed one is for "
        r"inference; .*deco-edge\[ort-training\].*use --engine portable$",
    ):
        open_engine(bundle, "ort-training")


@pytest.mark.skipif(not HAS_TRAINING, reason="needs the training build of onnxruntime")
def test_ort_training_needs_a_bundle_with_its_graphs(bundle_path: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle_path, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["engines"] = ["portable"]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(RuntimeMissingError, match="expected a bundle with ort-training graphs, but this one"):
        open_engine(open_bundle(copy), "ort-training")
    assert open_engine(open_bundle(copy)).name == "portable"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_threads_are_the_cpus_it_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert threads() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_golden_values(engine: Engine, bundle: Bundle) -> None:
    golden = bundle.golden()
    found = outputs(engine, bundle.weights(), *(golden.pop(name) for name in ("x", "t", "u", "v")))
    assert found.keys() == golden.keys()
    for name, expected in golden.items():
        assert difference(found[name], expected) <= 1e-4, name


@pytest.mark.parametrize("n", [1, 15, 16, 17, 33])
def test_a_batch_is_its_images_one_by_one(engine: Engine, bundle: Bundle, n: int) -> None:
    theta, given = bundle.weights(), inputs(bundle, n)
    together = outputs(engine, theta, **given)
    singles = [outputs(engine, theta, **{k: v[i : i + 1] for k, v in given.items()}) for i in range(n)]
    for name in ("loss", "weight_gradient"):
        assert difference(together[name], sum(s[name].astype(np.float64) for s in singles)) <= 1e-5, name  # type: ignore[arg-type]
    for name in ("logits", "features", "input_gradient", "feature_gradient", EXACT, REPRESENTATION, "votes"):
        assert len(together[name]) == n
        assert difference(together[name], np.concatenate([s[name] for s in singles])) <= 1e-5, name


def test_arrays_are_float32_of_the_right_shapes(engine: Engine, bundle: Bundle) -> None:
    theta, given = bundle.weights(), inputs(bundle, 3)
    before = {name: value.copy() for name, value in given.items()}
    found = outputs(engine, theta, **given)
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {
        "logits": (3, 10),
        "features": (3, bundle.features),
        "loss": (),
        "weight_gradient": theta.shape,
        "input_gradient": (3, *bundle.image_shape),
        "feature_gradient": (3, *bundle.image_shape),
        EXACT: (3, *bundle.image_shape),
        REPRESENTATION: (3, bundle.represented),
        "votes": (3, 10),
    }
    assert all(value.dtype == np.float32 for name, value in found.items() if name != "loss")
    for name, value in before.items():
        np.testing.assert_array_equal(given[name], value)


def test_gradients_are_those_of_the_loss(engine: Engine, bundle: Bundle) -> None:
    """By central differences along the gradient, without torch: L(θ + εd) − L(θ − εd) ≈ 2ε ∇L·d."""
    theta, given = bundle.weights(), inputs(bundle, 3)
    x, t, u = given["x"], given["t"], given["u"]
    _, gradient = engine.weight_gradient(theta, x, t)
    d = gradient / np.linalg.norm(gradient)
    ε = np.float32(1e-2)
    up, down = (engine.weight_gradient(theta + sign * ε * d, x, t)[0] for sign in (1, -1))
    assert (up - down) / (2 * ε) == pytest.approx(np.linalg.norm(gradient), rel=0.02)
    gradient = engine.input_gradient(theta, x, t)
    d = gradient / np.linalg.norm(gradient)
    up, down = (engine.weight_gradient(theta, x + sign * ε * d, t)[0] for sign in (1, -1))
    assert (up - down) / (2 * ε) == pytest.approx(np.linalg.norm(gradient), rel=0.02)
    gradient = engine.feature_gradient(theta, x, u)
    d = gradient / np.linalg.norm(gradient)
    up, down = (float((engine.predict(theta, x + sign * ε * d)[1] * u).sum()) for sign in (1, -1))
    assert (up - down) / (2 * ε) == pytest.approx(np.linalg.norm(gradient), rel=0.02)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["ort-training", "openvino"])
def test_engines_agree(bundle: Bundle, seed: int, name: str) -> None:
    reason = engines()[name].unusable(bundle)
    if reason:
        pytest.skip(reason)
    theta, given = draw_model(bundle.parameters, np.random.default_rng(seed)), inputs(bundle, 20)
    one, other = (outputs(open_engine(bundle, each), theta, **given) for each in ("portable", name))
    for name, value in one.items():
        assert difference(other[name], value) <= 1e-4, name


@pytest.mark.parametrize(("name", "runtime"), [("portable", "onnxruntime"), ("openvino", "openvino")])
def test_a_graph_that_is_none(bundle_path: Path, tmp_path: Path, name: str, runtime: str) -> None:
    """A bundle is verified when it is opened, but a runtime may still be too old for its graphs."""
    if util.find_spec(runtime) is None:
        pytest.skip(f"needs {runtime}")
    copy = shutil.copytree(bundle_path, tmp_path / "copy")
    bundle = open_bundle(copy)
    (copy / "graphs" / "predict.onnx").write_bytes(b"no graph")
    with pytest.raises(
        BundleError, match=rf"expected a graph that {runtime} .* can load, but .*predict.onnx"
    ) as caught:
        open_engine(bundle, name).predict(bundle.weights(), inputs(bundle, 1)["x"])
    assert "\n" not in str(caught.value)


def check_recipe(bundle: Bundle, engine: Engine, recipe: Recipe) -> None:
    """As deco-run does it before it learns by this recipe."""
    registry.learner(recipe.name).check_engine(bundle, engine, recipe)


def test_an_older_bundle_lacks_the_graph_of_the_exact_gradient(bundle: Bundle) -> None:
    engine = open_engine(bundle)
    check_recipe(bundle, engine, Hyperparameters(gradient="exact"))
    older = replace(bundle, files={name: digest for name, digest in bundle.files.items() if EXACT not in name})
    check_recipe(older, engine, Hyperparameters())
    check_recipe(older, engine, Hyperparameters(gradient="exact", matching="distribution"))
    with pytest.raises(BundleError, match=r"expected a bundle with the graph .* for gradient=exact, but .* export it"):
        check_recipe(older, engine, Hyperparameters(gradient="exact"))


@pytest.mark.parametrize("name", ["deco+", "slda"])
@pytest.mark.parametrize("lacks", ["graphs/representation.onnx", "fitted/deco+.npz"])
def test_a_bundle_made_before_deco_plus(lacks: str, name: str, bundle: Bundle) -> None:
    engine = open_engine(bundle)
    check_recipe(bundle, engine, registry.named(name))
    older = replace(bundle, files={file: digest for file, digest in bundle.files.items() if file != lacks})
    check_recipe(older, engine, registry.named("paper"))
    check_recipe(older, engine, registry.named("frozen"))
    with pytest.raises(BundleError) as caught:
        check_recipe(older, engine, registry.named(name))
    assert str(caught.value) == (
        f"expected a bundle with the graph representation and fitted/deco+.npz for --recipe {name}, but {bundle.path} "
        "was exported without; export it again with this version, or use --recipe paper"
    )


@pytest.mark.parametrize("name", ["deco+", "slda"])
def test_deco_plus_computes_no_gradients_that_could_be_less_precise(name: str, bundle: Bundle) -> None:
    class Reduced:
        precision = "bf16"

    reduced: Any = Reduced()
    words = f"expected --precision fp32 with --recipe {re.escape(name)}, which .* found bf16; leave the option out"
    with pytest.raises(UsageError, match=words):
        check_recipe(bundle, reduced, registry.named(name))
    check_recipe(bundle, reduced, registry.named("frozen"))  # predictions are fp32 with every engine


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision(precision: str, bundle: Bundle) -> None:
    """Gradients are near those of fp32 and predictions are the same; the finite difference is refused."""
    name = f"openvino-{precision}"
    if reason := engines()[name].unusable(bundle):
        pytest.skip(reason)
    exact, reduced = open_engine(bundle, "openvino"), open_engine(bundle, precision=precision)
    assert (reduced.name, reduced.precision) == (name, precision)
    theta, values = bundle.weights(), inputs(bundle, 9)
    expected, found = outputs(exact, theta, **values), outputs(reduced, theta, **values)
    for key in ("logits", "features", REPRESENTATION, "votes"):
        np.testing.assert_array_equal(found[key], expected[key])
    for key in ("weight_gradient", "input_gradient", "feature_gradient", EXACT):
        off = np.linalg.norm(found[key] - expected[key]) / np.linalg.norm(expected[key])
        assert 1e-6 < off < 0.1, (key, off)
    for recipe in (Hyperparameters(gradient="exact"), Hyperparameters(matching="distribution")):
        check_recipe(bundle, reduced, recipe)
    with pytest.raises(UsageError, match=rf"computes in {precision}; add --set gradient=exact"):
        check_recipe(bundle, reduced, Hyperparameters())


def test_precision_without_openvino(bundle: Bundle) -> None:
    if util.find_spec("openvino") is not None:
        pytest.skip("openvino is here")
    with pytest.raises(RuntimeMissingError, match="expected the package openvino"):
        open_engine(bundle, precision="bf16")


def test_openvino_from_several_threads(bundle: Bundle) -> None:
    """The camera predicts while the learner takes gradients; each thread must get its own values."""
    if util.find_spec("openvino") is None:
        pytest.skip("needs openvino")
    engine, theta = open_engine(bundle, "openvino"), bundle.weights()
    given = [inputs(bundle, n) for n in range(1, 9)]
    expected = [outputs(engine, theta, **each) for each in given]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: outputs(engine, theta, **each), given * 5))
    for values, right in zip(found, expected * 5, strict=True):
        for name, value in right.items():
            np.testing.assert_array_equal(values[name], value)


@pytest.mark.skipif(util.find_spec("openvino") is not None, reason="needs an environment without openvino")
def test_openvino_is_an_extra(bundle: Bundle) -> None:
    with pytest.raises(
        RuntimeMissingError, match=r"^expected the package openvino .*pip install 'deco-edge\[openvino\]'"
    ):
        open_engine(bundle, "openvino")


def install(site: Path, name: str, version: str, *, metadata_file: bool = True, top_level: bool = True) -> None:
    """What pip leaves of a package that claims the module onnxruntime."""
    directory = site / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir(parents=True)
    if metadata_file:
        (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (directory / "RECORD").write_text("onnxruntime/__init__.py,,\nonnxruntime/capi/_pybind_state.py,,\n")
    if top_level:
        (directory / "top_level.txt").write_text("onnxruntime\n")


CHECK = """
import sys
sys.modules["torch"] = None  # the training build of onnxruntime would import it, for seconds
from deco_runtime.engines.packages import check_runtime
from deco_runtime.errors import RuntimeMissingError
try:
    check_runtime()
except RuntimeMissingError as error:
    print(error)
"""


def checked(site: Path, *, alone: bool = False) -> str:
    """What check_runtime says in a fresh interpreter with `site` before its other packages, or in place of them."""
    path, flags = [str(site), str(RUNTIME)], []
    if alone:
        path, flags = [str(site)], ["-S"]
        (site / "deco_runtime").symlink_to(RUNTIME / "deco_runtime")
        for package in Path(np.__file__).parents[1].glob("numpy*"):
            (site / package.name).symlink_to(package)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        [sys.executable, *flags, "-c", CHECK], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_runtime_here_is_one(tmp_path: Path) -> None:
    (package,) = runtime_packages()
    assert metadata.version(package)
    assert checked(tmp_path) == ""


@pytest.mark.parametrize("top_level", [True, False])
def test_two_runtimes(tmp_path: Path, top_level: bool) -> None:
    install(tmp_path, "onnxruntime-board", "1.20.0", top_level=top_level)
    (package,) = runtime_packages()
    names = ", ".join(sorted([package, "onnxruntime-board"]))
    assert checked(tmp_path) == (
        f"expected one package that provides onnxruntime, but found 2: {names}; they overwrite each other's files, so "
        "uninstall all of them and install the one you want again\n"
    )


def test_what_an_upgrade_left_behind_is_no_second_runtime(tmp_path: Path) -> None:
    install(tmp_path, "onnxruntime", "1.17.0", metadata_file=False)
    install(tmp_path, runtime_packages()[0], "1.16.0")
    assert checked(tmp_path) == ""


def test_no_runtime(tmp_path: Path) -> None:
    said = checked(tmp_path, alone=True)
    assert said.startswith("expected one onnxruntime package, but found none; install it with pip install 'deco-edge[")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can be imported, but it fails with: module 'onnxruntime' has no attribute '__version__'"),
        (
            "raise ImportError('libonnxruntime.so.1: cannot open\\nmore')",
            "fails with: libonnxruntime.so.1: cannot open;",
        ),
        ("raise RuntimeError", "can be imported, but it fails with: RuntimeError; reinstall it"),
        ("__version__ = 'unknown'", "can be imported, but it fails with"),
        ("__version__ = '1.9.0'", "expected onnxruntime 1.18 or newer, but found 1.9.0; upgrade it"),
        ("__version__ = '1.17.3'", "expected onnxruntime 1.18 or newer, but found 1.17.3; upgrade it"),
    ],
)
def test_a_runtime_that_is_broken_or_old(tmp_path: Path, content: str | None, words: str) -> None:
    (tmp_path / "onnxruntime").mkdir()  # without __init__.py: what a half uninstalled package leaves
    if content is not None:
        (tmp_path / "onnxruntime" / "__init__.py").write_text(content)
    said = checked(tmp_path, alone=True)
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("version", ["1.18.0", "1.20.1", "2.0.0", "1.19.0.dev20240601"])
def test_a_runtime_that_will_do(tmp_path: Path, version: str) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text(f"__version__ = {version!r}")
    assert checked(tmp_path, alone=True) == ""
