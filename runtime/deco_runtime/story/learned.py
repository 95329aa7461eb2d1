"""What a state directory says of itself, without the bundle that it belongs to."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deco_runtime.errors import StateError, first_line
from deco_runtime.storage.state import CURRENT, PREVIOUS, SCHEMA
from deco_runtime.storage.untrusted import parse_json, read_npz
from deco_runtime.story.figures import part, text

_PIECE = 1 << 20


@dataclass(frozen=True)
class Learned:
    """The newest good file. bytes: of it. saved: its date. meta: as docs/reference/bundle.md has it. note: what had to
    be passed over, or is of another version; None where all is well."""

    path: Path
    bytes: int
    saved: str
    meta: Mapping[str, Any]
    note: str | None

    @property
    def recipe(self) -> str:
        """By which it was learned."""
        return text(self.meta, "recipe") or "?"

    @property
    def values(self) -> Mapping[str, Any]:
        """What the learner and its guard count."""
        return part(self.meta, "values")


def read(place: Path) -> Learned | None:
    """The state of a directory, or a state file; None where a directory holds none.

    Raises StateError where there is nothing, or nothing that can be read.
    """
    if not os.path.lexists(place):
        raise StateError(f"expected learned state at {place}, but found nothing; give the --state of the run")
    files = [place / CURRENT, place / PREVIOUS] if place.is_dir() else [place]
    complaints: list[str] = []
    for file in files:
        if not os.path.lexists(file):
            continue
        try:
            found = _read(file)
        except (OSError, ValueError, KeyError, OverflowError) as error:
            complaints.append(f"{file} is damaged ({first_line(error)})")
            continue
        if found.note is None and complaints:
            return Learned(found.path, found.bytes, found.saved, found.meta, f"{complaints[0]}; this is the one before")
        return found
    if complaints:
        raise StateError(f"expected learned state in {place}, but {' and '.join(complaints)}; give another --state")
    return None


def _read(path: Path) -> Learned:
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # a FIFO must not block
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is no file")
        said, found = file.read(32), hashlib.sha256()
        while piece := file.read(_PIECE):
            found.update(piece)
        if found.digest() != said:
            raise ValueError("its checksum is wrong")
        meta = parse_json(read_npz(file, ["meta"])["meta"].tobytes())
    if not isinstance(meta, dict):
        raise ValueError("it says nothing of itself")
    schema = meta.get("schema")
    note = None if schema == SCHEMA else f"this state is of schema {schema!r:.20}, and not {SCHEMA}: of another version"
    date = datetime.fromtimestamp(about.st_mtime, timezone.utc).isoformat(timespec="seconds")
    return Learned(path, about.st_size, date, meta, note)
