"""Files that survive a power cut: 32 bytes of SHA-256 over the rest, then a numpy .npz without pickles.

One is written to a temporary file, flushed to the disk, and renamed over; so at every instant a good one is there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deco_runtime.errors import StateError
from deco_runtime.learning.arrays import Array
from deco_runtime.storage.untrusted import ALWAYS_FINE, parse_json, read_bytes, read_npz

NOT_OF_FOLDERS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, getattr(errno, "ENOTSUP", errno.ENOSYS)}
"""What some disks say that cannot flush a folder, such as those of the network; the file itself is on the disk then."""
_META = "meta"


def write(
    path: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], first: Callable[[int], None] | None = None
) -> int:
    """Replace the file by these arrays and JSON values; returns the bytes written.

    first: called with the bytes of the new content once that is on the disk beside the old one. Raises StateError when
    the disk refuses; what was there before is still there then.
    """
    memory = io.BytesIO()
    np.savez(memory, **arrays, **{_META: np.frombuffer(json.dumps(meta).encode(), np.uint8)})  # type: ignore[arg-type]
    payload = memory.getvalue()
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(hashlib.sha256(payload).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        if first is not None:
            first(len(payload))
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()  # half a file on a full disk would keep it full
        raise StateError(
            f"expected to write learned state to {path.parent}, but the system says: {error.strerror}; "
            "free space or choose another --state"
        ) from error
    return len(payload) + 32


def read(path: Path, size: int) -> tuple[dict[str, Array], Any]:
    """The arrays and values of a file of about `size` bytes.

    Raises OSError, and ValueError or another of what numpy, zipfile and json raise where it is damaged.
    """
    arrays = read_npz(io.BytesIO(_payload(path, size)))
    return arrays, parse_json(arrays.pop(_META).tobytes())


def intact(path: Path, size: int) -> bool:
    """Whether the file is there and undamaged."""
    try:
        _payload(path, size)
    except (OSError, ValueError):
        return False
    return True


def _payload(path: Path, size: int) -> bytes:
    data = read_bytes(path, 2 * size + ALWAYS_FINE)  # so that state of another bundle is still told from damage
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError("its checksum is wrong")
    return data[32:]


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NOT_OF_FOLDERS:
            raise
    finally:
        os.close(handle)
