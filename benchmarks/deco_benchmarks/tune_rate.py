"""Tune opt_S's learning rate, which the paper does not give, on a validation split of the training images.

    python -m deco_benchmarks.tune_rate --bundle BUNDLE --data DIR --out FILE.json

Condenses the bundle's labelled images with each setting, then scores on training images the bundle never saw: the
deployed model retrained on the buffer, and a fresh model trained on the buffer alone. The test split is not touched.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import click
import numpy as np
from deco_export.images import Images, Inputs
from deco_export.initial_buffer import condense_labelled, pick_per_class
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning.buffer import CondensedBuffer, initial
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.random_model import draw_model
from deco_runtime.learning.recipe import override
from deco_runtime.learning.retrain import retrain
from deco_runtime.pictures import folder
from deco_runtime.preprocess import normalise, resize
from deco_runtime.running.scoring import Scorer
from deco_runtime.storage.bundle import open_bundle
from rich.progress import track


@click.command(context_settings={"show_default": True})
@click.option(
    "--bundle",
    "bundle_path",
    required=True,
    type=click.Path(path_type=Path),
    help="Exported with --data DIR.",
)
@click.option("--data", required=True, type=click.Path(path_type=Path), help="The folder it was exported from.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Result file, JSON.")
@click.option("--try", "settings", multiple=True, required=True, help="A setting, 'KEY=VALUE KEY=VALUE'; repeat.")
@click.option("--rounds", default=5, type=click.IntRange(1), help="Times every class is condensed.")
@click.option("--validation", default=500, type=click.IntRange(1), help="Validation images per class.")
@click.option("--seed", default=0, type=click.IntRange(0))
def main(
    bundle_path: Path,
    data: Path,
    out: Path,
    settings: tuple[str, ...],
    rounds: int,
    validation: int,
    seed: int,
) -> None:
    """Score settings of opt_S; `settings` are tried one after the other, and the file is written after each."""
    bundle = open_bundle(bundle_path)
    trained_on = bundle.trained_on()
    engine = open_engine(bundle)
    preprocessing, size, classes = bundle.preprocessing, bundle.preprocessing.size, len(bundle.classes)
    listed = folder.list_folder(folder.split_folder(data, bundle.classes)[0], bundle.classes)
    labels = np.asarray(listed.labels)
    labelled = np.array([folder.fingerprint(f) in trained_on for f in track(listed.files, "reading")])
    rng = np.random.default_rng(seed)

    def read(index: np.ndarray) -> Images:
        found = [listed.read(listed.files[i]) for i in index]
        return Images(np.stack([resize(p, size) for p in found if p is not None]), labels[index])

    images = read(np.flatnonzero(labelled))
    unseen = [rng.permutation(np.flatnonzero(~labelled & (labels == c)))[:validation] for c in range(classes)]
    held = read(np.concatenate(unseen))
    scorer = Scorer(preprocessing, held.pixels, held.labels)
    theta = bundle.weights()

    def accuracy(model: np.ndarray) -> float:
        return scorer.accuracy(lambda x: engine.predict(model, x)[0])

    trials: list[dict[str, object]] = []
    results: dict[str, object] = {"bundle": bundle.hash, "rounds": rounds, "seed": seed}
    results |= {"validation_images": len(scorer), "frozen": accuracy(theta), "trials": trials}
    for text in settings:
        recipe = override(Deco.RECIPE, text.split())
        rng, started = np.random.default_rng(seed), time.monotonic()
        first = pick_per_class(images.labels, initial(bundle).ipc, rng)
        start = CondensedBuffer.start(normalise(images.pixels[first], preprocessing), images.labels[first])
        learner = Deco(engine, bundle.parameters, theta, start, classes, recipe, rng)
        steps = condense_labelled(learner, Inputs(images, preprocessing), images.labels, rounds)
        distances = [float(np.mean(done.distances)) for done in track(steps, text, total=rounds * classes)]
        buffer = learner.memory
        retrained, _ = retrain(engine, theta, buffer, classes, recipe, np.random.default_rng(seed))
        scratch = override(recipe, ["retrain_rate=0.01", "retrain_epochs=300"])
        fresh, _ = retrain(
            engine, draw_model(bundle.parameters, np.random.default_rng(seed)), buffer, classes, scratch, rng
        )
        trial = {
            "setting": text,
            "distance_first_round": float(np.mean(distances[:classes])),
            "distance_last_round": float(np.mean(distances[-classes:])),
            "image_change_rms": float(np.sqrt(np.mean((buffer.x_syn - start.x_syn) ** 2))),
            "retrained_accuracy": accuracy(retrained),
            "from_scratch_accuracy": accuracy(fresh),
            "seconds": time.monotonic() - started,
        }
        trials.append(trial)
        click.echo(json.dumps(trial))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
