"""The machine: Python, board, cores, memory, temperature; read from files, so nothing here can die."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from deco_runtime.doctor.findings import Finding
from deco_runtime.host import machine as device

OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)
"""The first that pyproject.toml allows, the last that the project is tested with."""
SCARCE_MIB = 250
"""Free memory: a small network and its learner peak at 130 to 220 MiB (docs/boards.md)."""
HOT_C = 80.0
"""Where boards begin to lower their clock."""


def findings(root: Path = Path("/")) -> Iterator[Finding]:
    """What the interpreter and the files under root tell; what a board does not show is left out."""
    yield _python(sys.version_info[:3], sys.maxsize > 2**32)
    model = device.board_model(root)
    yield Finding(
        "OK",
        "board",
        f"{model or 'no device tree, so not a board that names itself'}; {platform.machine()}, "
        f"{platform.system()} {platform.release()}",
        {"model": model or None, "machine": platform.machine()},
    )
    yield _cores()
    yield from _memory(device.memory_mib(root))
    yield from _temperature(root)


def _python(version: tuple[int, ...], wide: bool) -> Finding:
    shown = ".".join(map(str, version))
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    figures = {"version": shown, "bits": 64 if wide else 32}
    if version[:2] < OLDEST_PYTHON:
        words = f"expected Python {oldest} to {newest}, but found {shown}; make the environment with a newer one"
        return Finding("FAIL", "python", words, figures)
    if not wide:
        words = "expected a 64-bit system, but found a 32-bit Python, for which onnxruntime has no wheels; "
        return Finding("WARN", "python", words + "install the board's 64-bit system", figures)
    if version[:2] > NEWEST_PYTHON:
        words = f"expected Python {oldest} to {newest}, but found {shown}, which nobody has tried; if a run fails, "
        return Finding("WARN", "python", words + f"use {newest}", figures)
    return Finding("OK", "python", f"{shown}, {figures['bits']}-bit", figures)


def _cores() -> Finding:
    there = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else there
    aside = "" if allowed == there else "; taskset, a service file or a container keeps the others away"
    return Finding("OK", "cores", f"{allowed} of {there} may be used{aside}", {"allowed": allowed, "there": there})


def _memory(mib: Mapping[str, int]) -> Iterator[Finding]:
    if "MemTotal" not in mib or "MemAvailable" not in mib:
        return
    total, free = mib["MemTotal"], mib["MemAvailable"]
    figures = {"total_mib": total, "free_mib": free}
    if free < SCARCE_MIB:
        words = f"expected {SCARCE_MIB} MiB of free memory to learn in, but found {free} of {total} MiB; stop other "
        yield Finding("WARN", "memory", words + "programs or add swap", figures)
    else:
        yield Finding("OK", "memory", f"{free} of {total} MiB free", figures)


def _temperature(root: Path) -> Iterator[Finding]:
    """The hottest sensor."""
    zones = device.temperatures(root)
    if not zones:
        return
    name = max(zones, key=lambda zone: zones[zone])
    if zones[name] >= HOT_C:
        words = (
            f"expected less than {HOT_C:g} °C, but {name} is at {zones[name]:.0f} °C, where boards slow down; cool it"
        )
        yield Finding("WARN", "temperature", words, {"celsius": zones})
    else:
        yield Finding("OK", "temperature", f"{zones[name]:.0f} °C at {name}", {"celsius": zones})
