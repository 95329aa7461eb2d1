"""Markdown tables from result files: ours beside the paper's."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.errors import DataError

from deco_benchmarks import paper
from deco_benchmarks.config import PRESETS

Result = dict[str, Any]
PER_CLASS = tuple(f"{name} (per class)" for name in ("Random", "FIFO", "Selective-BP"))
ORDER = (
    *("Frozen", "Head", *paper.METHODS[:-1], *PER_CLASS),
    *("DECO", "DECO-Inner", "DECO-Full", "DECO-Full (finite difference)", "DECO+", "Oracle", "Upper"),
)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _share(value: Any) -> bool:
    return value is None or _number(value)


def _list_of(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(each, value))


def _numbers_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


def _point(value: Any) -> bool:
    return _numbers_by_name(value) and {"frames", "accuracy"} <= value.keys()


def _confusions(value: Any) -> bool:
    """[class, count] pairs by class, of classes that are there."""
    return isinstance(value, dict) and all(
        isinstance(pairs, list)
        and all(isinstance(p, list) and len(p) == 2 and p[0] in value and _number(p[1]) for p in pairs)
        for pairs in value.values()
    )


def _config(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _text(value.get("preset", ""))
        and _list_of(_text)(value.get("settings", []))
        and _text(value.get("labelled_from") or "")
    )


def _curve(value: Any) -> bool:
    """One point or more, the first before the stream."""
    return _list_of(_point)(value) and bool(value)


REQUIRED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("row", "dataset", "stream"), _text),
    **dict.fromkeys(("labelled", "ipc", "seed", "final_accuracy", "frozen_accuracy", "average_accuracy"), _number),
    **dict.fromkeys(("kept", "pseudo_accuracy"), _share),
    **dict.fromkeys(("forgetting_per_class", "seconds_by_stage"), _numbers_by_name),
    "curve": _curve,
    "distances": _list_of(_list_of(_number)),
    "config": _config,
}
"""What tables and figures use of a result, and what each must be."""
OPTIONAL: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("confusions_before", "confusions_after"), _confusions),
    "before_accuracy": _number,
}


def read(folder: Path) -> list[Result]:
    """All results in a folder, sorted by file name, each with its `file`.

    Raises DataError for a file that is none, and for an empty folder.
    """
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            result = json.loads(path.read_text("utf-8"))
            missing = [key for key in REQUIRED if key not in result]
            used = {} if missing else {**REQUIRED, **{key: fits for key, fits in OPTIONAL.items() if key in result}}
            wrong = [key for key, fits in used.items() if not fits(result[key])]
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"expected {path} to be a trial's result, but it cannot be read; remove it") from error
        if missing:
            raise DataError(f"expected {path} to be a trial's result, but it lacks {missing[0]!r}; remove it")
        if wrong:
            raise DataError(f"expected {path} to be a trial's result, but its {wrong[0]!r} is none; remove it")
        results.append({**result, "file": path.name})
    if not results:
        raise DataError(f"expected result files in {folder}, but found none; make some with deco-eval run")
    return results


def tables(results: Iterable[Result]) -> str:
    """Accuracy and time for each data set, labelled share or folder, stream, preset and set of changed values, as
    Markdown.

    Mean ± standard deviation over seeds, and the paper's number; a single seed has no deviation. "Before the stream" is
    the row's own model before it saw a frame. The difference to the never-updated model is taken seed by seed.
    """
    return "\n".join(_section(key, group) for key, group in sorted(grouped(results, _setting).items()))


def grouped(results: Iterable[Result], by: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """Results by what `by` says of each, in the order in which they come."""
    groups: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        groups[by(result)].append(result)
    return dict(groups)


def rank(row: str) -> tuple[int, str]:
    """Where a row stands in tables and legends, as a key to sort by."""
    return (ORDER.index(row) if row in ORDER else len(ORDER)), row


def labelled(result: Result) -> str:
    """What was labelled, as titles say it: a share of the images, or a folder of their own."""
    source = result.get("config", {}).get("labelled_from")
    return f"labelled images of {source}" if source else f"{result['labelled']:.0%} labelled"


def _setting(result: Result) -> tuple[Any, ...]:
    config = result.get("config", {})
    changed = " ".join(config.get("settings", ()))
    scored = "validation" if config.get("validation") else "test"
    start = config.get("pretraining", "plain")
    preset, source = config.get("preset", ""), config.get("labelled_from") or ""
    return result["dataset"], result["labelled"], source, result["stream"], preset, start, scored, changed


def _section(key: tuple[Any, ...], results: list[Result]) -> str:
    dataset, _, _, stream, preset, start, scored, changed = key
    title = f"### {dataset}, {labelled(results[0])}, {stream}, preset {preset}"
    title += f", {start} pre-training" if start != "plain" else ""
    title += f", {changed}" if changed else ""
    title += ", scored on validation images" if scored == "validation" else ""
    cells = grouped(results, lambda result: (result["ipc"], result["row"]))
    ordered = {cell: cells[cell] for cell in sorted(cells, key=lambda cell: (cell[0], rank(cell[1])))}
    parts = [title, f"Deviates from the paper: {'; '.join(deviations(results))}.", _accuracy(ordered), _time(ordered)]
    return "\n\n".join(part for part in parts if part) + "\n"


def deviations(results: Sequence[Result]) -> list[str]:
    """What sets these trials apart from the paper's experiment, besides docs/algorithm.md's readings of it."""
    config = results[0].get("config", {})
    preset = PRESETS.get(config.get("preset", ""))
    found = []
    if preset is not None and preset.width != PRESETS["paper"].width:
        found.append(f"width {preset.width}, not {PRESETS['paper'].width}")
    if preset is not None and preset.stream_images is not None:
        found.append(f"at most the first {preset.stream_images} images of the stream")
    if preset is not None and preset.test_images is not None:
        found.append(f"{preset.test_images} test images")
    if config.get("labelled_from"):
        found.append("labelled images of a folder of their own")
    if config.get("pretraining", "plain") != "plain":
        found.append("pre-training on shifted and mirrored images")
    if preset is not None and preset.recipe:
        found.append(" ".join(preset.recipe))
    if config.get("settings"):
        found.append(" ".join(config["settings"]))
    if "passes" not in results[0]["stream"]:
        found.append("one pass over the stream, the paper's figures count more")
    seeds = len({result["seed"] for result in results})
    if seeds != paper.SEEDS:
        found.append(f"{seeds} seed{'s' if seeds > 1 else ''}, not {paper.SEEDS}")
    found.append(f"engine {', '.join(sorted({r.get('versions', {}).get('engine', 'not recorded') for r in results}))}")
    return found


def _accuracy(cells: dict[tuple[int, str], list[Result]]) -> str:
    lines = [
        "| row | ipc | seeds | before the stream % | final accuracy % | against never updated | average % | "
        "forgotten % | kept % | labels right % | paper % |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (ipc, row), trials in cells.items():
        # Files of earlier versions have it in the curve alone.
        before = 100 * np.array([t.get("before_accuracy", t["curve"][0]["accuracy"]) for t in trials])
        final = 100 * np.array([t["final_accuracy"] for t in trials])
        gain = final - 100 * np.array([t["frozen_accuracy"] for t in trials])
        forgotten = [float(np.mean(list(t["forgetting_per_class"].values()))) for t in trials]
        average, kept, right = (
            _percent([t[name] for t in trials]) for name in ("average_accuracy", "kept", "pseudo_accuracy")
        )
        lines.append(
            f"| {row} | {ipc} | {len(trials)} | {_spread(before)} | {_spread(final)} | {np.mean(gain):+.2f} | "
            f"{average} | {_percent(forgotten)} | {kept} | {right} | {_paper_accuracy(trials[0])} |"
        )
    return "\n".join(lines)


def _time(cells: dict[tuple[int, str], list[Result]]) -> str:
    """Seconds of learning, and their ratio to DECO's at the same ipc: the paper states no unit, only ratios compare."""
    if not any(row == "DECO" for _, row in cells):
        return ""
    lines = [
        "| row | ipc | s selecting or condensing | s retraining | both, DECO = 1 | paper, DECO = 1 |",
        "|---|---|---|---|---|---|",
    ]
    spent = {
        cell: [
            float(np.mean([t["seconds_by_stage"].get(stage, 0.0) for t in trials])) for stage in ("learn", "retrain")
        ]
        for cell, trials in cells.items()
    }
    for (ipc, row), (learn, retrain) in spent.items():
        deco = sum(spent.get((ipc, "DECO"), ()))
        ratio = f"{(learn + retrain) / deco:.2f}" if deco else "–"
        lines.append(f"| {row} | {ipc} | {learn:.0f} | {retrain:.0f} | {ratio} | {_paper_time(cells[(ipc, row)][0])} |")
    return "\n".join(lines)


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def _percent(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{100 * np.mean(known):.1f}" if known else "–"


def _paper_accuracy(result: Result) -> str:
    """The paper's number for this row and setting; – where it has none."""
    row = result["row"].removesuffix(" (per class)")
    numbers = paper.ACCURACY.get((paper.named(result["dataset"]), round(100 * result["labelled"]), result["ipc"]))
    return f"{numbers[paper.METHODS.index(row)]:.2f}" if numbers and row in paper.METHODS else "–"


def _paper_time(result: Result) -> str:
    """The paper's time of this row over its time of DECO; – where it has none."""
    dataset, ipc = paper.named(result["dataset"]), result["ipc"]
    own = paper.TIME.get((dataset, result["row"].split(" (")[0]), {}).get(ipc)
    deco = paper.TIME.get((dataset, "DECO"), {}).get(ipc)
    return f"{own / deco:.2f}" if own and deco else "–"
