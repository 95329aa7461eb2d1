"""What glibc's allocator does with the large blocks of an export: it gives them back as soon as they are free."""

from __future__ import annotations

import contextlib
import ctypes

_M_MMAP_THRESHOLD = -3  # of malloc.h
LARGE = 1 << 20
"""Bytes from which a block is the system's again once it is free."""


def give_back_large_blocks() -> None:
    """Have this process not keep what batches and layers leave behind; nothing where the C library is another.

    glibc raises its own limit with each large block that is freed, up to 32 MB, and puts smaller ones between others
    that stay. Then the peak is no longer what an export needs at a time, but up to 200 MB more at 224 pixels.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no mallopt, no C library to ask
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
