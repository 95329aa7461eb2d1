"""What people read: tables of one result, of two, and of all boards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from deco_runtime.learning import registry
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deco_benchmarks.bench.result import Result
from deco_benchmarks.bench.timing import Quantity

COLUMNS = (
    ("predict", "predict"),
    ("iteration", "iteration"),
    ("segment", "segment"),
    ("update", "update"),
    ("deco_plus_segment", "segment, deco+"),
    ("deco_plus_learn", "observed segment, deco+"),
    ("frames_per_second_learning", "frames while learning"),
    ("predict_p99_idle", "p99 idle"),
    ("predict_p99_learning", "p99 learning"),
    ("peak_memory_learning", "peak memory"),
    ("start_up", "start"),
    ("install_size", "installed"),
)
"""Quantities of a board's row, with their headings."""

PAGE = """# Boards

What `deco-bench run` measured: a row for each board, bundle and engine. `deco-bench boards` writes this page from the
files in `benchmarks/boards/`. To add a board, run on it, with nothing else running,

```
pip install 'deco-edge[device]'
deco-bench run --bundle BUNDLE --out NAME.json
```

put NAME.json into that folder, and run `deco-bench boards benchmarks/boards > docs/boards.md`.

How to install it, cameras and known traps: [Jetson](boards/jetson.md), [Raspberry Pi](boards/raspberry-pi.md),
[RK3588](boards/rk3588.md), [x86-64](boards/x86.md). What ran where: the rows below, on their processors; all tests on
x86-64 without a GPU; `--provider openvino` there too. Not run by us so far: any GPU, CUDA and TensorRT (what needs no
GPU of them is tested), a Jetson, a Raspberry Pi, an RK3588.

Threads: the cores it ran on; load: processes that wanted to run on them in the minute before, which should be none.
Images are random. Segment: 128 frames of one class, all iterations. Update: all epochs of opt_θ on the buffer. Segment,
deco+: the same frames by that recipe, update included, as earlier versions had it, which sent them through the network
once more; observed segment: without that. All else is by the recipe of the row. Frames
are predicted without a pause, alone (idle) or beside a thread that learns; p99 is the 99th percentile of one
prediction's latency. Start: from the start of the process to its first prediction, files cached. Installed: the
packages that the device side needs. A * marks a quick run, whose segment and update are scaled from a few iterations
and epochs. Times are medians.

"""


@cache
def titles() -> dict[str, str]:
    """Quantities in the order in which they are shown."""
    of_learners = {
        f"{kind.NAME.replace('+', '_plus')}_{what}": f"{words}, {kind.NAME}"
        for kind in registry.learners().values()
        for what, words in (("predict", "predict one frame"), ("learn", "learn an observed segment and update"))
    }
    return {
        "predict": "predict one frame",
        "vote": "vote on a segment",
        "random_model": "draw a random model",
        "g_syn": "weight gradient, synthetic images",
        "g_real": "weight gradient, real images",
        "gradient_distance": "distance of gradients",
        "theta_plus_minus": "θ+ and θ−",
        "input_gradients": "image gradients at θ+ and θ−",
        "discrimination": "contrastive term",
        "opt_s": "step on the images",
        "iteration": "one whole iteration",
        "retrain_step": "one retraining step",
        "state_save": "save the state",
        "segment": "learn a segment",
        "update": "update the model",
        **of_learners,
        "deco_plus_segment": "represent a segment, learn it and update, deco+",
        "frames_per_second_idle": "frames predicted, idle",
        "frames_per_second_learning": "frames predicted while learning",
        "predict_p99_idle": "predict, 99th percentile, idle",
        "predict_p99_learning": "predict, 99th percentile, while learning",
        "start_up": "start to first prediction",
        "peak_memory_predicting": "peak memory, first prediction",
        "peak_memory_learning": "peak memory, learning",
        "install_size": "installed packages",
    }


def show(result: Result) -> RenderableType:
    """Everything a person wants to see of one run."""
    board = result.content["board"]
    title = f"{result.board}, {board['threads']} threads\n{result.bundle}, --recipe {result.recipe}"
    table = Table(title=title, title_justify="left")
    table.add_column("median (quartiles)")
    for engine in result.engines:
        table.add_column(engine, justify="right")
    for name in _names(result.engines.values()):
        table.add_row(titles().get(name, name), *(_spread(found.get(name)) for found in result.engines.values()))
    parts: list[RenderableType] = [table]
    if board.get("load", 0) > 1:
        parts.append(Text(f"load was {board['load']} before: other work makes times longer and comparisons unfair"))
    if result.content["quick"] and {"segment", "update"} & set(_names(result.engines.values())):
        parts.append(Text("quick: segment and update are scaled from a few iterations and epochs"))
    if result.ratios:
        ratios = Table(title=f"{result.content['best_engine']}, smaller is better", title_justify="left")
        ratios.add_column("ratio")
        ratios.add_column("", justify="right")
        for name, ratio in result.ratios.items():
            ratios.add_row(name, f"{ratio:.3f}")
        for name in result.content.get("missing", {}):
            ratios.add_row(name, "–")
        parts.append(ratios)
    samples = result.content.get("sustained", {}).get("samples", [])[1:]
    for what in ("iterations", "segments"):
        rates = [_figure(sample[f"{what}_per_second"]) for sample in samples if f"{what}_per_second" in sample]
        if rates:
            parts.append(Text(f"sustained: {rates[0]} {what} per second at first, {rates[-1]} at the end"))
    return Group(*parts)


def compare(a: Result, b: Result) -> RenderableType:
    """B / A of every quantity that both have, engine by engine, and of the ratios."""
    table = Table(title=f"A: {a.name}, {a.board}\nB: {b.name}, {b.board}", title_justify="left")
    table.add_column("")
    for heading in ("A", "B", "B / A"):
        table.add_column(heading, justify="right")
    for engine in [name for name in a.engines if name in b.engines]:
        ours, theirs = a.engines[engine], b.engines[engine]
        for name in _names([ours, theirs]):
            x, y = ours.get(name), theirs.get(name)
            table.add_row(f"{engine}: {titles().get(name, name)}", _value(x), _value(y), _quotient(x, y))
        table.add_section()
    for name in [name for name in a.ratios if name in b.ratios]:
        x, y = (Quantity(r.ratios[name], r.ratios[name], r.ratios[name], 1, "") for r in (a, b))
        table.add_row(name, _value(x), _value(y), _quotient(x, y))
    notes = [Text(f"A and B differ: {words}") for words in _differences(a, b)]
    return Group(table, *notes)


def row(result: Result) -> str:
    """The Markdown rows of a board's table, one per engine."""
    mark = "*" if result.content["quick"] else ""
    board = result.content["board"]
    head = f"{_cell(result.board)} | {board['threads']} | {board.get('load', '–')} | {_cell(result.bundle)}"
    head += f" | {_cell(result.recipe)}"
    lines = []
    for engine, found in result.engines.items():
        cells = [
            _value(found.get(name)) + (mark if name in ("segment", "update") and name in found else "")
            for name, _ in COLUMNS
        ]
        lines.append(f"| {head} | {_cell(engine)} | {' | '.join(cells)} | {_cell(str(result.content['time'])[:10])} |")
    return "\n".join(lines)


def boards(results: Iterable[Result]) -> str:
    """The page with all boards' rows."""
    headings = ["board", "threads", "load", "bundle", "recipe", "engine", *(heading for _, heading in COLUMNS), "date"]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|", *(row(result) for result in results)]
    return PAGE + "\n".join(lines)


def print_to(console: Console, content: RenderableType) -> None:
    """Print tables whole, also where the output is no terminal and has no width."""
    if not console.is_terminal:
        console.width = 200
    console.print(content)


def _differences(a: Result, b: Result) -> list[str]:
    found = []
    if a.content["bundle"].get("hash") != b.content["bundle"].get("hash"):
        found.append(f"bundle {a.bundle}, and {b.bundle}" if a.bundle != b.bundle else "another export of the bundle")
    if a.recipe != b.recipe:
        found.append(f"--recipe {a.recipe}, and {b.recipe}")
    if a.content["quick"] != b.content["quick"]:
        found.append("one was measured with --quick")
    if a.content["board"]["threads"] != b.content["board"]["threads"]:
        found.append(f"{a.content['board']['threads']} and {b.content['board']['threads']} threads")
    return found


def _names(found: Iterable[dict[str, Quantity]]) -> Sequence[str]:
    """Names of all quantities, those of `titles` first and in its order."""
    names = {name for quantities in found for name in quantities}
    return [name for name in titles() if name in names] + sorted(names - titles().keys())


def _spread(value: Quantity | None) -> str:
    if value is None:
        return "–"
    if value.q1 == value.q3:
        return _value(value)
    return f"{_figure(value.median)} ({_figure(value.q1)} – {_figure(value.q3)}) {value.unit}"


def _value(value: Quantity | None) -> str:
    return "–" if value is None else f"{_figure(value.median)} {value.unit}".rstrip()


def _quotient(a: Quantity | None, b: Quantity | None) -> str:
    if a is None or b is None or a.unit != b.unit or a.median == 0:
        return "–"
    return f"{b.median / a.median:.2f}"


def _figure(value: float) -> str:
    """Three digits, more before the point where there are more."""
    return f"{value:.0f}" if value == 0 or abs(value) >= 100 else f"{value:#.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
