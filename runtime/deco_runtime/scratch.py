"""A file without a name, for what is read once and forgotten."""

from __future__ import annotations

import os
import tempfile
from typing import IO


def nameless() -> IO[bytes]:
    """In memory, where the system has such: a board's /tmp may be read-only, full, or on the card that wears out."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("deco"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
