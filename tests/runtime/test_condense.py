"""Section 4.3 and 4.4, and what can stand in for it, against literal float64 transcriptions of the formulas and
numerical derivatives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import scipy.special
import scipy.stats
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.condense import Condensed, contrastive_loss, draw_negative_classes, gradient_distance
from deco_runtime.learning.deco import Deco, five_passes
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.random_model import Parameter
from deco_runtime.learning.variants import chosen, exact, layerwise, match_features, per_class
from fake_engine import LinearEngine
from hypothesis import given, settings
from hypothesis import strategies as st

CLASSES, SHAPE = 4, (3, 4, 4)
WEIGHTS = CLASSES * 48
PARAMETERS = (
    Parameter("first", (1, 48), 0, "normal", 0.0, 0.1),
    Parameter("others", (CLASSES - 1, 48), 48, "normal", 0.0, 0.1),
)
LAYERS = [slice(0, 48), slice(48, WEIGHTS)]


def numerical_gradient(f, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences of a scalar function of a float64 array."""
    result = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        result[i] = (f(up) - f(down)) / (2 * step)
    return result


def literal_contrast(z: np.ndarray, y: np.ndarray, anchors: np.ndarray, negative: np.ndarray, tau: float) -> float:
    """eq:contrast, sum by sum, on L2-normalised features."""
    z = z / np.linalg.norm(z, axis=1, keepdims=True)
    total = 0.0
    for i, c_neg in zip(anchors, negative, strict=True):
        positives = [j for j in range(len(y)) if y[j] == y[i] and j != i]
        negatives = [j for j in range(len(y)) if y[j] == c_neg]
        if not positives or not negatives:
            continue
        below = sum(np.exp(z[i] @ z[n] / tau) for n in negatives)
        total += -1 / len(positives) * sum(np.log(np.exp(z[i] @ z[p] / tau) / below) for p in positives)
    return total


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    return 1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


class TestDistance:
    @given(st.integers(0, 2**32 - 1), st.sampled_from([None, [slice(None)], [slice(0, 5), slice(9, 20)]]))
    @settings(max_examples=30)
    def test_value_and_derivative(self, seed: int, layers: list[slice] | None) -> None:
        """Over the whole gradient, and layer by layer."""
        rng = np.random.default_rng(seed)
        a, b = rng.standard_normal(20), rng.standard_normal(20)
        distance_of = gradient_distance if layers is None else partial(layerwise, layers)
        distance, derivative = distance_of(a.astype(np.float32), b.astype(np.float32))
        parts = layers or [slice(None)]

        def literal(v: np.ndarray) -> float:
            return sum(cosine_distance(v[p], b[p]) for p in parts)

        assert distance == pytest.approx(literal(a), abs=1e-5)
        np.testing.assert_allclose(derivative, numerical_gradient(literal, a), atol=1e-4)

    def test_equal_gradients_are_at_distance_zero_and_opposite_ones_at_two(self) -> None:
        a = np.arange(1, 7, dtype=np.float32)
        assert gradient_distance(a, 3 * a)[0] == pytest.approx(0, abs=1e-6)
        assert gradient_distance(a, -a)[0] == pytest.approx(2, abs=1e-6)

    def test_vanishing_gradients_give_numbers(self) -> None:
        zero, a = np.zeros(6, np.float32), np.ones(6, np.float32)
        for pair in ((zero, a), (a, zero), (zero, zero)):
            for distance_of in (gradient_distance, partial(layerwise, [slice(0, 2), slice(2, 6)])):
                distance, derivative = distance_of(*pair)
                assert np.isfinite(distance)
                assert np.isfinite(derivative).all()


class TestFivePasses:
    def test_equals_the_derivative_where_the_loss_is_smooth(self) -> None:
        """A linear softmax has no kinks, so the central difference must give the true derivative of D."""
        rng = np.random.default_rng(0)
        engine = LinearEngine(CLASSES)
        theta = 0.3 * rng.standard_normal(WEIGHTS).astype(np.float32)
        x_syn, x_real = (rng.standard_normal((n, *SHAPE)).astype(np.float32) for n in (3, 6))
        t_syn, t_real = (np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, n)] for n in (3, 6))

        def softmax_gradient(x: np.ndarray, t: np.ndarray) -> np.ndarray:
            flat = x.reshape(len(x), -1)
            logits = flat @ theta.astype(np.float64).reshape(CLASSES, -1).T
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            return ((p * t.sum(1, keepdims=True) - t).T @ flat).ravel()

        g_real = softmax_gradient(x_real.astype(np.float64), t_real)

        def literal(x: np.ndarray) -> float:
            return cosine_distance(softmax_gradient(x, t_syn), g_real)

        distance, gradient = five_passes(engine, theta, x_syn, t_syn, x_real, t_real, 0.01)
        expected = numerical_gradient(literal, x_syn.astype(np.float64))
        assert distance == pytest.approx(literal(x_syn.astype(np.float64)), abs=1e-5)
        np.testing.assert_allclose(gradient, expected, atol=1e-3 * np.abs(expected).max())
        same, derivative = exact(gradient_distance, engine, theta, x_syn, t_syn, x_real, t_real)
        assert same == distance
        np.testing.assert_allclose(derivative, expected, atol=1e-5 * np.abs(expected).max())

    def test_they_are_five_passes_of_the_engine(self) -> None:
        """Two gradients of the weights, of the synthetic and of the real images, and two of the images at θ̃±."""
        engine, theta, buffer, x, y, w = stage()
        asked: list[tuple[str, int, float]] = []

        class Asked(LinearEngine):
            def weight_gradient(self, at, x, t):
                asked.append(("weights", len(x), float(np.linalg.norm(at - theta))))
                return super().weight_gradient(at, x, t)

            def input_gradient(self, at, x, t):
                asked.append(("images", len(x), float(np.linalg.norm(at - theta))))
                return super().input_gradient(at, x, t)

        one_hot = np.eye(CLASSES, dtype=np.float32)
        data = buffer.x_syn, one_hot[buffer.y_syn], x, w[:, None] * one_hot[y]
        given = five_passes(Asked(CLASSES), theta, *data, 0.01)
        assert [each[:2] for each in asked] == [("weights", 8), ("weights", 7), ("images", 8), ("images", 8)]
        assert [each[2] for each in asked[:2]] == [0, 0]
        np.testing.assert_allclose([each[2] for each in asked[2:]], 0.01, rtol=1e-3)  # ‖ε∇D‖ = epsilon, both ways
        again = five_passes(engine, theta, *data, epsilon=0.01, distance_of=gradient_distance)
        assert given[0] == again[0]
        np.testing.assert_array_equal(given[1], again[1])


class TestVariants:
    """What the recipe may put in place of the five passes over all active classes and the whole gradient."""

    def data(self):
        engine, theta, buffer, x, y, w = stage()
        one_hot, active = np.eye(CLASSES, dtype=np.float32), np.isin(buffer.y_syn, y)
        return engine, theta, buffer.x_syn[active], one_hot[buffer.y_syn[active]], x, w[:, None] * one_hot[y]

    def test_per_class_is_the_sum_over_the_classes_each_matched_on_its_own(self) -> None:
        engine, theta, x_syn, t_syn, x_real, t_real = self.data()
        match = partial(five_passes, epsilon=0.02)
        distance, gradient = per_class(match, engine, theta, x_syn, t_syn, x_real, t_real)
        total = 0.0
        for c in (1, 3):
            syn, real = t_syn[:, c] > 0, t_real[:, c] > 0
            d, g = match(engine, theta, x_syn[syn], t_syn[syn], x_real[real], t_real[real])
            total += d
            np.testing.assert_array_equal(gradient[syn], g)
        assert distance == total
        assert not np.array_equal(gradient, match(engine, theta, x_syn, t_syn, x_real, t_real)[1])

    @pytest.mark.parametrize("gradient", ["finite-difference", "exact"])
    @pytest.mark.parametrize("scope", ["joint", "per-class"])
    @pytest.mark.parametrize("distance", ["cosine", "layerwise"])
    def test_what_a_recipe_chooses(self, distance: str, scope: str, gradient: str) -> None:
        """The true derivative, which a linear softmax has everywhere, of D written out."""
        engine, theta, x_syn, t_syn, x_real, t_real = self.data()
        recipe = Hyperparameters(distance=distance, scope=scope, gradient=gradient)
        found, derivative = chosen(recipe, PARAMETERS, five_passes)(engine, theta, x_syn, t_syn, x_real, t_real)
        weights, parts = (
            theta.astype(np.float64).reshape(CLASSES, -1),
            LAYERS if distance == "layerwise" else [slice(None)],
        )

        def weight_gradient(x: np.ndarray, t: np.ndarray) -> np.ndarray:
            flat = x.reshape(len(x), -1)
            p = scipy.special.softmax(flat @ weights.T, axis=1)
            return ((p * t.sum(1, keepdims=True) - t).T @ flat).ravel()

        def literal(x: np.ndarray) -> float:
            total = 0.0
            for classes in ([1], [3]) if scope == "per-class" else ([1, 3],):
                syn, real = (t[:, classes].any(axis=1) for t in (t_syn, t_real))
                g_syn = weight_gradient(x[syn], t_syn[syn].astype(np.float64))
                g_real = weight_gradient(x_real[real].astype(np.float64), t_real[real].astype(np.float64))
                total += sum(cosine_distance(g_syn[part], g_real[part]) for part in parts)
            return total

        expected = numerical_gradient(literal, x_syn.astype(np.float64))
        assert found == pytest.approx(literal(x_syn.astype(np.float64)), abs=1e-5)
        precise = 1e-5 if gradient == "exact" else 1e-3
        np.testing.assert_allclose(derivative, expected, atol=precise * np.abs(expected).max())

    def test_distribution_matching_takes_no_part_of_the_others(self) -> None:
        recipe = Hyperparameters(matching="distribution", gradient="exact", scope="per-class", distance="layerwise")
        assert chosen(recipe, PARAMETERS, five_passes) is match_features


class TestDistributionMatching:
    @given(st.integers(0, 2**32 - 1))
    @settings(max_examples=10)
    def test_value_and_derivative(self, seed: int) -> None:
        """LinearEngine's features are the image itself, so D is a sum over pixels that can be written down."""
        rng = np.random.default_rng(seed)
        x_syn, x_real = (rng.standard_normal((n, *SHAPE)) for n in (3, 6))
        y_syn, y_real, w = np.array([0, 2, 2]), np.array([0, 2, 0, 2, 2, 1]), rng.uniform(0.2, 1, 6)
        t_syn, t_real = np.eye(CLASSES)[y_syn], w[:, None] * np.eye(CLASSES)[y_real]

        def literal(x: np.ndarray) -> float:
            total = 0.0
            for c in (0, 2):
                mine = y_real == c
                real = np.average(x_real[mine], axis=0, weights=w[mine])
                total += np.sum((x[y_syn == c].mean(axis=0) - real) ** 2)
            return total

        given_arrays = (a.astype(np.float32) for a in (x_syn, t_syn, x_real, t_real))
        theta = np.zeros(WEIGHTS, np.float32)
        distance, gradient = match_features(LinearEngine(CLASSES), theta, *given_arrays)
        assert distance == pytest.approx(literal(x_syn), rel=1e-5)
        np.testing.assert_allclose(gradient, numerical_gradient(literal, x_syn), atol=1e-4)

    def test_condensing_moves_the_images_towards_the_mean_of_their_class(self) -> None:
        rng = np.random.default_rng(0)
        buffer = CondensedBuffer.start(rng.standard_normal((4, *SHAPE)).astype(np.float32), np.array([0, 0, 1, 1]))
        recipe = Hyperparameters(matching="distribution", alpha=0, iterations=60, synthetic_rate=0.1)
        nothing = (Parameter("all", (CLASSES, 48), 0, "constant", 0.0, 0.0),)
        x_real, y, w = np.full((5, *SHAPE), 2, np.float32), np.zeros(5, np.int64), np.ones(5, np.float32)
        theta = np.zeros(WEIGHTS, np.float32)
        it = Deco(LinearEngine(CLASSES), nothing, theta, buffer, CLASSES, recipe, rng)
        done = it.condense(x_real, y, w, lambda: None)
        np.testing.assert_allclose(done.buffer.x_syn[:2].mean(axis=0), 2, atol=1e-3)
        np.testing.assert_array_equal(done.buffer.x_syn[2:], buffer.x_syn[2:])
        assert done.distances[-1] < 1e-3 * done.distances[0]


class TestContrast:
    @given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from([0.07, 0.5]))
    @settings(max_examples=30)
    def test_loss_is_the_formula(self, seed: int, ipc: int, tau: float) -> None:
        rng = np.random.default_rng(seed)
        y = np.repeat(np.arange(CLASSES), ipc)
        z = rng.standard_normal((len(y), 6))
        anchors = np.flatnonzero(np.isin(y, [0, 2]))
        negative = draw_negative_classes(y[anchors], CLASSES, rng)
        loss, gradient = contrastive_loss(z.astype(np.float32), y, anchors, negative, tau)
        assert loss == pytest.approx(literal_contrast(z, y, anchors, negative, tau), rel=1e-4, abs=1e-4)
        expected = numerical_gradient(lambda v: literal_contrast(v, y, anchors, negative, tau), z)
        np.testing.assert_allclose(gradient, expected, atol=1e-4 * max(1.0, np.abs(expected).max()))

    def test_one_image_per_class_has_no_positives_and_no_loss(self) -> None:
        y = np.arange(CLASSES)
        z = np.random.default_rng(0).standard_normal((CLASSES, 6)).astype(np.float32)
        loss, gradient = contrastive_loss(z, y, np.array([1]), np.array([2]), 0.07)
        assert loss == 0
        assert not gradient.any()

    def test_extreme_temperature_does_not_overflow(self) -> None:
        y = np.repeat(np.arange(2), 3)
        z = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32) * 1e10
        loss, gradient = contrastive_loss(z, y, np.arange(3), np.ones(3, np.int64), 1e-4)
        assert np.isfinite(loss)
        assert np.isfinite(gradient).all()

    def test_zero_features_give_numbers(self) -> None:
        y = np.repeat(np.arange(2), 2)
        loss, gradient = contrastive_loss(np.zeros((4, 3), np.float32), y, np.array([0]), np.array([1]), 0.07)
        assert np.isfinite(loss)
        assert np.isfinite(gradient).all()

    def test_negative_classes_are_uniform_over_the_others(self) -> None:
        drawn = draw_negative_classes(np.full(6000, 2), CLASSES, np.random.default_rng(0))
        count = np.bincount(drawn, minlength=CLASSES)
        assert count[2] == 0
        assert scipy.stats.chisquare(count[[0, 1, 3]]).pvalue > 0.01


def stage(seed: int = 0, ipc: int = 2):
    """An engine, weights, a buffer and real data of classes 1 and 3."""
    rng = np.random.default_rng(seed)
    engine = LinearEngine(CLASSES)
    theta = 0.1 * rng.standard_normal(WEIGHTS).astype(np.float32)
    y_syn = np.repeat(np.arange(CLASSES), ipc)
    buffer = CondensedBuffer.start(rng.standard_normal((len(y_syn), *SHAPE)).astype(np.float32), y_syn)
    y = np.array([1, 3, 3, 1, 1, 3, 1])
    x = rng.standard_normal((7, *SHAPE)).astype(np.float32)
    w = rng.uniform(0.2, 1, 7).astype(np.float32)
    return engine, theta, buffer, x, y, w


def draw(rng: np.random.Generator) -> np.ndarray:
    return 0.1 * rng.standard_normal(WEIGHTS, np.float32)


def run(recipe: Hyperparameters, engine=None, check=lambda: None, seed: int = 0, data_seed: int = 0):
    own, theta, buffer, x, y, w = stage(data_seed)
    return buffer, condensed(engine or own, theta, buffer, x, y, w, recipe, check, seed)


def condensed(engine, theta, buffer, x, y, w, recipe: Hyperparameters, check=lambda: None, seed: int = 0) -> Condensed:
    rng = np.random.default_rng(seed)
    return Deco(engine, PARAMETERS, theta, buffer, CLASSES, recipe, rng).condense(x, y, w, check)


class TestCondense:
    @pytest.mark.parametrize("scope", ["joint", "per-class"])
    @pytest.mark.parametrize("distance", ["cosine", "layerwise"])
    def test_only_active_images_move(self, scope: str, distance: str) -> None:
        before, done = run(Hyperparameters(iterations=3, scope=scope, distance=distance, synthetic_rate=1))
        moved = (done.buffer.x_syn != before.x_syn).reshape(len(before.y_syn), -1).any(axis=1)
        assert moved.tolist() == np.isin(before.y_syn, [1, 3]).tolist()
        assert not done.buffer.velocity[~moved].any()
        assert len(done.distances) == len(done.contrastive) == 3
        assert done.dropped == 0

    def test_one_iteration_is_the_papers_update(self) -> None:
        """x ← x − rate·(∇D + α∇L_cont), both terms taken from the functions tested above."""
        engine, theta, buffer, x, y, w = stage()
        recipe = Hyperparameters(iterations=1, synthetic_rate=2.0)
        _, done = run(recipe)
        rng = np.random.default_rng(0)
        active = np.flatnonzero(np.isin(buffer.y_syn, y))
        one_hot = np.eye(CLASSES, dtype=np.float32)
        theta_random = draw(rng)
        x_syn, t_syn = buffer.x_syn[active], one_hot[buffer.y_syn[active]]
        _, d = five_passes(engine, theta_random, x_syn, t_syn, x, w[:, None] * one_hot[y], recipe.epsilon)
        negative = draw_negative_classes(buffer.y_syn[active], CLASSES, rng)
        z = engine.predict(theta, buffer.x_syn)[1]
        _, d_z = contrastive_loss(z, buffer.y_syn, active, negative, recipe.temperature)
        gradient = d + recipe.alpha * engine.feature_gradient(theta, buffer.x_syn[active], d_z[active])
        np.testing.assert_allclose(done.buffer.x_syn[active], buffer.x_syn[active] - 2.0 * gradient, rtol=1e-5)
        np.testing.assert_allclose(done.buffer.velocity[active], gradient, rtol=1e-5, atol=1e-9)

    def test_momentum_goes_on_from_the_last_segment(self) -> None:
        engine, theta, buffer, x, y, w = stage()
        pushed = CondensedBuffer(buffer.x_syn, buffer.y_syn, np.ones_like(buffer.x_syn))
        recipe = Hyperparameters(iterations=1, synthetic_rate=1.0)
        results = [condensed(engine, theta, b, x, y, w, recipe) for b in (buffer, pushed)]
        active = np.isin(buffer.y_syn, y)
        difference = results[0].buffer.x_syn - results[1].buffer.x_syn
        np.testing.assert_allclose(difference[active], recipe.synthetic_momentum, atol=1e-5)
        assert not difference[~active].any()

    def test_same_generator_same_result(self) -> None:
        recipe = Hyperparameters(iterations=3)
        first, second, other = run(recipe)[1], run(recipe)[1], run(recipe, seed=1)[1]
        assert np.array_equal(first.buffer.x_syn, second.buffer.x_syn)
        assert not np.array_equal(first.buffer.x_syn, other.buffer.x_syn)

    def test_without_alpha_there_is_no_contrastive_term(self) -> None:
        assert run(Hyperparameters(iterations=2, alpha=0))[1].contrastive == []

    def test_the_weights_of_the_real_data_matter(self) -> None:
        engine, theta, buffer, x, y, w = stage()
        recipe = Hyperparameters(iterations=1, alpha=0)
        results = [condensed(engine, theta, buffer, x, y, v, recipe) for v in (w, np.ones_like(w))]
        assert not np.array_equal(results[0].buffer.x_syn, results[1].buffer.x_syn)

    def test_a_gradient_that_is_not_finite_is_dropped_and_counted(self) -> None:
        class Poisoned(LinearEngine):
            calls = 0

            def input_gradient(self, theta, x, t):
                self.calls += 1
                gradient = super().input_gradient(theta, x, t)
                return gradient * np.nan if self.calls in (3, 4) else gradient  # the second of three iterations

        _, done = run(Hyperparameters(iterations=3), Poisoned(CLASSES))
        assert done.dropped == 1
        assert np.isfinite(done.buffer.x_syn).all()
        _, untouched = run(Hyperparameters(iterations=3))
        assert not np.array_equal(done.buffer.x_syn, untouched.buffer.x_syn)

    def test_stopping_half_way_changes_nothing(self) -> None:
        engine, theta, buffer, x, y, w = stage()
        before = buffer.x_syn.copy()
        calls = iter([None, None, KeyboardInterrupt()])

        def check() -> None:
            if (stop := next(calls)) is not None:
                raise stop

        with pytest.raises(KeyboardInterrupt):
            condensed(engine, theta, buffer, x, y, w, Hyperparameters(), check)
        assert np.array_equal(buffer.x_syn, before)
