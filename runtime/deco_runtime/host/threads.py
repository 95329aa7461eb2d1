"""How many threads the engines of this process may use."""

from __future__ import annotations

import os

_limit: int | None = None


def limit_threads(count: int) -> None:
    """Have every engine that is opened from now on use so many threads at most."""
    global _limit
    _limit = count


def threads() -> int:
    """How many threads the engine may use: `limit_threads`, else the CPUs this process is allowed to run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, _limit or allowed)
