"""What noise for (ε, δ) costs in accuracy.

python -m deco_benchmarks.fleet noise --bundle BUNDLE --seen FILE.npz --out FILE.json
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, sqrt
from typing import Any

import click
import numpy as np
from deco_runtime.fleet.noise import multiple, private, usual
from deco_runtime.fleet.sums import frames, minus, packed
from deco_runtime.learning.regression import Statistics
from deco_runtime.learning.teachable import TeachableLearner
from deco_runtime.types import Segment

from deco_benchmarks.fleet import footage, shared
from deco_benchmarks.fleet.shared import Home, with_home, with_out, with_seed

DELTA = 1e-6
EPSILONS = (1.0, 3.0, 10.0, inf)


@click.command("noise")
@with_home
@click.option("--bound", default=1.25, type=click.FloatRange(0.1), help="Of ‖φ‖, times that of labelled images.")
@click.option("--draws", default=3, type=click.IntRange(1), help="Of the noise.")
@with_seed
@with_out
def command(home: Home, bound: float, draws: int, seed: int, out: Any) -> None:
    """Devices that see one class each, and add noise to what they send; one round."""
    streams = footage.parts_of_classes(home.stream, home.segment, seed)
    most = bound * usual(home.known)
    lengths = np.linalg.norm(home.stream.observed["phi"], axis=1)
    seen = [learned(home, stream, inf) for stream in streams]
    short = [learned(home, stream, most) for stream in streams]
    rows: list[dict[str, Any]] = [
        {"form": "sums as they are", "epsilon": None, **merged(home, seen)},
        {"form": "clipped", "epsilon": None, **merged(home, short)},
    ]
    kinds: dict[str, Callable[..., Statistics]] = {
        "means, a frame": private,
        "sums, a frame": whole,
        "means, a segment": partial(private, together=home.segment),
    }
    for form, make in kinds.items():
        for epsilon in EPSILONS:
            trials = []
            for draw in range(draws if epsilon != inf else 1):
                rng = np.random.default_rng([seed, draw])
                trials.append(merged(home, [make(each, home.known, epsilon, DELTA, most, rng) for each in short]))
            rows.append({"form": form, "epsilon": epsilon if epsilon != inf else "inf",
                         "accuracy": float(np.mean([t["accuracy"] for t in trials])),
                         "accuracies": [t["accuracy"] for t in trials],
                         "unjudged": float(np.mean([t["unjudged"] for t in trials])),
                         "refused": [t["refused"] for t in trials], "judged": [t["judged"] for t in trials],
                         "devices_that_sent": [t["devices_that_sent"] for t in trials]})  # fmt: skip
            click.echo(rows[-1])
    shared.write(out, {"bundle": home.bundle.hash, "seed": seed, "delta": DELTA, "bound": bound, "most": most,
                       "clipped_share": float((lengths > most).mean()), "frames_of_a_device": [len(s) for s in streams],
                       "multiples": {str(e): multiple(e, DELTA) for e in EPSILONS}, "before": home.start(),
                       "test_images": len(home.test), "rows": rows})  # fmt: skip


def learned(home: Home, places: Any, most: float) -> Statistics:
    """What a device learns of a stream whose φ are clipped as they are added; the votes see them as they are."""
    learner = home.scorer
    learner.memory = home.known
    learner.interrupted()
    assert isinstance(learner, TeachableLearner)
    learner.longest = most
    for part in footage.cut(places, max(len(places) // home.segment, 1), home.segment):
        seen = home.stream[part]
        learner.learn(Segment(seen.observed, seen.labels, np.ones(len(part), np.float32), seen.labels))
    found = minus(learner.memory, home.known)
    learner.longest, learner.memory = inf, home.known
    return found


def whole(
    sums: Statistics, known: Statistics, epsilon: float, delta: float, most: float, rng: np.random.Generator
) -> Statistics:
    """Noise on A and B alike: what `private` does not do, for comparison. A frame adds (φ, 1)(φ, 1)ᵀ and (φ, 1)tᵀ."""
    square = most**2 + 1
    sigma = multiple(epsilon, delta) * sqrt(square**2 + square)
    b = sums.b + rng.normal(0, 1, sums.b.shape) * sigma
    return replace(
        sums,
        a=(sums.a + rng.normal(0, 1, sums.a.shape) * sigma).astype(np.float32),
        b=b.astype(np.float32),
    )


def merged(home: Home, sums: list[Statistics]) -> dict[str, Any]:
    """By the product's pool, which judges each alone and all together; and, as unjudged, by adding them up."""
    pool = home.pool()
    refused = []
    for number, each in enumerate(sums):
        if frames(each) > 0:
            reason = pool.offer(str(number), 1, "fp32", packed(each, "fp32"), home.bundle.hash)
            refused += [reason] if reason else []
    verdict = pool.settle()
    learner = home.scorer
    learner.memory = Statistics(
        sum((each.a for each in sums), home.known.a), sum((each.b for each in sums), home.known.b)
    )
    try:
        unjudged = home.accuracy(learner.solve(lambda: None)[0])
    except np.linalg.LinAlgError:
        unjudged = 0.0
    learner.memory = home.known
    return {"accuracy": home.accuracy(pool.guarded.learner.model), "unjudged": unjudged, "refused": refused,
            "judged": (verdict.reason or "accepted") if verdict else "nothing",
            "devices_that_sent": sum(frames(each) > 0 for each in sums)}  # fmt: skip
