"""Reading files that nobody vouches for: what a header promises is checked before anything is allocated for it.

Nothing here unpickles, unpacks to the disk, or follows a name out of its archive.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

LARGEST_RATIO = 100
ALWAYS_FINE = 64 << 20
"""Bytes beyond what was expected that no board minds. A member of an archive may unpack to these, or to LARGEST_RATIO
times what it takes packed: images and weights come nowhere near that, and deflate could go to a thousand times."""


def parse_json(data: bytes) -> Any:
    """A JSON value in UTF-8. Raises ValueError for anything else, for a key given twice, and for too deep nesting."""
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it gives a key twice")
    return found


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """All of a file of at most `most` bytes. Raises ValueError for a larger one or no regular file, and OSError."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # a FIFO must not block
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no file")
        if found.st_size > most:
            raise ValueError(f"it has {found.st_size} bytes, where at most {most} make sense")
        return file.read(found.st_size)  # which is allocated at once, however much there is


def read_npz(file: IO[bytes], names: Collection[str] | None = None) -> dict[str, Array]:
    """Arrays of an .npz archive, all or those of these names that it has. Raises ValueError when it is none.

    file: seekable.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            check_archive(archive, file.seek(0, os.SEEK_END))
            found = {}
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if names is None or name in names:
                    with archive.open(member) as stream:
                        found[name] = read_npy(stream, member.file_size)
            return found
    except (OSError, MemoryError, ValueError):
        raise
    except Exception as error:  # zipfile and zlib raise a dozen kinds
        raise ValueError(str(error)) from error


def read_npy(file: IO[bytes], size: int | None = None) -> Array:
    """The array in a stream of `size` bytes in the format .npy, which has to be exactly as long as its header says.

    size: None for a seekable stream, which tells it. Raises ValueError for anything else, and for any type but integers
    and floating-point numbers; and what the stream raises.
    """
    if size is None:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = headers[version](file)
    except OSError:
        raise
    except Exception as error:  # the header is a Python literal, and its parser may raise anything
        raise ValueError("its header is none of numpy's") from error
    if dtype.kind not in "iuf" or any(n < 0 for n in shape):
        raise ValueError("it holds no array of numbers")
    if math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError("its length is not what its header says")
    flat = np.empty(math.prod(shape), dtype)
    rest = flat.view(np.uint8).data
    while rest:
        got = file.readinto(rest)  # type: ignore[attr-defined]  # all binary streams have it
        if not got:
            raise ValueError("it ends early")
        rest = rest[got:]
    file.read(1)  # at its end a member of an archive checks its CRC
    return flat.reshape(shape, order="F" if fortran else "C")


def check_archive(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError unless every member of an archive of `size` bytes is plain.

    That is: a relative name inside the archive, given once; no link; not encrypted; stored or deflated; of a bounded
    size. Members that share their packed bytes, as in a bomb, together have more than there are.
    """
    seen = set()
    for member in archive.infolist():
        name = member.filename
        path = PurePosixPath(name)
        plain = name == member.orig_filename and str(path) == name.rstrip("/") and not {"\\", ":"} & set(name)
        if path.is_absolute() or ".." in path.parts or not plain:
            raise ValueError(f"it has a member with the name {name!r:.80}")
        if str(path) in seen:
            raise ValueError(f"it has the member {name!r:.80} twice")
        seen.add(str(path))
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ValueError(f"its member {name!r:.80} is a link or a device")
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"its member {name!r:.80} is encrypted, or packed in another way than deflate")
        if member.file_size > max(ALWAYS_FINE, LARGEST_RATIO * member.compress_size):
            raise ValueError(f"its member {name!r:.80} would unpack to {member.file_size} bytes")
    if sum(member.compress_size for member in archive.infolist()) > size:
        raise ValueError("its members have more bytes than it has")
