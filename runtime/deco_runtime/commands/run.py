"""deco-run: predict every frame of a camera, and learn from it."""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import warnings
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deco_runtime import sources
from deco_runtime.commands.install_service import install_service
from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.terminal import exit_with, interrupted, on_signals
from deco_runtime.engine import PRECISIONS
from deco_runtime.engines.registry import engines
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.host.threads import threads
from deco_runtime.learning import registry
from deco_runtime.running.limits import Limits
from deco_runtime.telemetry.console import tell

if TYPE_CHECKING:
    from types import FrameType

STARTED = time.monotonic()


def command() -> click.Command:
    """The click command; its source options come from the modules of `deco_runtime.sources`."""
    found = sources.discover()
    options: list[click.Parameter] = [
        click.Option(
            ["--bundle"],
            required=True,
            type=click.Path(path_type=Path),
            metavar="BUNDLE",
            help="Directory or .deco file made by deco-export.",
        ),
        *(module.OPTION for module in found.values()),
        click.Option(
            ["--state"],
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Where learned state is kept and taken up again.  [default: BUNDLE with '-state' behind its name]",
        ),
        click.Option(
            ["--save-every"],
            default=300,
            show_default=True,
            type=click.IntRange(0),
            metavar="SECONDS",
            help="Save at most this often, and at the end: what a power cut may cost, against what an SD card may be "
            "written. 0 saves after every segment.",
        ),
        click.Option(
            ["--engine"],
            default="auto",
            show_default=True,
            type=click.Choice(["auto", *sorted(engines())]),
            help="Who does the arithmetic; auto times those that are installed, once, and takes the fastest.",
        ),
        click.Option(
            ["--precision"],
            default="fp32",
            show_default=True,
            type=click.Choice(PRECISIONS),
            help="Of the gradients of --recipe paper. bf16 and fp16 need OpenVINO, --set gradient=exact and a "
            "processor that has them.",
        ),
        click.Option(
            ["--recipe"],
            type=RecipeName(),
            help="How to learn: "
            + " ".join(f"{name}: {registry.learner(name).ABOUT}" for name in registry.names())
            + "  [default: the bundle's]",
        ),
        click.Option(
            ["--set", "settings"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Change one value of the recipe, such as segment=64 or retrain_interval=5; may be repeated.",
        ),
        click.Option(["--max-segments"], type=click.IntRange(1), metavar="N", help="Stop after N segments."),
        click.Option(
            ["--test"],
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="Labelled images, DIR/<class>/<image> or DIR/test/<class>/<image>: score the deployed model on them "
            "before, during and after, beside the never-updated one.",
        ),
        click.Option(
            ["--stc"],
            default=500,
            show_default=True,
            type=click.IntRange(1),
            help="With --images: consecutive images of one class in the stream.",
        ),
        click.Option(
            ["--order"],
            default="stc",
            show_default=True,
            type=click.Choice(sources.ORDERS),
            help="With --images: stc draws one from --stc and --seed; recorded goes by file name over all classes, for "
            "the frames of a recording, numbered as the camera saw them and sorted into class folders.",
        ),
        click.Option(
            ["--labels"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="With --video FILE: its true classes, which only score the result. A CSV file with the header "
            "frame,label and one frame a line, or first,last,label and one range a line; frames count from 0, and an "
            "empty label is an unknown one.",
        ),
        click.Option(
            ["--seed"],
            default=0,
            show_default=True,
            type=click.IntRange(0),
            help="Of the learner and the stream order.",
        ),
        click.Option(
            ["--events"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Append one JSON line per event to FILE.",
        ),
        click.Option(
            ["--guard/--no-guard"],
            default=True,
            show_default=True,
            help="Score every update on the bundle's held-out images before it is used, and go back to what was "
            "accepted before it if it does harm; after three such updates learning pauses for a while. The paper has "
            "no guard.",
        ),
        click.Option(
            ["--threads"],
            type=click.IntRange(1, threads()),
            metavar="N",
            help="Threads that one call of the engine is computed by.  [default: the CPUs that may be used, "
            f"{threads()} here]",
        ),
        click.Option(
            ["--cpu-share"],
            default=100,
            show_default=True,
            type=click.IntRange(1, 100),
            metavar="PERCENT",
            help="Of the time that learning may work; it rests between two steps. Predictions of a camera never wait.",
        ),
        click.Option(
            ["--memory-limit"],
            type=click.IntRange(1),
            metavar="MB",
            help="Learning pauses while the program takes more; a small network needs 130 to 250. It also pauses while "
            "less than 32 are left of the machine's memory, or of the control group's.",
        ),
        click.Option(
            ["--max-temperature"],
            type=click.IntRange(1),
            metavar="CELSIUS",
            help="Learning pauses from here on, by the hottest sensor, and goes on 5 degrees below.",
        ),
        click.Option(
            ["--no-learn"],
            is_flag=True,
            help="Predict with the bundle's pre-trained model only; nothing is learned or saved.",
        ),
    ]
    return click.Command(
        "deco-run",
        params=options,
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
deco-run install-service --help                           a systemd service, from boot to shutdown
"""


def deco_run(
    bundle: Path,
    state: Path | None,
    engine: str,
    precision: str,
    recipe: str | None,
    settings: tuple[str, ...],
    max_segments: int | None,
    test: Path | None,
    stc: int,
    order: sources.Order,
    labels: Path | None,
    seed: int,
    events: Path | None,
    save_every: int,
    guard: bool,
    threads: int | None,
    cpu_share: int,
    memory_limit: int | None,
    max_temperature: int | None,
    no_learn: bool,
    **source_values: Any,
) -> int:
    """The command's body; see `--help`. Returns the exit code."""
    given = {name: value for name, value in source_values.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(f"--{name}" for name in sorted(source_values))
        raise UsageError(f"expected exactly one of {names}, but found {len(given)}; say where the frames come from")
    if labels is not None and (source_values["video"] is None or "://" in source_values["video"]):
        raise UsageError(
            "expected --labels beside --video FILE, whose frames it numbers, but found another source; leave it out"
        )
    if precision != "fp32" and engine != "auto":
        raise UsageError(
            f"expected --engine auto beside --precision {precision}, but found --engine {engine}; leave one of them out"
        )
    if util.find_spec("cv2") is None:
        raise RuntimeMissingError(
            "expected OpenCV for capture, but found no module cv2; install 'deco-edge[device]' or the board's own"
        )
    from deco_runtime.running.assemble import Options, prepare  # not at the top: --help must not need OpenCV

    options = Options(
        bundle=bundle,
        state=state,
        engine=engine,
        precision=precision,
        recipe=recipe,
        settings=settings,
        max_segments=max_segments,
        test=test,
        stc=stc,
        order=order,
        labels=labels,
        seed=seed,
        events=events,
        save_every=save_every,
        learn=not no_learn,
        guard=guard,
        threads=threads,
        limits=Limits(cpu_share, memory_limit, max_temperature),
    )
    run, behind = prepare(options, *given.popitem(), started=STARTED)
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


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    warnings.simplefilter("ignore", RuntimeWarning)  # what is not finite is dropped, counted and reported
    # Not a group around everything: its usage line and its errors would be those of a command with subcommands.
    group = click.Group("deco-run", [install_service], context_settings={"help_option_names": ["-h", "--help"]})
    sys.exit(exit_with(group if sys.argv[1:2] == ["install-service"] else command))


if __name__ == "__main__":  # how the service starts it
    main()
