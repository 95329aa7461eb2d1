"""Fine-tuning: some of a public network's layers trained on, carefully, if held-out takes say that it helps."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from deco_runtime.engine import Engine
from deco_runtime.learning.prior import folds, share_of_takes
from deco_runtime.learning.retrain import sgd_step
from deco_runtime.learning.vote import one_hot
from deco_runtime.types import Floats, Ints

from deco_export import graphs
from deco_export.backbone import split
from deco_export.backbone.anatomy import Anatomy
from deco_export.backbone.head import Head
from deco_export.images import Arrays

CHOICES = ("none", "last-block", "all")
EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 15, 32, 3e-3, 0.9, 1e-4
"""A rate ten times smaller than for a network that knows nothing, falling to 0 by a cosine."""
TRIED = 1000
"""Images that it is tried with, at most."""


def trained(
    anatomy: Anatomy,
    features: str,
    head: Head,
    cut: str,
    x: Arrays,
    y: Ints,
    rng: np.random.Generator,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Anatomy, Head]:
    """The network and its head with all that is behind the cut trained on for EPOCHS passes over x[i], what the cut
    makes of images (n, …) unscaled, and their classes y (n,); tick is called with (epochs done, epochs)."""
    fresh, theta, places = split.rest(anatomy, cut, 1.0, features, head)
    classes, velocity, step = len(head.b), np.zeros_like(theta), 0
    steps = EPOCHS * -(-len(y) // BATCH)
    with _engine("weight_gradient", graphs.weight_gradient(fresh())) as engine:
        for epoch in range(EPOCHS):
            for batch in np.array_split(rng.permutation(len(y)), -(-len(y) // BATCH)):
                t = one_hot(y[batch], classes) / np.float32(len(batch))
                _, gradient = engine.weight_gradient(theta, x[batch], t)
                rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
                theta, velocity = sgd_step(theta, velocity, gradient, rate, MOMENTUM, DECAY)
                step += 1
            tick(epoch + 1, EPOCHS)
    found = {place.name: theta[place.slice].reshape(place.shape) for place in places}
    head = replace(head, w=found.pop(split.HEAD_W), b=found.pop(split.HEAD_B))
    return replace(anatomy, weights={**anatomy.weights, **found}), head


def helps(
    anatomy: Anatomy,
    features: str,
    fitted: Callable[[Ints], Head],
    cut: str,
    x: Arrays,
    y: Ints,
    takes: Ints,
    rng: np.random.Generator,
    tick: Callable[[int, int], None],
) -> tuple[bool, float, float] | None:
    """Whether training behind the cut answers more of some held-out takes right, by more than a standard error; and the
    shares of right answers without and with it, each take counting alike. None where no take can be held out.

    fitted: a head for the images of some indices.
    """
    fold = folds(y, takes)
    held, known = np.flatnonzero(fold == 0), np.flatnonzero(fold != 0)
    if not len(held) or len(np.unique(y[known])) < len(np.unique(y)):
        return None
    head = fitted(known)

    def share(anatomy: Anatomy, head: Head) -> tuple[float, float]:
        return share_of_takes(_answers(anatomy, head, features, cut, _Some(x, held)) == y[held], takes[held])

    without, error = share(anatomy, head)
    if without + error >= 1:
        return False, without, without
    some = rng.permutation(known)[:TRIED]
    having, _ = share(*trained(anatomy, features, head, cut, _Some(x, some), y[some], rng, tick))
    return having > without + error, without, having


def _answers(anatomy: Anatomy, head: Head, features: str, cut: str, x: Arrays) -> Ints:
    fresh, theta, _ = split.rest(anatomy, cut, 1.0, features, head)
    with _engine("predict", graphs.predict(fresh())) as engine:
        parts = np.array_split(np.arange(len(x)), -(-len(x) // BATCH))
        found: Ints = np.concatenate([engine.predict(theta, x[part])[0].argmax(axis=1) for part in parts])
        return found


@contextmanager
def _engine(graph: str, model: onnx.ModelProto) -> Iterator[Engine]:
    """An engine with this graph alone."""
    from deco_runtime.engines._sessions import SessionEngine

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{graph}.onnx"
        onnx.save_model(model, file)
        yield SessionEngine("fine-tuning", {graph: file})


class _Some:
    """Some of the arrays."""

    def __init__(self, x: Arrays, index: Ints) -> None:
        self._x, self._index = x, index

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: Ints) -> Floats:
        return self._x[self._index[index]]
