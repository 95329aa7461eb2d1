"""What this machine is and what the process takes of it."""

from __future__ import annotations

import sys


def peak_memory_mb() -> float | None:
    """Largest resident memory of this process so far in MB; None where the system does not say."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
