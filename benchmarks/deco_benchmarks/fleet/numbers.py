"""fp32, fp16 and int8: bytes of a device and round, and what they cost in accuracy.

python -m deco_benchmarks.fleet numbers --bundle BUNDLE --seen FILE.npz --out FILE.json
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from deco_runtime.fleet import member as members
from deco_runtime.fleet.sums import HOW
from deco_runtime.types import Floats, Ints

from deco_benchmarks.fleet import footage, shared
from deco_benchmarks.fleet.shared import Device, Home, with_home, with_out, with_seed


@click.command("numbers")
@with_home
@click.option("--rounds", default="1,10", metavar="N,N", help="In which the streams are merged.")
@with_seed
@with_out
def command(home: Home, rounds: str, seed: int, out: Path) -> None:
    """Bytes and accuracy of a difference in fp32, fp16 and int8, devices seeing one class each."""
    streams = footage.parts_of_classes(home.stream, home.segment, seed)
    rows: list[dict[str, Any]] = []
    for number in map(int, rounds.split(",")):
        exact: Floats | None = None
        for how in HOW:
            row, model = trial(home, streams, how, number)
            exact = model if exact is None else exact
            classes = len(home.bundle.classes)
            row["w_apart"] = shared.apart(shared.weights(model, classes), shared.weights(exact, classes))
            rows.append(row)
            click.echo(row)
    shared.write(out, {"bundle": home.bundle.hash, "seed": seed, "devices": len(streams), "before": home.start(),
                       "test_images": len(home.test), "size": home.known.b.shape[0] - 1,
                       "rows": rows})  # fmt: skip


def trial(home: Home, streams: list[Ints], how: str, rounds: int) -> tuple[dict[str, Any], Floats]:
    """Guards on, as the product has them. eigenvalue: the least of the sums' A, over the mean of its diagonal."""
    import numpy as np
    from deco_runtime.learning.regression import square

    with TemporaryDirectory() as root:
        fleet = [Device(home, Path(root) / str(i)) for i in range(len(streams))]
        parts = [footage.cut(stream, rounds, home.segment) for stream in streams]
        pool, sizes, refused, judged = home.pool(), list[int](), list[str](), list[str]()
        accuracy, not_taken = [], 0
        for number in range(rounds):
            for device, part in zip(fleet, parts, strict=True):
                device.watch(part[number])
                reason = device.send(pool, how)
                place = members.kept(device.directory, device.guarded.accepted, home.bundle.hash)
                if place is not None and place.sent is not None:
                    sizes.append(sum(array.nbytes for array in members.payload(place).values()))
                if reason is not None:
                    refused.append(reason)
            verdict = pool.settle()
            judged.append((verdict.reason or "accepted") if verdict else "nothing was offered")
            for device in fleet:
                told = device.take_up(pool)
                not_taken += told is not None and not told.accepted
            accuracy.append(home.accuracy(pool.guarded.learner.model))
    a = square(pool.sums)
    least = float(np.linalg.eigvalsh(a)[0] / (np.trace(a) / len(a)))
    row = {"how": how, "rounds": rounds, "bytes": max(sizes, default=0), "accuracy": accuracy, "refused": refused,
           "rounds_judged": judged, "not_taken_up": not_taken, "eigenvalue": least}  # fmt: skip
    return row, pool.guarded.learner.model
