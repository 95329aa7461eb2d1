"""What decides a trial's outcome, besides the code and the data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Preset:
    """How large a trial is. stream_images, test_images: None for all. score_every: segments between two scores.
    recipe: "KEY=VALUE" changes to that of the row, as far as it has them."""

    width: int
    depth: int | None
    image_size: int
    epochs: int | None
    stream_images: int | None
    test_images: int | None
    score_every: int
    recipe: tuple[str, ...] = ()


PRESETS = {
    "smoke": Preset(
        8, 2, 16, 30, 200, 100, 2, ("segment=40", "retrain_interval=2", "retrain_epochs=5", "iterations=2")
    ),
    "quick": Preset(32, None, 32, 30, 60 * 128, 2000, 10),
    "paper": Preset(128, None, 32, 30, None, None, 50),
    "tracks": Preset(64, None, 32, None, None, None, 10),
}


@dataclass(frozen=True)
class Config:
    """One trial. engine: as for `open_engine`. validation: score on held-out training images, not on the test set.
    pretraining: "plain", or "augmented" as deco-export does for deco+. labelled_from: name of the folder whose images
    are the labelled ones, all of them; None where they are a share of the training images."""

    row: str
    dataset: str
    labelled: float
    ipc: int
    stream: str
    seed: int
    preset: str
    settings: tuple[str, ...] = ()
    engine: str = "auto"
    validation: bool = False
    pretraining: str = "plain"
    labelled_from: str | None = None

    @property
    def key(self) -> str:
        """A file name for the trial: readable, and unique by a hash of all values."""
        values = asdict(self)
        if self.labelled_from is None:
            del values["labelled_from"]  # which trials of earlier versions do not have, and theirs must stay the same
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.row.lower()}-ipc{self.ipc}-seed{self.seed}-{digest}".replace(" ", "-")
