"""The report of an export, start to finish. It is worth less than the bundle, so whatever fails costs only itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.errors import first_line
from deco_runtime.learning import registry
from deco_runtime.preprocess import Preprocessing
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Ints

from deco_export.data import Data
from deco_export.network import Progress
from deco_export.report.album import open_album
from deco_export.report.findings import find
from deco_export.report.gather import Watched, gather
from deco_export.report.page import page
from deco_export.representation import Representation

STAGE = "writing the report"


def report_path(out: Path) -> Path:
    """Where the report of a bundle at `out` lies: beside it."""
    return out.with_name(f"{out.name}-report.html")


def watch(made: Representation, loaded: Data, seed: int) -> Watched:
    """What `make` needs to see of the labelled images, for the learners to be fitted with."""
    return Watched(made, loaded, np.random.default_rng(seed))


def make(
    directory: Path,
    out: Path,
    source: str,
    loaded: Data,
    watched: Watched,
    engine: Engine,
    preprocessing: Preprocessing,
    answers: Ints,
    from_scratch: bool,
    notes: Sequence[str],
    seed: int,
    progress: Progress,
) -> str:
    """The page. directory: the bundle, complete, on its way to `out`. source: as for `data.load`. answers: (m,) the
    class that the pre-trained model gives each held-out image. watched: when learners were fitted with it."""
    rng, total = np.random.default_rng(seed), len(loaded.validation) + 1
    bundle = open_bundle(directory)
    kind = registry.learner(bundle.recipe.name)
    learner = kind.open(bundle, engine, bundle.recipe, rng)
    progress(STAGE, 0, total)

    def tick(done: int) -> None:
        progress(STAGE, done, total)

    sample, start = gather(loaded, watched, engine, learner, preprocessing, tick)
    album = open_album(source, loaded, preprocessing, rng)
    found = find(loaded, album, sample, (answers, start), kind.NAME, from_scratch, rng)
    text = page(found, album, out.name, notes)
    progress(STAGE, total, total)
    return text


def failed(error: Exception) -> str:
    """What to say of a report that could not be made or written."""
    return f"made without a report: {first_line(error)}"


def write(text: str, place: Path) -> None:
    """Put the page at `place`, whole or not at all, over one of an earlier export. Raises OSError."""
    partial = place.with_name(f".{place.name}.partial")
    try:
        partial.write_text(text, "utf-8")
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
