"""The initial buffer: starts from real images and ends nearer to what all of them would teach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
from deco_export import graphs, initialisers, pretrain, tracing  # noqa: E402
from deco_export.images import Images, Inputs  # noqa: E402
from deco_export.initial_buffer import ROUNDS, initial_buffer  # noqa: E402
from deco_models import convnet  # noqa: E402
from deco_runtime.engines._sessions import SessionEngine  # noqa: E402
from deco_runtime.errors import UsageError  # noqa: E402
from deco_runtime.learning.buffer import CondensedBuffer  # noqa: E402
from deco_runtime.learning.condense import gradient_distance  # noqa: E402
from deco_runtime.learning.hyperparameters import Hyperparameters  # noqa: E402
from deco_runtime.learning.random_model import Parameter, draw_model  # noqa: E402
from deco_runtime.learning.vote import targets  # noqa: E402
from deco_runtime.preprocess import Preprocessing, normalise  # noqa: E402

CLASSES, SIZE, PER_CLASS = ("cat", "dog", "owl"), 8, 20


@dataclass(frozen=True)
class World:
    """Noisy images of three patterns, and a tiny ConvNet for them."""

    engine: SessionEngine
    theta: np.ndarray
    parameters: tuple[Parameter, ...]
    images: Images
    how: Preprocessing

    def condense(
        self, ipc: int, recipe: Hyperparameters, seed: int = 0
    ) -> tuple[CondensedBuffer, list[tuple[int, int]]]:
        ticks: list[tuple[int, int]] = []
        buffer = initial_buffer(
            self.engine,
            self.theta,
            Inputs(self.images, self.how),
            self.images.labels,
            CLASSES,
            ipc,
            self.parameters,
            recipe,
            np.random.default_rng(seed),
            lambda done, total: ticks.append((done, total)),
        )
        return buffer, ticks

    def gradient(self, model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.engine.weight_gradient(model, x, targets(y, np.ones(len(y), np.float32), len(CLASSES)))[1]

    def distance(self, buffer: CondensedBuffer) -> float:
        """Mean matching distance per class over always the same random models."""
        x, y, found = normalise(self.images.pixels, self.how), self.images.labels, []
        for seed in range(10):
            model = draw_model(self.parameters, np.random.default_rng(1000 + seed))
            for c in range(len(CLASSES)):
                syn, real = buffer.y_syn == c, y == c
                g_syn = self.gradient(model, buffer.x_syn[syn], buffer.y_syn[syn])
                g_real = self.gradient(model, x[real], y[real])
                found.append(gradient_distance(g_syn, g_real)[0])
        return float(np.mean(found))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.manual_seed(0)
    parameters = initialisers.parameters(lambda: convnet.build(len(CLASSES), SIZE, width=8, depth=1))
    model = convnet.build(len(CLASSES), SIZE, width=8, depth=1)
    folder, files = tmp_path_factory.mktemp("graphs"), dict[str, Path]()
    for name, proto in graphs.learning_graphs(tracing.trace(model, parameters, SIZE)).items():
        files[name] = folder / f"{name}.onnx"
        onnx.save_model(proto, files[name])
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(len(CLASSES)), PER_CLASS)
    patterns = rng.integers(0, 255, (len(CLASSES), SIZE, SIZE, 3))
    noisy = patterns[labels] + rng.normal(0, 80, (len(labels), SIZE, SIZE, 3))
    images = Images(np.clip(noisy, 0, 255).astype(np.uint8), labels)
    return World(
        SessionEngine("portable", files),
        tracing.flatten(model),
        parameters,
        images,
        pretrain.statistics(images, SIZE),
    )


STILL = Hyperparameters(alpha=0.0, synthetic_rate=1e-30)
"""Moves no image: what comes out are the starting images."""


def test_condensing_lowers_the_matching_distance(world: World) -> None:
    start, _ = world.condense(1, STILL)
    condensed, _ = world.condense(1, Hyperparameters(alpha=0.0, synthetic_rate=10.0))
    assert np.isfinite(condensed.x_syn).all()
    assert world.distance(condensed) < 0.6 * world.distance(start)


def test_it_starts_from_different_real_images_of_the_class(world: World) -> None:
    start, ticks = world.condense(3, STILL)
    real = normalise(world.images.pixels, world.how)
    matches = (start.x_syn[:, None] == real[None]).all(axis=(2, 3, 4))
    assert matches.sum(axis=1).tolist() == [1] * 9
    taken = matches.argmax(axis=1)
    assert len(set(taken)) == 9
    np.testing.assert_array_equal(world.images.labels[taken], start.y_syn)
    assert start.y_syn.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert ticks == [(i + 1, ROUNDS * 3) for i in range(ROUNDS * 3)]


def test_every_class_is_condensed_and_the_optimizer_left_at_rest(world: World) -> None:
    start, _ = world.condense(1, STILL)
    recipe = Hyperparameters(alpha=0.1, synthetic_rate=1.0, iterations=1)
    buffer, _ = world.condense(1, recipe)
    assert (np.abs(buffer.x_syn - start.x_syn).max(axis=(1, 2, 3)) > 1e-3).all()
    assert not buffer.velocity.any()
    again, _ = world.condense(1, recipe)
    np.testing.assert_array_equal(again.x_syn, buffer.x_syn)
    other, _ = world.condense(1, recipe, seed=1)
    assert not np.array_equal(other.x_syn, buffer.x_syn)


def test_more_images_than_a_class_has_are_refused_by_its_name(world: World) -> None:
    keep = np.delete(np.arange(len(world.images)), PER_CLASS)  # one dog fewer
    fewer = replace(world, images=world.images[keep])
    with pytest.raises(UsageError, match=rf"--ipc {PER_CLASS} .*'dog' has {PER_CLASS - 1}"):
        fewer.condense(PER_CLASS, STILL)
