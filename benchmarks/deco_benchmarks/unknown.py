"""Things of no class: how well `deco+` tells them, and what a stream that is mostly made of them does to it.

    python -m deco_benchmarks.unknown --bundle BUNDLE --data DIR --unknown DIR --out FILE.json

The device's own learner and votes. The known frames of both streams are the same, in the same order; between their
scenes the second shows unknown things.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_export.images import Images
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import DataError, UsageError
from deco_runtime.learning import voter
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Unguarded
from deco_runtime.pictures.folder import split_folder
from deco_runtime.preprocess import normalise
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.sources.orders import stc_order
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Floats, Ints, Segment
from scipy.stats import mannwhitneyu

from deco_benchmarks import datasets


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--bundle", "bundle_path", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
              help="Made by deco-export; its classes are the known ones.")  # fmt: skip
@click.option("--data", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Image folder with train/ and test/ of its classes; what it has seen is left out.")  # fmt: skip
@click.option("--unknown", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Image folder of other things.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Result, JSON.")
@click.option(
    "--share", default=0.9, type=click.FloatRange(0, 1, max_open=True), help="Of unknown frames in the stream."
)
@click.option("--scene", default=30, type=click.IntRange(1), help="Frames in a row of one class, or of unknown things.")
@click.option("--known", default=6400, type=click.IntRange(1), help="Known frames in each stream, at most.")
@click.option("--engine", default="auto", type=click.Choice(["auto", *sorted(engines())]), help="Numeric engine.")
@click.option("--seed", default=0, type=click.IntRange(0))
def main(bundle_path: Path, data: Path, unknown: Path, out: Path, share: float, scene: int, known: int, engine: str,
         seed: int) -> None:  # fmt: skip
    """How well things of no class are told from known ones, and what learning among them costs.

    \b
    python -m deco_benchmarks.unknown --bundle bundle --data cifar10 --unknown imagenette --out unknown.json
    """
    bundle, rng = open_bundle(bundle_path), np.random.default_rng(seed)
    if voter.start(bundle).unknown is None:
        raise UsageError(
            f"expected a bundle that can say unknown, but {bundle_path} was made with too few held-out takes; export "
            "it with more labels or a larger --val"
        )
    train, test = split_folder(data)
    if test is None:
        raise UsageError(f"expected {data} to have train/ and test/, but found no test/; choose another --data")
    with progress_bars() as progress:

        def read(root: Path, classes: tuple[str, ...] | None, most: int, name: str) -> Images:
            return datasets.unseen(root, classes, most, bundle, rng, partial(progress, f"reading {name}"))

        frames = read(train, bundle.classes, known, "known images")
        strange = read(split_folder(unknown)[0], None, round(len(frames) * share / (1 - share)), "unknown images")
        held = read(test, bundle.classes, 10_000, "test images")
        scorer = Scorer(bundle.preprocessing, held.pixels, held.labels)
        runs_on = open_engine(bundle, engine)
        alone = stc_order(frames.labels.tolist(), scene, seed)
        among, is_known = between(alone, len(strange), scene, rng)
        results = {
            "known alone": learn(bundle, runs_on, frames, strange, alone, np.ones(len(alone), bool), scorer, progress),
            "among unknown": learn(bundle, runs_on, frames, strange, among, is_known, scorer, progress),
        }
    report = {
        "bundle": bundle.hash,
        "engine": runs_on.name,
        "seed": seed,
        "scene": scene,
        "known_frames": len(frames),
        "unknown_frames": len(strange),
        "test_images": len(scorer),
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    for name, found in results.items():
        figures = ", ".join(f"{key} {value:.2%}" for key, value in found.items() if isinstance(value, float))
        click.echo(f"{name}: {figures}")


def between(known: Ints, unknown: int, scene: int, rng: np.random.Generator) -> tuple[Ints, np.ndarray]:
    """Positions (n,) of known frames, in this order, and of so many unknown ones, scene by scene at random; and which
    of these are known (n,) bool."""
    order = rng.permutation(unknown)
    scenes = [*np.array_split(known, max(1, len(known) // scene)), *np.array_split(order, max(1, unknown // scene))]
    count = max(1, len(known) // scene)
    place = np.argsort(rng.permutation(len(scenes)))
    place[:count].sort()  # the known scenes keep their order
    turn = np.argsort(place)
    positions = np.concatenate([scenes[i] for i in turn])
    return positions, np.concatenate([np.full(len(scenes[i]), i < count) for i in turn])


def learn(
    bundle: Bundle,
    engine: Engine,
    known: Images,
    unknown: Images,
    order: Ints,
    is_known: np.ndarray,
    scorer: Scorer,
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """The stream to its end. auroc, auroc_chain: of unknown frames against known ones, by the odds of each frame and by
    the chain; known_kept, unknown_found: shares of frames by the chain; before, after: accuracy on the test images."""

    class Heard(Stream):
        """The product's loop; the odds of each segment's frames are kept, alone and by the chain."""

        def learn(self, segment: Segment) -> None:
            likelihood = learner.likelihood(segment.observed, segment.cut)
            alone.append(likelihood[:, -1])  # in the order of the odds
            chained.append(learner.vote(segment).posterior[:, -1])
            super().learn(segment)

    started, recipe = time.monotonic(), DecoPlus.RECIPE
    learner = DecoPlus.open(bundle, engine, recipe, np.random.default_rng(0))
    before, alone, chained = scorer.accuracy(learner.predict), list[Floats](), list[Floats]()
    count, stream = len(order) // recipe.segment, Heard(Unguarded(learner))
    if not count:
        raise DataError(f"expected a stream of at least {recipe.segment} frames, found {len(order)}: give more images")

    def frames() -> Iterator[tuple[Floats, Ints]]:
        for number in range(count):
            part = slice(number * recipe.segment, (number + 1) * recipe.segment)
            chosen = list(zip(order[part], is_known[part], strict=True))
            pixels = np.stack([(known if k else unknown).pixels[i] for i, k in chosen])
            labels = np.array([known.labels[i] if k else -1 for i, k in chosen])
            yield normalise(pixels, bundle.preprocessing), labels
            progress("segments", number + 1, count)

    stream.follow(frames())
    k, each, together = is_known[: count * recipe.segment], np.concatenate(alone), np.concatenate(chained)
    found: dict[str, Any] = {"before": before, "after": scorer.accuracy(learner.predict)}
    found["known_kept"] = float(np.mean(together[k] <= 0.5))
    if not k.all():
        found |= {"auroc": auroc(each, k), "auroc_chain": auroc(together, k)}
        found["unknown_found"] = float(np.mean(together[~k] > 0.5))
    return {**found, "segments": count, "seconds": round(time.monotonic() - started)}


def auroc(strange: Floats, known: np.ndarray) -> float:
    """Area under the curve: how often an unknown frame is stranger than a known one; strange (n,), known (n,) bool."""
    u = mannwhitneyu(strange[~known], strange[known]).statistic
    return float(u / (np.count_nonzero(known) * np.count_nonzero(~known)))


if __name__ == "__main__":
    sys.exit(exit_with(main))
