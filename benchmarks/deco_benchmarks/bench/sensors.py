"""What a board tells of its temperature, clock and throttling; each only where the board shows it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

from deco_runtime.host import machine

PI_FIRMWARE = {
    0: "under-voltage now",
    1: "frequency capped now",
    2: "throttled now",
    3: "soft temperature limit now",
    16: "under-voltage has occurred",
    17: "frequency capping has occurred",
    18: "throttling has occurred",
    19: "soft temperature limit has occurred",
}
"""Bits of a Raspberry Pi's `get_throttled`."""


def read_sensors(root: Path = Path("/")) -> dict[str, Any]:
    """Of the keys below those that can be read under root, as of now.

    temperature_c: by thermal zone, °C. clock_mhz: by core. throttling: an x86 processor's events since it was started
    (of the core that has the most), steps of the kernel's CPU cooling (0 is none), a Raspberry Pi's own words.
    """
    found = {"temperature_c": _temperatures(root), "clock_mhz": _clocks(root), "throttling": _throttling(root)}
    return {name: value for name, value in found.items() if value}


def _temperatures(root: Path) -> dict[str, float]:
    return {
        f"{zone.removeprefix('thermal_zone')} {kind}".strip(): celsius
        for zone, kind, celsius in machine.thermal_zones(root)
    }


def _clocks(root: Path) -> dict[str, float]:
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = {file.parts[-3]: _number(file) for file in files}
    return {core: value / 1000 for core, value in sorted(clocks.items()) if value is not None}


def _throttling(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("core", "package"):
        files = root.glob(f"sys/devices/system/cpu/cpu[0-9]*/thermal_throttle/{kind}_throttle_count")
        counts = [count for count in map(_number, files) if count is not None]
        if counts:
            found[f"x86_{kind}_events"] = int(max(counts))
    devices = root.glob("sys/class/thermal/cooling_device*")
    steps = [_number(d / "cur_state") for d in devices if "cpufreq" in machine.read_text(d / "type")]
    if any(step is not None for step in steps):
        found["cpu_cooling_steps"] = int(sum(step or 0 for step in steps))
    firmware = machine.read_text(root / "sys/devices/platform/soc/soc:firmware/get_throttled")
    if not firmware and root == Path("/") and shutil.which("vcgencmd"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = subprocess.run(["vcgencmd", "get_throttled"], capture_output=True, text=True, timeout=5)
            firmware = command.stdout.strip()
    with contextlib.suppress(ValueError):
        found["raspberry_pi"] = pi_throttling(firmware)
    return found


def pi_throttling(text: str) -> list[str]:
    """What `throttled=0x50005`, or the number alone, says. Raises ValueError for anything else."""
    bits = int(text.removeprefix("throttled="), 16)
    return [words for bit, words in PI_FIRMWARE.items() if bits >> bit & 1]


def _number(file: Path) -> float | None:
    try:
        return float(machine.read_text(file))
    except ValueError:
        return None
