"""What the figures have in common: panels, lines and their looks, titles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from deco_benchmarks.table import Result, grouped, labelled, rank

Doubles = np.ndarray
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by colour-blind people too (Okabe and Ito)."""
DASHES = ("-", "--", "-.", ":")
"""Of another number than COLOURS, with no common divisor: together they tell 28 rows apart."""


def new_panels(count: int, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure of so many axes side by side; height in inches."""
    figure = Figure(figsize=(6.5 * count, height), layout="constrained")
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels


def looks_of(rows: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour and dashes of each row; no two rows share both."""
    return {
        row: {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        for number, row in enumerate(rows)
    }


def mean_line(axes: Axes, x: Sequence[float], runs: Doubles, label: str, **looks: Any) -> Line2D:
    """Mean over runs (seeds, points) in %, a point at its begin, and its deviation as a shade."""
    mean, spread = runs.mean(axis=0), deviation(runs)
    (line,) = axes.plot(x, mean, label=label, marker="o", markersize=4, markevery=[0], **looks)
    axes.fill_between(x, mean - spread, mean + spread, alpha=0.15, color=looks["color"], linewidth=0)
    return line


def never_updated(axes: Axes, results: Sequence[Result], same: bool) -> Line2D:
    """A horizontal line: the mean over seeds of the pre-trained model's accuracy. same: all rows have as many seeds, so
    the title alone says how many."""
    by_seed = {r["seed"]: 100 * r["frozen_accuracy"] for r in results}
    label = "never updated" if same else f"never updated ({seeds_said(len(by_seed))})"
    return axes.axhline(float(np.mean(list(by_seed.values()))), color="black", linewidth=0.8, label=label)


def deviation(runs: Doubles) -> Doubles:
    """Over seeds, as tables give it; 0 for a single seed."""
    return runs.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(runs.shape[1:])


def buffer_of(ipc: int) -> str:
    """A panel's title; nothing for rows that keep no images."""
    return f"buffer: {ipc} image{'s' if ipc > 1 else ''} per class" if ipc else ""


def seeds_said(count: int) -> str:
    """As "3 seeds"."""
    return f"{count} seed{'s' if count > 1 else ''}"


def title(results: Sequence[Result]) -> str:
    """What the trials were on: data, labelled share, stream, seeds."""
    first = results[0]
    counts = sorted({len(trials) for trials in cells(results).values()})
    seeds = seeds_said(counts[0]) if len(counts) == 1 else f"{counts[0]} to {seeds_said(counts[-1])}"
    spread = ", mean and standard deviation" if counts[-1] > 1 else ""
    return f"{first['dataset']}, {labelled(first)}, stream {first['stream']}, {seeds}{spread}"


def scored(results: Sequence[Result]) -> str:
    """What an axis of accuracies says."""
    return f"{'validation' if results[0]['config'].get('validation') else 'test'} accuracy, %"


def by_row(results: Iterable[Result]) -> dict[str, list[Result]]:
    """In the order of tables."""
    found = grouped(results, lambda result: result["row"])
    return {row: found[row] for row in sorted(found, key=rank)}


def cells(results: Iterable[Result]) -> dict[tuple[str, int], list[Result]]:
    """By row and ipc."""
    return grouped(results, lambda result: (result["row"], result["ipc"]))
