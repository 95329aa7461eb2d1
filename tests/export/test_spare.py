"""Spare outputs of the learning graphs: nothing is other than without them, until people add a class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deco_export import verify  # noqa: E402
from deco_export.export import Options, export  # noqa: E402
from deco_export.forward import spare_parameters  # noqa: E402
from deco_runtime.engine import Engine  # noqa: E402
from deco_runtime.engines.golden import golden_check  # noqa: E402
from deco_runtime.engines.registry import engines, open_engine  # noqa: E402
from deco_runtime.errors import UsageError  # noqa: E402
from deco_runtime.learning import registry  # noqa: E402
from deco_runtime.learning.buffer import CondensedBuffer, initial, joined  # noqa: E402
from deco_runtime.learning.deco import Deco  # noqa: E402
from deco_runtime.learning.frozen import Frozen  # noqa: E402
from deco_runtime.learning.guard import Unguarded  # noqa: E402
from deco_runtime.learning.hyperparameters import Hyperparameters  # noqa: E402
from deco_runtime.learning.random_model import MASKED, SPARE, draw_model, layers, spares  # noqa: E402
from deco_runtime.learning.retrain import retrain  # noqa: E402
from deco_runtime.learning.vote import pseudo_label  # noqa: E402
from deco_runtime.running.assemble import open_guard  # noqa: E402
from deco_runtime.running.control import observed_in, taught, undone  # noqa: E402
from deco_runtime.storage.bundle import Bundle, open_bundle  # noqa: E402
from deco_runtime.storage.state import LearnedState, load, save  # noqa: E402
from deco_runtime.types import Ints, Observed, Segment  # noqa: E402
from drawn import boxes  # noqa: E402

QUICK = Hyperparameters(iterations=1, retrain_epochs=30, retrain_interval=1)


def options(out: Path, **more: Any) -> Options:
    """As `make_bundle` of conftest.py."""
    small = {"model": "convnet", "width": 8, "depth": 2, "image_size": 16, "ipc": 2, "epochs": 30}
    return Options(data="digits", out=out, labelled=0.05, seed=0, validation=0.1, recipe="paper", **(small | more))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("spare") / "digits"
    export(options(path, spare=2), lambda stage, done, total: None)
    return open_bundle(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same without spare outputs, made by the same process: another one's training rounds in another way."""
    path = tmp_path_factory.mktemp("plain") / "digits"
    export(options(path), lambda stage, done, total: None)
    return open_bundle(path)


@pytest.fixture(scope="module")
def runs_on(bundle: Bundle) -> Engine:
    return open_engine(bundle, "portable")


def opened(bundle: Bundle, engine: Engine, recipe: Hyperparameters = QUICK) -> Deco:
    return Deco.open(bundle, engine, recipe, np.random.default_rng(0))


def seen(it: Deco, bundle: Bundle, first: int, count: int = 10) -> Observed:
    return observed_in(it, boxes(bundle, first, count), bundle)


def digits_of(it: Deco, bundle: Bundle) -> tuple[Observed, Ints]:
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    return observed_in(it, pixels, bundle), labels


def right(it: Deco, observed: Observed, labels: Ints | int) -> float:
    return float((it.answer(it.model, observed).argmax(axis=1) == labels).mean())


def teach(it: Unguarded, bundle: Bundle, name: str, observed: Observed) -> Any:
    return taught(it, bundle.classes, name, observed, np.arange(len(observed["x"])))


def everything(it: Unguarded) -> dict[str, Any]:
    arrays = {name: (array.shape, array.tobytes()) for name, array in it.arrays().items()}
    return {**arrays, "values": repr(it.values())}


def segment(it: Deco, observed: Observed) -> Segment:
    pseudo, confidence = pseudo_label(it.answer(it.model, observed))
    return Segment(observed, pseudo, confidence, np.full(len(pseudo), -1))


def test_the_bundle_is_the_same_but_for_the_outputs(bundle: Bundle, plain: Bundle) -> None:
    size = plain.weight_count
    assert (bundle.outputs, plain.outputs, spares(bundle.parameters), spares(plain.parameters)) == (12, 10, 2, 0)
    assert bundle.classes == plain.classes
    assert bundle.parameters[:-2] == plain.parameters
    assert tuple(p.name for p in bundle.parameters[-2:]) == SPARE
    np.testing.assert_allclose(bundle.weights()[:size], plain.weights(), rtol=1e-4, atol=1e-5)
    assert set(bundle.weights()[-2:].tolist()) == {MASKED}
    assert not bundle.weights()[size:-2].any()
    np.testing.assert_allclose(initial(bundle).x_syn, initial(plain).x_syn, atol=1e-2)
    drawn = [draw_model(each.parameters, np.random.default_rng(0)) for each in (bundle, plain)]
    np.testing.assert_array_equal(drawn[0][:size], drawn[1])
    assert layers(bundle.parameters) == layers(plain.parameters)


@pytest.mark.parametrize("name", ["portable", "ort-training", "openvino"])
def test_every_engine_agrees_with_the_golden_values(name: str, bundle: Bundle) -> None:
    if reason := engines()[name].unusable(bundle):
        pytest.skip(reason)
    engine = open_engine(bundle, name)
    for graph in ("predict", "weight_gradient", "input_gradient", "feature_gradient", "input_gradient_tangent"):
        assert golden_check(bundle, engine, graph) is None


def test_masked_outputs_change_no_gradient(bundle: Bundle, plain: Bundle, runs_on: Engine) -> None:
    other, size = open_engine(plain, "portable"), plain.weight_count
    rng, theta = np.random.default_rng(0), bundle.weights()
    x = rng.standard_normal((6, 3, 16, 16), np.float32)
    t = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 6)]
    wide = np.pad(t, ((0, 0), (0, 2)))
    loss, gradient = runs_on.weight_gradient(theta, x, wide)
    expected_loss, expected = other.weight_gradient(theta[:size], x, t)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    np.testing.assert_allclose(gradient[:size], expected, atol=1e-5 * np.abs(expected).max())
    assert not gradient[size:].any()
    moved, still = runs_on.input_gradient(theta, x, wide), other.input_gradient(theta[:size], x, t)
    np.testing.assert_allclose(moved, still, atol=1e-5 * np.abs(still).max())


def test_unmasked_outputs_have_the_gradients_of_torch(bundle: Bundle, runs_on: Engine) -> None:
    """Of a model that torch makes of the same weights: the convnet, and a linear layer beside its last."""
    from deco_export import models

    model = models.factory("convnet", 10, 16, 8, 2)()
    rng = np.random.default_rng(0)
    theta = bundle.weights()
    theta[bundle.parameters[-2].offset :] = 0.3 * rng.standard_normal(2 * bundle.features + 2)
    whole = verify.WithSpare(model, spare_parameters(2, bundle.features, bundle.parameters[-2].offset))
    with torch.no_grad():
        for own, p in zip(whole.parameters(), bundle.parameters, strict=True):
            own.copy_(torch.from_numpy(theta[p.slice].reshape(p.shape).copy()))
    inputs = {
        "x": rng.standard_normal((5, 3, 16, 16), np.float32),
        "t": np.eye(12, dtype=np.float32)[[10, 11, 3, 10, 0]],
        "u": rng.standard_normal((5, bundle.features), np.float32),
        "v": rng.standard_normal(len(theta), np.float32),
    }
    expected = verify.reference(whole.eval(), inputs)
    x, t = inputs["x"], inputs["t"]
    logits, _ = runs_on.predict(theta, x)
    loss, gradient = runs_on.weight_gradient(theta, x, t)
    assert loss == pytest.approx(float(expected["loss"]), rel=1e-4)
    for found, name in (
        (logits, "logits"),
        (gradient, "weight_gradient"),
        (runs_on.input_gradient(theta, x, t), "input_gradient"),
        (runs_on.input_gradient_tangent(theta, x, t, inputs["v"]), "input_gradient_tangent"),
    ):
        np.testing.assert_allclose(found, expected[name], atol=1e-3 * np.abs(expected[name]).max())


def test_without_a_teaching_the_learner_is_the_one_without_spare_outputs(
    bundle: Bundle, plain: Bundle, runs_on: Engine
) -> None:
    """Its answers are of the bundle's classes, and stay masked whatever weight decay does to their biases."""
    recipe = replace(QUICK, weight_decay=0.5, retrain_rate=1e-2)
    one, two = opened(bundle, runs_on, recipe), opened(plain, open_engine(plain, "portable"), recipe)
    digits, _ = digits_of(one, bundle)
    for it in (one, two):
        assert it.answer(it.model, digits).shape[1] == 10
        it.learn(segment(it, {"x": digits["x"][:40]}))
        assert it.retrain().accepted
    # Five passes of other rounding cross a kink of a ReLU now and then.
    assert np.mean(np.abs(one.memory.x_syn - two.memory.x_syn)) < 1e-2
    assert one.model[-2:].tolist() == [MASKED] * 2
    assert not one.model[plain.weight_count : -2].any()
    assert np.abs(one.model[: plain.weight_count] - two.model).max() < 0.05
    frozen = Frozen.open(bundle, runs_on, Frozen.RECIPE, np.random.default_rng(0))
    assert frozen.observe(digits["x"][:3])["logits"].shape == (3, 10)
    for name in ("deco+", "slda"):
        kind = registry.learner(name)
        kind.open(bundle, runs_on, kind.RECIPE, np.random.default_rng(0))


@pytest.mark.parametrize("with_guard", [False, True])
def test_a_new_class_is_taught_to_the_papers_recipe_and_undone(
    with_guard: bool, bundle: Bundle, runs_on: Engine, tmp_path: Path
) -> None:
    def fresh() -> Unguarded:
        it = opened(bundle, runs_on, replace(QUICK, retrain_epochs=200))
        return open_guard(bundle, it)[0] if with_guard else Unguarded(it)

    it, again = fresh(), fresh()
    learner: Any = it.learner
    digits, start = digits_of(learner, bundle), everything(it)
    before = right(learner, *digits)
    told = teach(it, bundle, "box", seen(learner, bundle, 0))
    assert (told.refused, told.new, told.classes) == (None, True, (*bundle.classes, "box"))
    assert learner.answer(learner.model, digits[0]).shape[1] == 11
    others = seen(learner, bundle, 100, 40)
    assert right(learner, others, 10) >= 0.6
    assert right(learner, *digits) >= before - 0.02
    assert learner.deployed(learner.model)[-1] == pytest.approx(MASKED, rel=0.01)  # of the one that is still spare
    it.learn(segment(learner, others))  # frames that are answered so condense into nothing
    it.learn(segment(learner, {"x": digits[0]["x"][:40]}))
    it.retrain()
    assert right(learner, others, 10) >= 0.6
    save(tmp_path, LearnedState.of(it, bundle, "stream", 7))
    assert load(tmp_path, bundle, again)[0] is not None
    assert everything(again) == everything(it)
    teach(it, bundle, "none", {"x": digits[0]["x"][:5]}) if not with_guard else None
    if not with_guard:
        full = everything(it)
        with pytest.raises(UsageError, match="have 2 spare outputs, but found 'third'"):
            teach(it, bundle, "third", seen(learner, bundle, 200))
        assert everything(it) == full
        undone(it, bundle.classes)
        assert everything(it) == everything(again)
    undone(it, bundle.classes)
    assert learner.model.shape == (bundle.weight_count,)
    once = fresh()
    teach(once, bundle, "box", seen(learner, bundle, 0))
    undone(once, bundle.classes)
    assert {**everything(once), "guard_best": 0} == {**start, "guard_best": 0}


def images_of(it: Deco, c: int) -> Any:
    """The condensed images of a class and their momentum."""
    its = it.memory.part(it.memory.y_syn == c)
    return its.x_syn.tobytes(), its.velocity.tobytes()


def test_a_new_class_gets_condensed_images(bundle: Bundle, runs_on: Engine) -> None:
    """Those that Algorithm 1 makes of its frames, at models in which it has an output like every class."""
    it, by_hand = (Unguarded(opened(bundle, runs_on)) for _ in range(2))
    learner: Any = it.learner
    before, frames = learner.memory, seen(learner, bundle, 0)
    teach(it, bundle, "box", frames)
    frames = frames["x"][~learner.taught.guards]
    assert learner.memory.y_syn.tolist() == [*before.y_syn, 10, 10]
    np.testing.assert_array_equal(learner.memory.x_syn[:-2], before.x_syn)

    other: Any = by_hand.learner
    other.classes, other.rng = 11, np.random.default_rng(0)
    images = CondensedBuffer.start(frames[:2], np.array([10, 10]))
    other.memory = joined([before, images])
    other.memory = other.condense(frames, np.full(8, 10), np.ones(8, np.float32), lambda: None).buffer
    np.testing.assert_array_equal(learner.memory.x_syn, other.memory.x_syn)
    assert np.abs(learner.memory.x_syn[-2:] - frames[:2]).max() > 1e-3

    models = [learner.random_model() for _ in range(50)]
    weight, bias = bundle.parameters[-2:]
    drawn = np.array([m[weight.offset : weight.offset + bundle.features] for m in models])
    assert np.abs(drawn).max() <= bundle.features**-0.5  # as torch.nn.Linear has them
    assert drawn.std() == pytest.approx((3 * bundle.features) ** -0.5, rel=0.05)
    assert all(m[bias.offset] > -1 and m[bias.offset + 1] == MASKED for m in models)
    assert not any(m[weight.offset + bundle.features : bias.offset].any() for m in models)


def test_the_stream_moves_the_images_of_a_new_class(bundle: Bundle, runs_on: Engine) -> None:
    """Frames that are answered so, and no others; θ without what people said does not see them."""
    it = Unguarded(opened(bundle, runs_on))
    learner: Any = it.learner
    teach(it, bundle, "box", seen(learner, bundle, 0))
    digits, _ = digits_of(learner, bundle)
    taught_as, of_three = images_of(learner, 10), images_of(learner, 3)
    only = {"x": digits["x"][:40]}
    it.learn(Segment(only, np.full(40, 3), np.ones(40, np.float32), np.full(40, -1)))
    assert images_of(learner, 10) == taught_as
    assert images_of(learner, 3) != of_three
    of_three = images_of(learner, 3)
    it.learn(Segment(seen(learner, bundle, 100, 40), np.full(40, 10), np.ones(40, np.float32), np.full(40, -1)))
    assert images_of(learner, 10) != taught_as
    assert images_of(learner, 3) == of_three
    draws, own = np.random.default_rng(), learner.memory.part(learner.memory.y_syn < 10)
    draws.bit_generator.state = learner.rng.bit_generator.state
    expected, _ = retrain(runs_on, learner.untaught(learner.model), own, 12, learner.recipe, draws)
    it.retrain()
    np.testing.assert_array_equal(learner.untaught(learner.model), learner.masked(expected))


def test_images_of_a_new_class_begin_anew_with_what_is_said_of_it(bundle: Bundle, runs_on: Engine) -> None:
    """Not with what is said of others. Undone, they are made of what is left, and nothing is left of what was voted."""
    it = open_guard(bundle, opened(bundle, runs_on))[0]
    learner: Any = it.learner
    steps = []
    for name, first in (("box", 0), ("cross", 300), ("box", 20)):
        frames = seen(learner, bundle, first) if name == "box" else {"x": -seen(learner, bundle, first)["x"]}
        assert teach(it, bundle, name, frames).refused is None
        steps.append(images_of(learner, 10))
    assert steps[0] == steps[1] != steps[2]
    it.learn(Segment(seen(learner, bundle, 100, 40), np.full(40, 10), np.ones(40, np.float32), np.full(40, -1)))
    found = [images_of(learner, 10)]
    for left in (12, 11, 10):
        undone(it, bundle.classes)
        found.append(images_of(learner, 10))
        assert learner.memory.y_syn.max() + 1 == left
        assert it.kept.memory.y_syn.tolist() == learner.memory.y_syn.tolist()  # type: ignore[attr-defined]
    assert found[0] != found[1] == found[2]
    start = initial(bundle)
    np.testing.assert_array_equal(it.kept.memory.x_syn, start.x_syn)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(learner.memory.x_syn, start.x_syn)


def test_a_backbone_has_no_spare_outputs(tmp_path: Path) -> None:
    given = options(tmp_path / "b", backbone="timm:x", spare=1, width=None, depth=None, epochs=None, model="convnet")
    with pytest.raises(UsageError, match="expected no --spare with --backbone"):
        export(given, lambda stage, done, total: None)
