"""The true classes of a video's frames, from a CSV file: for scoring only."""

from __future__ import annotations

import csv
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from deco_runtime.errors import DataError
from deco_runtime.names import canonical, indices

HEADERS = (["frame", "label"], ["first", "last", "label"])


class Range(NamedTuple):
    """Frames first … last, from 0. label: class index, None for unknown. line: of the file, from 1."""

    first: int
    last: int
    label: int | None
    line: int


class Labels:
    """Labels of frames, kept as the ranges in which the file gives them: a range may be of any length."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        """ranges: in ascending order, none overlapping another."""
        self._ranges, self._firsts = ranges, [r.first for r in ranges]

    def __call__(self, frame: int) -> int | None:
        """The class index of a frame; None where it is unknown."""
        place = bisect_right(self._firsts, frame) - 1
        return self._ranges[place].label if place >= 0 and frame <= self._ranges[place].last else None


def read_labels(path: Path, classes: Sequence[str]) -> Labels:
    """Read a CSV file in UTF-8: the header `frame,label` and one frame a line, or `first,last,label` and one range a
    line, its last frame included. Lines may come in any order, and empty ones are passed over.

    classes: class names; labels are indices into them. Raises DataError naming the line that cannot be used.
    """
    rows = _rows(path)
    line, header = next(rows, (1, [""]))
    if header not in HEADERS:
        names = " or ".join(",".join(known) for known in HEADERS)
        raise _wrong(path, line, f"the header {names}", _short(",".join(header)), "begin the file with one of them")
    ranges = sorted((_range(path, at, fields, header, classes) for at, fields in rows), key=lambda r: (r.first, r.line))
    if not ranges:
        raise _wrong(path, line + 1, "a label", "the end of the file", "add some, or leave out --labels")
    for a, b in pairwise(ranges):
        if b.first <= a.last:
            early, late = sorted((a.line, b.line))
            raise _wrong(path, late, "every frame once", f"frame {b.first} again, which line {early} has")
    return Labels(ranges)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of each line that has any. Raises DataError where the file cannot be read further."""
    if not os.path.isfile(path):
        found = "a folder" if os.path.isdir(path) else "no file"
        raise DataError(f"expected a CSV file for --labels, found {found} at {path}: check the path")
    try:
        with path.open("rb") as file:
            reader = csv.reader(_lines(path, file), strict=True)
            try:
                yield from ((reader.line_num, fields) for fields in reader if fields)
            except csv.Error as error:
                raise _wrong(path, reader.line_num, "comma-separated values", str(error)) from error
    except OSError as error:
        raise DataError(
            f"expected a CSV file for --labels, found that {path} cannot be read ({error.strerror}): check it"
        ) from error


def _lines(path: Path, file: Iterator[bytes]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:  # spreadsheets begin a file with a byte order mark
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _wrong(path, number, "text in UTF-8", "other bytes", "save the file as such") from error


def _range(path: Path, line: int, fields: list[str], header: list[str], classes: Sequence[str]) -> Range:
    if len(fields) != len(header):
        raise _wrong(path, line, f"{len(header)} values, {','.join(header)}", str(len(fields)))
    *frames, name = fields
    for frame in frames:
        if not re.fullmatch("[0-9]{1,15}", frame):
            raise _wrong(path, line, "a frame's number, from 0", _short(frame))
    first, last = int(frames[0]), int(frames[-1])
    if last < first:
        raise _wrong(path, line, f"a last frame from {first} on", str(last))
    known = indices(classes)
    if name and canonical(name) not in known:
        raise _wrong(path, line, f"a class of the bundle, such as {classes[0]}, or nothing", _short(name))
    return Range(first, last, known[canonical(name)] if name else None, line)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _wrong(path: Path, line: int, expected: str, found: str, action: str = "correct it") -> DataError:
    return DataError(f"expected {expected} in {path}, line {line}, found {found}: {action}")
