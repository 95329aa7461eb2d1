"""Labelled image folders, DIR/<class>/<image>: listing, reading, recognising images already seen."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deco_runtime.errors import DataError
from deco_runtime.types import Pixels

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
"""File endings taken for images, compared without regard to case."""

# What a complete file of these formats must contain somewhere, by how the file starts. Checked before
# decoding because libpng and libjpeg complain on stderr themselves, where OpenCV's log level has no say.
_END_MARKS = {b"\x89PNG": b"IEND", b"\xff\xd8\xff": b"\xff\xd9"}


def silence_opencv() -> None:
    """Stop OpenCV from printing warnings: what goes wrong is reported once, by this project's own errors."""
    import cv2  # listing a folder must not need it, nor `--help`

    # OpenCV 4 has cv2.setLogLevel, OpenCV 5 moved it.
    set_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel
    set_level(0)


@dataclass(frozen=True)
class ImageFolder:
    """The images of a labelled folder; `files[i]` shows `classes[labels[i]]`.

    classes: K class names; a label is an index into them.
    files, labels: one entry per image, ordered by class name, then by file name.
    """

    root: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    labels: tuple[int, ...]


def split_folder(root: Path) -> tuple[Path, Path | None]:
    """Training and test folder of a data set: DIR/train and DIR/test if any, else DIR and None."""
    train, test = root / "train", root / "test"
    if not train.is_dir():
        return root, None
    return train, test if test.is_dir() else None


def list_folder(root: Path, classes: Sequence[str] | None = None) -> ImageFolder:
    """List the images DIR/<class>/<image>, not looking into deeper folders and ignoring hidden names.

    classes: class names that give the labels (a bundle's); the folder may lack some but not have others.
        None: the folder's own class folders, sorted, at least two.

    Raises DataError if the folder is missing, is no folder, cannot be read, or has no class folders, an
    unknown class, a single class (with `classes` None) or a class folder without images.
    """
    layout = "expected a folder of images laid out as <folder>/<class>/<image>"
    if not root.exists():
        raise DataError(f"{layout}, found nothing at {root}: check the path")
    if not root.is_dir():
        raise DataError(f"{layout}, found the file {root}: name the folder that holds the class folders")
    folders = [path for path in _visible(root) if path.is_dir()]
    if not folders:
        raise DataError(f"{layout}, found no class folder in {root}: make one folder per class in it")
    names = [folder.name for folder in folders]
    if classes is None and len(names) < 2:
        raise DataError(f"expected 2 or more class folders in {root}, found only {names[0]!r}: add another")
    known = tuple(names if classes is None else classes)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DataError(
            f"expected class folders named among {_some(known)}, found {_some(unknown)} in {root}: "
            "rename or remove them, or export a bundle that knows these classes"
        )

    files: list[Path] = []
    labels: list[int] = []
    for folder in folders:
        images = [path for path in _visible(folder) if path.suffix.lower() in EXTENSIONS and path.is_file()]
        if not images:
            raise DataError(
                f"expected images ({', '.join(EXTENSIONS)}) in the class folder {folder}, found none: "
                "add images or remove the folder"
            )
        files += images
        labels += [known.index(folder.name)] * len(images)
    return ImageFolder(root, known, tuple(files), tuple(labels))


def read_image(path: Path) -> Pixels | None:
    """Read an image as (height, width, 3) uint8 B, G, R, turned upright by its EXIF tag; None if unreadable.

    Unreadable are files that are missing, forbidden, empty, cut short or no image. Nothing is printed for
    those (but by OpenCV 4.8 for BMP and PPM); an image damaged in its middle can still make libjpeg or libpng
    write a line of their own.
    """
    import cv2  # as in silence_opencv

    silence_opencv()
    try:
        # Not cv2.imread: on Windows it cannot open names outside the code page.
        data = np.fromfile(path, dtype=np.uint8)
    except OSError:
        return None
    raw = data.tobytes()
    if any(raw.startswith(start) and end not in raw for start, end in _END_MARKS.items()):
        return None
    try:
        pixels: Pixels | None = cv2.imdecode(data, cv2.IMREAD_COLOR)
    except cv2.error:  # an empty file, or a header that promises more pixels than OpenCV allows
        return None
    return pixels


def fingerprint(path: Path) -> str:
    """The first 16 hex digits of the SHA-256 of a file's bytes; equal for copies of it. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Unreadable:
    """Counts files that `read_image` could not read: a few are normal in large folders, many are a mistake.

    total: number of files to be read; too many are more than 10 and more than 1 % of it.
    """

    def __init__(self, total: int) -> None:
        self.files: list[Path] = []
        self.limit = max(10, total // 100)

    def add(self, path: Path) -> None:
        """Note one unreadable file. Raises DataError once there are more than `limit`."""
        self.files.append(path)
        if len(self.files) > self.limit:
            raise DataError(
                f"expected at most {self.limit} unreadable images, found more, the first are "
                f"{_some([str(file) for file in self.files])}: replace or remove them"
            )

    def summary(self) -> str | None:
        """One sentence with the count and up to three of the files; None if all could be read."""
        if not self.files:
            return None
        names = _some([str(file) for file in self.files])
        return f"skipped {len(self.files)} unreadable image{'s' * (len(self.files) > 1)}: {names}"


def _visible(folder: Path) -> list[Path]:
    """The entries of a folder whose names do not start with a dot, sorted by name."""
    try:
        return sorted((path for path in folder.iterdir() if path.name[0] != "."), key=lambda path: path.name)
    except OSError as error:
        raise DataError(
            f"expected a folder that can be read, found that {folder} cannot ({error.strerror}): check its permissions"
        ) from error


def _some(names: Sequence[str], most: int = 3) -> str:
    """The first few names, for a sentence; says how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
