"""Where the commands begin: signals are looked after before the seconds of importing begin.

Until a command runs there is nothing to save or to clear up, so a signal ends it at once, in a word.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def _known(*names: str) -> tuple[signal.Signals, ...]:
    return tuple(getattr(signal, f"SIG{name}") for name in names if hasattr(signal, f"SIG{name}"))


ENDING = _known("INT", "TERM", "HUP", "QUIT", "XCPU", "PWR")
"""Signals after which a command clears up and ends: a person, the service manager, a terminal or connection that
closes, a limit of processor seconds, a power supply that goes."""
IGNORED = _known("USR1", "USR2", "ALRM", "TTOU")
"""Signals that would kill a program that has no use for them, and lose what it learned; the last would stop it when it
tells something in the background."""


def _end(number: int, _: FrameType | None) -> None:
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:  # a reader that sleeps is not waited for
            os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _begin(module: str) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # one that came before the handlers
        for number in ENDING:
            if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, _end)
        import_module(module).main()
        return
    _end(signal.SIGINT, None)


def run() -> None:
    """deco-run."""
    _begin("deco_runtime.cli")


def doctor() -> None:
    """deco-doctor."""
    _begin("deco_runtime.doctor.cli")


def export() -> None:
    """deco-export."""
    _begin("deco_export.cli")


def evaluate() -> None:
    """deco-eval."""
    _begin("deco_benchmarks.eval_cli")


def bench() -> None:
    """deco-bench."""
    _begin("deco_benchmarks.bench.cli")
