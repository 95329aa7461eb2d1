"""deco-eval: the paper's experiments on the device's own learner."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engines.registry import engines
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.host.scratch import check_temporary
from deco_runtime.learning.recipe import override
from deco_runtime.telemetry.console import say, tell

from deco_benchmarks.config import PRESETS, Config


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def command() -> None:
    """Compare ways to keep a model up to date with an unlabelled stream, and reproduce the paper's tables."""


@command.command()
@click.option(
    "--data",
    default="digits",
    metavar="DIR|digits",
    help="Image folder with or without train/ and test/ (or stream/ and test/), unpacked official archive of CIFAR-10, "
    "CIFAR-100 or SVHN, or scikit-learn's digits.",
)
@click.option("--rows", default="all", metavar="all|NAME,NAME", help="Rows to run, by their names in the table.")
@click.option("--ipc", default="10", metavar="N,N", help="Images per class in the buffer; 0 for rows that keep none.")
@click.option("--seeds", default=3, type=click.IntRange(1), help="Trials per setting, seeds 0 … N−1.")
@click.option("--labelled", type=click.FloatRange(0, 1, min_open=True), help="Share of the training images whose "
              "labels are used; the others are the stream.  [default: 0.1]")  # fmt: skip
@click.option("--labelled-from", metavar="DIR", help="Use the labels of all images of this folder (of its train/, if "
              "any) in place of --labelled, and all training images of --data as the stream. It says which classes "
              "there are; --data may lack some.")  # fmt: skip
@click.option("--stream", default="stc=500", metavar="KEY=N,…|recorded", help="stc: frames of one class in a row. "
              "interleave: scenes seen at a time. drift: severity of corruption at its end, 0 to 5. classes: only the "
              "first so many ever come. passes: times each image comes. aligned: 1 to begin with a whole run. "
              "recorded: an image folder in the order of its file names, as deco-run --order recorded.")  # fmt: skip
@click.option("--preset", default="smoke", type=click.Choice(list(PRESETS)), help="smoke: seconds per trial; quick: a "
              "narrow net on part of the stream, minutes; paper: everything, hours; tracks: everything, on a net of "
              "half that width.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one value of the rows' recipe.")
@click.option(
    "--engine",
    default="auto",
    type=click.Choice(["auto", *sorted(engines())]),
    help="Numeric engine, as for deco-run; its name is in the result.",
)
@click.option(
    "--pretraining",
    default="plain",
    type=click.Choice(["plain", "augmented"]),
    help="What all rows start from: a model trained on the labelled images as they are, as in the paper's experiments, "
    "or on shifted and mirrored ones, as deco-export does for deco+.",
)
@click.option("--validation", is_flag=True, help="Score on held-out training images, to tune without the test set.")
@click.option("--jobs", default=1, type=click.IntRange(1), help="Trials at a time, sharing the CPUs.")
@click.option("--ray", metavar="ADDRESS|local", help="Run the trials on a Ray cluster, or on a local Ray of --jobs "
              "workers; the data must lie at the same path on every machine.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="One JSON file per trial.")
def run(
    data: str,
    rows: str,
    ipc: str,
    seeds: int,
    labelled: float | None,
    labelled_from: str | None,
    out: Path,
    jobs: int,
    ray: str | None,
    **rest: Any,
) -> None:
    """Run trials; those whose result file is there are skipped, so an interrupted sweep goes on.

    A long trial that was cut off goes on from its last update of the model (not on Ray, where it begins anew).

    \b
    deco-eval run --rows DECO,Frozen,Head --out results          seconds, on digits
    deco-eval run --data cifar10 --rows all --ipc 1,10 --preset quick --out results
    deco-eval run --data recording --labelled-from photos --stream recorded --rows DECO+,Frozen --ipc 0 --out results
    """
    check_temporary()
    try:
        from deco_benchmarks import datasets, pools, streams
        from deco_benchmarks.rows import rows as known
        from deco_benchmarks.sweep import pending, run_sweep
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected torch, onnx, scipy, OpenCV and an onnxruntime for deco-eval, but {error}; run "
            "pip install 'deco-edge[eval,export,device]'"
        ) from error
    names = sorted(known()) if rows == "all" else rows.split(",")
    unknown = [name for name in names if name not in known()]
    if unknown:
        raise UsageError(f"expected --rows all or names among {', '.join(sorted(known()))}, but found {unknown[0]!r}")
    try:
        sizes = [int(n) for n in ipc.split(",")]
    except ValueError as error:
        raise UsageError(f"expected --ipc as whole numbers such as 1,10, but found {ipc!r}") from error
    keeping = [name for name in names if known()[name].keeps_images]
    if min(sizes) < (1 if keeping else 0):
        of = f"for row {keeping[0]}, which keeps images" if keeping else "which is no images"
        raise UsageError(f"expected --ipc of at least {1 if keeping else 0}, {of}, but found {min(sizes)}; raise it")
    if labelled_from is not None:
        if labelled is not None:
            raise UsageError(
                f"expected --labelled-from alone, since it uses all labels of its folder, but found --labelled "
                f"{labelled:g} beside it; leave one of them out"
            )
        datasets.check_folder(data, "--labelled-from")
        rest["labelled_from"] = Path(labelled_from).resolve().name
        labelled_from = str(Path(labelled_from).absolute())
    rest["labelled"] = 1.0 if labelled_from is not None else labelled or 0.1
    if streams.parse(rest["stream"]).recorded and (note := datasets.check_recorded(data, labelled_from)):
        say(f"note: {note}")
    for name in names:
        override(known()[name].recipe, rest["settings"])
    dataset = datasets.name(data)
    if data != "digits":
        data = str(Path(data).absolute())  # another machine's workers start elsewhere
    configs = [
        Config(row=row, dataset=dataset, ipc=n, seed=seed, **rest)
        for seed in range(seeds)
        for n in sizes
        for row in names
    ]
    todo = pending(configs, out)
    if len(todo) < len(configs):
        say(f"{len(configs) - len(todo)} of {len(configs)} trials are in {out} already")
    failed = finished = 0

    with progress_bars() as progress:

        def done(config: Config, result: dict[str, Any]) -> None:
            nonlocal failed, finished
            finished += 1
            failed += "error" in result
            progress("trials", finished, len(todo))
            figures = f"failed: {result['error']}" if "error" in result else (
                f"before the stream {result['before_accuracy']:.1%}, after it {result['final_accuracy']:.1%}, "
                f"never updated {result['frozen_accuracy']:.1%}, "
                f"{result['seconds']:.0f} s"
            )  # fmt: skip
            tell(f"{config.row}, ipc {config.ipc}, seed {config.seed}: {figures}")

        if ray is not None:
            pool = pools.ray(ray, jobs)
        elif jobs > 1:
            pool = pools.processes(jobs)
        else:
            pool = pools.one_by_one(lambda n, of: progress("segments of the trial", n, of))
        run_sweep(configs, data, labelled_from, out, pool, progress, done)
    if failed:
        say(f"{failed} trials failed; their reasons are in {out}/*.failed, and running again tries them anew")


@command.command()
@click.argument("results", type=click.Path(path_type=Path))
def table(results: Path) -> None:
    """Print the tables of all result files in the folder RESULTS as Markdown, with the paper's numbers beside ours."""
    from deco_benchmarks.table import read, tables

    click.echo(tables(read(results)))


@command.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the PNG files go.")
def plot(results: Path, out: Path) -> None:
    """Draw the figures that the result files in the folder RESULTS allow.

    \b
    learning-curves   accuracy against frames seen, all rows
    matching-loss     matching distance at each iteration: DECO, DECO-Inner, DECO-Full
    confusions        what each class is most often taken for, before and after the stream
    study-KEY         accuracies and kept share against a recipe value that was varied with --set, such as
                      retrain_interval (β), threshold (M) or alpha (α)
    buffer            the buffer's images before and after the stream
    """
    check_temporary()
    try:
        from deco_benchmarks.plot import draw_all
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected matplotlib for deco-eval plot, but {error}; run pip install 'deco-edge[eval,export,device]'"
        ) from error
    from deco_benchmarks.table import read

    for path in draw_all(read(results), results, out):
        click.echo(path)


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    sys.exit(exit_with(command))
