"""In which order a folder of images is streamed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from deco_runtime.errors import UsageError
from deco_runtime.types import Ints


def stc_order(labels: Sequence[int], stc: int, seed: int) -> Ints:
    """An order of n images with strength of temporal correlation `stc`, as (n,) int64 indices into `labels`.

    Every index occurs once. The images of a class, shuffled, are cut into runs of exactly `stc`, the last run
    of a class holding what remains. The runs come in random order, neighbours always of different classes if
    any order allows that; if none does, one class has too many runs, and those too many end the stream.
    The same labels, stc and seed give the same order. Raises UsageError if stc < 1.
    """
    if stc < 1:
        raise UsageError(f"expected at least 1 consecutive image of a class (--stc), found {stc}: raise it")
    stc = min(stc, len(labels) + 1)  # beyond that it changes nothing, and numpy's integers end somewhere
    rng = np.random.default_rng(seed)
    classes, of_class = np.unique(np.asarray(labels, dtype=np.int64), return_inverse=True)
    members = [rng.permutation(np.flatnonzero(of_class == k)) for k in range(len(classes))]
    left = np.array([-(-len(indices) // stc) for indices in members], dtype=np.int64)  # runs, rounded up
    used = np.zeros_like(left)
    runs: list[Ints] = []
    last = -1
    while left.sum():
        choice = left.copy()
        if last >= 0 and left.sum() > left[last]:
            choice[last] = 0
        # A class with more than half of the runs left must come every second time, or its runs would end up
        # next to each other.
        largest = int(choice.argmax())
        if 2 * left[largest] > left.sum():
            last = largest
        else:
            last = int(np.searchsorted(choice.cumsum(), rng.integers(choice.sum()), side="right"))
        runs.append(members[last][used[last] * stc : (used[last] + 1) * stc])
        used[last] += 1
        left[last] -= 1
    return np.concatenate(runs) if runs else np.empty(0, dtype=np.int64)


def recorded_order(files: Sequence[PurePath]) -> Ints:
    """The order of n files <class>/<image> as a camera recorded them, as (n,) int64 indices into `files`.

    By the image's name over all classes, numbers in it compared as numbers, so that frame2 comes before frame10; a name
    that is in several classes comes in the order of these. Of images in folders below those of their classes, the name
    begins with these folders: first all of day1, then all of day2.
    """

    def key(index: int) -> tuple[list[list[str | int]], str, str]:
        # Text and numbers in turn, so that like is compared with like.
        name = PurePath(*files[index].parts[1:])
        parts = [re.split(r"([0-9]+)", part) for part in name.with_suffix("").parts]
        natural: list[list[str | int]] = [[int(p) if i % 2 else p for i, p in enumerate(part)] for part in parts]
        return natural, name.as_posix(), files[index].parts[0]

    return np.array(sorted(range(len(files)), key=key), dtype=np.int64)


def no_recording(files: Sequence[PurePath]) -> str | None:
    """Why the names of files <class>/<image> tell no order, as a sentence; None if they may be those of a recording."""
    repeated = sum(count > 1 for count in Counter(file.parts[1:] for file in files).values())
    if not repeated:
        return None
    names = f"{repeated} file name{'s are' if repeated > 1 else ' is'}"
    return f"{names} in more than one class, so by name the classes come mixed and not as recorded"
