"""Each row does what its source says, on constructed cases; and every learner there is makes a row."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from deco_runtime.engine import EXACT
from deco_runtime.errors import BundleError
from deco_runtime.learning import deco, registry
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.origin import fitted
from deco_runtime.learning.random_model import Parameter, draw_model
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.regression import Statistics, add
from deco_runtime.learning.retrain import sgd_step
from deco_runtime.learning.voter import Voter
from deco_runtime.learning.voter import start as start_of
from deco_runtime.types import Segment

pytest.importorskip("torch")

from deco_benchmarks.rows import Method, Row, Setup, rows
from deco_benchmarks.rows.gss_greedy import _score
from deco_benchmarks.rows.head import PENALTIES, best_penalty
from deco_benchmarks.rows.k_center import greedy_centers
from fake_engine import LinearEngine

CLASSES, SHAPE = 3, (3, 2, 2)
FULL = "DECO-Full (finite difference)"
LINEAR = (Parameter("weight", (CLASSES, 12), 0, "normal", 0.0, 0.3),)
NORMS = (Parameter("scale", (18,), 0, "constant", 1.0, 0.0), Parameter("shift", (18,), 18, "constant", 0.0, 0.0))
"""The same weights, for a row that looks for those of norms."""


@dataclass(frozen=True)
class MadeBundle:
    """A bundle of these weights and arrays, in memory."""

    theta: np.ndarray
    arrays: dict[str, dict[str, np.ndarray]]
    parameters: tuple[Parameter, ...] = LINEAR
    classes: tuple[str, ...] = ("ant", "bee", "cow")
    features: int = 12
    represented: int = 12
    image_shape: tuple[int, int, int] = SHAPE
    latent: tuple[int, ...] = SHAPE
    trunk: bool = False
    path: Path = field(default=Path("made"))

    @property
    def weight_count(self) -> int:
        return len(self.theta)

    @property
    def files(self) -> dict[str, str]:
        return dict.fromkeys(self.arrays, "")

    def weights(self) -> np.ndarray:
        return self.theta

    def array(self, name: str, key: str, dtype: Any, shape: Any) -> np.ndarray:
        array = self.arrays[name][key]
        assert array.dtype == dtype
        assert all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
        return array

    def broken(self, name: str, expected: str) -> BundleError:
        return BundleError(f"{name}: {expected}")


def quick(recipe: Recipe) -> Recipe:
    """Of a row that trains, so that it takes no time."""
    own = {"iterations": 1, "retrain_interval": 2, "retrain_epochs": 1}
    return replace(recipe, **own) if isinstance(recipe, Hyperparameters) else recipe


def setup(
    ipc: int = 2, seed: int = 0, recipe: Recipe | None = None, parameters: tuple[Parameter, ...] = LINEAR
) -> Setup:
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(CLASSES), 6)
    x = (rng.standard_normal((len(y), *SHAPE)) + y[:, None, None, None]).astype(np.float32)
    theta = (0.3 * rng.standard_normal(36)).astype(np.float32)
    known = add(Statistics.zero(12, CLASSES), x.reshape(len(x), -1), np.eye(3, dtype=np.float32)[y])
    numbers = {"network_temperature": 1.5, "regression_temperature": 0.5, "mixed_temperature": 1.0, "worth": 0.5}
    numbers["prior"] = 0.0
    start = {"a": known.a, "b": known.b, "unknown": np.zeros(0, np.float32)}
    arrays = {
        "buffer.npz": {"x_syn": x[::3].copy(), "y_syn": y[::3]},
        fitted("deco+"): start | {name: np.asarray(value, np.float32) for name, value in numbers.items()},
        fitted("slda"): {"temperature": np.asarray(2.0, np.float32)},
    }
    return Setup(
        engine=LinearEngine(CLASSES, theta),
        bundle=MadeBundle(theta, arrays, parameters),
        x_labelled=x,
        y_labelled=y,
        ipc=ipc,
        recipe=recipe or quick(Hyperparameters()),
        rng=rng,
    )


def made(name: str) -> Row:
    """The row as a trial makes it, by its own recipe."""
    it = rows()[name]
    return it.make(setup(recipe=quick(it.recipe), parameters=NORMS if name == "Tent" else LINEAR))


def frames(n: int, mark: float = 0.0) -> np.ndarray:
    """Frame i is filled with mark + i, so that it can be recognised in a buffer."""
    return np.broadcast_to((mark + np.arange(n, dtype=np.float32))[:, None, None, None], (n, *SHAPE)).copy()


def shown(row: Any, x: np.ndarray, pseudo: Any, labels: Any = None, confidence: float = 0.9) -> Segment:
    """A segment of images x as the row's learner, or a learner, observes them."""
    learner, pseudo = getattr(row, "learner", row), np.asarray(pseudo)
    true = np.asarray(pseudo if labels is None else labels)
    return Segment(learner.observe(x), pseudo, np.full(len(x), confidence, np.float32), true)


def segment(row: Any, pseudo: list[int], mark: float = 0.0, labels: list[int] | None = None) -> Segment:
    return shown(row, frames(len(pseudo), mark), pseudo, labels)


def marks(row) -> list[float]:
    """The recognisable frames now in a row's buffer, place by place."""
    return row.learner.memory.x_syn[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("name", sorted(rows()))
def test_every_row_learns_and_predicts(name: str) -> None:
    row, x = made(name), np.random.default_rng(2).standard_normal((5, *SHAPE)).astype(np.float32)
    answers = row.answers_on(lambda check: iter((x[:3], x[3:])))
    np.testing.assert_allclose(answers(), row.learner.predict(x), rtol=1e-4, atol=1e-5)
    for mark in (100, 200, 300):
        report = row.learn(segment(row, [1] * 8, mark))
        assert report.kept == (name != "Frozen")
        row.retrain()
    row.finish()
    logits = row.learner.predict(x)
    np.testing.assert_allclose(answers(), logits, rtol=1e-4, atol=1e-5)
    assert logits.shape == (5, CLASSES)
    assert np.isfinite(logits).all()
    assert (row.state_bytes() > 0) == (name != "Frozen")
    assert rows()[name].about.endswith(".")
    assert rows()[name].keeps_images == (row.buffer() is not None or name == "Upper")


@pytest.mark.parametrize("name", sorted(set(rows()) - {"Oracle", "Upper"}))
def test_no_other_row_learns_from_labels(name: str) -> None:
    answers, memories = [], []
    for labels in ([1] * 8, [0, 2] * 4):
        row = made(name)
        for mark in (100, 200, 300):
            row.learn(segment(row, [1] * 8, mark, labels))
            row.retrain()
        answers.append(row.learner.predict(np.ones((3, *SHAPE), np.float32)))
        memories.append(vars(row.learner.memory).values())
    assert np.array_equal(*answers)
    assert all(np.array_equal(one, other) for one, other in zip(*memories, strict=True))


class Sums(DecoPlus):
    """A learner that nobody here has heard of."""

    NAME, TITLE = "sums", "Sums of all"
    ABOUT = "Only here."
    RECIPE = Recipe("sums", segment=7)


@pytest.mark.parametrize(("ipc", "keeps"), [(0, False), (3, True)])
def test_a_learner_of_the_registry_makes_a_row_by_itself(
    ipc: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("Added", (Sums,), {"IPC": ipc})
    before, known = rows(), registry.learners()
    assert {learner.TITLE for learner in known.values()} <= set(before)
    monkeypatch.setattr(registry, "learners", lambda: {**known, "sums": kind})
    assert set(rows()) == {*before, "Sums of all"}
    row = rows()["Sums of all"]
    assert isinstance(row, Method)
    assert (row.name, row.about, row.recipe, row.keeps_images) == ("Sums of all", "Only here.", kind.RECIPE, keeps)
    given = setup(recipe=row.recipe)
    it = row.make(given).learner
    assert type(it) is kind
    assert (it.engine, it.recipe, it.rng, it.classes) == (given.engine, given.recipe, given.rng, CLASSES)
    by_hand = kind.open(given.bundle, given.engine, given.recipe, np.random.default_rng(0))
    assert np.array_equal(it.model, by_hand.model)


@pytest.mark.parametrize("kind", registry.learners().values(), ids=lambda kind: kind.NAME)
def test_the_row_of_a_learner_is_the_devices_learner(kind: type[Learner]) -> None:
    """What `open` gives, learning by hand what the row learns; at the end an update too, where it costs nothing."""
    recipe = replace(quick(kind.RECIPE), retrain_interval=2)
    given, same = setup(recipe=recipe), setup(recipe=recipe)
    row = rows()[kind.TITLE].make(given)
    by_hand = kind.open(same.bundle, same.engine, recipe, same.rng)
    for number, part in enumerate([(1, 0.1), (2, -0.3), (0, 0.2)], 1):
        seen = segment(row, [part[0]] * 8, part[1])
        row.learn(seen)
        by_hand.learn(seen)
        if number % 2 == 0:
            row.retrain()
            by_hand.retrain()
    assert np.array_equal(row.learner.model, by_hand.model)
    row.finish()
    if kind.LEARNS and not kind.IPC:
        by_hand.retrain()
    assert row.learner.values() == by_hand.values()
    mine, others = row.learner.arrays(), by_hand.arrays()
    assert mine.keys() == others.keys()
    assert all(np.array_equal(mine[name], others[name]) for name in mine)


def test_oracle_learns_what_is_true() -> None:
    told, right = made("Oracle"), made("Oracle")
    report = told.learn(segment(told, [0] * 6, 1, labels=[2] * 6))
    assert report.active == [2]
    assert report.pseudo_accuracy == 1
    right.learn(segment(right, [2] * 6, 1, labels=[2] * 6))
    assert np.array_equal(told.learner.memory.x_syn, right.learner.memory.x_syn)


def test_frozen_never_changes() -> None:
    given = setup()
    row = rows()["Frozen"].make(given)
    x = given.x_labelled
    before = row.learner.predict(x)
    for _ in range(5):
        row.learn(segment(row, [1] * 8))
        row.retrain()
    assert np.array_equal(row.learner.predict(x), before)


def test_fifo_replaces_the_oldest_in_order() -> None:
    row = rows()["FIFO"].make(setup(ipc=2))
    start = marks(row)
    row.learn(segment(row, [1] * 4, 100))
    assert marks(row) == [100, 101, 102, 103, *start[4:]]
    row.learn(segment(row, [2] * 4, 200))
    assert marks(row) == [202, 203, 102, 103, 200, 201]
    assert row.learner.memory.y_syn.tolist() == [2, 2, 1, 1, 2, 2]


def test_a_reservoir_is_a_uniform_sample_of_all_that_was_seen() -> None:
    """Places of 6 among 6 + 24 frames: each of the 30 is kept with probability 6/30, those it began with too."""
    count = np.zeros(30)
    runs = 1500
    for seed in range(runs):
        row = rows()["Random"].make(setup(seed=seed, recipe=Hyperparameters(retrain_interval=100)))
        start = np.array(marks(row))
        row.learn(segment(row, [1] * 12, 100))
        row.learn(segment(row, [1] * 12, 112))
        kept = [int(mark) - 100 for mark in marks(row) if mark >= 100]
        count[kept] += 1
        count[24:] += start == marks(row)
    assert count.sum() == 6 * runs
    assert scipy.stats.chisquare(count).pvalue > 0.01


def test_selective_bp_keeps_the_least_confident() -> None:
    given = setup(ipc=2)
    row = rows()["Selective-BP"].make(given)
    x_before, y_before = row.learner.memory.x_syn, row.learner.memory.y_syn
    coming = segment(row, [1] * 5, 1)
    x, y = np.concatenate([x_before, coming.observed["x"]]), np.concatenate([y_before, coming.pseudo])
    probability = scipy.special.softmax(given.engine.predict(given.bundle.theta, x)[0], axis=1)[np.arange(len(y)), y]
    row.learn(coming)
    expected = np.sort(np.argsort(probability)[:6])
    assert np.array_equal(row.learner.memory.x_syn, x[expected])
    assert np.array_equal(row.learner.memory.y_syn, y[expected])


@pytest.mark.parametrize("name", ["Random", "FIFO", "Selective-BP"])
def test_per_class_rows_do_for_each_class_what_the_row_does(name: str) -> None:
    """With frames of class 1 only, its places are those of the row itself given a buffer of class 1 alone."""
    given = setup(ipc=2)
    row = rows()[f"{name} (per class)"].make(given)
    before = row.learner.memory
    row.learn(segment(row, [1] * 9, 100))
    after = row.learner.memory
    assert after.y_syn.tolist() == [0, 0, 1, 1, 2, 2]
    for c in (0, 2):
        assert np.array_equal(after.x_syn[after.y_syn == c], before.x_syn[before.y_syn == c])
    if name == "FIFO":
        assert marks(row)[2:4] == [108, 107]
    if name == "Selective-BP":
        x = np.concatenate([before.x_syn[2:4], frames(9, 100)])
        log_p = scipy.special.log_softmax(given.engine.predict(given.bundle.theta, x)[0].astype(np.float64), axis=1)[
            :, 1
        ]
        assert np.array_equal(after.x_syn[2:4], x[np.sort(np.argsort(log_p, kind="stable")[:2])])


def test_a_reservoir_per_class_is_uniform_over_the_frames_of_the_class() -> None:
    count, runs = np.zeros(14), 700
    for seed in range(runs):
        row = rows()["Random (per class)"].make(setup(seed=seed, ipc=2, recipe=Hyperparameters(retrain_interval=100)))
        start = marks(row)[2:4]
        row.learn(segment(row, [1] * 12, 100))
        kept = marks(row)[2:4]
        count[[int(mark) - 100 for mark in kept if mark >= 100]] += 1
        count[12:] += np.array(start) == kept
    assert scipy.stats.chisquare(count).pvalue > 0.01


def test_head_is_ridge_regression_on_all_it_was_given() -> None:
    given = setup(recipe=Hyperparameters(retrain_interval=1, threshold=0.0))  # every class that is voted for is active
    row = rows()["Head"].make(given)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((9, *SHAPE)).astype(np.float32)
    y = given.engine.predict(given.bundle.theta, x)[0].argmax(axis=1)
    assert len(np.unique(y)) > 1
    assert row.learn(shown(row, x, np.full(9, 2), np.full(9, -1))).kept == 1
    row.retrain()
    f = np.concatenate([given.x_labelled, x]).reshape(-1, 12).astype(np.float64)
    f = np.concatenate([f, np.ones((len(f), 1))], axis=1)
    target = np.eye(CLASSES)[np.concatenate([given.y_labelled, y])]
    stacked = np.concatenate([f, np.sqrt(row.learner.penalty) * np.eye(13)])
    expected, *_ = np.linalg.lstsq(stacked, np.concatenate([target, np.zeros((13, CLASSES))]), rcond=None)
    np.testing.assert_allclose(row.learner.model.reshape(13, CLASSES), expected, atol=1e-8)


def test_the_head_is_voted_for_by_the_frozen_model() -> None:
    """Whatever it answers itself, and whatever labels a stream gave its frames by that."""
    given = setup(recipe=Hyperparameters(retrain_interval=1))
    row, told = rows()["Head"].make(given), rows()["Head"].make(given)
    x = np.random.default_rng(1).standard_normal((5, *SHAPE)).astype(np.float32)
    before = row.learner.observe(x)["votes"]
    coming = segment(row, [1] * 8, 3)
    y = given.engine.predict(given.bundle.theta, frames(8, 3))[0].argmax(axis=1)
    assert row.learn(coming).active == np.unique(y).tolist()
    told.learn(replace(coming, pseudo=np.zeros(8, np.int64), confidence=np.ones(8, np.float32)))
    for it in (row, told):
        it.retrain()
    np.testing.assert_array_equal(row.learner.model, told.learner.model)
    np.testing.assert_array_equal(row.learner.observe(x)["votes"], before)
    np.testing.assert_array_equal(before, given.engine.predict(given.bundle.theta, x)[0])
    assert not np.allclose(row.learner.predict(x), before)


def test_deco_plus_answers_whatever_the_votes_of_the_deployed_model() -> None:
    """The same W as one that is fed by hand with other pseudo-labels; and no buffer."""
    given = setup(recipe=registry.named("deco+"))
    row = rows()["DECO+"].make(given)
    by_hand = DecoPlus(
        given.engine, Voter(start_of(given.bundle), CLASSES), registry.named("deco+"), np.random.default_rng(1)
    )
    for part in (segment(row, [1] * 8, 0.1), segment(row, [2] * 8, -0.3)):
        assert row.learn(part).kept == 1
        row.retrain()
        by_hand.learn(replace(part, pseudo=np.zeros(8, np.int64)))
        by_hand.retrain()
    row.finish()
    np.testing.assert_array_equal(row.learner.model, by_hand.model)
    assert (row.learner.retrains, row.learner.since_retrain) == (2, 0)  # nothing was left for the end
    for it in (row, by_hand):
        it.learn(segment(row, [0] * 8, 0.2))
    row.finish()
    by_hand.retrain()
    np.testing.assert_array_equal(row.learner.model, by_hand.model)
    np.testing.assert_array_equal(row.learner.predict(given.x_labelled), by_hand.predict(given.x_labelled))
    assert not np.allclose(row.learner.model, rows()["DECO+"].make(given).learner.model, atol=1e-3)
    assert row.buffer() is None
    assert row.learner.OWN == ()
    assert row.state_bytes() == 4 * (13 * 14 // 2 + (13 + 14) * CLASSES)


def test_the_heads_penalty_is_the_one_that_leaving_one_out_would_choose() -> None:
    """Almost as many features as frames, so that the fit to all of them says little about one left out."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, CLASSES, 30)
    f = rng.standard_normal((30, 25)) + 1.5 * np.eye(25)[y]
    accuracy = []
    for penalty in PENALTIES:
        right = 0
        for i in range(30):
            others = np.arange(30) != i
            a = f[others].T @ f[others] + penalty * np.eye(25)
            right += int((f[i] @ np.linalg.solve(a, f[others].T @ np.eye(CLASSES)[y[others]])).argmax() == y[i])
        accuracy.append(right)
    assert int(np.argmax(accuracy)) > 0  # the fit itself would choose the smallest
    assert best_penalty(f, y, CLASSES) == PENALTIES[int(np.argmax(accuracy))]


def test_buffers_keep_their_size() -> None:
    for name in ("Random", "FIFO", "Selective-BP", "K-Center", "GSS-Greedy"):
        row = rows()[name].make(replace(setup(), ipc=1))
        for mark in (100, 200):
            row.learn(segment(row, [0] * 7, mark))
        assert row.learner.memory.x_syn.shape == (CLASSES, *SHAPE)
        assert row.learner.memory.x_syn.dtype == np.float32
        assert row.learner.memory.y_syn.shape == (CLASSES,)
        assert row.learner.memory.y_syn.dtype == np.int64


def test_k_center_is_within_twice_of_the_best_cover() -> None:
    for seed in range(20):
        points = np.random.default_rng(seed).standard_normal((9, 2))

        def radius(centers: tuple[int, ...], points: np.ndarray = points) -> float:
            return np.linalg.norm(points[:, None] - points[None, list(centers)], axis=2).min(axis=1).max()

        best = min(radius(centers) for centers in itertools.combinations(range(9), 3))
        chosen = greedy_centers(points, 3, first=0)
        assert len(set(chosen.tolist())) == 3
        assert radius(tuple(chosen)) <= 2 * best + 1e-12


def test_k_center_keeps_the_outlier_and_drops_the_copies() -> None:
    row = rows()["K-Center"].make(setup())
    coming = segment(row, [1] * 5, 1)
    coming.observed["x"][4] = 1000
    row.learn(coming)
    assert 1000 in marks(row)


def test_gss_compares_gradients_of_the_last_layer() -> None:
    """The product of the factors' cosines is the cosine of the gradients written out."""
    given = setup()
    row = rows()["GSS-Greedy"].make(given)
    x, y = given.x_labelled[[0, 7, 13]], given.y_labelled[[0, 7, 13]]
    error, feature = row.learner._factors(x, y)
    t = np.eye(CLASSES, dtype=np.float32)[y]
    gradients = np.stack(
        [given.engine.weight_gradient(given.bundle.theta, x[i : i + 1], t[i : i + 1])[1] for i in range(3)]
    )
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    np.testing.assert_allclose((error @ error.T) * (feature @ feature.T), gradients @ gradients.T, atol=1e-5)
    score = _score(error[0], feature[0], error[1:], feature[1:])
    assert score == pytest.approx(1 + (gradients[1:] @ gradients[0]).max(), abs=1e-5)


def test_gss_refuses_a_gradient_it_has_and_takes_one_that_is_new() -> None:
    given = setup()
    row = rows()["GSS-Greedy"].make(given)
    held = row.learner.memory
    row.learn(shown(row, held.x_syn[:3] + 0, held.y_syn[:3]))
    copies = row.learner.memory.x_syn
    assert np.array_equal(copies, held.x_syn)  # their cosine with themselves is 1
    flat = replace(given.bundle, theta=np.zeros(36, np.float32))  # p is flat, so errors of different classes oppose
    row = rows()["GSS-Greedy"].make(replace(setup(), bundle=flat))
    x = np.abs(held.x_syn)
    row.learner.memory = CondensedBuffer.start(x, np.array([0, 0, 0, 2, 2, 2]))
    row.learner.score[:] = 2.0  # each of them redundant
    row.learn(shown(row, np.ones((8, *SHAPE), np.float32), np.full(8, 1)))
    assert row.learner.memory.y_syn.tolist().count(1) == 1  # the first is new; its seven copies are not
    assert row.learner.score.min() < 1


def test_upper_learns_from_all_frames_at_the_end() -> None:
    given = setup(recipe=Hyperparameters(retrain_interval=100))
    row = rows()["Upper"].make(given)
    rng = np.random.default_rng(3)
    y = rng.integers(0, CLASSES, 600)
    x = rng.standard_normal((600, *SHAPE)) + 2 * (np.arange(12).reshape(SHAPE) % CLASSES == y[:, None, None, None])
    x = x.astype(np.float32)
    before = row.learner.predict(x)
    for part in np.split(np.arange(600), 6):
        report = row.learn(shown(row, x[part], np.zeros(100, np.int64), y[part]))
        assert (report.kept, report.pseudo_accuracy) == (1, 1)  # it is told the truth
    assert np.array_equal(row.learner.predict(x), before)
    row.finish()
    assert np.mean(row.learner.predict(x).argmax(1) == y) > np.mean(before.argmax(1) == y) + 0.1
    assert row.state_bytes() == given.x_labelled.nbytes + x.nbytes


class Recording(LinearEngine):
    """Notes the weights of every call."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        kinds = ("weight_gradient", "input_gradient", "feature_gradient", EXACT)
        self.calls: dict[str, list[np.ndarray]] = {kind: [] for kind in kinds}

    def input_gradient_tangent(self, theta, x, t, v):
        self.calls[EXACT].append(theta)
        return super().input_gradient_tangent(theta, x, t, v)

    def weight_gradient(self, theta, x, t):
        self.calls["weight_gradient"].append(theta)
        return super().weight_gradient(theta, x, t)

    def input_gradient(self, theta, x, t):
        self.calls["input_gradient"].append(theta)
        return super().input_gradient(theta, x, t)

    def feature_gradient(self, theta, x, u):
        self.calls["feature_gradient"].append(theta)
        return super().feature_gradient(theta, x, u)


@pytest.fixture
def drawn(monkeypatch) -> list[np.ndarray]:
    """The random models that the rows with an inner loop draw."""
    models: list[np.ndarray] = []

    def draw(*arguments):
        models.append(draw_model(*arguments))
        return models[-1]

    monkeypatch.setattr(deco, "draw_model", draw)
    return models


@pytest.mark.parametrize(
    ("name", "models", "exact"), [("DECO-Inner", 1, False), ("DECO-Full", 3, True), (FULL, 3, False)]
)
def test_loops_around_the_matching(name: str, models: int, exact: bool, drawn: list[np.ndarray]) -> None:
    """L = 3: each model is matched three times, by five passes or exactly, and trained twice in between."""
    engine = Recording(CLASSES)
    recipe = Hyperparameters(iterations=3, retrain_interval=100)
    row = rows()[name].make(replace(setup(recipe=recipe), engine=engine))
    for number in (1, 2):
        row.learn(segment(row, [1] * 8, 10 * number))
        assert len(drawn) == number * models
        assert {call: len(made) for call, made in engine.calls.items()} == {
            "weight_gradient": number * models * (3 * 2 + 2),
            "input_gradient": 0 if exact else number * models * 3 * 2,
            EXACT: number * models * 3 if exact else 0,
            "feature_gradient": number * models * 3,
        }
    assert row.learner.dropped == 0


def test_the_inner_loop_trains_its_model_on_the_active_images(drawn: list[np.ndarray]) -> None:
    """Two steps: the second is taken at the drawn model after one step of SGD on the images as the first left them."""
    engine, recipe = Recording(CLASSES), Hyperparameters(iterations=2, retrain_interval=100, retrain_rate=0.1)
    row = rows()["DECO-Inner"].make(replace(setup(recipe=recipe), engine=engine))
    row.learn(segment(row, [1] * 8, 1))
    first = rows()["DECO-Inner"].make(setup(recipe=replace(recipe, iterations=1)))
    first.learn(segment(first, [1] * 8, 1))
    x = first.learner.memory.x_syn[first.learner.memory.y_syn == 1]
    t = np.tile(np.float32([0, 0.5, 0]), (2, 1))
    _, gradient = LinearEngine(CLASSES).weight_gradient(drawn[0], x, t)
    trained, _ = sgd_step(drawn[0], np.zeros_like(gradient), gradient, 0.1, 0.9, 5e-4)
    used = engine.calls["weight_gradient"]
    assert all(np.array_equal(theta, drawn[0]) for theta in used[:3])
    np.testing.assert_allclose(used[3:], [trained, trained], atol=1e-6)
    assert not np.allclose(trained, drawn[0], atol=1e-3)


@pytest.mark.parametrize("name", ["DECO-Inner", FULL])
def test_with_one_iteration_all_loops_are_decos(name: str) -> None:
    buffers = []
    for each in ("DECO", name):
        row = rows()[each].make(setup(recipe=Hyperparameters(iterations=1)))
        for mark in (1, 2):
            row.learn(segment(row, [1] * 8, mark))
        buffers.append(row.learner.memory)
    assert np.array_equal(buffers[0].x_syn, buffers[1].x_syn)
    assert np.array_equal(buffers[0].velocity, buffers[1].velocity)


def test_the_head_counts_its_sums_and_its_solution() -> None:
    features = 12 + 1
    assert rows()["Head"].make(setup()).state_bytes() == 8 * (features**2 + 2 * features * CLASSES)
