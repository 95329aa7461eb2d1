"""deco-run show: what a run did, told after the fact by one page of HTML."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from deco_runtime.errors import UsageError
from deco_runtime.story import learned
from deco_runtime.story.lines import Reading, events
from deco_runtime.story.page import page
from deco_runtime.story.story import Story


@click.command("show", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("state", required=False, type=click.Path(path_type=Path), metavar="[STATE]")
@click.option(
    "--events",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of deco-run --events; - for standard input, as of zcat.",
)
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The page, which takes the place of the one before.",
)
def show(state: Path | None, file: Path | None, out: Path) -> None:
    """Tell what a run did: what was seen, what was learned and rejected, how often it was right, what failed.

    STATE is the run's --state, FILE its --events; either may be left out. The page is one file that needs nothing
    else, and neither the bundle nor the device.

    \b
    deco-run show bundle-state --events events.jsonl --out report.html
    """
    if state is None and file is None:
        raise UsageError("expected the learned state, --events or both, but found neither; say what to tell of")
    for given in filter(None, (state, file)):
        if os.path.exists(given) and os.path.exists(out) and os.path.samefile(given, out):
            raise UsageError(f"expected --out to be another file than {given}, but found the same; choose another")
    kept = learned.read(state) if state is not None else None
    story, reading = Story(), Reading()
    if file is not None:
        with open(0, "rb", closefd=False) if str(file) == "-" else file.open("rb") as opened:
            for event in events(opened, reading):
                story.take(event)
    story.end()
    notes = []
    if file is None:
        notes.append("Only the learned state was given: --events tells the rest.")
    if state is not None and kept is None:
        notes.append(f"Nothing was saved in {state} yet.")
    name = str(file.name) if file is not None and str(file) != "-" else str(state or "events")
    made = page(name, story, reading, kept, notes)
    _write(out, made)
    click.echo(f"wrote {out}: {story.events} events of {story.run_count} runs")


def _write(out: Path, made: bytes) -> None:
    """All of it, or what was there before."""
    whole = out.parent / f".{out.name}.partial"
    try:
        whole.write_bytes(made)
        os.replace(whole, out)
    except OSError as error:
        with suppress(OSError):
            whole.unlink(missing_ok=True)
        raise UsageError(
            f"expected --out to name a file that can be written, but {out}: {error.strerror}; change it"
        ) from error
