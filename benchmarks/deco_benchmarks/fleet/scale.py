"""Flower's simulation of many devices with one server, and the pool alone with many more differences.

    python -m deco_benchmarks.fleet scale --bundle BUNDLE --seen FILE.npz --devices 10,100,1000 --out FILE.json
    python -m deco_benchmarks.fleet push --bundle BUNDLE --seen FILE.npz --count 100000 --out FILE.json

The server is the product's, `Rounds` of `fleet/_server_app.py` with its pool. A simulated device is a learner that
votes on frames of its own and packs the difference; it keeps nothing on a disk, and does not judge what it is handed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from deco_runtime.fleet import member as members
from deco_runtime.fleet.sums import HOW, complaint, minus, packed, unpacked
from deco_runtime.learning.arrays import Array
from deco_runtime.learning.regression import Statistics, together
from deco_runtime.types import Segment

from deco_benchmarks.fleet import footage, shared
from deco_benchmarks.fleet.shared import Home, home_of, seen_file, with_home, with_out, with_seed

PATIENCE_S = 3600.0
LOOK_S = 0.05
"""Between two looks at the memory of the process."""


@click.command("scale")
@with_home
@click.option("--devices", default="10,100,1000", metavar="N,N")
@click.option("--segments", default=2, type=click.IntRange(1), help="That each device has seen.")
@click.option("--how", default="fp16", type=click.Choice(HOW))
@click.option("--cores", default=2, type=click.IntRange(1), help="For the devices.")
@click.option("--one", type=click.IntRange(1), hidden=True, help="A single run in this process.")
@with_out
def scale(home: Home, devices: str, segments: int, how: str, cores: int, one: int | None, out: Path) -> None:
    """One round of N devices by Flower's simulation engine (Ray): wall time, and memory of the server's process."""
    if one is not None:
        shared.write(out, simulated(home, one, segments, how, cores))
        return
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as directory:
        for count in map(int, devices.split(",")):
            # A process each: the largest memory of one must not be that of another.
            part = Path(directory) / "one.json"
            arguments = [*sys.argv[1:], "--one", str(count), "--out", str(part)]
            subprocess.run([sys.executable, "-m", "deco_benchmarks.fleet", *arguments], check=True)
            rows.append(json.loads(part.read_text()))
            click.echo(rows[-1])
            shared.write(out, {"bundle": home.bundle.hash, "size": len(home.known.b) - 1, "segments": segments,
                               "how": how, "cores": cores, "rows": rows})  # fmt: skip


def simulated(home: Home, devices: int, segments: int, how: str, cores: int) -> dict[str, Any]:
    """One round: seconds in all and from the first message on; memory_mb: of this process, in which Flower's server and
    its messages are, before the round and at most."""
    from deco_runtime.fleet._server_app import Rounds
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    pool, found = home.pool(), dict[str, Any]()
    home.accuracy(home.scorer.model)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < devices:
            time.sleep(LOOK_S)
        with TemporaryDirectory() as directory, Watched() as memory:
            began = time.monotonic()
            Rounds(grid, pool, Path(directory), how, 1.0, click.echo).go(PATIENCE_S)
            found.update(seconds=time.monotonic() - began)
        found.update(memory_mb={"before": memory.first, "most": memory.most})

    client = client_app(str(home.bundle.root), seen_file(), home.segment, segments)
    began = time.monotonic()
    config: Any = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": cores, "include_dashboard": False}}
    run_simulation(server, client, devices, backend_config=config)
    if not found:
        raise RuntimeError("expected the round to end, but Flower's simulation stopped; see what it says above")
    frames = sum(place.frames for place in pool.places.values())
    return {"devices": devices, "taken_in": len(pool.places), "refused": pool.refused, "frames": frames,
            "all_seconds": time.monotonic() - began, "accuracy": home.accuracy(pool.guarded.learner.model),
            **found}  # fmt: skip


def client_app(bundle: str, seen: str, segment: int, segments: int) -> Any:
    """Devices of which number i has seen so many segments of the stream, from a place that is drawn for it."""
    from deco_runtime.fleet._server_app import GIVE, TAKE
    from flwr.app import Array as Sent
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query(GIVE.partition(".")[2])
    def give(message: Message, context: Context) -> Message:
        asked = message.content.config_records["asked"]
        number, how = int(context.node_config["partition-id"]), str(asked["how"])
        arrays, of = difference(bundle, seen, segment, segments, number, how)
        values = ConfigRecord({"name": f"device-{number}", "number": 1, "how": how, "bundle": of})
        sums = ArrayRecord({name: Sent(array) for name, array in arrays.items()})
        return Message(RecordDict({"offer": values, "sums": sums}), reply_to=message)

    @app.train(TAKE.partition(".")[2])
    def take(message: Message, context: Context) -> Message:
        sums = message.content.array_records["sums"]
        fine = all(np.isfinite(sums[name].numpy()).all() for name in ("a", "b"))
        told = ConfigRecord({"refused": "" if fine else "is not finite"})
        return Message(RecordDict({"told": told}), reply_to=message)

    return app


def difference(
    bundle: str, seen: str, segment: int, segments: int, number: int, how: str
) -> tuple[dict[str, Array], str]:
    """What device `number` sends, and its bundle's hash."""
    home = home_of(bundle, seen, segment)
    learner = home.scorer
    learner.memory = home.known
    learner.interrupted()
    rng = np.random.default_rng(number)
    of = int(rng.integers(len(home.bundle.classes)))
    places = rng.choice(np.flatnonzero(home.stream.labels == of), segment * segments)
    for part in footage.cut(places, segments, segment):
        frames = home.stream[part]
        learner.learn(Segment(frames.observed, frames.labels, np.ones(len(part), np.float32), frames.labels))
    place = members.offered(members.joins(home.known), learner.memory, how, 1.0)
    learner.memory = home.known
    return members.payload(place), home.bundle.hash


class Watched:
    """The memory of this process in megabytes, RSS: when entered, and at most until left."""

    def __enter__(self) -> Watched:
        self.first = self.most = _rss()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._end.wait(LOOK_S):
            self.most = max(self.most, _rss())

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _rss() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("expected VmRSS in /proc/self/status, but found none; measure on Linux")


@click.command("push")
@with_home
@click.option("--count", default=100_000, type=click.IntRange(1), help="Differences, of a device each.")
@click.option("--how", default="fp16", type=click.Choice(HOW))
@with_seed
@with_out
def push(home: Home, count: int, how: str, seed: int, out: Path) -> None:
    """Differences through `Pool.offer` and `settle`, without Flower: seconds of each step, and memory."""
    made = sent(home, how, seed)
    pool = home.pool()
    pool.offer("warm", 1, how, made[0], home.bundle.hash)
    pool, refused, rows = home.pool(), 0, list[dict[str, float]]()
    with Watched() as memory:
        began, cpu = time.monotonic(), time.process_time()
        for number in range(count):
            refused += pool.offer(str(number), 1, how, made[number % len(made)], home.bundle.hash) is not None
            if number + 1 in {count // 100, count // 10, count // 2, count}:
                rows.append({"differences": number + 1, "seconds": time.monotonic() - began,
                             "cpu_seconds": time.process_time() - cpu, "memory_mb": memory.most})  # fmt: skip
                click.echo(rows[-1])
        ended = time.process_time()
        verdict = pool.settle()
        settled = time.process_time() - ended
        with TemporaryDirectory() as directory:
            ended = time.process_time()
            pool.save(Path(directory))
            saved, size = time.process_time() - ended, sum(f.stat().st_size for f in Path(directory).iterdir())
    start = home.known
    half = Statistics(start.a / np.float32(2), start.b / np.float32(2))
    parts = {
        "packed": _seconds(lambda: packed(half, how)),
        "unpacked": _seconds(lambda: unpacked(made[0], how, *start.b.shape)),
        "looked at": _seconds(lambda: complaint(half, start, 1)),
        "judged alone": _seconds(lambda: pool._harm(together(start, half))),
    }
    shared.write(out, {"bundle": home.bundle.hash, "size": len(home.known.b) - 1, "how": how, "count": count,
                       "guard_images": home.bundle.guard_images, "refused": refused,
                       "bytes": sum(a.nbytes for a in made[0].values()), "rows": rows, "settle_cpu_seconds": settled,
                       "save_cpu_seconds": saved, "state_bytes": size, "memory_mb": {"before": memory.first,
                       "most": memory.most}, "cpu_seconds": parts,
                       "verdict": (verdict.reason or "accepted") if verdict else "nothing"})  # fmt: skip


def sent(home: Home, how: str, seed: int, kinds: int = 64) -> list[dict[str, Array]]:
    """Differences of so many devices, which others send again under names of their own."""
    rng, learner = np.random.default_rng(seed), home.scorer
    found = []
    for _ in range(kinds):
        learner.memory = home.known
        learner.interrupted()
        frames = home.stream[rng.choice(len(home.stream), home.segment)]
        learner.learn(Segment(frames.observed, frames.labels, np.ones(len(frames), np.float32), frames.labels))
        found.append(packed(minus(learner.memory, home.known), how))
    learner.memory = home.known
    return found


def _seconds(call: Any, times: int = 20) -> float:
    call()
    began = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began) / times
