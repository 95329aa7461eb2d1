"""What this machine is and what the process takes of it; read from files, so nothing here can die or wait."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path("/")


def read_text(file: Path) -> str:
    """The file's text; "" when it cannot be read, as a sensor that refuses. Device-tree strings end with a NUL."""
    try:
        return file.read_text("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""


def board_model(root: Path = ROOT) -> str:
    """The board's name in its device tree; "" on a machine without one."""
    return read_text(root / "proc/device-tree/model") or read_text(root / "sys/firmware/devicetree/base/model")


def memory_mib(root: Path = ROOT) -> dict[str, int]:
    """The lines of /proc/meminfo in whole MiB, such as MemTotal and MemAvailable; those it does not show are absent."""
    lines = (line.split() for line in read_text(root / "proc/meminfo").splitlines())
    return {words[0].rstrip(":"): int(words[1]) // 1024 for words in lines if len(words) > 1 and words[1].isdecimal()}


def thermal_zones(root: Path = ROOT) -> list[tuple[str, str, float]]:
    """Directory name, type ("" where it says none) and temperature in °C of every zone that can be read, by name."""
    zones = []
    for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")):
        text = read_text(zone / "temp")
        if re.fullmatch(r"-?\d+", text, re.ASCII):
            zones.append((zone.name, read_text(zone / "type"), int(text) / 1000))
    return zones


def peak_memory_mb() -> float | None:
    """Largest resident memory of this program so far in MiB; None where the system does not say.

    From /proc where there is one: getrusage's figure begins with that of the process that started this one.
    """
    found = re.search(r"^VmHWM:\s+(\d+)", read_text(ROOT / "proc/self/status"), re.MULTILINE)
    if found:
        return int(found[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
