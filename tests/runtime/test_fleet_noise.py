"""Noise on what a device sends: as much as (ε, δ) needs, and sums that a pool still understands."""

from __future__ import annotations

from math import erfc, exp, inf, sqrt

import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import Member
from deco_runtime.fleet.noise import CLIP, DELTA, Noise, multiple, of_means, private, usual
from deco_runtime.fleet.sums import HOW, complaint, digest, frames, minus
from deco_runtime.learning.regression import Statistics, add, clipped, solve, square, within
from deco_runtime.types import Floats

D, K = 24, 4


def drawn(seed: int, n: int, of: int | None = None) -> tuple[Floats, Floats]:
    """Frames φ (n, D) around their class's mean, no longer than 2, and their one-hot labels."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(99).normal(0, 0.2, (K, D))
    labels = rng.integers(K, size=n) if of is None else np.full(n, of)
    phi = means[labels] + rng.normal(0, 0.1, (n, D))
    return clipped(phi.astype(np.float32), 2.0), np.eye(K, dtype=np.float32)[labels]


def sums(seed: int, n: int, of: int | None = None) -> Statistics:
    return add(Statistics.zero(D, K), *drawn(seed, n, of))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
def test_sigma_is_the_least_that_is_private(epsilon: float) -> None:
    def reached(sigma: float) -> float:
        def normal(x: float) -> float:
            return erfc(-x / sqrt(2)) / 2

        return normal(1 / (2 * sigma) - epsilon * sigma) - exp(epsilon) * normal(-1 / (2 * sigma) - epsilon * sigma)

    sigma = multiple(epsilon, 1e-6)
    assert reached(sigma) <= 1e-6 < reached(0.999 * sigma)
    if epsilon <= 1:  # where the classical bound holds, it asks for more
        assert sigma < sqrt(2 * np.log(1.25e6)) / epsilon


def test_no_noise_for_no_bound_and_what_is_no_bound() -> None:
    assert multiple(inf, 1e-6) == 0
    for epsilon, delta in ((0, 1e-6), (-1, 1e-6), (1, 0), (1, 1), (float("nan"), 0.1)):
        with pytest.raises(UsageError, match="expected ε above 0"):
            multiple(epsilon, delta)


def test_frames_are_no_longer_than_the_bound() -> None:
    phi = np.random.default_rng(0).normal(0, 1, (50, D)).astype(np.float32)
    short = clipped(phi, 2.0)
    assert np.linalg.norm(short, axis=1).max() <= 2.0 + 1e-5
    kept = np.linalg.norm(phi, axis=1) <= 2
    np.testing.assert_array_equal(short[kept], phi[kept])
    assert clipped(np.zeros((1, D), np.float32), 2.0).tolist() == [[0.0] * D]


def test_without_noise_the_classes_are_as_they_were() -> None:
    """Their sums are; A is that of the labelled images' spread around them."""
    known, seen = sums(0, 400), sums(1, 800)
    made = private(seen, known, inf, 1e-6, 2.0, np.random.default_rng(0))
    np.testing.assert_allclose(made.b, seen.b, rtol=1e-6)
    np.testing.assert_allclose(within(made), within(known), atol=1e-5)
    np.testing.assert_allclose(square(made)[:, -1], seen.b.sum(axis=1), rtol=1e-4, atol=1e-3)
    assert complaint(made, known, 100) is None


def test_noise_is_of_the_size_that_it_says() -> None:
    known, seen = sums(0, 400), sums(1, 40_000)
    for together in (1, 3):
        sigma = multiple(1.0, 1e-6) * together * 2.0 * sqrt(1 + 1 / 16)
        found = np.stack([
            private(seen, known, 1.0, 1e-6, 2.0, np.random.default_rng(seed), together).b - seen.b for seed in range(40)
        ])  # fmt: skip
        assert found[:, :-1].std() == pytest.approx(sigma, rel=0.05)
        assert found[:, -1].std() == pytest.approx(sigma / 0.5, rel=0.2)


def test_a_class_that_is_mostly_noise_is_not_sent() -> None:
    known, seen = sums(0, 400), sums(1, 3000, of=2)
    made = private(seen, known, 1.0, 1e-6, 2.0, np.random.default_rng(0))
    assert np.flatnonzero(made.b.any(axis=0)).tolist() == [2]
    assert frames(made) == pytest.approx(3000, abs=100)
    assert complaint(made, known, 100) is None
    few = private(sums(1, 10), known, 1.0, 1e-6, 2.0, np.random.default_rng(0))
    assert frames(few) == 0
    assert np.isfinite(solve(Statistics(known.a + few.a, known.b + few.b))).all()


def test_usual_is_the_length_of_labelled_images() -> None:
    phi, t = drawn(0, 400)
    length = sqrt(float((phi.astype(np.float64) ** 2).sum(axis=1).mean()))
    assert usual(add(Statistics.zero(D, K), phi, t)) == pytest.approx(length, rel=1e-5)


def test_sums_of_classes_alone_make_nearly_the_same_model() -> None:
    known, seen = sums(0, 400), sums(1, 4000)
    made = of_means(seen.b.astype(np.float64), known)
    phi, t = drawn(2, 1000)
    for each in (seen, made):
        w = solve(each)
        right = (phi @ w[:-1] + w[-1]).argmax(axis=1) == t.argmax(axis=1)
        assert right.mean() > 0.95


def test_no_epsilon_is_too_large_to_compute_and_what_is_none_is_refused() -> None:
    for epsilon in (1e-3, 100.0, 710.0, 735.0, 1e6):
        assert 0 < multiple(epsilon, DELTA) < inf
    for wrong in (0.0, -1.0, inf, float("nan")):
        with pytest.raises(UsageError, match="expected --noise EPSILON to be a finite number above 0"):
            Noise(wrong, sums(0, 400))


def test_what_is_left_is_left() -> None:
    """A device that waits for so many frames to be left is hardly ever told that they are too few."""
    known, noise = sums(0, 400), Noise(1.0, sums(0, 400))
    assert noise.most == pytest.approx(CLIP * usual(known))
    for each in (sums(1, 400), sums(2, 1000), sums(3, 200, of=1)):
        least = noise.left(each)
        assert least > 0
        rng = np.random.default_rng(0)
        assert np.mean([frames(noise.on(each, rng)) >= least for _ in range(200)]) >= 0.98
    assert noise.left(sums(1, 20)) <= 0


LEAST = 50.0


def fleet_of(base: Statistics, *parts: Statistics) -> Statistics:
    return Statistics(sum((x.a for x in parts), base.a), sum((x.b for x in parts), base.b))


def close(one: Statistics, other: Statistics) -> None:
    for x, y in ((one.a, other.a), (one.b, other.b)):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * max(np.abs(y).max(), 1))


@pytest.mark.parametrize("how", HOW)
def test_the_fleet_gets_noise_and_the_device_keeps_what_it_knows(how: str) -> None:
    """Two differences are confirmed and one is refused, with the sums of another device between: base is all that was
    made a difference of, without noise, and each frame was in one of them."""
    start, others, noise = sums(0, 400), sums(9, 500), Noise(3.0, sums(0, 400))
    learned = [sums(seed, 1000) for seed in (1, 2, 3)]
    it, now, of_fleet = members.joins(start), start, start

    def sent_of(member: Member) -> Statistics:
        assert member.sent is not None
        return member.sent

    now = fleet_of(now, learned[0])
    it = members.offered(it, now, how, LEAST, noise)
    first, again = members.payload(it), members.payload(members.offered(it, fleet_of(now, learned[1]), how, 1, noise))
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert np.abs(sent_of(it).b[:-1] - learned[0].b[:-1]).max() > 0.5 * multiple(3.0, DELTA)
    of_fleet = fleet_of(of_fleet, sent_of(it), others)
    it = members.confirmed(it, 1)
    close(it.base, fleet_of(start, learned[0]))
    close(it.had, minus(of_fleet, others))
    assert (it.sent, it.true) == (None, None)
    merged = members.merged(it, of_fleet, now)
    close(merged, fleet_of(start, learned[0], others))  # its own without noise
    it = members.settled(members.took(it, of_fleet), merged, 1, it.offers)
    close(it.base, merged)
    now = merged

    now = fleet_of(now, learned[1])
    it = members.offered(it, now, how, LEAST, noise)
    refused = digest(members.payload(it))
    assert members.withdrawn(it, "0" * 16) is it
    it = members.withdrawn(it, refused)
    assert (it.sent, it.true, it.number) == (None, None, 1)
    assert members.offered(it, now, how, LEAST, noise).sent is None  # not under another noise either
    assert members.offered(it, now, how, LEAST).sent is None
    close(it.had, of_fleet)
    close(members.merged(it, of_fleet, now), now)  # lost to the fleet alone

    now = fleet_of(now, learned[2])
    it = members.offered(it, now, how, LEAST, noise)
    true = it.true
    assert true is not None
    close(true, learned[2])
    it = members.confirmed(it, 2)
    close(it.base, now)


def test_what_is_forgone_is_not_sent_and_stays() -> None:
    start, seen, others = sums(0, 400), sums(1, 1000), sums(2, 1000)
    now = fleet_of(start, seen)
    it = members.forgone(members.joins(start), now)
    assert members.offered(it, now, "fp32", 1.0).sent is None
    close(members.merged(it, fleet_of(start, others), now), fleet_of(now, others))
    under_way = members.offered(members.joins(start), now, "fp32", LEAST)
    more = fleet_of(now, others)
    it = members.forgone(under_way, more)
    close(members.confirmed(it, 1).had, now)
    close(members.confirmed(it, 1).base, more)
