"""A class that the bundle lacks: how well it is answered after a few pictures, and after a stream that shows it too.

    python -m deco_benchmarks.teaching --bundle BUNDLE --data DIR --class NAME --out FILE.json

The device's own learner, guard and loop. The bundle is made of DIR without that class.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_export.images import Images
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.learner import Learner
from deco_runtime.pictures.folder import split_folder
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.control import observed_in
from deco_runtime.running.scoring import normalised
from deco_runtime.running.stream import Stream
from deco_runtime.sources.orders import stc_order
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats, Ints

from deco_benchmarks import datasets


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--bundle", "bundle_path", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
              help="Made by deco-export of images without the class.")  # fmt: skip
@click.option("--data", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Image folder with train/ and test/ of all classes; what the bundle saw is left out.")  # fmt: skip
@click.option("--class", "name", required=True, metavar="NAME", help="The class to teach.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Result, JSON.")
@click.option("--pictures", default=10, type=click.IntRange(1), help="That are taught.")
@click.option("--frames", default=5120, type=click.IntRange(0), help="Of the stream behind the teaching.")
@click.option("--stc", default=100, type=click.IntRange(1), help="Consecutive frames of one class in it.")
@click.option("--tests", default=5000, type=click.IntRange(1), help="Test images, at most.")
@click.option("--recipe", default="deco+", type=click.Choice(registry.names()))
@click.option("--engine", default="auto", type=click.Choice(["auto", *sorted(engines())]), help="Numeric engine.")
@click.option("--seeds", default=3, type=click.IntRange(1), help="Each draws its own pictures.")
def main(bundle_path: Path, data: Path, name: str, out: Path, pictures: int, frames: int, stc: int, tests: int,
         recipe: str, engine: str, seeds: int) -> None:  # fmt: skip
    """What a few pictures of a new class do, and then a stream.

    \b
    deco-export --data cifar10-without-ship --out bundle
    python -m deco_benchmarks.teaching --bundle bundle --data cifar10 --class ship --out teaching.json
    """
    bundle = open_bundle(bundle_path)
    if name in bundle.classes:
        raise UsageError(f"expected a class that {bundle_path} lacks, but found {name!r}; choose another --class")
    train, test = split_folder(data)
    if test is None:
        raise UsageError(f"expected {data} to have train/ and test/, but found no test/; choose another --data")
    classes, runs_on, draw = (*bundle.classes, name), open_engine(bundle, engine), np.random.default_rng(0)
    with progress_bars() as progress:
        read = partial(datasets.unseen, classes=classes, bundle=bundle, rng=draw)
        held = read(test, most=tests, tick=partial(progress, "reading test images"))
        shown = read(train, most=frames + seeds * 20 * pictures, tick=partial(progress, "reading the stream"))
        trials = []
        for seed in range(seeds):
            trials.append(trial(bundle, runs_on, recipe, shown, held, pictures, frames, stc, seed))
            progress("trials", seed + 1, seeds)
    report = {"bundle": bundle.hash, "class": name, "recipe": recipe, "pictures": pictures, "stc": stc,
              "engine": runs_on.name, "test_images": len(held.labels), "trials": trials}  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for when in ("before", "taught", "after", "undone"):
        new, others = (float(np.mean([each[when][what] for each in trials])) for what in ("new", "others"))
        click.echo(f"{when}: {name} {new:.1%}, the others {others:.1%}")


def trial(
    bundle: Bundle, engine: Engine, recipe: str, shown: Images, held: Images, pictures: int, frames: int, stc: int,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Shares of test images answered right, of the new class and of the others: before, after the teaching, after the
    stream (and after a stream without a teaching, `untaught`), and once the teaching is undone. refused: by the guard,
    and why."""
    rng, new = np.random.default_rng(seed), len(bundle.classes)
    kind = registry.learner(recipe)
    guarded, plain = (
        open_guard(bundle, kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(seed)))[0] for _ in range(2)
    )
    chosen = rng.permutation(np.flatnonzero(shown.labels == new))[:pictures]
    rest = np.setdiff1d(np.arange(len(shown.labels)), chosen)
    order = rest[stc_order(shown.labels[rest].tolist(), stc, seed)][:frames]
    found: dict[str, Any] = {"before": scores(guarded.learner, bundle, held)}
    taught = guarded.learner.taught.with_(
        "new", bundle.classes, observed_in(guarded.learner, shown.pixels[chosen], bundle), np.arange(len(chosen))
    )
    verdict = guarded.teach(taught)
    found["refused"] = verdict.reason if verdict else None
    found["taught"] = scores(guarded.learner, bundle, held)
    for each in (guarded, plain):
        Stream(each).follow(parts(bundle, shown, order))
    found["after"], found["untaught"] = scores(guarded.learner, bundle, held), scores(plain.learner, bundle, held)
    guarded.teach(guarded.learner.taught.without_last(new), judged=False)
    found["undone"] = scores(guarded.learner, bundle, held)
    return found


def parts(bundle: Bundle, shown: Images, order: Ints) -> Iterator[tuple[Floats, Ints]]:
    """The images at these positions, some at a time; of a class that is not the bundle's the label is unknown."""
    done = 0
    for x in normalised(shown.pixels[order], bundle.preprocessing, lambda: None):
        labels = shown.labels[order[done : done + len(x)]]
        yield x, np.where(labels < len(bundle.classes), labels, -1)
        done += len(x)


def scores(learner: Learner, bundle: Bundle, held: Images) -> dict[str, float]:
    """new: share of the new class's images that are answered so. others: of the others. unknown: of all that are
    answered as unknown, which counts as wrong."""
    answers, strange = [], []
    for x in normalised(held.pixels, bundle.preprocessing, lambda: None):
        seen = learner.observe(x)
        answers.append(learner.answer(learner.model, seen).argmax(axis=1))
        strange.append(learner.strangeness(seen) > 0.5)
    unknown = np.concatenate(strange)
    right = (np.concatenate(answers) == held.labels) & ~unknown
    new = held.labels == len(bundle.classes)
    return {"new": float(right[new].mean()), "others": float(right[~new].mean()), "unknown": float(unknown.mean()),
            "unknown_new": float(unknown[new].mean())}  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_with(main))
