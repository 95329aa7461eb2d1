"""What the commands share at the terminal: exit codes, one-sentence errors, signals, progress bars."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deco_runtime.commands.version import version_option
from deco_runtime.errors import DecoError, RuntimeMissingError, first_line
from deco_runtime.start import IGNORED, wanted
from deco_runtime.telemetry.console import say, stderr, way_out
from deco_runtime.telemetry.outlet import Outlet

if TYPE_CHECKING:
    from types import FrameType

HEADLESS = (
    "this OpenCV needs a screen's library: run pip uninstall opencv-python opencv-contrib-python, then "
    "pip install --force-reinstall opencv-python-headless"
)
"""What to do where importing cv2 misses libGL."""

PATIENCE_S = 5.0
"""A second Ctrl-C within so long does not cut short what the first one made a command clear up."""

_received: tuple[int, float] | None = None  # the signal that ends the command, and when it came


def exit_with(command: click.Command | Callable[[], click.Command]) -> int:
    """Run a click command, or what makes one; its exit code, with every DecoError printed as its sentence on stderr.

    A signal that ends it: the word for that, and 128 + its number, as shells have it.
    """
    _open_closed()
    catch_signals()
    code = _run(command)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # what is left in its buffer would fail again, with a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        say(f"error: expected to write to standard output, but the system says: {error.strerror}; mend that")
        code = code or DecoError.exit_code
    for stream in (sys.stdout, sys.stderr):
        out: Any = way_out(stream)
        if isinstance(out, Outlet) and (not out.settle() or out.lost) and stream is sys.stdout:
            said = f"the system says: {out.error.strerror}" if out.error else "nobody reads it"
            say(f"warning: expected to write the result to standard output, but {said}; the work itself is done")
    return code


def _run(command: click.Command | Callable[[], click.Command]) -> int:
    try:
        made = command if isinstance(command, click.Command) else command()
        if not any(each.name == "version" for each in made.params):
            made.params.append(version_option())
        result = made.main(standalone_mode=False)
    except BaseException as error:
        # A package whose import was interrupted raises whatever it likes.
        if _received is not None or isinstance(error, (click.Abort, KeyboardInterrupt)):
            say("interrupted")
            return 128 + (_received[0] if _received else signal.SIGINT)
        if (found := sentence(error)) is None:
            raise
        say(f"error: {found[0]}")
        return found[1]
    return result if isinstance(result, int) else 0


def sentence(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error, and the exit code; None for a defect of this program."""
    if isinstance(error, DecoError):
        return str(error), error.exit_code
    if isinstance(error, click.ClickException):
        return f"{' '.join(error.format_message().split()).rstrip('.')}; see --help", error.exit_code
    if isinstance(error, OSError):  # a path that may not be looked at, a name that is too long, a full disk
        if isinstance(error, FileNotFoundError) and not _somewhere():
            words = "expected to start in a directory that is there, but the current one was removed; cd to another"
            return words, DecoError.exit_code
        name, said = error.filename or "a file", error.strerror or error
        return f"expected to use {name}, but the system says: {said}; check it", DecoError.exit_code
    if isinstance(error, ImportError):  # a package is there, and something that it needs is not
        if error.name and error.name.startswith("deco_"):
            return None
        name, advice = error.name or "a package", "run deco-doctor, which says what to mend"
        if "libGL" in str(error):
            name, advice = "cv2", HEADLESS
        return f"expected to import {name}, but: {first_line(error)}; {advice}", RuntimeMissingError.exit_code
    if isinstance(error, MemoryError):
        return f"expected enough memory, but: {error}; choose smaller sizes", DecoError.exit_code
    return None


def _somewhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def catch_signals() -> None:
    """Have signals that end a program raise KeyboardInterrupt, so that it clears up, and those nobody needs ignored."""

    def interrupt(number: int, _: FrameType | None) -> None:
        global _received
        if _received is not None and time.monotonic() - _received[1] < PATIENCE_S:
            return
        _received = number, time.monotonic()
        raise KeyboardInterrupt

    on_signals(interrupt)


def on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have the handler called for every signal that ends a program, and those that nobody needs ignored."""
    for number in wanted():
        signal.signal(number, handler)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)


def interrupted() -> bool:
    """Whether a signal asked for the end: an import can swallow what the handler raises."""
    return _received is not None


def _open_closed() -> None:
    """Give standard input, output and error a file where they were closed: the next file opened would be one of them,
    and what a library complains of would go into learned state."""
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A function (stage, done, total) that keeps one bar per stage on stderr; off a terminal, a line per stage."""
    console = Console(file=stderr())
    if not console.is_terminal:
        seen = set()

        def line(stage: str, done: int, total: int) -> None:
            if stage not in seen:
                seen.add(stage)
                say(f"{stage} ({total})")

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def bar(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield bar
