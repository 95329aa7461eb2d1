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


def temperatures(root: Path = ROOT) -> dict[str, float]:
    """°C by sensor: the thermal zones, or where a machine has none of them what its hardware monitors read.

    Of several with one name it is the hottest.
    """
    found: dict[str, float] = {}
    for zone, kind, celsius in thermal_zones(root):
        found[kind or zone] = max(celsius, found.get(kind or zone, celsius))
    if found:
        return found
    for file in sorted(root.glob("sys/class/hwmon/hwmon*/temp*_input")):
        text = read_text(file)
        if re.fullmatch(r"-?\d+", text, re.ASCII):
            label = read_text(file.with_name(file.name.replace("_input", "_label"))) or file.name[: -len("_input")]
            name = f"{read_text(file.with_name('name'))} {label}".strip()
            found[name] = max(int(text) / 1000, found.get(name, int(text) / 1000))
    return found


def memory_mib_free(root: Path = ROOT) -> int | None:
    """What may still be taken of this machine's memory, or of the control group's (version 2) that it runs in where
    that is less, before something is killed; in MiB, None where the system does not say."""
    free = [mib for name, mib in memory_mib(root).items() if name == "MemAvailable"]
    group = re.search(r"^0::(/.*)$", read_text(root / "proc/self/cgroup"), re.MULTILINE)
    top = root / "sys/fs/cgroup"
    place = top / group[1].lstrip("/") if group else top
    for directory in (place, *place.parents):
        if not directory.is_relative_to(top):
            break
        limit, used = read_text(directory / "memory.max"), read_text(directory / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            # What files left in memory counts as used, and is given back when it is asked for.
            cached = re.findall(r"^(?:in)?active_file (\d+)$", read_text(directory / "memory.stat"), re.MULTILINE)
            free.append((int(limit) - int(used) + sum(map(int, cached))) >> 20)
    return min(free, default=None)


def memory_mib_taken() -> int | None:
    """Resident memory of this program now in MiB; None where the system does not say."""
    found = re.search(r"^VmRSS:\s+(\d+)", read_text(ROOT / "proc/self/status"), re.MULTILINE)
    return int(found[1]) // 1024 if found else None


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
