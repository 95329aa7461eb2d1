"""The options of deco-run that say where answers go."""

from __future__ import annotations

import click

from deco_runtime.telemetry.output import VARIABLE, discover, open_way
from deco_runtime.telemetry.output.outputs import ONS


def options() -> list[click.Parameter]:
    """`--output` and what goes with it."""
    examples = ", ".join(dict.fromkeys(module.EXAMPLE for module in discover().values()))
    return [
        click.Option(
            ["--output", "outputs"],
            multiple=True,
            envvar=VARIABLE,
            callback=checked,
            metavar="WHERE",
            help=f"Send answers there as JSON, one of {examples}, where - is standard output; may be repeated. What "
            "cannot be sent holds up nothing, and is counted. The environment variable "
            f"{VARIABLE} keeps addresses, with blanks between them, out of the list of processes.",
        ),
        click.Option(
            ["--output-on"],
            default="change",
            show_default=True,
            type=click.Choice(ONS),
            help="Send the answer to every frame, or only another answer than before.",
        ),
        click.Option(
            ["--output-after"],
            default=1.0,
            show_default=True,
            type=click.FloatRange(0, 86400),
            metavar="SECONDS",
            help="With --output-on change: once all frames of so many seconds show the other class. Of a file these "
            "are seconds of the recording.",
        ),
    ]


def checked(_: click.Context, __: click.Parameter, addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Before anything else is opened: what cannot be an output, or lacks its package, is refused."""
    for address in addresses:
        open_way(address)
    return addresses
