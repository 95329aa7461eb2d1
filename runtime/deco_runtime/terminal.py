"""What the commands share at the terminal: exit codes, one-sentence errors, progress bars."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deco_runtime.errors import DecoError, RuntimeMissingError, first_line

INTERRUPTED = 130
"""Exit code after SIGINT, as shells have it."""

HEADLESS = (
    "this OpenCV needs a screen's library: run pip uninstall opencv-python opencv-contrib-python, then "
    "pip install --force-reinstall opencv-python-headless"
)
"""What to do where importing cv2 misses libGL."""


def exit_with(command: click.Command) -> int:
    """Run a click command; its exit code, with every DecoError printed as its sentence on stderr."""
    try:
        result = command.main(standalone_mode=False)
    except DecoError as error:
        click.echo(f"error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        click.echo(f"error: {' '.join(error.format_message().split()).rstrip('.')}; see --help", err=True)
        return error.exit_code
    except OSError as error:  # a path that may not be looked at, a name that is too long, a full disk
        name, said = error.filename or "a file", error.strerror or error
        click.echo(f"error: expected to use {name}, but the system says: {said}; check it", err=True)
        return DecoError.exit_code
    except ImportError as error:  # a package is there, and something that it needs is not
        if error.name and error.name.startswith("deco_"):
            raise
        name, advice = error.name or "a package", "run deco-doctor, which says what to mend"
        if "libGL" in str(error):
            name, advice = "cv2", HEADLESS
        click.echo(f"error: expected to import {name}, but: {first_line(error)}; {advice}", err=True)
        return RuntimeMissingError.exit_code
    except MemoryError as error:
        click.echo(f"error: expected enough memory, but: {error}; choose smaller sizes", err=True)
        return DecoError.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    return result if isinstance(result, int) else 0


@contextlib.contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """A function (stage, done, total) that keeps one bar per stage on stderr; off a terminal, a line per stage."""
    console = Console(stderr=True)
    if not console.is_terminal:
        seen = set()

        def line(stage: str, done: int, total: int) -> None:
            if stage not in seen:
                seen.add(stage)
                click.echo(f"{stage} ({total})", err=True)

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
