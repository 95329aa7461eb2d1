"""deco-doctor: can this board run and learn, and what to do if not."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from deco_runtime.commands.provider_option import provider_option
from deco_runtime.commands.terminal import exit_with
from deco_runtime.commands.view_options import view_options, views
from deco_runtime.doctor import board, camera, disk, graphs, packages
from deco_runtime.doctor.findings import Finding, as_json, can_run, verdict
from deco_runtime.errors import UsageError
from deco_runtime.sources.view import Roi, View


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bundle",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Made by deco-export: verify its files and run every learning graph of every engine here.",
)
@click.option(
    "--camera",
    "camera_value",
    metavar="N|DEVICE|URL",
    help="Look at the frames of a camera: 0 for the first one, its device such as /dev/video0, or a URL.",
)
@click.option(
    "--seconds",
    default=3.0,
    show_default=True,
    type=click.FloatRange(0.5, 60),
    help="How long to look at the camera.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where learned state will be kept, as for deco-run: try that disk.  [default: beside BUNDLE]",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object instead of lines.")
def command(
    bundle: Path | None,
    camera_value: str | None,
    seconds: float,
    state: Path | None,
    json_wanted: bool,
    provider: str,
    roi: tuple[Roi, ...],
    rotate: tuple[str, ...],
    every: int,
) -> int:
    """Tell whether this board can run and learn, and what to do if not.

    Each package, graph and the camera is tried in a process of its own, so what crashes or hangs there is found, not
    suffered. One line per finding, OK, WARN or FAIL, and a verdict; the exit code is 1 if anything failed.

    \b
    deco-doctor                               packages, memory, disk: before there is a bundle
    deco-doctor --bundle bundle               and every graph, against the values it gave where it was exported
    deco-doctor --bundle bundle --provider cuda    every graph on what deco-run --provider cuda would take
    deco-doctor --bundle bundle --camera 0    and what the camera shows: before the first deco-run
    deco-doctor --camera rtsp://10.0.0.7/live --seconds 10 --roi 25%,0,50%,100%
    deco-doctor --bundle bundle --json > board.json
    """
    if provider != "auto" and bundle is None:
        raise UsageError(
            f"expected --bundle beside --provider {provider}, whose graphs are tried on it, but found none; add it, or "
            "leave --provider out to see what the installed onnxruntime offers"
        )
    found = []
    for finding in examine(bundle, camera_value, seconds, views(1, roi, rotate, every)[0], provider, state):
        found.append(finding)
        if not json_wanted:
            click.echo(finding.line())
    sentence = verdict(found, bundle is not None)
    click.echo(as_json(found, sentence) if json_wanted else f"verdict: {sentence}")
    return 0 if can_run(found) else 1


command.params += [provider_option(), *view_options()]


def examine(
    bundle: Path | None,
    camera_value: str | None,
    seconds: float,
    view: View,
    provider: str = "auto",
    state: Path | None = None,
) -> Iterator[Finding]:
    """All findings, in the order in which one thing needs the other. view: how the camera is looked at. provider: what
    the graphs are tried on. state: where learned state will be, None for beside the bundle."""
    yield from board.findings()
    broken: set[str] = set()
    for finding in packages.findings():
        if finding.figures.get("imported") is False:
            broken.add(finding.check)
        yield finding
    state_bytes, size = 0, None
    if bundle is not None:
        state = state or Path(os.path.realpath(bundle) + "-state")  # as deco-run has it, but also for what is no bundle
        for finding in graphs.findings(bundle, broken, provider):
            state_bytes, size = finding.figures.get("state_bytes", state_bytes), finding.figures.get("size", size)
            yield finding
    yield from disk.findings(state or Path(), state_bytes)
    if camera_value is not None:
        yield from camera.findings(camera_value, seconds, broken, view, size)


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names and ° in whatever the board's locale is
    sys.exit(exit_with(command))
