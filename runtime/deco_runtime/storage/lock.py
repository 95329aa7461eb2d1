"""One program at a time in a directory, by a lock of the system that ends with its process, however that ends."""

from __future__ import annotations

import os
from pathlib import Path


def lock(directory: Path) -> tuple[int, str | None]:
    """Keep other processes that lock it too out of a directory, until `unlock` is given what is returned.

    The directory itself is locked, so that one on a read-only disk can be too. Returns also what the system says where
    it cannot lock: some disks of the network, and systems that are not posix. Raises BlockingIOError when another
    process has it, and OSError when it cannot be opened.
    """
    try:
        import fcntl
    except ImportError:
        return -1, "there are no such locks"
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError as error:
        return handle, error.strerror
    return handle, None


def unlock(handle: int) -> None:
    """Let others have it."""
    if handle >= 0:
        os.close(handle)
