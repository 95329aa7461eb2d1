"""Where the commands begin: signals are looked after before the seconds of importing begin.

Until a command runs there is nothing to save or to clear up, so a signal ends it at once, in a word. Nothing is
imported here that Python has not loaded already, or nearly so.
"""

from __future__ import annotations

import os
import select
import signal
import sys


def _known(*names: str) -> tuple[int, ...]:
    return tuple(int(getattr(signal, f"SIG{name}")) for name in names if hasattr(signal, f"SIG{name}"))


ENDING = _known("INT", "TERM", "HUP", "QUIT", "XCPU", "PWR")
"""Signals after which a command clears up and ends: a person, the service manager, a terminal or connection that
closes, a limit of processor seconds, a power supply that goes."""
IGNORED = _known("USR1", "USR2", "ALRM", "TTOU")
"""Signals that would kill a program that has no use for them, and lose what it learned; the last would stop it when it
tells something in the background."""


def wanted() -> tuple[int, ...]:
    """Those of ENDING that are to be looked after: nohup has SIGHUP ignored, and means it."""
    return tuple(n for n in ENDING if n != getattr(signal, "SIGHUP", None) or signal.getsignal(n) != signal.SIG_IGN)


def _end(number: int, _: object) -> None:
    try:
        if select.select([], [2], [], 0)[1]:  # a reader that sleeps is not waited for
            os.write(2, b"interrupted\n")
    except (OSError, ValueError):
        pass
    os._exit(128 + number)


def _begin(module: str) -> None:
    try:
        for number in wanted():
            signal.signal(number, _end)
        __import__(module, fromlist=["main"]).main()
    except KeyboardInterrupt:  # one that came before the handlers
        _end(signal.SIGINT, None)
    except Exception as error:
        from deco_runtime.errors import DecoError

        if not isinstance(error, DecoError):
            raise
        # Commands tell their errors themselves, but for what another package's engine raises while they are made.
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run() -> None:
    """deco-run."""
    _begin("deco_runtime.commands.run")


def doctor() -> None:
    """deco-doctor."""
    _begin("deco_runtime.doctor.cli")


def fleet() -> None:
    """deco-fleet."""
    _begin("deco_runtime.commands.fleet")


def export() -> None:
    """deco-export."""
    _begin("deco_export.cli")


def evaluate() -> None:
    """deco-eval."""
    _begin("deco_benchmarks.eval_cli")


def bench() -> None:
    """deco-bench."""
    _begin("deco_benchmarks.bench.cli")
