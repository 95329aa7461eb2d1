"""Labelled image folders, DIR/<class>/<image>: listing, reading, recognising images already seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from deco_runtime.errors import DataError
from deco_runtime.names import canonical, indices
from deco_runtime.pictures.layout import (
    EXTENSIONS,
    PARTS,
    Passed,
    advice,
    entries,
    holds_classes,
    images_below,
    is_part,
    some,
)
from deco_runtime.types import Pixels

if TYPE_CHECKING:
    from deco_runtime.pictures.decode import Seen


def silence_opencv() -> None:
    """Stop OpenCV from printing warnings: what goes wrong is reported once, by this project's own errors."""
    import cv2  # listing a folder must not need it, nor `--help`

    # OpenCV 4 has cv2.setLogLevel, OpenCV 5 moved it.
    set_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel
    set_level(0)


NOT_A_CLASS = ("none", "background")
"""Names of a folder of images that show none of the classes, in any case."""


@dataclass(frozen=True)
class ImageFolder:
    """The images of a labelled folder; `files[i]` shows `classes[labels[i]]`.

    classes: K class names; a label is an index into them.
    files, labels: one entry per image, ordered by class name, then by file name. A file may lie in folders below that
        of its class.
    note: a sentence about what was passed over, or None.
    none: images that show none of the classes, those of a folder of a name among NOT_A_CLASS.
    """

    root: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    note: str | None = None
    none: tuple[Path, ...] = ()

    def name(self, file: Path) -> PurePath:
        """A file's name below the folder of its class."""
        return PurePath(*file.relative_to(self.root).parts[1:])

    @cached_property
    def seen(self) -> Seen:
        """The largest values in its pictures of more than 8 bits, by which each of them is read."""
        from deco_runtime.pictures.decode import seen_in

        return seen_in(self.files + self.none)

    def read(self, file: Path) -> Pixels | None:
        """One of its images as `read_image` gives it."""
        return read_image(file, self.seen)


def split_folder(root: Path, classes: Sequence[str] | None = None) -> tuple[Path, Path | None]:
    """Training and test folder of a data set: DIR/train and DIR/test if these are parts, else DIR and None.

    classes: class names, where they are known. A class may be called "train" as well.
    """
    train, test = root / "train", root / "test"
    if not is_part(train, classes):
        return root, None
    return train, test if is_part(test, classes) else None


def part_for_testing(root: Path, classes: Sequence[str]) -> Path:
    """DIR/test if this is a part of a data set with these classes, else DIR."""
    return root / "test" if is_part(root / "test", classes) else root


def list_folder(root: Path, classes: Sequence[str] | None = None) -> ImageFolder:
    """List the images DIR/<class>/<image>, those in deeper folders too, and beside the classes those of DIR/none or
    DIR/background. Hidden names are passed over, and noted.

    classes: class names that give the labels (a bundle's); the folder may lack some but not have others. Names are
        compared in Unicode's NFC. None: the folder's own class folders in NFC, sorted, at least two.

    Raises DataError if the folder is missing, is no folder, cannot be read, is laid out in another way, or has an
    unknown class, a single class (with `classes` None), or a class folder without images or with a link to nothing in
    its place.
    """
    layout = "expected a folder of images laid out as <folder>/<class>/<image>"
    if not os.path.exists(root):
        raise DataError(f"{layout}, found nothing at {root}: check the path")
    if not os.path.isdir(root):
        raise DataError(f"{layout}, found the file {root}: name the folder that holds the class folders")
    passed = Passed(root)
    folders: dict[str, list[Path]] = {}
    for path in entries(root, passed):
        if os.path.isdir(path):
            folders.setdefault(canonical(path.name), []).append(path)
        elif os.path.islink(path) and not os.path.exists(path) and not path.suffix:
            raise DataError(
                f"expected class folders in {root}, found that the link {path} leads to nothing: "
                "mount the disk that it leads to, or remove it"
            )
        elif path.suffix.lower() in EXTENSIONS:
            passed.add("images outside of the class folders", path)
    given = indices(classes or ())
    of_none = [name for name in folders if name.casefold() in NOT_A_CLASS and name not in given]
    none = [image for name in of_none for folder in folders.pop(name) for image in images_below(folder, passed)]
    known = tuple(sorted(folders)) if classes is None else tuple(classes)
    index = indices(known)
    if (words := advice(root, folders, index if classes is not None else None)) is not None:
        raise DataError(f"{layout}, found {words}")
    if classes is None and len(folders) < 2:
        beside = f" beside {of_none[0]!r}, which is for things of no class" if of_none else ""
        found = f"only {known[0]!r}" if known else "none"
        raise DataError(f"expected 2 or more class folders in {root}{beside}, found {found}: add another")
    unknown = [name for name in folders if name not in index]
    if unknown:
        raise DataError(
            f"expected class folders named among {some(known)}, found {some(unknown)} in {root}: "
            "rename or remove them, or export a bundle that knows these classes"
        )

    files: list[Path] = []
    labels: list[int] = []
    for name in sorted(folders):
        within = Passed(root)
        images = [image for folder in folders[name] for image in images_below(folder, within)]
        if not images:
            found = f"none but {within.words()}" if within else "none"
            raise DataError(
                f"expected images ({', '.join(EXTENSIONS)}) in the class folder {folders[name][0]}, found {found}: "
                "add images or remove the folder"
            )
        passed.merge(within)
        files += images
        labels += [index[name]] * len(images)
    parts = [name for name in folders if name.lower() in PARTS and holds_classes(folders[name][0])]
    doubt = f"takes {some(parts)} in {root} for a class, since class folders lie beside it" if parts else None
    note = "; ".join(filter(None, (doubt, passed.summary()))) or None
    return ImageFolder(root, known, tuple(files), tuple(labels), note, tuple(none))


def read_image(path: Path, seen: Seen | None = None) -> Pixels | None:
    """Read an image as (height, width, 3) uint8 B, G, R, as `pictures.decode` does; None if unreadable.

    Unreadable are files that are missing, forbidden, empty, damaged, no image, or of unclear meaning; `why_unreadable`
    says which. Nothing is printed for those. seen: None for an image that belongs to no folder.
    """
    pixels, _ = _try(path, seen)
    return pixels


def why_unreadable(path: Path) -> str | None:
    """A few words on why an image cannot be read; None if it can."""
    _, why = _try(path)
    return why


def _try(path: Path, seen: Seen | None = None) -> tuple[Pixels | None, str | None]:
    from deco_runtime.pictures.decode import NOTHING, decode

    silence_opencv()
    try:
        # Not cv2.imread: on Windows it cannot open names outside the code page.
        return decode(path.read_bytes(), seen or NOTHING), None
    except OSError as error:
        return None, error.strerror or type(error).__name__
    except (ValueError, MemoryError) as error:
        return None, str(error) or "it is too large"


def fingerprint(path: Path) -> str:
    """The first 16 hex digits of the SHA-256 of a file's bytes; equal for copies of it. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def fingerprints(files: Sequence[Path]) -> list[str | None]:
    """The fingerprint of each file, None for one that cannot be read, which is reported when its turn comes."""
    found: list[str | None] = []
    for file in files:
        try:
            found.append(fingerprint(file))
        except OSError:
            found.append(None)
    return found


class Unreadable:
    """Counts files that `read_image` could not read: a few are normal in large folders, many are a mistake.

    total: number of files to be read; too many are more than 10 and more than 1 % of it.
    """

    def __init__(self, total: int) -> None:
        self.files: list[Path] = []
        self.limit = max(10, total // 100)
        self._words: list[str] = []

    def add(self, path: Path) -> None:
        """Note one unreadable file. Raises DataError once there are more than `limit`."""
        why = why_unreadable(path) if len(self.files) < 3 else None  # so many are named
        self.files.append(path)
        self._words.append(f"{path} ({why})" if why else str(path))
        if len(self.files) > self.limit:
            raise DataError(
                f"expected at most {self.limit} unreadable images, found more, the first are "
                f"{some(self._words)}: replace or remove them"
            )

    def summary(self) -> str | None:
        """One sentence with the count and up to three of the files and their reasons; None if all could be read."""
        if not self.files:
            return None
        return f"skipped {len(self.files)} unreadable image{'s' * (len(self.files) > 1)}: {some(self._words)}"
