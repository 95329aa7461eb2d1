"""What a server keeps for people to look at: how the last round went, and what was refused lately. A small JSON file
beside the learned state; nothing is decided by it, so one that is damaged is begun anew."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deco_runtime.errors import StateError
from deco_runtime.learning.reports import Verdict
from deco_runtime.storage.untrusted import parse_json

FILE = "fleet.json"
MOST = 20
"""Refusals that are kept."""
LONGEST = 300
"""Letters of one."""


@dataclass
class Ledger:
    """rounds: since the beginning. at: when the last ended, in seconds since 1970. asked, answered, taken: devices that
    were there, those that answered, and offers that became part of what is learned. frames: that this is of, with the
    labelled images; under `paper` images, as unit says. accuracy, before: share of the guard's images answered right
    with what the fleet has learned, and by the bundle alone; None where it was not judged yet, or has none. refused:
    ever; refusals: the last of them, as [time, who, why]."""

    rounds: int = 0
    at: float = 0.0
    asked: int = 0
    answered: int = 0
    taken: int = 0
    frames: float = 0.0
    unit: str = "frames"
    accuracy: float | None = None
    before: float | None = None
    refused: int = 0
    refusals: list[list[Any]] = field(default_factory=list)

    @classmethod
    def read(cls, directory: Path) -> Ledger:
        """What is there, or a new one."""
        try:
            return cls(**parse_json((directory / FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, directory: Path) -> None:
        """At once or not at all. Raises StateError where the disk refuses."""
        new = directory / f"{FILE}.tmp"
        try:
            new.write_text(json.dumps(asdict(self)), "utf-8")
            os.replace(new, directory / FILE)
        except OSError as error:
            raise StateError(
                f"expected to write {directory / FILE}, but the system says: {error.strerror}; free space"
            ) from error

    def round(self, asked: int, answered: int, taken: int, frames: float, unit: str, verdict: Verdict | None) -> None:
        """One more has ended. verdict: the guard's, None where nothing was new."""
        self.rounds, self.at = self.rounds + 1, time.time()
        self.asked, self.answered, self.taken, self.frames, self.unit = asked, answered, taken, frames, unit
        if verdict is not None and verdict.accepted:
            self.accuracy, self.before = (verdict.scores.get(key) for key in ("accuracy", "frozen_accuracy"))

    def refuse(self, who: str, why: str) -> None:
        """Something of a device, or a whole round."""
        self.refused += 1
        self.refusals = [*self.refusals, [time.time(), who, why]][-MOST:]


def clean(text: str) -> str:
    """A device's words, fit for a line: what cannot be printed is left out, and so is what is too long."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST])
