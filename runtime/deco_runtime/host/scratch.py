"""Files for a moment: one without a name, and where those with a name may lie."""

from __future__ import annotations

import os
import tempfile
from typing import IO

from deco_runtime.errors import UsageError


def nameless() -> IO[bytes]:
    """In memory, where the system has such: a board's /tmp may be read-only, full, or on the card that wears out."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("deco"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def check_temporary() -> None:
    """Raise UsageError without a directory for temporary files: torch needs one already when it is imported."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise UsageError(
            f"expected a directory for temporary files, but the system says: {error.strerror}; "
            "set TMPDIR to one that can be written"
        ) from error
