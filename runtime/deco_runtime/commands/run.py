"""deco-run: predict every frame of a camera, and learn from it."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from deco_runtime import sources
from deco_runtime.commands.run_options import options
from deco_runtime.commands.terminal import exit_with, interrupted, on_signals
from deco_runtime.commands.view_options import views
from deco_runtime.engines.providers import TENSORRT, on
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.running.limits import Limits
from deco_runtime.telemetry.console import tell
from deco_runtime.telemetry.redact import redact

if TYPE_CHECKING:
    from types import FrameType

COMPLETE = "_DECO_RUN_COMPLETE"
"""Set where a shell asks what a line could go on with; what is typed is in COMP_WORDS then."""
STARTED = time.monotonic()


class _Command(click.Command):
    """deco-run itself, which shells complete with its subcommands too."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name) for name in SUBCOMMANDS if name.startswith(incomplete)]
        return names + super().shell_complete(ctx, incomplete)


def command() -> click.Command:
    """The click command."""
    return _Command(
        "deco-run",
        params=options(),
        callback=deco_run,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=_HELP,
    )


_HELP = """Predict every frame of a stream and learn from it, without labels.

Frames are gathered into segments, and each is pseudo-labelled by majority vote. The recipe deco+ takes its frames into
the statistics of a regression, solved anew after each segment; the paper's condenses them into a small buffer of
synthetic images, on which the deployed model is retrained every few segments. What is learned is kept in --state and
taken up again by the next run; Ctrl-C, SIGTERM or SIGHUP stops cleanly. The last line on standard output is one JSON
object.

\b
deco-run --bundle digits-bundle --demo                    the stream inside the bundle
deco-run --bundle bundle --camera 0 --events events.jsonl
deco-run --bundle bundle --images photos --test others    a labelled folder as a stream, scored on another
deco-run teach --help                                     corrections and new classes, also while a run goes on
deco-run install-service --help                           a systemd service, from boot to shutdown
deco-run show bundle-state --events events.jsonl          what a run did, as a page of HTML
"""


def deco_run(**values: Any) -> int:
    """The command's body; values: of its options, see `--help`. Returns the exit code."""
    given = _given(values)
    if values["labels"] is not None and (len(given) > 1 or given[0][0] != "video" or "://" in given[0][1]):
        raise UsageError(
            "expected --labels beside --video FILE, whose frames it numbers, but found another source; leave it out"
        )
    half = values["precision"] == "fp16" and values["provider"] == TENSORRT  # predictions, not gradients
    for option in ("engine", "provider"):
        if values["precision"] != "fp32" and values[option] != "auto" and not half:
            raise UsageError(
                f"expected --{option} auto beside --precision {values['precision']}, but found --{option} "
                f"{values[option]}; leave one of them out"
            )
    on(values["engine"], values["provider"])  # raises where the two do not go together
    if util.find_spec("cv2") is None:
        raise RuntimeMissingError(
            "expected OpenCV for capture, but found no module cv2; install 'deco-edge[device]' or the board's own"
        )
    from deco_runtime.running.assemble import Options, prepare  # not at the top: --help must not need OpenCV

    limits = Limits(values["cpu_share"], values["memory_limit"], values["max_temperature"])
    known = {field.name for field in fields(Options)}
    looked = tuple(views(len(given), values["roi"], values["rotate"], values["every"]))
    asked = Options(**{key: value for key, value in values.items() if key in known}, limits=limits, views=looked)
    run, behind = prepare(asked, given, started=STARTED)
    # A handler interrupts the main thread anywhere, also where it holds the lock of an Event; this queue has none.
    wanted: queue.SimpleQueue[int] = queue.SimpleQueue()

    def stop(number: int, _: FrameType | None) -> None:
        wanted.put(number)

    def wait_for_signal() -> None:
        wanted.get()
        run.stop.set()

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    on_signals(stop)
    if interrupted():
        raise KeyboardInterrupt
    with run.bus:
        summary = run.go(behind)
    tell(json.dumps(summary))
    return 0


def _given(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The sources that were asked for, by option and value. Raises UsageError for none, and for several that cannot be
    learned from at once."""
    found = sources.discover()
    given = []
    for name, module in found.items():
        value = values[name]
        given += [(name, each) for each in value] if module.OPTION.multiple else [(name, value)] * (value is not None)
    listed = ", ".join(f"--{name}" for name in found)
    if not given:
        raise UsageError(f"expected exactly one of {listed}, but found 0; say where the frames come from")
    if len(given) > 1:
        if not sources.are_live(given):
            raise UsageError(
                f"expected exactly one of {listed}, or several that are live, --camera and --video URL, but found "
                f"{len(given)}; leave some out"
            )
        often, count = Counter(value for _, value in given).most_common(1)[0]
        if count > 1:
            raise UsageError(f"expected each camera once, but found {redact(often)} {count} times; leave it out")
    return given


SUBCOMMANDS = {
    "install-service": "install_service:install_service",
    "show": "show:show",
    "teach": "teach:teach",
}
"""By name, the module here and the click command in it."""


def subcommand(name: str) -> click.Command:
    """One of SUBCOMMANDS, in a group, so that its usage line says how it is called."""
    module, _, attribute = SUBCOMMANDS[name].partition(":")
    found = getattr(import_module(f"deco_runtime.commands.{module}"), attribute)
    return click.Group("deco-run", [found], context_settings={"help_option_names": ["-h", "--help"]})


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    warnings.simplefilter("ignore", RuntimeWarning)  # what is not finite is dropped, counted and reported
    # Not a group around everything: its usage line and its errors would be those of a command with subcommands.
    words = os.environ.get("COMP_WORDS", "").split() if COMPLETE in os.environ else sys.argv
    name = " ".join(words[1:2])
    sys.exit(exit_with(partial(subcommand, name) if name in SUBCOMMANDS else command))


if __name__ == "__main__":  # how the service starts it
    main()
