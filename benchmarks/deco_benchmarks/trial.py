"""One trial: one row on one stream from one pre-trained model, with the learner and engine that deco-run ships."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from deco_export.data import Data, hold_out, pick
from deco_export.export import Options, export, tool_versions
from deco_export.images import Images
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.host.machine import peak_memory_mb
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import CondensedBuffer
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.recipe import Recipe, override, settable
from deco_runtime.preprocess import normalise
from deco_runtime.running.scoring import normalised
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Floats, Ints, Observed, Pixels, Segment

from deco_benchmarks import checkpoint, scores, streams
from deco_benchmarks.config import PRESETS, Config
from deco_benchmarks.corruptions import corrupt
from deco_benchmarks.datasets import Dataset, Photos
from deco_benchmarks.pictures import to_pixels
from deco_benchmarks.rows import Setup, rows

CHECKPOINT_EVERY = 10
"""Segments between two checkpoints, at least: each is right behind an update."""
VALIDATION_SHARE = 0.1
"""Share of every class's labelled images that the export holds out, and of the unlabelled ones that a trial with
`validation` keeps out of its stream where the data has no validation part."""


def split(dataset: Dataset, config: Config) -> tuple[Images, Images, Images]:
    """The labelled images, for pre-training; those of the stream; and those to score on."""
    rng = np.random.default_rng(config.seed)
    labelled, unlabelled = dataset.labelled, dataset.train
    if labelled is None:
        chosen, rest = pick(dataset.train.labels, config.labelled, rng)
        labelled, unlabelled = dataset.train[chosen], dataset.train[rest]
    if not config.validation:
        return labelled, unlabelled, dataset.test
    if dataset.validation is not None:
        return labelled, unlabelled, dataset.validation
    held, streamed = pick(unlabelled.labels, VALIDATION_SHARE, rng)
    return labelled, unlabelled[streamed], unlabelled[held]


def order_of(images: Images, config: Config) -> Ints:
    """Positions of the stream's images in the order in which they come, as many as the preset takes."""
    files = images.files if isinstance(images, Photos) else None
    order = streams.order(images.labels, streams.parse(config.stream), config.seed, files)
    return order[: PRESETS[config.preset].stream_images]


def base_bundle(dataset: Dataset, config: Config, folder: Path, progress: Callable[[str, int, int], None]) -> Path:
    """The bundle that all rows of the same data, labels, ipc, preset and seed start from; exported once."""
    preset = PRESETS[config.preset]
    path = folder / f"{config.dataset}-{config.preset}-labelled{config.labelled:g}-ipc{config.ipc}-seed{config.seed}"
    if config.labelled_from is not None:
        path = path.with_name(f"{path.name}-from-{config.labelled_from}")
    if config.pretraining != "plain":
        path = path.with_name(f"{path.name}-{config.pretraining}")
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        augmented = config.pretraining == "augmented"
        known, engine = engines(), config.engine  # the initial buffer needs fp32: it takes the finite difference
        options = Options(
            data=config.dataset,
            out=path,
            labelled=config.labelled,
            model="convnet",
            width=preset.width,
            depth=preset.depth,
            image_size=preset.image_size,
            ipc=config.ipc,
            epochs=None if augmented else preset.epochs,
            seed=config.seed,
            validation=VALIDATION_SHARE,
            recipe="deco+" if augmented or not config.ipc else "paper",  # without images it cannot be the paper's
            augment=augmented,
            engine=engine if engine in known and known[engine].PRECISION == "fp32" else "portable",
        )
        labelled, _, _ = split(dataset, config)
        if isinstance(labelled, Photos):
            labelled = labelled.with_takes()
        kept, held = hold_out(labelled, VALIDATION_SHARE, np.random.default_rng(config.seed), least=1)
        export(options, progress, Data(dataset.classes, kept, held, trained_on=()))
    return path


def recipe_of(config: Config) -> Recipe:
    """The recipe of the row with the changes of the preset, as far as it has them, then those of the trial."""
    recipe = rows()[config.row].recipe
    known = [text for text in PRESETS[config.preset].recipe if text.partition("=")[0] in settable(recipe)]
    return override(recipe, (*known, *config.settings))


def run_trial(
    config: Config,
    dataset: Dataset,
    bundle_path: Path,
    tick: Callable[[int, int], None],
    resume: Path | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Stream the unlabelled images through the row: what is written to its JSON file, and the buffer as pictures.

    tick: called with (segments done, segments) as the stream goes on. resume: file of the checkpoint; a trial that
    finds its own there goes on from it. The pictures are `before` and `after`, (n, size, size, 3) uint8 B, G, R, and
    the classes of both, `y_before` and `y_after` (n,); none for a row that keeps no images.
    """
    preset, recipe, bundle = PRESETS[config.preset], recipe_of(config), open_bundle(bundle_path)
    preprocessing, classes = bundle.preprocessing, len(bundle.classes)
    labelled, stream_images, held_out = split(dataset, config)
    engine, theta = open_engine(bundle, config.engine), bundle.weights()
    registry.learner(recipe.name).check_engine(bundle, engine, recipe)
    x_labelled = normalise(labelled.pixels, preprocessing)
    rng = np.random.default_rng(config.seed)
    row = rows()[config.row].make(Setup(engine, bundle, x_labelled, labelled.labels, config.ipc, recipe, rng))
    buffer = row.buffer()
    pictures: dict[str, np.ndarray] = {}
    if buffer is not None:
        pictures |= {"before": to_pixels(buffer.x_syn, preprocessing), "y_before": buffer.y_syn}
    spec = streams.parse(config.stream)
    order = order_of(stream_images, config)
    clean = scored(held_out, config)
    test = as_at_the_end(clean, spec, config.seed)
    clock = _Clock({})

    def scorer(images: Images) -> Callable[[], scores.Score]:
        answers = row.answers_on(partial(normalised, images.pixels, preprocessing))

        def now() -> scores.Score:
            with clock("score"):
                return scores.count(answers(), images.labels, classes)

        return now

    def frozen(images: Images) -> scores.Score:
        return scores.score(lambda x: engine.predict(theta, x)[0], images, preprocessing, classes)

    def right(held: CondensedBuffer | None) -> float | None:
        """Share of a buffer's images that the pre-trained model takes for what they stand for."""
        if held is None:
            return None
        return float(np.mean(engine.predict(theta, held.x_syn)[0].argmax(axis=1) == held.y_syn))

    started = time.monotonic()
    first, score = frozen(test), scorer(test)
    score_clean = scorer(clean) if spec.drift else None
    before_clean = score_clean().accuracy if score_clean else None  # the row as it starts, not as it was left
    trial = f"{config.key} on {bundle.hash}"
    corruption_rng = np.random.default_rng(config.seed)
    progress = checkpoint.restore(resume, trial, row, corruption_rng) if resume is not None else None
    if progress is None:
        now = score()
        progress = checkpoint.Progress([{"frames": 0, "accuracy": now.accuracy}], now.per_class, stages=clock.seconds)
    else:
        started -= progress.seconds
        clock.seconds = progress.stages
    curve, reports = progress.curve, progress.reports
    count, saved = len(order) // recipe.segment, len(reports)

    class Heard(Stream):
        """The product's loop, and the row in the learner's place: clocks, scores and checkpoints."""

        def look(self, x: Floats) -> tuple[Observed, Floats]:
            with clock("predict"):
                return super().look(x)

        def learn(self, segment: Segment) -> None:
            with clock("learn"):
                report = row.learn(segment)
            reports.append(report)
            self.retrain_if_due()

        def retrain_if_due(self) -> None:
            if len(reports) % recipe.retrain_interval == 0:
                with clock("retrain"):
                    row.retrain()

    stream = Heard(Unguarded(row.learner))
    for number in range(len(reports), count):
        begin = number * recipe.segment
        index = order[begin : begin + recipe.segment]
        x = normalise(seen(stream_images, order, begin, recipe.segment, spec, corruption_rng), preprocessing)
        stream.see(x, stream_images.labels[index])
        if (number + 1) % preset.score_every == 0:
            now = score()
            curve.append({"frames": begin + len(index), "accuracy": now.accuracy})
            progress.best = np.maximum(progress.best, now.per_class)
        if number + 1 - saved >= CHECKPOINT_EVERY and row.learner.since_retrain == 0:
            saved = number + 1
            progress.seconds = time.monotonic() - started
            if resume is not None:
                checkpoint.save(resume, trial, row, corruption_rng, progress)
        tick(number + 1, count)
    with clock("retrain"):
        row.finish()
    final = score()
    curve.append({"frames": count * recipe.segment, "accuracy": final.accuracy})
    before, buffer = buffer, row.buffer()
    if buffer is not None:
        pictures |= {"after": to_pixels(buffer.x_syn, preprocessing), "y_after": buffer.y_syn}
    result = {
        "row": config.row,
        "dataset": config.dataset,
        "labelled": config.labelled,
        "labelled_from": config.labelled_from,
        "ipc": config.ipc,
        "stream": config.stream,
        "seed": config.seed,
        "before_accuracy": curve[0]["accuracy"],
        "final_accuracy": final.accuracy,
        "frozen_accuracy": first.accuracy,
        "before_accuracy_clean": curve[0]["accuracy"] if before_clean is None else before_clean,
        "final_accuracy_clean": score_clean().accuracy if score_clean else final.accuracy,
        "frozen_accuracy_clean": frozen(clean).accuracy if spec.drift else first.accuracy,
        "average_accuracy": float(np.mean([point["accuracy"] for point in curve])),
        "forgetting_per_class": dict(zip(bundle.classes, (progress.best - final.per_class).tolist(), strict=True)),
        "confusions_before": first.confusions(bundle.classes),
        "confusions_after": final.confusions(bundle.classes),
        "buffer_right_before": right(before),
        "buffer_right_after": right(buffer),
        "curve": curve,
        **scores.of_stream(reports),
        "seconds": time.monotonic() - started,
        "seconds_by_stage": clock.seconds,
        "peak_memory_mb": peak_memory_mb(),
        "state_bytes": row.state_bytes(),
        "segments": count,
        "test_images": len(test),
        "config": asdict(config),
        "recipe": recipe.to_json(),
        "bundle": bundle.hash,
        "versions": {**tool_versions(), "engine": engine.name, "machine": platform.machine()},
    }
    return result, pictures


def scored(held_out: Images, config: Config) -> Images:
    """Those of the held-out images that the preset scores on."""
    chosen = np.random.default_rng(config.seed).permutation(len(held_out))[: PRESETS[config.preset].test_images]
    return held_out[chosen]


def seen(
    images: Images, order: Ints, begin: int, count: int, spec: streams.StreamSpec, corruption_rng: np.random.Generator
) -> Pixels:
    """The stream's frames from `begin` on, (count, size, size, 3), as corrupted as they are by then."""
    index = order[begin : begin + count]
    severity = streams.severity(begin + np.arange(len(index)), len(order), spec)
    return corrupt(images.pixels[index], severity, corruption_rng)


def as_at_the_end(images: Images, spec: streams.StreamSpec, seed: int) -> Images:
    """The images under the corruption that the stream ends with."""
    severity = np.full(len(images), spec.drift, np.float32)
    return Images(corrupt(images.pixels, severity, np.random.default_rng(seed + 1)), images.labels)


class _Clock:
    """Wall time by stage: `with clock("learn"): …`."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def __call__(self, stage: str) -> _Clock:
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._begun
