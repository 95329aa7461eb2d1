"""opt_θ: the momentum SGD step by step, and retraining on the condensed buffer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.learning.buffer import CondensedBuffer, initial
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.retrain import retrain, sgd_step
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Floats, Ints
from fake_engine import LinearEngine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

CLASSES, SHAPE = 4, (3, 2, 2)
THETA_SIZE = CLASSES * 12

vectors = npst.arrays(np.float32, 7, elements=st.floats(-10, 10, width=32))


class Stopped(Exception):  # noqa: N818  (not an error)
    """What a caller's `check` raises."""


class Recording(LinearEngine):
    """Keeps what it was asked for."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.batches: list[tuple[Floats, Floats]] = []

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        self.batches.append((x, t))
        return super().weight_gradient(theta, x, t)


def small_buffer(n: int, seed: int = 0) -> CondensedBuffer:
    """n images of CLASSES classes in turn."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, *SHAPE)).astype(np.float32)
    return CondensedBuffer(x, np.arange(n) % CLASSES, np.ones_like(x))


def start(seed: int = 1) -> Floats:
    return (0.1 * np.random.default_rng(seed).standard_normal(THETA_SIZE)).astype(np.float32)


@given(vectors, vectors, vectors, st.floats(1e-4, 1), st.floats(0, 0.99), st.floats(0, 0.1))
def test_sgd_step_is_the_formula_in_float64(
    theta: Floats, velocity: Floats, gradient: Floats, rate: float, momentum: float, decay: float
) -> None:
    before = theta.copy(), velocity.copy(), gradient.copy()
    new_theta, new_velocity = sgd_step(theta, velocity, gradient, rate, momentum, decay)
    v = momentum * velocity.astype(np.float64) + gradient.astype(np.float64) + decay * theta.astype(np.float64)
    np.testing.assert_allclose(new_velocity, v, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(new_theta, theta - rate * v, rtol=1e-5, atol=1e-5)
    assert new_theta.dtype == new_velocity.dtype == np.float32
    for given_, kept in zip((theta, velocity, gradient), before, strict=True):
        np.testing.assert_array_equal(given_, kept)


@pytest.mark.parametrize(("rate", "momentum", "decay"), [(1e-3, 0.9, 5e-4), (0.1, 0.0, 0.0), (0.5, 0.5, 0.1)])
def test_sgd_steps_are_those_of_torch(rate: float, momentum: float, decay: float) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(50).astype(np.float32)
    velocity = np.zeros_like(theta)
    weights = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    optimizer = torch.optim.SGD([weights], lr=rate, momentum=momentum, weight_decay=decay)
    for _ in range(20):
        gradient = rng.standard_normal(50).astype(np.float32)
        theta, velocity = sgd_step(theta, velocity, gradient, rate, momentum, decay)
        weights.grad = torch.from_numpy(gradient)
        optimizer.step()
        np.testing.assert_allclose(theta, weights.detach().numpy(), rtol=1e-5, atol=1e-6)


@given(st.integers(1, 40), st.integers(1, 50))
def test_every_epoch_sees_every_image_once(images: int, batch: int) -> None:
    engine, buffer = Recording(CLASSES), small_buffer(images)
    recipe = Hyperparameters(retrain_epochs=2, retrain_batch=batch)
    retrain(engine, start(), buffer, CLASSES, recipe, np.random.default_rng(0))
    per_epoch = -(-images // batch)
    assert len(engine.batches) == 2 * per_epoch
    for epoch in (engine.batches[:per_epoch], engine.batches[per_epoch:]):
        assert all(1 <= len(x) <= batch for x, _ in epoch)
        seen = np.concatenate([x for x, _ in epoch])
        np.testing.assert_array_equal(np.sort(seen.reshape(-1)), np.sort(buffer.x_syn.reshape(-1)))
    for x, t in engine.batches:
        for image, target in zip(x, t, strict=True):
            (index,) = np.flatnonzero((buffer.x_syn == image).all(axis=(1, 2, 3)))
            assert target.argmax() == buffer.y_syn[index]
            assert np.count_nonzero(target) == 1
        assert t.sum() == pytest.approx(1, rel=1e-5)  # the mean over the batch


def test_two_epochs_differ_in_order() -> None:
    engine = Recording(CLASSES)
    retrain(engine, start(), small_buffer(20), CLASSES, Hyperparameters(retrain_epochs=2), np.random.default_rng(0))
    (first, _), (second, _) = engine.batches
    assert not np.array_equal(first, second)


def test_retrain_is_the_algorithm_written_out() -> None:
    """All of it in one batch, so that order does not matter: plain float64 against the function."""
    buffer, theta = small_buffer(8), start()
    recipe = Hyperparameters(retrain_epochs=30, retrain_rate=0.1)
    result, losses = retrain(LinearEngine(CLASSES), theta, buffer, CLASSES, recipe, np.random.default_rng(0))
    flat, one_hot = buffer.x_syn.reshape(8, -1).astype(np.float64), np.eye(CLASSES)[buffer.y_syn]
    w, v, expected = theta.astype(np.float64).reshape(CLASSES, -1), 0.0, []
    for _ in range(30):
        logits = flat @ w.T
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected.append(-np.log(p[np.arange(8), buffer.y_syn]).mean())
        v = 0.9 * v + (p - one_hot).T @ flat / 8 + 5e-4 * w
        w = w - 0.1 * v
    np.testing.assert_allclose(result, w.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert result.dtype == np.float32


@pytest.mark.parametrize("weight", [1.0, 10.0, 0.25])
def test_images_beside_the_buffer_count_as_often_as_they_weigh(weight: float) -> None:
    """The same, written out with weighted means of each class, and the mean of these."""
    buffer, theta, more = small_buffer(8), start(), small_buffer(5, seed=7)
    recipe = Hyperparameters(retrain_epochs=30, retrain_rate=0.1, taught_weight=weight)
    rng = np.random.default_rng(0)
    beside = more.x_syn, more.y_syn
    result, losses = retrain(LinearEngine(CLASSES), theta, buffer, CLASSES, recipe, rng, beside=beside)
    flat = np.concatenate([buffer.x_syn, more.x_syn]).reshape(13, -1).astype(np.float64)
    y, n = np.append(buffer.y_syn, more.y_syn), np.append(np.ones(8), np.full(5, weight))
    for c in range(CLASSES):
        n[y == c] /= CLASSES * n[y == c].sum()
    w, v, expected = theta.astype(np.float64).reshape(CLASSES, -1), 0.0, []
    for _ in range(30):
        logits = flat @ w.T
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected.append(np.average(-np.log(p[np.arange(13), y]), weights=n))
        v = 0.9 * v + ((p - np.eye(CLASSES)[y]) * n[:, None]).T @ flat / n.sum() + 5e-4 * w
        w = w - 0.1 * v
    np.testing.assert_allclose(result, w.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_enough_is_asked_before_each_epoch_and_ends_the_training_there() -> None:
    seen: list[bytes] = []

    def enough(theta: Floats) -> bool:
        seen.append(theta.tobytes())
        return len(seen) == 4

    rng, again = np.random.default_rng(0), np.random.default_rng(0)
    recipe = Hyperparameters(retrain_epochs=30, retrain_rate=0.1, retrain_batch=3)
    result, losses = retrain(LinearEngine(CLASSES), start(), small_buffer(8), CLASSES, recipe, rng, enough=enough)
    three = replace(recipe, retrain_epochs=3)
    expected, _ = retrain(LinearEngine(CLASSES), start(), small_buffer(8), CLASSES, three, again)
    assert (len(seen), len(losses)) == (4, 3)
    assert seen[0] == start().tobytes()
    assert seen[-1] == result.tobytes() == expected.tobytes()
    assert rng.bit_generator.state == again.bit_generator.state


@pytest.mark.parametrize("weight", [5e-324, 1.7e308])
def test_no_weight_is_too_much(weight: float) -> None:
    recipe = Hyperparameters(retrain_epochs=3, taught_weight=weight)
    more = small_buffer(5, seed=7)
    rng = np.random.default_rng(0)
    beside = more.x_syn, more.y_syn
    result, _ = retrain(LinearEngine(CLASSES), start(), small_buffer(8), CLASSES, recipe, rng, beside=beside)
    assert np.isfinite(result).all()


def test_the_loss_is_the_mean_over_uneven_batches() -> None:
    """With a vanishing rate θ stays, so each epoch's loss is that of the whole buffer."""
    buffer, theta = small_buffer(10), start()
    recipe = Hyperparameters(retrain_epochs=3, retrain_batch=4, retrain_rate=1e-30, weight_decay=0.0)
    _, losses = retrain(LinearEngine(CLASSES), theta, buffer, CLASSES, recipe, np.random.default_rng(0))
    whole = np.eye(CLASSES, dtype=np.float32)[buffer.y_syn]
    total, _ = LinearEngine(CLASSES).weight_gradient(theta, buffer.x_syn, whole)
    np.testing.assert_allclose(losses, [total / 10] * 3, rtol=1e-5)


def test_no_epochs_change_nothing() -> None:
    theta = start()
    result, losses = retrain(
        LinearEngine(CLASSES),
        theta,
        small_buffer(8),
        CLASSES,
        Hyperparameters(retrain_epochs=0),
        np.random.default_rng(0),
    )
    np.testing.assert_array_equal(result, theta)
    assert losses == []


def test_the_same_generator_gives_the_same_model() -> None:
    def run(seed: int) -> Floats:
        recipe = Hyperparameters(retrain_epochs=5, retrain_batch=3, retrain_rate=0.1)
        engine = LinearEngine(CLASSES)
        return retrain(engine, start(), small_buffer(20), CLASSES, recipe, np.random.default_rng(seed))[0]

    assert run(0).tobytes() == run(0).tobytes()
    assert run(0).tobytes() != run(1).tobytes()


@pytest.mark.parametrize("after", [0, 1, 3])
def test_check_may_stop_it_and_nothing_has_changed(after: int) -> None:
    """Through the learner, which owns the generator too."""
    buffer, theta = small_buffer(8), start()
    inputs = [theta.copy(), buffer.x_syn.copy(), buffer.y_syn.copy(), buffer.velocity.copy()]
    rng = np.random.default_rng(0)
    learner = Deco(LinearEngine(CLASSES), [], theta, buffer, CLASSES, Hyperparameters(retrain_epochs=5), rng)
    calls: list[None] = []

    def check() -> None:
        if len(calls) == after:
            raise Stopped
        calls.append(None)

    state = rng.bit_generator.state
    with pytest.raises(Stopped):
        learner.retrain(check)
    assert len(calls) == after
    assert rng.bit_generator.state == state
    assert learner.model is theta
    assert learner.memory is buffer
    assert learner.retrains == 0
    for kept, now in zip(inputs, [theta, buffer.x_syn, buffer.y_syn, buffer.velocity], strict=True):
        np.testing.assert_array_equal(now, kept)
    assert learner.retrain().accepted  # and it can be done again
    assert learner.model is not theta


def test_check_is_called_before_each_epoch() -> None:
    calls: list[None] = []
    recipe = Hyperparameters(retrain_epochs=7, retrain_batch=2)
    retrain(
        LinearEngine(CLASSES),
        start(),
        small_buffer(8),
        CLASSES,
        recipe,
        np.random.default_rng(0),
        lambda: calls.append(None),
    )
    assert len(calls) == 7


def test_a_real_bundle_learns(engine: Engine, bundle_path: object) -> None:
    bundle = open_bundle(bundle_path)  # type: ignore[arg-type]
    theta, buffer = bundle.weights(), initial(bundle)
    inputs = [theta.copy(), buffer.x_syn.copy(), buffer.velocity.copy()]
    recipe = replace(bundle.recipe, retrain_epochs=20, retrain_batch=8, retrain_rate=0.01)

    def run() -> tuple[Floats, list[float]]:
        return retrain(engine, theta, buffer, len(bundle.classes), recipe, np.random.default_rng(0))

    result, losses = run()
    assert losses[-1] < 0.8 * losses[0]
    assert loss_of(engine, result, buffer.x_syn, buffer.y_syn) < loss_of(engine, theta, buffer.x_syn, buffer.y_syn)
    assert result.tobytes() == run()[0].tobytes()
    for kept, now in zip(inputs, [theta, buffer.x_syn, buffer.velocity], strict=True):
        np.testing.assert_array_equal(now, kept)


def loss_of(engine: Engine, theta: Floats, x: Floats, y: Ints) -> float:
    logits, _ = engine.predict(theta, x)
    logits = logits.astype(np.float64)
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]).mean())
