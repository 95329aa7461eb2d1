"""Streams that do harm, learned with and without the guard of updates.

    python -m deco_benchmarks.hostile --bundle BUNDLE --data DIR --unknown DIR --out FILE.json

The device's own learner, votes, recipe and guard; the deployed model is scored on the test images as it goes.
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
from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.recipe import Recipe, override
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.learning.represented import RepresentedLearner
from deco_runtime.pictures.folder import split_folder
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.running.assemble import open_guard
from deco_runtime.running.scoring import Scorer
from deco_runtime.running.stream import Stream
from deco_runtime.sources.orders import stc_order
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.types import Bools, Floats, Ints, Observed, Pixels, Segment

from deco_benchmarks import datasets

STREAMS = ("one-class", "noise", "unknown", "mirrored")
MIRRORED = 0.4
"""Share of the frames whose vote for class c is turned into one for K − 1 − c."""
SCORE_EVERY = 5
"""Segments between two scores."""
STC = 500
"""Consecutive frames of one class where the stream changes class."""


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--bundle", "bundle_path", required=True, type=click.Path(path_type=Path), metavar="BUNDLE",
              help="Made by deco-export from --data.")  # fmt: skip
@click.option("--data", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="The folder it was made from; images it was trained on are left out.")  # fmt: skip
@click.option("--unknown", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="Image folder of classes that the bundle does not know.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Result, JSON.")
@click.option("--streams", default=",".join(STREAMS), metavar="NAME,NAME",
              help="one-class: one class for ever; noise: uniformly random pixels; unknown: images of --unknown; "
              "mirrored: 40 % of the votes for class c turned into votes for class K − 1 − c.")  # fmt: skip
@click.option("--segments", default=100, type=click.IntRange(1), help="Length of each stream.")
@click.option("--recipe", "recipe_name", default="paper", type=RecipeName(), help="As for deco-run.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one value of the recipe.")
@click.option("--test", "test_images", default=10_000, type=click.IntRange(1), help="Test images at most.")
@click.option("--engine", default="auto", type=click.Choice(["auto", *sorted(engines())]), help="Numeric engine.")
@click.option("--seed", default=0, type=click.IntRange(0))
def main(
    bundle_path: Path,
    data: Path,
    unknown: Path,
    out: Path,
    streams: str,
    segments: int,
    recipe_name: str,
    settings: tuple[str, ...],
    test_images: int,
    engine: str,
    seed: int,
) -> None:
    """What hostile streams cost the deployed model, with and without the guard.

    Each stream is learned twice from the bundle's model, and the file is written after each. A stream shorter than
    --segments starts over.

    \b
    python -m deco_benchmarks.hostile --bundle bundle --data cifar10 --unknown imagenette --out hostile.json
    """
    chosen = streams.split(",")
    if wrong := [name for name in chosen if name not in STREAMS]:
        raise UsageError(f"expected --streams among {', '.join(STREAMS)}, but found {wrong[0]!r}; correct it")
    bundle, kind = open_bundle(bundle_path), registry.learner(recipe_name)
    recipe = override(kind.RECIPE, settings)
    runs_on, rng = open_engine(bundle, engine), np.random.default_rng(seed)
    train, test = split_folder(data, bundle.classes)
    if test is None:
        raise UsageError(f"expected {data} to have train/ and test/, but found no test/; choose another --data")
    count = segments * recipe.segment
    with progress_bars() as progress:

        def read(root: Path, most: int, known: bool, name: str) -> Images:
            classes = bundle.classes if known else None
            return datasets.unseen(root, classes, most, bundle, rng, partial(progress, f"reading {name}"))

        scored = read(test, test_images, known=True, name="test images")
        scorer = Scorer(bundle.preprocessing, scored.pixels, scored.labels)
        frozen = scorer.accuracy(lambda x: runs_on.predict(bundle.weights(), runs_on.encode(x))[0])
        images = {"train": read(train, count, known=True, name="training images")}
        if "unknown" in chosen:
            images["unknown"] = read(split_folder(unknown)[0], count, known=False, name="unknown images")
        results: list[dict[str, Any]] = []
        report = {
            "bundle": bundle.hash,
            "recipe": recipe.to_json(),
            "engine": runs_on.name,
            "seed": seed,
            "segments": segments,
            "test_images": len(scorer),
            "guard_images": bundle.guard_images,
            "frozen_accuracy": frozen,
            "results": results,
        }
        for name in chosen:
            for guarded in (False, True):
                what = f"{name}, {'guarded' if guarded else 'not guarded'}"
                frames = _frames(name, images, bundle, recipe, segments, np.random.default_rng(seed))
                learner = kind.open(bundle, runs_on, recipe, np.random.default_rng(seed))
                learning = open_guard(bundle, learner)[0] if guarded else Unguarded(learner)
                found = _learn(learning, frames, bundle.preprocessing, scorer, segments, partial(progress, what))
                results.append({"stream": name, "guarded": guarded, **found})
                click.echo(
                    f"{what}: before the stream {found['before_accuracy']:.2%}, after it "
                    f"{found['final_accuracy']:.2%}, never updated {frozen:.2%}"
                )
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(report, indent=1) + "\n")


class Hostile(Stream):
    """The product's loop on a stream that does harm: votes can be mirrored, and what happens is kept."""

    mirrored: Bools | None = None
    """The frames, (n,) of the segment at hand, whose votes for class c become votes for K − 1 − c."""

    def __init__(self, guarded: Unguarded, scorer: Scorer) -> None:
        super().__init__(guarded)
        self.verdicts: list[dict[str, Any]] = []
        self.kept: list[float] = []
        self.active = np.zeros(self.learner.classes, np.int64)
        self._scorer, self._scored, self._accuracy = scorer, self.learner.model, scorer.accuracy(self.learner.predict)
        if isinstance(self.learner, RepresentedLearner):
            likelihood = self.learner.likelihood

            def mirrored(observed: Observed, cut: Bools | None) -> Floats:
                p = likelihood(observed, cut)
                return p if self.mirrored is None else np.where(self.mirrored[:, None], p[:, ::-1], p)

            self.learner.likelihood = mirrored  # type: ignore[method-assign]

    def label(self, logits: Floats) -> tuple[Ints, Floats]:
        pseudo, confidence = super().label(logits)
        if self.mirrored is not None:
            pseudo = np.where(self.mirrored, self.learner.classes - 1 - pseudo, pseudo)
        return pseudo, confidence

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        self.kept.append(report.kept)
        self.active[report.active] += 1

    def retrained(self, report: RetrainReport) -> None:
        if (verdict := report.verdict) is not None:
            self.verdicts.append({"segment": len(self.kept), "reason": verdict.reason, **verdict.scores})

    def accuracy(self) -> float:
        """Of the model as it is now, on the test images."""
        if self.learner.model is not self._scored:
            self._scored, self._accuracy = self.learner.model, self._scorer.accuracy(self.learner.predict)
        return self._accuracy


def _frames(
    name: str, images: dict[str, Images], bundle: Bundle, recipe: Recipe, segments: int, rng: np.random.Generator
) -> Iterator[tuple[Pixels, Ints, Bools | None]]:
    """Segment by segment: pixels, labels (−1: none), and which frames' votes are mirrored (bools) or None."""
    size, n, count = bundle.preprocessing.size, recipe.segment, segments * recipe.segment
    if name == "noise":
        for _ in range(segments):
            yield rng.integers(0, 256, (n, size, size, 3), np.uint8), np.full(n, -1), None
        return
    source = images["unknown" if name == "unknown" else "train"]
    if name == "one-class":
        order = rng.permutation(np.flatnonzero(source.labels == 0))
    else:
        order = np.asarray(stc_order(source.labels.tolist(), STC, int(rng.integers(2**31))))
    order = np.resize(order, count)
    for start in range(0, count, n):
        index = order[start : start + n]
        labels = np.full(n, -1) if name == "unknown" else source.labels[index]
        yield source.pixels[index], labels, rng.random(n) < MIRRORED if name == "mirrored" else None


def _learn(
    guarded: Unguarded,
    frames: Iterator[tuple[Pixels, Ints, Bools | None]],
    preprocessing: Preprocessing,
    scorer: Scorer,
    segments: int,
    tick: Callable[[int, int], None],
) -> dict[str, Any]:
    """The stream to its end: accuracy before it and its curve after each update, what was learned from, the guard's
    verdicts."""
    started, curve, stream = time.monotonic(), [], Hostile(guarded, scorer)
    before = stream.accuracy()
    for number, (pixels, labels, stream.mirrored) in enumerate(frames, 1):
        stream.see(normalise(pixels, preprocessing), labels)
        if number % SCORE_EVERY == 0 or number == segments:
            curve.append({"segment": number, "accuracy": stream.accuracy()})
        tick(number, segments)
    return {
        "before_accuracy": before,
        "final_accuracy": stream.accuracy(),
        "lowest_accuracy": min((point["accuracy"] for point in curve), default=before),
        "updates": stream.learner.retrains,
        "rejected": sum(verdict["reason"] is not None for verdict in stream.verdicts),
        "kept": float(np.mean(stream.kept)),
        "active_segments": stream.active.tolist(),
        "curve": curve,
        "verdicts": stream.verdicts,
        "seconds": time.monotonic() - started,
    }


if __name__ == "__main__":
    sys.exit(exit_with(main))
