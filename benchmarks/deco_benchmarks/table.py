"""Markdown tables from result files: ours beside the paper's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.errors import DataError

from deco_benchmarks import paper

Result = dict[str, Any]
ORDER = ("Frozen", "Head", *paper.METHODS, "DECO-Inner", "DECO-Full (finite difference)", "Oracle", "Upper")
REQUIRED = ("row", "dataset", "labelled", "ipc", "stream", "seed", "final_accuracy", "frozen_accuracy", "seconds")


def read(folder: Path) -> list[Result]:
    """All results in a folder, sorted by file name. Raises DataError for a file that is none, or an empty folder."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text("utf-8"))
            missing = [key for key in REQUIRED if key not in result]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"expected {path} to be a trial's result, but it cannot be read; remove it") from error
        if missing:
            raise DataError(f"expected {path} to be a trial's result, but it lacks {missing[0]!r}; remove it")
        results.append(result)
    if not results:
        raise DataError(f"expected result files in {folder}, but found none; make some with deco-eval run")
    return results


def accuracy_tables(results: Iterable[Result]) -> str:
    """One table per data set, labelled share and stream: mean ± standard deviation over seeds, and the paper's number.

    The difference to the never-updated model is taken seed by seed. A single seed has no deviation.
    """
    groups: dict[tuple[Any, ...], list[Result]] = defaultdict(list)
    for result in results:
        preset = result.get("config", {}).get("preset", "")
        groups[(result["dataset"], result["labelled"], result["stream"], preset)].append(result)
    return "\n".join(_one_table(key, group) for key, group in sorted(groups.items()))


def _one_table(key: tuple[Any, ...], results: list[Result]) -> str:
    dataset, labelled, stream, preset = key
    lines = [f"### {dataset}, {labelled:.0%} labelled, {stream}, preset {preset}\n"]
    lines.append(
        "| row | ipc | seeds | final accuracy % | against never updated | kept % | labels right % | s | paper % |"
    )
    lines.append("|---|---|---|---|---|---|---|---|---|")
    cells: dict[tuple[int, str], list[Result]] = defaultdict(list)
    for result in results:
        cells[(result["ipc"], result["row"])].append(result)
    for ipc, row in sorted(cells, key=lambda cell: (cell[0], _rank(cell[1]))):
        trials = cells[(ipc, row)]
        final = 100 * np.array([t["final_accuracy"] for t in trials])
        gain = final - 100 * np.array([t["frozen_accuracy"] for t in trials])
        kept, right = (_percent([t.get(name) for t in trials]) for name in ("kept", "pseudo_accuracy"))
        seconds = np.mean([t["seconds"] for t in trials])
        lines.append(
            f"| {row} | {ipc} | {len(trials)} | {_spread(final)} | {np.mean(gain):+.2f} | {kept} | {right} | "
            f"{seconds:.0f} | {_paper(dataset, labelled, ipc, row)} |"
        )
    return "\n".join(lines) + "\n"


def _rank(row: str) -> tuple[int, str]:
    return next((i for i, name in enumerate(ORDER) if row == name), len(ORDER)), row


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _percent(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{100 * np.mean(known):.1f}" if known else "–"


def _paper(dataset: str, labelled: float, ipc: int, row: str) -> str:
    """The paper's number for a folder named after its data set ("cifar10", "CIFAR-10"); – where it has none."""
    plain = {name.lower().replace("-", ""): name for name, _, _ in paper.ACCURACY}
    name = plain.get(dataset.lower().replace("-", "").replace("_", ""))
    numbers = paper.ACCURACY.get((name or "", round(100 * labelled), ipc))
    return f"{numbers[paper.METHODS.index(row)]:.2f}" if numbers and row in paper.METHODS else "–"
