"""Merged devices beside one device that saw all streams, and beside each alone.

python -m deco_benchmarks.fleet merge --bundle BUNDLE --seen FILE.npz --by class --out FILE.json
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from deco_runtime.fleet.sums import minus
from deco_runtime.types import Ints

from deco_benchmarks.fleet import footage, shared
from deco_benchmarks.fleet.shared import Device, Home, with_home, with_out, with_seed


@click.command("merge")
@with_home
@click.option("--by", type=click.Choice(["class", "take"]), default="class",
              help="What a device sees: one class only, or so many takes.")  # fmt: skip
@click.option("--devices", default=20, type=click.IntRange(1), help="Of --by take.")
@click.option("--rounds", default="1,10", metavar="N,N", help="In which the streams are merged.")
@with_seed
@with_out
def command(home: Home, by: str, devices: int, rounds: str, seed: int, out: Path) -> None:
    """Merged devices beside one device that saw all streams."""
    streams = (
        footage.parts_of_classes(home.stream, home.segment, seed)
        if by == "class"
        else footage.parts_of_takes(home.stream, home.segment, devices, seed)
    )
    trials = [trial(home, streams, guard, number) for guard in (False, True) for number in map(int, rounds.split(","))]
    report = {"bundle": home.bundle.hash, "by": by, "seed": seed, "devices": len(streams), "segment": home.segment,
              "frames": sum(map(len, streams)), "test_images": len(home.test), "before": home.start(),
              "guard_images": home.bundle.guard_images, "trials": trials}  # fmt: skip
    shared.write(out, report)
    click.echo(f"before: {report['before']:.2%}")
    for each in trials:
        alone = each["alone"]
        click.echo(
            f"guard {each['guard']}, rounds {each['rounds']}: alone {alone['mean']:.2%} ({alone['min']:.2%} to "
            f"{alone['max']:.2%}), merged {each['merged']:.2%}, pooled {each['pooled']:.2%}, W apart "
            f"{each['w_apart']:.1e}, refused {each['refused']}, not taken up {each['not_taken_up']}"
        )


def trial(home: Home, streams: list[Ints], guard: bool, rounds: int) -> dict[str, Any]:
    """guard: of the devices; the pool has its own anyway. alone: of devices that have not taken up the fleet's sums."""
    with TemporaryDirectory() as root:
        fleet = [Device(home, Path(root) / str(i), guard) for i in range(len(streams))]
        parts = [footage.cut(stream, rounds, home.segment) for stream in streams]
        pool, pooled = home.pool(), Device(home, Path(root) / "pooled", guard)
        refused: Counter[str] = Counter()
        not_taken = 0
        judged, alone = list[str | None](), list[float]()
        for number in range(rounds):
            for device, part in zip(fleet, parts, strict=True):
                device.watch(part[number])
                if (reason := device.send(pool)) is not None:
                    refused[reason] += 1
            if number == 0:
                alone = [home.accuracy(device.updated()) for device in fleet]
            verdict = pool.settle()
            judged.append(verdict.reason if verdict else "nothing was offered")
            for device in fleet:
                told = device.take_up(pool)
                not_taken += told is not None and not told.accepted
        for part in parts:
            for each in part:  # as the devices saw it: with a beginning at each round
                pooled.watch(each)
    classes = len(home.bundle.classes)
    own, ours = home.known, pooled.guarded.accepted
    difference = minus(pool.sums, own), minus(ours, own)
    model = pool.guarded.learner.model
    return {
        "guard": guard,
        "rounds": rounds,
        "alone": shared.spread(alone),
        "merged": home.accuracy(model),
        "on_a_device": shared.spread([home.accuracy(device.updated()) for device in fleet]),
        "pooled": home.accuracy(pooled.updated()),
        "w_apart": shared.apart(*(shared.weights(each, classes) for each in (model, pooled.updated()))),
        "a_apart": shared.apart(difference[0].a, difference[1].a),
        "b_apart": shared.apart(difference[0].b, difference[1].b),
        "frames_merged": float(difference[0].b[-1].sum()),
        "frames_pooled": float(difference[1].b[-1].sum()),
        "votes_right": sum(d.right for d in fleet) / max(sum(d.frames for d in fleet), 1),
        "updates_rejected": {"fleet": sum(d.rejected for d in fleet), "of": sum(d.updates for d in fleet),
                             "pooled": pooled.rejected},
        "segments_paused": {"fleet": sum(d.paused for d in fleet), "pooled": pooled.paused},
        "refused": dict(refused),
        "rounds_judged": [reason or "accepted" for reason in judged],
        "not_taken_up": not_taken,
    }  # fmt: skip
