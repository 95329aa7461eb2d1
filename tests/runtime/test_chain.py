"""The chain of the votes: against sums over all paths, and on streams of every kind of order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from deco_runtime.learning.chain import LEAST_ALIKE, LONGEST, MOST_ALIKE, alike, backward, decode, forward, in_common
from deco_runtime.types import Floats
from hypothesis import given, settings
from hypothesis import strategies as st

CLASSES = 10


def by_paths(
    e: np.ndarray, rho: float, pi: np.ndarray, before: np.ndarray, goes_on: np.ndarray
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Posterior (n, S), log-likelihood, expected stays and expected scenes drawn (S,): a sum over each path of states
    and over each choice of staying or drawing, weighed by its probability."""
    n, states = e.shape
    posterior, drawn, stays, total = np.zeros((n, states)), np.zeros(states), 0.0, 0.0
    for path in itertools.product(range(states), repeat=n):
        for first in range(states):
            for kept in itertools.product((False, True), repeat=n):
                weight, previous = before[first], first
                for t, state in enumerate(path):
                    if kept[t]:
                        weight *= rho * (state == previous) if goes_on[t] else 0.0
                    else:
                        weight *= ((1 - rho) if goes_on[t] else 1.0) * pi[state]
                    weight *= e[t, state]
                    previous = state
                total += weight
                stays += weight * sum(kept)
                for t, state in enumerate(path):
                    posterior[t, state] += weight
                    drawn[state] += weight * (not kept[t])
    return posterior / total, float(np.log(total)), stays / total, drawn / total


@pytest.mark.parametrize("interrupted", [[], [0], [2], [0, 1, 3]])
def test_posterior_likelihood_and_expectations_are_sums_over_all_paths(interrupted: list[int]) -> None:
    rng = np.random.default_rng(len(interrupted))
    e, pi, before = rng.random((4, 3)), rng.dirichlet(np.ones(3), 2), rng.dirichlet(np.ones(3))
    rho = np.array([0.3, 0.8])
    goes_on = ~np.isin(np.arange(4), interrupted)
    alpha, scale = forward(e, rho, pi, before, goes_on)
    posterior, stays, drawn = backward(e, rho, pi, before, goes_on, alpha, scale)
    for k in range(2):
        expected = by_paths(e, rho[k], pi[k], before, goes_on)
        np.testing.assert_allclose(posterior[k], expected[0], rtol=1e-10)
        np.testing.assert_allclose(np.log(scale[k]).sum(), expected[1], rtol=1e-10)
        np.testing.assert_allclose(stays[k], expected[2], rtol=1e-10)
        np.testing.assert_allclose(drawn[k], expected[3], rtol=1e-10)
        assert stays[k] + drawn[k].sum() == pytest.approx(4)  # each frame stays or is drawn


def sequence(r: float, n: int, seed: int = 0) -> Floats:
    """(n, 8) of variance 1, neighbours with a correlation of r: a stationary first-order autoregressive sequence."""
    rng = np.random.default_rng(seed)
    x = np.empty((n, 8), np.float32)
    x[0] = rng.standard_normal(8)
    for t in range(1, n):
        x[t] = r * x[t - 1] + np.sqrt(1 - r * r) * rng.standard_normal(8)
    return x


@pytest.mark.parametrize("r", [0.5, 0.8])
def test_frames_count_as_many_as_make_their_mean_as_sure(r: float) -> None:
    """By the variance of the means of many sequences, against that of as many independent values."""
    x = sequence(r, 400_000)
    means = x.reshape(2_000, 200, 8).mean(axis=1)
    assert alike(in_common(x, 16.0)) == pytest.approx(200 * means.var(), rel=0.1)


def test_frames_drawn_at_random_count_as_photographs_do_and_a_still_scene_has_a_bound() -> None:
    assert alike(in_common(sequence(0.0, 128), 16.0)) == LEAST_ALIKE
    assert alike(in_common(np.ones((128, 8), np.float32), 16.0)) == MOST_ALIKE
    far_from_the_labelled_images = 10 * sequence(0.0, 128)
    assert alike(in_common(far_from_the_labelled_images, 16.0)) == LEAST_ALIKE
    assert alike(in_common(sequence(0.8, 1), 16.0)) == alike(in_common(sequence(0.8, 128), 0.0)) == LEAST_ALIKE


def test_an_interruption_says_nothing_about_neighbours() -> None:
    x, cut = sequence(0.8, 2_000), np.zeros(2_000, bool)
    pieces = np.concatenate([x[:1_000], 50 + x[1_000:]])
    assert alike(in_common(pieces, 16.0)) == LEAST_ALIKE
    cut[[0, 1_000]] = True
    assert alike(in_common(pieces, 16.0, cut)) == pytest.approx(alike(in_common(x, 16.0)), rel=0.05)
    assert alike(in_common(pieces, 16.0, np.ones(2_000, bool))) == LEAST_ALIKE


def frames(states: np.ndarray, right: float, rng: np.random.Generator) -> Floats:
    """Calibrated p(c | x) of frames: each names its class with probability `right`, and says that it is so sure."""
    named = np.where(rng.random(len(states)) < right, states, rng.integers(0, CLASSES, len(states)))
    p = np.full((len(states), CLASSES), (1 - right) / CLASSES, np.float32)
    p[np.arange(len(states)), named] += right
    return p


@pytest.mark.parametrize(
    ("length", "least", "most", "right"), [(500, 0, 1, 0.97), (30, 0.8, 0.99, 0.97), (5, 0.5, 0.9, 0.77)]
)
def test_scenes_of_any_length_are_found_and_mended(length: int, least: float, most: float, right: float) -> None:
    """Frames of which 64 in 100 look like their class, calibrated, in scenes of so many frames."""
    rng = np.random.default_rng(0)
    states = np.repeat(rng.integers(0, CLASSES, 128 * 20 // length + 1), length)[: 128 * 20]
    found, stay, carried = 0, [], None
    for segment in np.split(states, 20):
        decoded = decode(frames(segment, 0.6, rng), carried)
        carried = decoded.last
        found += int((decoded.posterior.argmax(axis=1) == segment).sum())
        stay.append(decoded.stay)
    assert found / len(states) >= right
    assert least <= np.median(stay) <= most


def test_two_scenes_in_turn_are_told_apart() -> None:
    """Of two scenes seen frame by frame in turn, one start alone makes one; the likeliest of all does not."""
    rng = np.random.default_rng(0)
    states = np.where(rng.random(128) < 0.5, 2, 7)
    p = frames(states, 0.8, rng) ** np.float32(1 / 2)  # softened more than need be
    p /= p.sum(axis=1, keepdims=True)
    alone = decode(p, starts=(0.95,))
    found = decode(p)
    right = [float(np.mean(each.posterior.argmax(axis=1) == states)) for each in (alone, found)]
    assert right[0] < 0.7
    assert right[1] > 0.85
    assert found.stay < 0.5
    assert found.log_likelihood > alone.log_likelihood


def test_without_order_the_chain_is_the_segment_s_shares() -> None:
    """ρ = 0 is expectation maximisation of the shares alone: its fixed point, computed here on its own."""
    rng = np.random.default_rng(2)
    p = frames(rng.choice(3, 128, p=(0.6, 0.3, 0.1)), 0.5, rng).astype(np.float64)
    e, rho, pi, goes_on = p, np.zeros(1), np.full((1, CLASSES), 0.1), np.ones(128, bool)
    goes_on[0] = False
    shares = np.full(CLASSES, 0.1)
    for _ in range(20):
        alpha, scale = forward(e, rho, pi, pi[0], goes_on)
        posterior, _, drawn = backward(e, rho, pi, pi[0], goes_on, alpha, scale)
        pi = drawn / drawn.sum()
        joint = p * shares
        joint /= joint.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(posterior[0], joint, atol=1e-12)
        shares = joint.mean(axis=0)
        np.testing.assert_allclose(pi[0], shares, atol=1e-12)


def test_what_is_carried_decides_a_doubtful_first_frame_unless_the_stream_was_cut() -> None:
    p = np.full((16, 2), 0.5, np.float32)
    p[8:, 1] = 0.9
    p[8:, 0] = 0.1
    carried = np.array([1, 0], np.float32)
    goes_on = decode(p, carried)
    cut = decode(p, carried, np.arange(16) == 0)
    anew = decode(p)
    assert goes_on.posterior[0, 0] > cut.posterior[0, 0] + 0.05
    np.testing.assert_array_equal(cut.posterior, anew.posterior)


def test_a_cut_in_the_middle_parts_what_is_on_either_side() -> None:
    """A doubtful frame behind a cut no longer follows the scene in front of it."""
    rng = np.random.default_rng(3)
    p = frames(np.repeat([4, 6], 64), 0.6, rng)
    p[64] = 0.1
    together, parted = decode(p), decode(p, cut=np.arange(128) == 64)
    assert parted.posterior[64, 4] < together.posterior[64, 4]


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
def test_posteriors_are_probabilities_whatever_the_likelihoods(n: int, states: int, seed: int, carry: bool) -> None:
    rng = np.random.default_rng(seed)
    e = np.where(rng.random((n, states)) < 0.3, 0, 10.0 ** rng.uniform(-30, 3, (n, states))).astype(np.float32)
    carried = rng.dirichlet(np.ones(states)).astype(np.float32) if carry else None
    found = decode(e, carried, rng.random(n) < 0.1)
    assert found.posterior.shape == (n, states)
    assert found.posterior.dtype == found.last.dtype == np.float32
    assert np.isfinite(found.log_likelihood)
    assert 0 <= found.stay <= LONGEST
    explained = e.max(axis=1) > 1e-20
    np.testing.assert_allclose(found.posterior[explained].sum(axis=1), 1, atol=1e-3)
