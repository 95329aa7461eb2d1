"""Which machine this is: board, processor, memory, system."""

from __future__ import annotations

import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

from deco_runtime.host import machine as device
from deco_runtime.host.threads import threads

FLAGS = (
    "neon", "asimd", "asimdhp", "asimddp", "fphp", "sve", "sve2", "i8mm", "bf16",
    "sse4_2", "avx", "fma", "f16c", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip
"""Abilities of a processor that numeric runtimes make use of, as /proc/cpuinfo names them."""

ARM_CORES = {
    0xC07: "Cortex-A7", 0xC0F: "Cortex-A15", 0xD03: "Cortex-A53", 0xD04: "Cortex-A35", 0xD05: "Cortex-A55",
    0xD07: "Cortex-A57", 0xD08: "Cortex-A72", 0xD09: "Cortex-A73", 0xD0A: "Cortex-A75", 0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1", 0xD0D: "Cortex-A77", 0xD40: "Neoverse-V1", 0xD41: "Cortex-A78", 0xD42: "Cortex-A78AE",
    0xD44: "Cortex-X1", 0xD46: "Cortex-A510", 0xD47: "Cortex-A710", 0xD49: "Neoverse-N2", 0xD4F: "Neoverse-V2",
}  # fmt: skip
"""Parts of implementer 0x41; their /proc/cpuinfo has no model name."""


def identify(root: Path = Path("/")) -> dict[str, Any]:
    """Board, processor and system, from the files under root; what cannot be read is left out.

    name: device-tree model, else the processor's. memory_mib: of the machine. threads: cores this process may use.
    load: as `load` gives it; what else runs here makes every time longer.
    """
    cpu = _cpu(device.read_text(root / "proc/cpuinfo"))
    jetson = device.read_text(root / "etc/nv_tegra_release").partition("\n")[0].strip("# ")
    found = {
        "name": device.board_model(root) or cpu["model"] or platform.processor() or platform.machine(),
        "jetson": jetson,
        "processor": cpu["model"],
        "flags": cpu["flags"],
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads(),
        "memory_mib": device.memory_mib(root).get("MemTotal"),
        "system": _system(device.read_text(root / "etc/os-release")) or platform.system(),
        "kernel": platform.release(),
        "load": load(),
    }
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def load() -> float | None:
    """Processes that wanted to run in the last minute, on average; None where the system does not count them."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu(text: str) -> dict[str, Any]:
    """model ("4 × Cortex-A72", or an x86 processor's own name) and the flags among FLAGS, of a /proc/cpuinfo."""
    lines = [line.partition(":") for line in text.splitlines()]
    entries = [(key.strip(), value.strip()) for key, _, value in lines if value]
    names = [value for key, value in entries if key == "model name"]
    model = names[0] if names else ""
    parts = [value for key, value in entries if key == "CPU part"]
    if parts and all(value == "0x41" for key, value in entries if key == "CPU implementer"):
        count = Counter(ARM_CORES.get(int(part, 16), part) for part in parts)
        model = " + ".join(f"{n} × {name}" for name, n in count.items())
    have = {flag for key, value in entries if key in ("flags", "Features") for flag in value.split()}
    return {"model": model, "flags": [flag for flag in FLAGS if flag in have]}


def _system(text: str) -> str:
    found = [line.partition("=")[2].strip('"') for line in text.splitlines() if line.startswith("PRETTY_NAME=")]
    return found[0] if found else ""
