"""`paper`: what comes of condensing the union of the devices' buffers on the server.

python -m deco_benchmarks.fleet union --bundle BUNDLE --data DIR --out FILE.json
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np
from deco_runtime.commands.terminal import progress_bars
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import UsageError
from deco_runtime.fleet.union import condense
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.pictures.folder import split_folder
from deco_runtime.preprocess import normalise
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import Bundle, open_bundle

from deco_benchmarks.fleet import shared
from deco_benchmarks.fleet.shared import with_bundle, with_out, with_seed


@click.command("union")
@with_bundle
@click.option("--data", required=True, type=shared.path(), metavar="DIR", help="Image folder with train/ and test/.")
@click.option("--devices", default=3, type=click.IntRange(1))
@click.option("--segments", default=10, type=click.IntRange(1), help="That each device sees.")
@click.option("--test", "tests", default=2000, type=click.IntRange(1), help="Test images at most.")
@click.option("--engine", default="auto", type=click.Choice(["auto", *sorted(engines())]))
@with_seed
@with_out
def command(
    bundle_path: Path, data: Path, devices: int, segments: int, tests: int, engine: str, seed: int, out: Path
) -> None:
    """Devices under the paper's recipe, each of which sees a part of the classes, one class after the other."""
    from deco_benchmarks import datasets  # needs the exporter, which the other experiments do without

    bundle = open_bundle(bundle_path)
    runs_on, draw = open_engine(bundle, engine), np.random.default_rng(seed)
    train, test = split_folder(data)
    if test is None:
        raise UsageError(f"expected {data} to have train/ and test/, but found no test/; choose another --data")
    size = registry.learner("paper").RECIPE.segment
    with progress_bars() as progress:
        read = partial(datasets.unseen, classes=bundle.classes, bundle=bundle, rng=draw)
        held = read(test, most=tests, tick=partial(progress, "reading test images"))
        shown = read(train, most=3 * devices * segments * size, tick=partial(progress, "reading the streams"))
    scorer = Scorer(bundle.preprocessing, held.pixels, held.labels)

    def accuracy(guarded: Guarded) -> float:
        learner = guarded.learner
        return scorer.accuracy(lambda x: learner.answer(learner.model, learner.observe(x)))

    streams = []
    for classes in np.array_split(np.arange(len(bundle.classes)), devices):
        each = segments * size // len(classes)
        streams.append(np.concatenate([np.flatnonzero(shown.labels == c)[:each] for c in classes]))
    fleet, pooled, server = [opened(bundle, runs_on) for _ in streams], opened(bundle, runs_on), opened(bundle, runs_on)
    before, alone = accuracy(server), []
    for guarded, stream in zip(fleet, streams, strict=True):
        for it in (guarded, pooled):
            it.learner.interrupted()
            Stream(it).follow(
                (normalise(shown.pixels[part], bundle.preprocessing), shown.labels[part])
                for part in np.array_split(stream, max(len(stream) // size, 1))
            )
        alone.append(accuracy(guarded))
        click.echo(f"alone: {alone[-1]:.2%}")
    buffers = [each for it in fleet if isinstance(each := it.learner.memory, CondensedBuffer)]
    verdict = condense(server, buffers)
    unguarded = opened(bundle, runs_on)
    learner = unguarded.learner
    assert isinstance(learner, ReplayLearner)
    x, y = (np.concatenate([getattr(each, name) for each in buffers]) for name in ("x_syn", "y_syn"))
    learner.memory = learner.taken_in(x, y, lambda: None)
    learner.model = learner.solve(lambda: None)[0]
    report = {"bundle": bundle.hash, "devices": devices, "segments": segments, "frames": list(map(len, streams)),
              "engine": runs_on.name, "seed": seed, "test_images": len(scorer), "guard_images": bundle.guard_images,
              "before": before, "alone": alone, "rejections": [it.kept.rejections for it in fleet],
              "pooled": accuracy(pooled), "pooled_rejections": pooled.kept.rejections,
              "bytes": int(sum(a.nbytes for a in (buffers[0].x_syn, buffers[0].y_syn))), "merged": accuracy(server),
              "verdict": (verdict.reason or "accepted") if verdict else "nothing",
              "merged_unjudged": accuracy(unguarded)}  # fmt: skip
    shared.write(out, report)
    click.echo(report)


def opened(bundle: Bundle, engine: Engine) -> Guarded:
    kind = registry.learner("paper")
    return open_guard(bundle, kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0)))[0]
