"""The votes of `deco+`: what each frame of a segment shows, by one model of the stream, a sticky hidden Markov chain.

    States        the K classes and, where it is known how likely frames of none of them look, one more: unknown
    Transition    p(c_t | c_{t−1}) = ρ · [c_t = c_{t−1}] + (1 − ρ) · π_{c_t}: a scene stays, or a new one is drawn
    forward, backward   the posterior of every frame given all frames of its segment (Rabiner 1989)
    decode        ρ and π by expectation maximisation, and the posterior with them
    in_common, alike   how much neighbours resemble each other, and how many of them say as much as one drawn at random

A camera looks at one thing for a while. How long, nobody tells the device: ρ is found anew in each segment, so that
scenes of 30 frames, of 500, and two scenes interleaved frame by frame are all met. With ρ = 0 the frames have no order,
and π are the segment's class shares (Saerens et al. 2002). numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deco_runtime.types import Bools, Floats

LEAST_ALIKE, MOST_ALIKE = 1.5, 20.0
"""Bounds of `alike`. Pictures of one class are wrong together also where they were not recorded in a row; and a camera
before which nothing moves must still be able to say what it sees."""
STARTS = (0.0, 0.5, 0.95)
"""Values of ρ that expectation maximisation starts from. It stays near where it began, so the likeliest end is taken:
from 0.95 alone, two scenes that are seen frame by frame in turn are taken for one."""
ROUNDS = 8
"""Steps of expectation maximisation from each start."""
LONGEST = 0.999
"""Largest ρ: no segment is long enough to tell a scene of 1,000 frames from one that never ends."""
RARE = 1e-3
"""Scenes added to those drawn of each class in π, so that what a segment has not shown yet stays possible."""
LEAST = 1e-9
"""Least likelihood of a state against the frame's likeliest: one frame alone must not rule anything out."""
TINY = 1e-30

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decoded:
    """posterior: (n, S) float32, p(c_t | all frames). stay: ρ. last: (S,) float32, p(c_n | all frames so far), for the
    segment that follows. log_likelihood: of the frames, up to what scales a frame's likelihoods."""

    posterior: Floats
    stay: float
    last: Floats
    log_likelihood: float


def decode(
    likelihood: Floats,
    carried: Floats | None = None,
    cut: Bools | None = None,
    starts: Sequence[float] = STARTS,
) -> Decoded:
    """The posterior of a segment's frames under the chain that makes them likeliest.

    likelihood: (n, S) float32 ≥ 0, p(frame | state), each frame's up to a factor. For classes that a model takes to be
    equally frequent this is its p(c | x), which must be calibrated, and `alike` times less for
    frames that come in a row. carried: `last` of the segment before, or None where nothing is known of it. cut: (n,)
    bool, frames before which the stream was interrupted, so that they are drawn from π alone. starts: of ρ, in [0, 1).
    """
    n, states = likelihood.shape
    e = np.maximum(likelihood.astype(np.float64), TINY)
    e = np.maximum(e / e.max(axis=1, keepdims=True), LEAST)
    goes_on = np.ones(n, bool) if cut is None else ~cut
    goes_on[0] &= carried is not None
    before = np.full(states, 1 / states) if carried is None else carried.astype(np.float64)
    rho, pi = np.asarray(starts, np.float64), np.full((len(starts), states), 1 / states)
    for _ in range(ROUNDS):
        alpha, scale = forward(e, rho, pi, before, goes_on)
        _, stays, drawn = backward(e, rho, pi, before, goes_on, alpha, scale)
        rho = np.minimum(stays / max(int(np.count_nonzero(goes_on)), 1), LONGEST)
        drawn += RARE
        pi = drawn / drawn.sum(axis=1, keepdims=True)
    alpha, scale = forward(e, rho, pi, before, goes_on)
    posterior, _, _ = backward(e, rho, pi, before, goes_on, alpha, scale)
    likely = np.log(scale).sum(axis=1)
    k = int(np.argmax(likely))
    return Decoded(posterior[k].astype(np.float32), float(rho[k]), alpha[k, -1].astype(np.float32), float(likely[k]))


def in_common(phi: Floats, apart: float, cut: Bools | None = None) -> float:
    """r in [0, 1], the correlation of neighbouring frames φ (n, D): 1 − E‖φ_t − φ_{t−1}‖² / apart, where `apart` is
    E‖φ − φ'‖² of two labelled images of one class drawn at random. 0 without neighbours. cut: as for `decode`."""
    steps = np.diff(phi, axis=0) if cut is None else np.diff(phi, axis=0)[~cut[1:]]
    if not steps.size or apart < TINY:
        return 0.0
    return max(0.0, 1 - float(np.mean((steps.astype(np.float64) ** 2).sum(axis=1))) / apart)


def alike(r: float) -> float:
    """a ≥ 1, where n frames in a row say as much as n / a drawn at random: neighbours are wrong together.

    With a correlation r of neighbours, and r^k of those k apart, n values have a mean as sure as that of
    n (1 − r) / (1 + r) independent ones (Bartlett 1935).
    """
    return float(np.clip((1 + r) / max(1 - r, TINY), LEAST_ALIKE, MOST_ALIKE))


def forward(e: Doubles, rho: Doubles, pi: Doubles, before: Doubles, goes_on: Bools) -> tuple[Doubles, Doubles]:
    """α (R, n, S), p(c_t | frames up to t), and the scales (R, n), p(frame t | frames before it), of R chains at once.

    e: (n, S) likelihoods. rho: (R,). pi: (R, S). before: (S,), the state ahead of the first frame. goes_on: (n,),
    frames that follow the one before without an interruption.
    """
    (n, states), chains = e.shape, len(rho)
    alpha, scale = np.empty((n, chains, states)), np.empty((n, chains, 1))
    stay, drawn = rho[:, None], (1 - rho)[:, None] * pi
    previous = np.broadcast_to(before, pi.shape)
    for t in range(n):
        joint = (stay * previous + drawn if goes_on[t] else pi) * e[t]
        np.add.reduce(joint, axis=1, keepdims=True, out=scale[t])
        previous = np.divide(joint, scale[t], out=alpha[t])
    return alpha.swapaxes(0, 1), scale[..., 0].T


def backward(
    e: Doubles, rho: Doubles, pi: Doubles, before: Doubles, goes_on: Bools, alpha: Doubles, scale: Doubles
) -> tuple[Doubles, Doubles, Doubles]:
    """p(c_t | all frames) (R, n, S), expected number of frames at which a scene stayed (R,), and of scenes drawn of
    each state (R, S). Arguments and α, scale as in `forward`."""
    n, (chains, states) = len(e), pi.shape
    beta, weight = np.ones((n, chains, states)), np.empty((n, chains, states))
    stay, fresh = rho[:, None], (1 - rho)[:, None] * pi
    scaled = e[:, None] / scale.T[..., None]
    for t in range(n - 1, -1, -1):  # beta: p(frames after t | c_t), over what scales them
        now = np.multiply(scaled[t], beta[t], out=weight[t])
        if t and goes_on[t]:
            np.add(stay * now, np.add.reduce(fresh * now, axis=1, keepdims=True), out=beta[t - 1])
        elif t:
            beta[t - 1] = np.add.reduce(pi * now, axis=1, keepdims=True)
    previous = np.concatenate([np.broadcast_to(before, (1, chains, states)), alpha.swapaxes(0, 1)[:-1]])
    stays = rho * np.einsum("tks,tks->k", previous[goes_on], weight[goes_on])
    drawn = fresh * weight[goes_on].sum(axis=0) + pi * weight[~goes_on].sum(axis=0)
    return alpha * beta.swapaxes(0, 1), stays, drawn
