"""The options of deco-run, as its help lists them; one that a run goes by has a field in `running.assemble.Options`."""

from __future__ import annotations

from pathlib import Path

import click

from deco_runtime import sources
from deco_runtime.commands.provider_option import provider_option
from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.view_options import view_options
from deco_runtime.engine import PRECISIONS
from deco_runtime.engines.registry import engines
from deco_runtime.errors import UsageError
from deco_runtime.host.threads import threads
from deco_runtime.learning import registry
from deco_runtime.telemetry.output.options import options as output_options


def options() -> list[click.Parameter]:
    """All of them; those of the sources come from the modules of `deco_runtime.sources`."""
    return [
        click.Option(
            ["--bundle"],
            required=True,
            type=click.Path(path_type=Path),
            metavar="BUNDLE",
            help="Directory or .deco file made by deco-export.",
        ),
        *(module.OPTION for module in sources.discover().values()),
        *view_options(),
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
        provider_option(),
        click.Option(
            ["--precision"],
            default="fp32",
            show_default=True,
            type=click.Choice(PRECISIONS),
            help="Of the gradients of --recipe paper. bf16 and fp16 need OpenVINO, --set gradient=exact and a "
            "processor that has them. With --provider tensorrt, fp16 is that of predictions instead.",
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
        *output_options(),
        click.Option(
            ["--page"],
            is_flag=False,
            flag_value="127.0.0.1:8080",
            metavar="[HOST:PORT]",
            help="Open a page in the browser, by default at 127.0.0.1:8080, for this machine alone: what it sees, how "
            "it learns, and buttons to correct it and to teach it new classes; metrics for Prometheus at /metrics. "
            "Elsewhere, as with 0.0.0.0:8080, it asks for a token, which is printed with the address. Needs "
            "'deco-edge[page]'.",
        ),
        click.Option(
            ["--page-tls"],
            nargs=2,
            type=click.Path(path_type=Path),
            metavar="CERT KEY",
            help="Serve the page by https, with this certificate and its key, PEM files.",
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
            type=click.IntRange(1),
            callback=_at_most_the_cpus,
            metavar="N",
            help="Threads that one call of the engine is computed by, at most the CPUs that may be used.  [default: as "
            "many]",
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


def _at_most_the_cpus(_: click.Context, __: click.Parameter, count: int | None) -> int | None:
    """Not the option's range, which the help tells: the help is the same on every machine."""
    if count is not None and count > threads():
        raise UsageError(
            f"expected --threads of at most {threads()}, the CPUs that may be used, but found {count}; lower it"
        )
    return count
