"""Frames that were observed beforehand, and streams made of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.engine import Engine
from deco_runtime.learning import registry
from deco_runtime.learning.learner import Learner
from deco_runtime.pictures.folder import fingerprint, list_folder
from deco_runtime.preprocess import fitted
from deco_runtime.running.scoring import normalised
from deco_runtime.sources.orders import recorded_order
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Ints, Observed

_TAKE = re.compile(r"(.*)_\d+")


@dataclass(frozen=True)
class Frames:
    """observed: what a learner sees in n frames, name → (n, …) float32. labels, takes: (n,) int64."""

    observed: Observed
    labels: Ints
    takes: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Frames:
        return Frames({k: v[index] for k, v in self.observed.items()}, self.labels[index], self.takes[index])


def observe(root: Path, bundle: Bundle, engine: Engine) -> Frames:
    """The frames of an image folder in the order they were recorded in, but for copies of what the bundle was trained
    on. Takes are told by the files' names up to the last _. Raises DataError for a folder that cannot be used."""
    listed = list_folder(root, bundle.classes)
    learner, trained_on = learner_of(bundle, engine), bundle.trained_on()
    order = recorded_order([file.relative_to(listed.root) for file in listed.files])
    found: list[Observed] = []
    labels: list[int] = []
    takes: list[int] = []
    known: dict[str, int] = {}
    for first in range(0, len(order), 256):
        pixels = []
        for i in order[first : first + 256]:
            file = listed.files[i]
            image = None if trained_on and fingerprint(file) in trained_on else listed.read(file)
            if image is None or listed.labels[i] < 0:
                continue
            pixels.append(fitted(image, bundle.preprocessing))
            labels.append(listed.labels[i])
            match = _TAKE.fullmatch(file.stem)
            name = f"{file.parent.name}/{match[1] if match else file.stem}"
            takes.append(known.setdefault(name, len(known)))
        if pixels:
            found += map(learner.observe, normalised(np.stack(pixels), bundle.preprocessing, lambda: None))
    observed = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
    return Frames(observed, np.asarray(labels, np.int64), np.asarray(takes, np.int64))


def read(file: Any, part: str) -> Frames:
    """A part, "stream" or "test", of an open file of what was kept."""
    names = [key.removeprefix(f"{part}_seen_") for key in file.files if key.startswith(f"{part}_seen_")]
    observed = {name: file[f"{part}_seen_{name}"] for name in names}
    return Frames(observed, file[f"{part}_labels"], file[f"{part}_takes"])


def learner_of(bundle: Bundle, engine: Engine) -> Learner:
    kind = registry.learner("deco+")
    return kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))


def parts_of_classes(frames: Frames, segment: int, seed: int) -> list[Ints]:
    """A stream for each class: its frames in an order drawn at random, in whole segments."""
    rng = np.random.default_rng(seed)
    found = []
    for c in np.unique(frames.labels):
        places = rng.permutation(np.flatnonzero(frames.labels == c))
        found.append(places[: len(places) // segment * segment])
    return found


def parts_of_takes(frames: Frames, segment: int, devices: int, seed: int) -> list[Ints]:
    """A stream for each device: takes drawn at random, each as it was recorded, in whole segments."""
    order = np.random.default_rng(seed).permutation(np.unique(frames.takes))
    found = []
    for number in range(devices):
        places = np.concatenate([np.flatnonzero(frames.takes == take) for take in order[number::devices]])
        found.append(places[: len(places) // segment * segment])
    return found


def cut(places: Ints, rounds: int, segment: int) -> list[Ints]:
    """A stream in as many parts of whole segments."""
    ends = [round(i * (len(places) // segment) / rounds) * segment for i in range(rounds + 1)]
    return [places[first:last] for first, last in pairwise(ends)]
