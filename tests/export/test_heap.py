"""Large blocks of memory, which go back to the system as soon as they are free."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from deco_export.heap import give_back_large_blocks
if sys.argv[1] == "yes":
    give_back_large_blocks()
np.ones(30 << 17)  # of 30 MiB: glibc keeps blocks of that size from here on
# What lies between is larger than the holes that imports leave: in one of these it would be between no blocks.
blocks = [(np.ones(4 << 17), bytearray(200_000)) for _ in range(50)]
between = [small for _, small in blocks]
del blocks
print(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
"""


def kept(asked: str) -> float:
    """MB of a process that has freed 200 of them, among blocks that are still used."""
    command = [sys.executable, "-c", PROGRAM, asked]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout) / 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_what_is_freed_is_given_back() -> None:
    assert kept("no") > 200 > 100 > kept("yes")
