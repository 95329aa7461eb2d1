"""What lies in an image folder: what is an image, what is passed over and why, and which other layouts people use."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from deco_runtime.errors import DataError
from deco_runtime.names import canonical

EXTENSIONS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""File endings taken for images, compared without regard to case."""

PARTS = ("train", "training", "test", "testing", "val", "valid", "validation", "eval", "stream")
"""Names of folders that are mostly parts of a data set, and sometimes classes; without regard to case."""

_CONVERT = (".heic", ".heif", ".avif", ".gif", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")
_OF_THE_SYSTEM = (".ds_store", "thumbs.db", "desktop.ini", ".directory")


class Passed:
    """Counts what is passed over in a folder, by reason, with one name as an example."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reasons: dict[str, tuple[int, Path]] = {}

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def add(self, reason: str, path: Path, count: int = 1) -> None:
        """reason: a noun in the plural."""
        before, example = self._reasons.get(reason, (0, path))
        self._reasons[reason] = before + count, example

    def merge(self, other: Passed) -> None:
        for reason, (count, example) in other._reasons.items():
            self.add(reason, example, count)

    def words(self) -> str:
        """The counts and examples, most first."""
        most = sorted(self._reasons.items(), key=lambda item: (-item[1][0], item[0]))
        return ", ".join(f"{count} {reason} ({example.relative_to(self._root)})" for reason, (count, example) in most)

    def summary(self) -> str | None:
        """One sentence, or None if nothing was passed over."""
        return f"passed over in {self._root}, by kind and with an example: {self.words()}" if self else None


def entries(folder: Path, passed: Passed | None = None) -> list[Path]:
    """The entries of a folder whose names do not start with a dot, sorted by name. Raises DataError."""
    try:
        found = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DataError(
            f"expected a folder that can be read, found that {folder} cannot ({error.strerror}): check its permissions"
        ) from error
    for path in found if passed is not None else ():
        if path.name[0] == "." and path.name.lower() not in _OF_THE_SYSTEM and not path.name.startswith("._"):
            passed.add("hidden entries", path)  # type: ignore[union-attr]
    return [path for path in found if path.name[0] != "."]


def images_below(folder: Path, passed: Passed) -> list[Path]:
    """The images in a folder and those below it, in the order of their names, and what is passed over.

    Links to folders are followed, into each folder once. Raises DataError for a folder that cannot be read.
    """
    visited: set[tuple[int, int]] = set()
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        identity = os.stat(here)
        if (identity.st_dev, identity.st_ino) in visited:
            passed.add("links to folders that are read already", here)
            continue
        visited.add((identity.st_dev, identity.st_ino))
        for path in entries(here, passed):
            if os.path.isdir(path):
                waiting.append(path)
            elif path.name.lower() in _OF_THE_SYSTEM:
                continue
            elif reason := _reason(path):
                passed.add(reason, path)
            else:
                found.append(path)
    return sorted(found, key=lambda path: path.relative_to(folder).parts)


def _reason(path: Path) -> str | None:
    """Why an entry that is no folder is passed over; None for an image."""
    ending = path.suffix.lower()
    if not os.path.exists(path):
        return "links to nothing" if os.path.islink(path) else "files that may not be looked at"
    if ending in _CONVERT:
        return f"{ending} files, to be converted to JPEG"
    if ending not in EXTENSIONS:
        return f"{ending} files" if ending else "files without an ending"
    return None if os.path.isfile(path) else "images that are no regular files"


def is_part(folder: Path, classes: Collection[str] | None = None) -> bool:
    """Whether a folder called "train" or the like is a part of a data set, which holds class folders, and no class.

    classes: class names where they are known: it is a part if it holds a folder of such a name, or is of no such name.
    Else it is one where only such parts lie beside it, or one of those holds folders of the same names.
    """
    if not holds_classes(folder):
        return False
    names = _folders(folder)
    if classes is not None:
        known = set(map(canonical, classes))
        return bool(names & known) or canonical(folder.name) not in known
    beside = [path for path in entries(folder.parent) if os.path.isdir(path) and path.name != folder.name]
    parts = [path for path in beside if path.name.lower() in PARTS]
    others = [path for path in beside if path not in parts and any(True for _ in _images(path))]
    return not others or any(holds_classes(part) and names & _folders(part) for part in parts)


def advice(root: Path, folders: Mapping[str, Sequence[Path]], known: Collection[str] | None) -> str | None:
    """What was found in place of class folders, and what to do; None where nothing looks like another layout.

    folders: those in `root` by canonical name. known: canonical class names, or None.
    """
    if not folders:
        files = entries(root)
        images = [path for path in files if path.suffix.lower() in EXTENSIONS]
        tables = [path.name for path in files if path.suffix.lower() in (".csv", ".json", ".txt", ".xlsx", ".parquet")]
        archives = [path.name for path in files if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".7z")]
        if images:
            beside = f" and {some(tables)}" if tables else ""
            return (
                f"no class folder in {root}, but {len(images)} images directly in it{beside}: make one folder per "
                "class in it, and move each image to its class"
            )
        packed = f", but {some(archives)}: unpack it, and" if archives else ":"
        return f"no class folder in {root}{packed} make one folder per class in it"
    if known is not None and folders.keys() <= set(known):
        return None
    paths = {name: found[0] for name, found in folders.items()}
    if all(name.lower() in PARTS and holds_classes(path) for name, path in paths.items()):
        return f"the parts {some(sorted(paths))} of a data set in {root}: name one of them, such as {_last(paths)}"
    names = set(paths)
    if "images" in names and names & {"labels", "annotations"} and len(names) == 2:
        return (
            f"the folders {some(sorted(names))} in {root}, as for finding things in images: make one folder per class "
            "in place of them"
        )
    (name, path), *others = paths.items()
    below = sorted(_folders(path))
    if not others and holds_classes(path) and (set(below) & set(known) if known else len(below) > 1):
        return f"only {name!r} in {root}, which holds {some(below)}: name {path} if these are the classes"
    return None


def some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, for a sentence; says how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _last(paths: Mapping[str, Path]) -> Path:
    return paths[max(paths, key=lambda name: "train" in name.lower())]


def holds_classes(folder: Path) -> bool:
    """Whether there are images in the folders in it, and not more of them directly in it than there are folders."""
    if not os.path.isdir(folder):
        return False
    inside = entries(folder)
    folders = [path for path in inside if os.path.isdir(path)]
    loose = sum(1 for _ in islice(filter(_is_image, inside), len(folders) + 1))
    return loose <= len(folders) and any(True for path in folders for _ in _images(path))


def _folders(folder: Path) -> set[str]:
    return {canonical(path.name) for path in entries(folder) if os.path.isdir(path)}


def _images(folder: Path, depth: int = 4) -> Iterator[Path]:
    """Images in a folder and so many levels below it."""
    for path in entries(folder):
        if os.path.isdir(path):
            if depth:
                yield from _images(path, depth - 1)
        elif _is_image(path):
            yield path


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and os.path.isfile(path)
