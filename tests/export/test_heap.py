"""Large blocks of memory, which go back to the system as soon as they are free."""

from __future__ import annotations

import os
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
blocks = [(np.ones(4 << 17), bytearray(10_000)) for _ in range(50)]
between = [small for _, small in blocks]
del blocks
status = Path("/proc/self/status").read_text()
print(sum(int(status.split(name)[1].split()[0]) for name in ("RssAnon:", "VmSwap:")))
"""


def kept(asked: str) -> float:
    """MB of a process that has freed 200 of them, among blocks that are still used."""
    command = [sys.executable, "-c", PROGRAM, asked]
    clean = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # what other tests set may tell malloc
    done = subprocess.run(command, env=clean, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return int(done.stdout) / 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_what_is_freed_is_given_back() -> None:
    usual = kept("no")
    if usual < 200:
        pytest.skip(f"this allocator gives back all but {usual:.0f} MB by itself")
    assert kept("yes") < 100
