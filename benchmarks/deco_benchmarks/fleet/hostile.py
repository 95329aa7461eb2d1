"""Devices that send harm: one of the fleet's, with the pool's checks and without.

python -m deco_benchmarks.fleet hostile --bundle BUNDLE --seen FILE.npz --out FILE.json
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from deco_runtime.fleet.pool import Pool
from deco_runtime.fleet.sums import minus, packed
from deco_runtime.learning.regression import Statistics, square, upper

from deco_benchmarks.fleet import footage, shared
from deco_benchmarks.fleet.shared import Device, Home, Unchecked, with_home, with_out, with_seed


@click.command("hostile")
@with_home
@click.option("--attacker", default=3, type=click.IntRange(0), help="Number of the device that does harm.")
@with_seed
@with_out
def command(home: Home, attacker: int, seed: int, out: Path) -> None:
    """One of the devices, each of which sees one class only, sends something else; ten rounds of the same."""
    streams = footage.parts_of_classes(home.stream, home.segment, seed)
    mixed = np.random.default_rng(seed).permutation(np.concatenate(streams))[: len(streams[attacker])]
    with TemporaryDirectory() as root:
        seen_by = []
        for number, stream in enumerate([*streams, mixed]):
            device = Device(home, Path(root) / str(number), guard=number < len(streams))
            device.watch(stream)
            seen_by.append(minus(device.guarded.accepted, home.known))
    honest, own, every = seen_by[:-1], seen_by[attacker], seen_by[-1]
    rows = []
    for name, made in attacks(own, every, seed).items():
        row: dict[str, Any] = {"attack": name}
        for kind, title in ((Pool, "checked"), (Unchecked, "unchecked")):
            row[title] = trial(home, kind, honest, attacker, made)
        rows.append(row)
        click.echo(
            f"{name}: {row['checked']['accuracy'][-1]:.2%} checked, {row['unchecked']['accuracy'][-1]:.2%} unchecked; "
            f"{row['checked']['refused']} {row['checked']['rounds_judged'][0]}"
        )
    shared.write(out, {"bundle": home.bundle.hash, "seed": seed, "devices": len(honest), "attacker": attacker,
                       "guard_images": home.bundle.guard_images, "test_images": len(home.test), "before": home.start(),
                       "honest_alone": alone(home, honest), "rows": rows})  # fmt: skip


Made = Callable[[int], tuple[Statistics, dict[str, Any]]]
"""An attack: what is sent in a round, and what is said of it (number, bundle) that is not so."""


def attacks(own: Statistics, every: Statistics, seed: int) -> dict[str, Made]:
    """own: what the device saw, of one class; every: the same count of frames of all classes."""
    rng = np.random.default_rng(seed)
    k, size = own.b.shape[1], len(own.b)
    axes = np.append(rng.permutation(size - 1), size - 1)
    roll = np.roll(np.arange(k), 1)

    def relabelled(of: Statistics) -> Statistics:
        return Statistics(of.a, of.b[:, roll])

    def times(of: Statistics, factor: float) -> Statistics:
        f = np.float32(factor)
        return Statistics(of.a * f, of.b * f)

    def stretched(of: Statistics, factor: float) -> Statistics:
        """φ · factor, the constant as it is."""
        scale = np.append(np.full(size - 1, factor), 1.0)
        return Statistics((square(of) * np.outer(scale, scale))[upper(size)].astype(np.float32),
                          (of.b * scale[:, None]).astype(np.float32))  # fmt: skip

    def other_axes(of: Statistics) -> Statistics:
        return Statistics(square(of)[np.ix_(axes, axes)][upper(size)].astype(np.float32), of.b[axes])

    def mixed(of: Statistics, part: float) -> Statistics:
        """Of each class so many frames with the wrong label."""
        return Statistics(of.a, ((1 - part) * of.b + part * of.b[:, roll]).astype(np.float32))

    fresh: dict[str, Any] = {}

    def anew(of: Statistics, n: int) -> Statistics:
        """The same in another round, as good as new: a copy would be refused as one."""
        return times(of, 1 + n * 1e-4)

    return {
        "its own, honest": lambda n: (times(own, n == 0), fresh),
        "nothing": lambda n: (times(own, 0), fresh),
        "own class, labels permuted": lambda n: (anew(relabelled(own), n), fresh),
        "own class, half of the labels permuted": lambda n: (anew(mixed(own, 0.5), n), fresh),
        "own class, a fifth of the labels permuted": lambda n: (anew(mixed(own, 0.2), n), fresh),
        "all classes, a fifth of the labels permuted": lambda n: (anew(mixed(every, 0.2), n), fresh),
        "all classes, labels permuted": lambda n: (anew(relabelled(every), n), fresh),
        "all classes, labels permuted, 100 times": lambda n: (anew(times(relabelled(every), 100), n), fresh),
        "own class, honest, 1,000 times": lambda n: (anew(times(own, 1000), n), fresh),
        "all classes, values 10 times as large": lambda n: (anew(stretched(every, 10), n), fresh),
        "values not finite": lambda n: (times(own, np.nan), fresh),
        "its frames taken away": lambda n: (anew(times(own, -1), n), fresh),
        "replayed": lambda n: (own, fresh),
        "of another bundle": lambda n: (anew(other_axes(every), n), {"bundle": "0" * 64}),
        "of another bundle, which it denies": lambda n: (anew(other_axes(every), n), fresh),
    }


def trial(home: Home, kind: type[Pool], honest: list[Statistics], attacker: int, made: Made) -> dict[str, Any]:
    """The honest ones send theirs until it is taken in, the attacker something in each of ten rounds, and first."""
    pool, refused, judged, accuracy = home.pool(kind), dict[str, int](), list[str](), list[float]()
    for number in range(10):
        sums, said = made(number)
        offers = [(str(attacker), sums, said)] if np.abs(sums.b[-1]).sum() != 0 else []
        offers += [(str(i), it, {}) for i, it in enumerate(honest) if i != attacker and str(i) not in pool.places]
        for name, difference, wrong in offers:
            place = pool.places.get(name)
            values = {"bundle": home.bundle.hash} | wrong
            reason = pool.offer(
                name, (place.number if place else 0) + 1, "fp32", packed(difference, "fp32"), values["bundle"]
            )
            if reason is not None:
                key = f"{'attacker' if name == str(attacker) else 'honest'} {reason}"
                refused[key] = refused.get(key, 0) + 1
        verdict = pool.settle()
        judged.append((verdict.reason or "accepted") if verdict else "nothing new")
        accuracy.append(home.accuracy(pool.guarded.learner.model))
    return {"accuracy": accuracy, "refused": refused, "rounds_judged": judged}


def alone(home: Home, honest: list[Statistics]) -> list[str | None]:
    """What the pool says of each honest difference."""
    return [home.pool().offer("x", 1, "fp32", packed(each, "fp32"), home.bundle.hash) for each in honest]
