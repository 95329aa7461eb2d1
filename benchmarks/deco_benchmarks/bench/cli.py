"""deco-bench: how fast a machine learns, measured on the machine itself."""

from __future__ import annotations

import json
import os
import sys
from importlib import util
from pathlib import Path

import click
from deco_runtime.commands.provider_option import provider_option
from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engines.providers import on
from deco_runtime.engines.registry import engines
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.telemetry.console import say
from rich.console import Console

from deco_benchmarks.bench import result as results
from deco_benchmarks.bench import tables


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def command() -> None:
    """Measure how long each part of the learner takes on this machine, and compare machines.

    \b
    deco-bench run --bundle bundle --quick             a minute: is this board fast enough?
    deco-bench run --bundle bundle --out board.json    minutes: figures to keep
    deco-bench counts --bundle bundle                  what it costs without a clock
    deco-bench profile --bundle bundle                 where the time of a gradient goes
    deco-bench growth --out growth.json                what more classes or larger images cost
    deco-bench compare before.json after.json          what became faster, what slower
    deco-bench boards benchmarks/boards > docs/boards.md
    """


@command.command()
@click.option("--bundle", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Made by deco-export.")
@click.option(
    "--recipe",
    type=RecipeName(),
    help="What is learned by, as for deco-run. paper needs a bundle of deco-export --ipc 10, and measures deco+ "
    "beside.  [default: the bundle's]",
)
@click.option(
    "--engine",
    default="all",
    type=click.Choice(["auto", "all", *sorted(engines())]),
    help="all measures every engine that runs here, and portable on every provider that auto would time; auto the one "
    "that deco-run would take.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json", help="Write everything measured there.")
@click.option(
    "--quick", is_flag=True, help="Few repeats; segment and update are scaled from a part, and the file says so."
)
@click.option(
    "--sustained",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="Then learn for so long, with temperature, clock and throttling every 10 s where the board shows them.",
)
@click.option(
    "--against",
    type=click.Choice(["torch"]),
    help="Then run the same work in eager torch, turn by turn on the same threads; needs 'deco-edge[export,device]'.",
)
def run(
    bundle: Path,
    recipe: str | None,
    engine: str,
    out: Path | None,
    quick: bool,
    sustained: float | None,
    against: str | None,
    provider: str,
) -> None:
    """Measure this machine with a bundle and random images; no data is needed.

    Whole segments and updates, by the paper's recipe every stage of an iteration too, frames predicted while learning,
    start-up, memory and sizes. Each engine runs in processes of its own, on the cores this one may use (taskset limits
    them).

    \b
    deco-bench run --bundle bundle --quick
    deco-bench run --bundle bundle --engine auto --sustained 15 --out board.json
    taskset -c 0,1 deco-bench run --bundle bundle --out two-cores.json
    deco-bench run --bundle bundle --recipe paper --against torch --out workstation.json
    """
    _check_modules(against == "torch")
    from deco_benchmarks.bench.runner import Bench, Options  # not at the top: the other commands need no OpenCV

    if out is not None:
        _check_writable(out)
    options = Options(bundle, on(engine, provider), quick, sustained, against == "torch", recipe)
    with progress_bars() as progress:
        content = Bench(options, progress).measure(
            lambda content: results.write(out, content) if out is not None else None
        )
    tables.print_to(Console(), tables.show(results.parse(bundle.name, content)))
    if out is not None:
        say(f"written to {out}")


run.params.append(provider_option())


@command.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.json")
def row(file: Path) -> None:
    """Print the result as Markdown, one row per engine, as docs/boards.md has them.

    \b
    deco-bench row board.json
    """
    click.echo(tables.row(results.read(file)))


@command.command()
@click.argument("a", type=click.Path(path_type=Path), metavar="A.json")
@click.argument("b", type=click.Path(path_type=Path), metavar="B.json")
def compare(a: Path, b: Path) -> None:
    """Print B / A of every quantity that both results have: below 1 is faster or smaller, but for frames per second.

    \b
    deco-bench compare raspberry-pi-4.json raspberry-pi-5.json
    """
    tables.print_to(Console(), tables.compare(results.read(a), results.read(b)))


@command.command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def boards(folder: Path) -> None:
    """Print docs/boards.md from all results in DIR.

    \b
    deco-bench boards benchmarks/boards > docs/boards.md
    """
    click.echo(tables.boards(results.read_all(folder)))


@command.command()
@click.option("--bundle", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Made by deco-export.")
def counts(bundle: Path) -> None:
    """Print what a learning step costs without a clock: operators and bytes per graph, runs per segment and update.

    JSON, the same wherever the same onnxruntime runs: compare two versions of a model or of deco-export with it.

    \b
    deco-bench counts --bundle bundle > counts.json
    """
    _check_modules(False)
    from deco_benchmarks.bench.counts import measure  # not at the top: the other commands need no onnxruntime

    click.echo(json.dumps(measure(bundle), indent=1))


@command.command()
@click.option("--width", default=128, type=click.IntRange(1), help="Channels of the ConvNet that is measured.")
@click.option("--engine", default="portable", type=click.Choice(sorted(engines())), help="Numeric engine.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE.json", help="Result.")
def growth(width: int, engine: str, out: Path, provider: str) -> None:
    """Measure how a segment's time and memory grow with segment, images per class, classes and image side.

    Exports a small bundle of noise for each case, so it needs torch too. Memory is that of the process without the
    segment's own images.

    \b
    deco-bench growth --out growth.json
    """
    _check_modules(True)
    _check_writable(out)
    from deco_benchmarks.bench.growth import measure  # not at the top: the other commands need no torch

    with progress_bars() as progress:
        content = measure(width, on(engine, provider), progress)
    out.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    for name, case in content["cases"].items():
        click.echo(
            f"{name:<14} pixels x {case['pixels_vs_base']:.2f}   time x {case['seconds_vs_base']:.2f}   "
            f"memory x {case['peak_mib_vs_base']:.2f} ({case['peak_mib']:.0f} MiB)"
        )


growth.params.append(provider_option())


@command.command()
@click.option("--bundle", required=True, type=click.Path(path_type=Path), metavar="BUNDLE", help="Made by deco-export.")
@click.option("--graph", default="weight_gradient", metavar="NAME", help="Learning graph to look into.")
@click.option("--engine", default="portable", type=click.Choice(["portable", "openvino"]), help="Whose operators.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json", help="Write the profile there.")
def profile(bundle: Path, graph: str, engine: str, out: Path | None) -> None:
    """Print which operators of a learning graph take how much of its time, the costliest first.

    \b
    deco-bench profile --bundle bundle --graph input_gradient --engine openvino
    """
    _check_modules(False)
    if out is not None:
        _check_writable(out)
    if engine == "openvino" and util.find_spec("openvino") is None:
        raise RuntimeMissingError(
            "expected the package openvino, but found none; run pip install 'deco-edge[openvino]'"
        )
    from deco_benchmarks.bench.profile import measure  # not at the top: the other commands need no onnxruntime

    content = measure(bundle, graph, engine)
    if out is not None:
        results.write(out, content)
    per_image = content["milliseconds"] / content["micro_batch"]
    click.echo(f"{graph} on {engine}, {content['threads']} threads: {per_image:.2f} ms per image")
    for each in content["operators"]:
        click.echo(f"{each['share']:6.1%} {each['milliseconds']:9.3f} ms {each['nodes']:4d}  {each['operator']}")


def _check_modules(against_torch: bool) -> None:
    if util.find_spec("cv2") is None:
        raise RuntimeMissingError(
            "expected OpenCV, which deco-run loads too, but found no module cv2; install 'deco-edge[device]' or the "
            "board's own"
        )
    if against_torch:
        absent = [name for name in ("torch", "onnx", "deco_export", "deco_models") if util.find_spec(name) is None]
        if absent:
            raise RuntimeMissingError(
                f"expected torch and deco-export for --against torch, but found no module {absent[0]}; "
                "install 'deco-edge[export,device]', or leave the option out"
            )


def _check_writable(out: Path) -> None:
    """Met here rather than after the measurements."""
    folder = out.absolute().parent
    folder.mkdir(parents=True, exist_ok=True)
    if out.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"expected --out to name a file that can be written, but {out} cannot; choose another")


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    sys.exit(exit_with(command))
