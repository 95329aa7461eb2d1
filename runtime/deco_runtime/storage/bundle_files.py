"""Where a bundle's files are: in a directory, or in one .deco file, a zip that is read where it lies.

Nothing is unpacked, so nothing can be written outside, and a start writes nothing to the SD card.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

from deco_runtime.errors import BundleError, first_line
from deco_runtime.storage.untrusted import check_archive

Root = Path | zipfile.Path
"""Of either, `root.joinpath(name).open("rb")` reads a file."""
ENDING = ".deco"
"""Of the name of a bundle that deco-export is to make as one file."""
MANIFEST = "manifest.json"


def open_root(path: Path) -> Root:
    """Where the files are. Raises BundleError unless there is a manifest among them."""
    found = "no manifest.json in it"
    if os.path.isfile(path):  # unlike Path.is_file, False also for what may not be looked at
        try:
            archive = zipfile.ZipFile(path)
            check_archive(archive, path.stat().st_size)
        except OSError as error:
            found = f"a file that cannot be read ({error.strerror})"
        except Exception as error:  # as above
            found = f"a file that is no plain zip ({first_line(error)})"
        else:
            if is_file(root := zipfile.Path(archive), MANIFEST):
                return root
    elif os.path.isfile(path / MANIFEST):
        return path
    elif not os.path.isdir(path):
        found = "something else" if os.path.exists(path) else "nothing"
    raise BundleError(f"expected a bundle at {path}, but found {found}; make one with deco-export")


def is_file(root: Root, name: str) -> bool:
    """Whether the bundle has this file."""
    if isinstance(root, Path):
        return os.path.isfile(root / name)
    return name in root.root.NameToInfo and not name.endswith("/")


def sha256(path: Root) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def pack(directory: Path, file: Path) -> None:
    """Put the bundle in the directory into one .deco file, which has the same hash."""
    # A zip knows the years 1980 to 2107, and a clock without a battery starts in 1970.
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(p for p in directory.rglob("*") if p.is_file()):
            archive.write(path, path.relative_to(directory).as_posix())
