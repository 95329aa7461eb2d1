"""What deco+ is compared with on an unlabelled stream: each against torch, or its own formula in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from bases import quick_base
from deco_benchmarks.config import Config
from deco_benchmarks.rows import Setup, ncm, ranpac, t3a, tent
from deco_benchmarks.rows.ncm import unit
from deco_export import models
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.learning.vote import one_hot, softmax
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Segment


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    config = Config("NCM", "digits", 0.1, 0, "stc=500", 0, "smoke", engine="portable")
    bundle = open_bundle(quick_base(config, tmp_path_factory.mktemp("peers")))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, *bundle.image_shape)).astype(np.float32), rng.integers(0, 10, 60)
    engine, recipe = open_engine(bundle, "portable"), replace(registry.named("deco+"), segment=20)
    return Setup(engine, bundle, x, y, 0, recipe, np.random.default_rng(0))


def segment(learner, n: int = 20) -> Segment:
    x = np.random.default_rng(1).standard_normal((n, *learner.engine_shape)).astype(np.float32)
    return Segment(learner.observe(x), np.zeros(n, np.int64), np.ones(n, np.float32), np.full(n, -1))


def learning(row, setup: Setup):
    row.learner.engine_shape = setup.bundle.image_shape
    return row.learner


def test_tent_goes_down_the_entropy_of_the_norms_alone(setup: Setup) -> None:
    it = learning(tent.make(setup), setup)
    seen, theta = segment(it), setup.bundle.weights()
    made = setup.bundle.made_with
    model = models.factory(made["model"], 10, 16, made["width"], made["depth"])()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    log_p = torch.log_softmax(model(torch.from_numpy(seen.observed["x"])), dim=1)
    (-(log_p.exp() * log_p).sum(dim=1)).mean().backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()
    norms = tent.norms_of(setup.bundle)
    named = [n for n, p in model.named_parameters() for _ in range(p.numel())]
    kinds = {type(m).__name__: n for n, m in model.named_modules() if "Norm" in type(m).__name__}
    assert kinds
    prefixes = [n for n, m in model.named_modules() if "Norm" in type(m).__name__]
    assert norms.tolist() == [any(n.startswith(f"{p}.") for p in prefixes) for n in named]
    it.learn(seen)
    it.retrain()
    expected = theta - tent.RATE * gradient * norms
    np.testing.assert_allclose(it.model, expected, rtol=0, atol=2e-3 * np.abs(tent.RATE * gradient * norms).max())
    assert np.array_equal(it.model[~norms], theta[~norms])
    assert not np.array_equal(it.model, theta)


def test_t3a_keeps_the_surest_features_of_each_class(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t3a, "KEPT", 2)
    it = learning(t3a.make(setup), setup)
    weights = t3a.last_layer(setup.bundle)
    logits, features = setup.engine.predict(setup.bundle.weights(), setup.x_labelled[:5])
    with_bias = features @ weights.T
    assert (
        np.ptp(logits - with_bias, axis=0).max() < 1e-3 * np.abs(logits).max()
    )  # the last layer it is, but for its bias
    np.testing.assert_allclose(it.model.reshape(10, -1), unit(weights), atol=1e-6)
    seen = segment(it, 30)
    it.learn(seen)
    it.retrain()
    p = softmax(seen.observed["logits"]).astype(np.float64)
    entropy, y = -(p * np.log(p)).sum(axis=1), p.argmax(axis=1)
    for c in range(10):
        mine = np.flatnonzero(y == c)
        surest = mine[np.argsort(entropy[mine])[:2]]
        supports = np.vstack([unit(weights)[c], unit(seen.observed["features"])[surest]]).astype(np.float64)
        expected = supports.sum(axis=0) / np.linalg.norm(supports.sum(axis=0))
        np.testing.assert_allclose(it.model.reshape(10, -1)[c], expected, atol=1e-5)


def test_ranpac_is_a_ridge_regression_of_all_frames_at_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranpac, "SIZE", 50)
    it = learning(ranpac.make(setup), setup)
    assert it.penalty in ranpac.PENALTIES
    seen = segment(it)
    t = np.random.default_rng(2).dirichlet(np.ones(10), 20).astype(np.float32)
    it.memory = it.add(it.memory, seen.observed, t)
    it.retrain()
    phi = np.concatenate([it.observe(setup.x_labelled)["phi"], seen.observed["phi"]])
    r = np.random.default_rng(0).standard_normal((phi.shape[1], 50), np.float32) / np.float32(phi.shape[1] ** 0.5)
    h = np.maximum(phi @ r, 0).astype(np.float64)
    target = np.concatenate([one_hot(setup.y_labelled, 10), t])
    expected = np.linalg.solve(h.T @ h + it.penalty * np.eye(50), h.T @ target)
    np.testing.assert_allclose(it.model.reshape(50, 10), expected, rtol=1e-2, atol=1e-3 * np.abs(expected).max())
    answers = it.answer(it.model, seen.observed)
    np.testing.assert_allclose(answers, h[-20:] @ expected, rtol=1e-2, atol=1e-3)


def test_ncm_moves_each_mean_by_the_frames_of_its_class(setup: Setup) -> None:
    it = learning(ncm.make(setup), setup)
    seen, before = segment(it), it.memory.means.astype(np.float64)
    y = np.random.default_rng(3).integers(0, 4, 20)
    it.memory = it.add(it.memory, seen.observed, one_hot(y, 10))
    z = unit(seen.observed["phi"]).astype(np.float64)
    for c in range(10):
        count = int((y == c).sum())
        kept = ncm.MOMENTUM**count
        expected = kept * before[c] + (1 - kept) * (z[y == c].mean(axis=0) if count else 0)
        np.testing.assert_allclose(it.memory.means[c], expected, atol=1e-6)
    it.retrain()
    cosine = z @ unit(it.memory.means).T.astype(np.float64)
    np.testing.assert_allclose(it.answer(it.model, seen.observed), cosine / ncm.TEMPERATURE, rtol=1e-4, atol=1e-4)
