"""Names of classes, which may look the same and differ in bytes: some systems write "Ä" as an A and a mark above."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence


def canonical(name: str) -> str:
    """The name in Unicode's normal form NFC: names are the same if these are."""
    return unicodedata.normalize("NFC", name)


def indices(classes: Sequence[str]) -> dict[str, int]:
    """The index of each class by its canonical name."""
    return {canonical(name): index for index, name in enumerate(classes)}
