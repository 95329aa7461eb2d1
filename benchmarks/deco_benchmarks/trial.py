"""One trial: one row on one stream from one pre-trained model, with the learner and engine that deco-run ships."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from deco_export.data import Data, Images, pick
from deco_export.export import Options, export, tool_versions
from deco_runtime.bundle import open_bundle
from deco_runtime.device import peak_memory_mb
from deco_runtime.engine import open_engine
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.recipe import named, override
from deco_runtime.scoring import answers
from deco_runtime.types import Floats, Segment
from deco_runtime.vote import pseudo_label

from deco_benchmarks import streams
from deco_benchmarks.corruptions import corrupt
from deco_benchmarks.datasets import Dataset
from deco_benchmarks.rows import Row, Setup, rows

Score = tuple[float, npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Preset:
    """How large a trial is. stream_images, test_images: None for all. recipe: "KEY=VALUE" changes to the paper's."""

    width: int
    depth: int | None
    image_size: int
    epochs: int | None
    stream_images: int | None
    test_images: int | None
    recipe: tuple[str, ...] = ()


PRESETS = {
    "smoke": Preset(8, 2, 16, 30, 200, 100, ("segment=40", "retrain_interval=2", "retrain_epochs=5", "iterations=2")),
    "quick": Preset(32, None, 32, 30, 60 * 128, 2000),
    "paper": Preset(128, None, 32, 30, None, None),
}


@dataclass(frozen=True)
class Config:
    """Everything that decides a trial's outcome, besides the code and the data."""

    row: str
    dataset: str
    labelled: float
    ipc: int
    stream: str
    seed: int
    preset: str
    settings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A file name for the trial: readable, and unique by a hash of all values."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.row.lower()}-ipc{self.ipc}-seed{self.seed}-{digest}".replace(" ", "-")


def split(dataset: Dataset, config: Config) -> tuple[Images, Images]:
    """The labelled images, for pre-training, and the stream's: the rest of the training images."""
    chosen, rest = pick(dataset.train.labels, config.labelled, np.random.default_rng(config.seed))
    return dataset.train[chosen], dataset.train[rest]


def base_bundle(dataset: Dataset, config: Config, folder: Path, progress: Callable[[str, int, int], None]) -> Path:
    """The bundle that all rows of the same data, labels, ipc, preset and seed start from; exported once."""
    preset = PRESETS[config.preset]
    path = folder / f"{config.dataset}-{config.preset}-labelled{config.labelled:g}-ipc{config.ipc}-seed{config.seed}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        options = Options(
            data=config.dataset,
            out=path,
            labelled=config.labelled,
            model="convnet",
            width=preset.width,
            depth=preset.depth,
            image_size=preset.image_size,
            ipc=config.ipc,
            epochs=preset.epochs,
            seed=config.seed,
            validation=0.0,
        )
        labelled, _ = split(dataset, config)
        nothing = labelled[np.zeros(0, np.int64)]
        export(options, progress, Data(dataset.classes, labelled, nothing, trained_on=()))
    return path


def run_trial(config: Config, dataset: Dataset, bundle_path: Path, tick: Callable[[int, int], None]) -> dict[str, Any]:
    """Stream the unlabelled images through the row; returns the result as it is written to its JSON file.

    tick: called with (segments done, segments) as the stream goes on.
    """
    preset = PRESETS[config.preset]
    recipe = override(named("paper"), (*preset.recipe, *config.settings))
    bundle = open_bundle(bundle_path)
    how = bundle.preprocessing
    labelled, stream_images = split(dataset, config)
    setup = Setup(
        engine=open_engine(bundle),
        parameters=bundle.parameters,
        theta=bundle.weights(),
        condensed=bundle.buffer(),
        x_labelled=normalise(labelled.pixels, how),
        y_labelled=labelled.labels,
        classes=len(bundle.classes),
        ipc=config.ipc,
        recipe=recipe,
        rng=np.random.default_rng(config.seed),
    )
    row: Row = rows()[config.row].make(setup)
    spec = streams.parse(config.stream)
    order = streams.order(stream_images.labels, spec, config.seed)[: preset.stream_images]
    clean = _test_images(dataset, preset, config.seed)
    test = _as_at_the_end(clean, spec, config.seed)

    def score(predict: Callable[[Floats], Floats], images: Images) -> Score:
        return _score(predict, images, how, len(bundle.classes))

    def frozen(x: Floats) -> Floats:
        return setup.engine.predict(setup.theta, x)[0]

    clock = _Clock()
    started = time.monotonic()
    frozen_accuracy, _ = score(frozen, test)
    accuracy, per_class = score(row.predict, test)
    curve, best = [{"frames": 0, "accuracy": accuracy}], per_class
    reports: list[dict[str, Any]] = []
    count = len(order) // recipe.segment
    weather = np.random.default_rng(config.seed)
    for number in range(count):
        begin = number * recipe.segment
        index = order[begin : begin + recipe.segment]
        severity = streams.severity(begin + np.arange(len(index)), len(order), spec)
        x = normalise(corrupt(stream_images.pixels[index], severity, weather), how)
        with clock("predict"):
            pseudo, confidence = pseudo_label(row.predict(x))
        with clock("learn"):
            report = row.learn(Segment(x, pseudo, confidence, stream_images.labels[index]))
        reports.append(asdict(report))
        if (number + 1) % recipe.retrain_interval == 0:
            accuracy, per_class = score(row.predict, test)
            curve.append({"frames": begin + len(index), "accuracy": accuracy})
            best = np.maximum(best, per_class)
        tick(number + 1, count)
    if hasattr(row, "finish"):
        with clock("learn"):
            row.finish()
    final, per_class = score(row.predict, test)
    final_clean = score(row.predict, clean)[0] if spec.drift else final
    curve.append({"frames": count * recipe.segment, "accuracy": final})
    return {
        "row": config.row,
        "dataset": config.dataset,
        "labelled": config.labelled,
        "ipc": config.ipc,
        "stream": config.stream,
        "seed": config.seed,
        "final_accuracy": final,
        "frozen_accuracy": frozen_accuracy,
        "final_accuracy_clean": final_clean,
        "frozen_accuracy_clean": score(frozen, clean)[0] if spec.drift else frozen_accuracy,
        "average_accuracy": float(np.mean([point["accuracy"] for point in curve])),
        "forgetting_per_class": dict(zip(bundle.classes, (best - per_class).tolist(), strict=True)),
        "curve": curve,
        "kept": _mean([r["kept"] for r in reports]),
        "pseudo_accuracy": _weighted([(r["pseudo_accuracy"], r["kept"]) for r in reports]),
        "distance": [r["distance"] for r in reports],
        "seconds": time.monotonic() - started,
        "seconds_by_stage": clock.seconds,
        "peak_memory_mb": peak_memory_mb(),
        "state_bytes": row.state_bytes(),
        "segments": count,
        "test_images": len(test),
        "config": asdict(config),
        "recipe": recipe.to_json(),
        "bundle": bundle.hash,
        "versions": {**tool_versions(), "machine": platform.machine()},
    }


def _test_images(dataset: Dataset, preset: Preset, seed: int) -> Images:
    """The same random test images for every row."""
    return dataset.test[np.random.default_rng(seed).permutation(len(dataset.test))[: preset.test_images]]


def _as_at_the_end(images: Images, spec: streams.StreamSpec, seed: int) -> Images:
    """The images under the corruption that the stream ends with."""
    severity = np.full(len(images), spec.drift, np.float32)
    return Images(corrupt(images.pixels, severity, np.random.default_rng(seed + 1)), images.labels)


def _score(predict: Callable[[Floats], Floats], images: Images, how: Preprocessing, classes: int) -> Score:
    """Accuracy over all images, and (K,) that of each class (0 for a class without images)."""
    right = answers(predict, images.pixels, how) == images.labels
    count = np.bincount(images.labels, minlength=classes)
    return float(right.mean()), np.bincount(images.labels, right, classes) / np.maximum(count, 1)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _weighted(pairs: list[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


class _Clock:
    """Wall time by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str) -> _Clock:
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._begun
