"""Values of events that nobody vouches for: each as what it should be, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LONGEST = 300
"""Characters that are kept of a text."""


def number(event: Mapping[str, Any], key: str) -> float | None:
    """A finite number; truth values are none."""
    value = event.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and abs(found) < 1e18 else None


def count(event: Mapping[str, Any], key: str) -> int:
    """A number of things, 0 where there is none."""
    found = number(event, key)
    return int(found) if found is not None and found > 0 else 0


def text(event: Mapping[str, Any], key: str) -> str | None:
    """A text, cut to LONGEST characters."""
    value = event.get(key)
    return value[:LONGEST] if isinstance(value, str) else None


def part(event: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object; {} where there is none."""
    value = event.get(key)
    return value if isinstance(value, dict) else {}
