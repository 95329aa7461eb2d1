"""The paper's figures from result files, as PNG: learning curves, studies of one value, loss, confusions, buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.errors import DataError, first_line
from deco_runtime.learning.deco import Deco
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deco_benchmarks.table import Result, grouped, rank

Doubles = np.ndarray
STUDIED = {"retrain_interval": "β, segments between updates", "threshold": "filter threshold M", "alpha": "α"}
"""Recipe values that the paper varies, as they are called on an axis; any other is drawn under its own name."""


def draw_all(results: Sequence[Result], folder: Path, out: Path) -> list[Path]:
    """Every figure that these results allow, into `out`; returns the files written.

    folder: where the results lie, with the buffers (KEY.npz) that `deco-eval run` left beside them.
    """
    out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Figure | None] = dict(studies(results))
    for where, group in _settings(results).items():
        figures |= {
            f"learning-curves-{where}": learning_curves(group),
            f"matching-loss-{where}": matching_loss(group),
            f"confusions-{where}": confusions(group),
            **{f"{name}-{where}": figure for name, figure in buffers(group, folder).items()},
        }
    written = []
    for name, figure in figures.items():
        if figure is None:
            continue
        path = out / f"{name}.png"
        figure.savefig(path, dpi=120, bbox_inches="tight")
        written.append(path)
    return written


def learning_curves(results: Sequence[Result]) -> Figure:
    """Accuracy against frames seen, one panel per ipc, mean and standard deviation over seeds."""
    sizes = sorted({r["ipc"] for r in results})
    figure, panels = _panels(len(sizes))
    for ipc, axes in zip(sizes, panels, strict=True):
        for row, trials in _by_row([r for r in results if r["ipc"] == ipc]).items():
            frames = [point["frames"] for point in trials[0]["curve"]]
            runs = [[100 * p["accuracy"] for p in t["curve"]] for t in trials if len(t["curve"]) == len(frames)]
            _line(axes, frames, np.array(runs), row)
        axes.set(title=f"{ipc} images per class", xlabel="frames seen", ylabel="accuracy, %")
        axes.legend(fontsize="small")
    return figure


def matching_loss(results: Sequence[Result]) -> Figure | None:
    """D at each iteration of a segment, mean over segments and seeds: one line per way to condense."""
    sizes = sorted({r["ipc"] for r in results if any(r["distances"])})
    if not sizes:
        return None
    figure, panels = _panels(len(sizes))
    for ipc, axes in zip(sizes, panels, strict=True):
        for row, trials in _by_row([r for r in results if r["ipc"] == ipc]).items():
            segments = [segment for trial in trials for segment in trial["distances"] if segment]
            if segments:
                shortest = min(map(len, segments))
                mean = np.mean([s[:shortest] for s in segments], axis=0)
                axes.plot(np.arange(1, shortest + 1), mean, label=f"{row} ({len(segments)} segments)")
        axes.set(title=f"{ipc} images per class", xlabel="matching iteration in a segment", ylabel="D", xscale="log")
        axes.legend(fontsize="small")
    return figure


def confusions(results: Sequence[Result]) -> Figure | None:
    """For each class what it is most often taken for, before the stream and after it, of DECO's first seed."""
    found = [r for r in results if r["row"] == "DECO" and {"confusions_before", "confusions_after"} <= r.keys()]
    if not found:
        return None
    trial = min(found, key=lambda r: (-r["ipc"], r["seed"]))
    classes = list(trial["confusions_after"])[:20]
    figure = Figure(figsize=(10, 0.6 + 0.5 * len(classes)))
    for number, when in enumerate(("before", "after")):
        axes = figure.add_subplot(1, 2, number + 1)
        for place, name in enumerate(classes):
            left = 0
            for other, count in trial[f"confusions_{when}"].get(name, []):
                axes.barh(place, count, left=left, color=f"C{list(trial['confusions_after']).index(other) % 10}")
                axes.text(left + count / 2, place, other, ha="center", va="center", fontsize=6)
                left += count
        axes.set_yticks(range(len(classes)), classes)
        axes.invert_yaxis()
        axes.set(title=f"{when} the stream, {trial['ipc']} images per class", xlabel="test images taken for")
    return figure


def studies(results: Sequence[Result]) -> dict[str, Figure]:
    """One figure for each recipe value that was varied alone: kept share, label and model accuracy against it."""
    few = [r for r in results if len(r["config"].get("settings", [])) <= 1]
    varied = {where: grouped(group, _changed_key) for where, group in grouped(few, _where).items()}
    figures = {}
    for where, by_key in varied.items():
        for key in sorted(set(by_key) - {""}):
            default = getattr(Deco.RECIPE, key, None)
            if isinstance(default, float | int):
                rows = {r["row"] for r in by_key[key]}
                changed = [{**r, "value": float(r["config"]["settings"][0].partition("=")[2])} for r in by_key[key]]
                unchanged = [{**r, "value": float(default)} for r in by_key.get("", []) if r["row"] in rows]
                trials = [*changed, *unchanged]
                figures["-".join(["study", key, *map(_plain, where)])] = _study(key, trials)
    return figures


def _changed_key(result: Result) -> str:
    """The one recipe value that was changed; "" for none."""
    settings = result["config"].get("settings", [])
    return str(settings[0].partition("=")[0]) if settings else ""


def _study(key: str, results: Sequence[Result]) -> Figure:
    quantities: dict[str, Callable[[Result], float | None]] = {
        "model accuracy, %": lambda r: r["final_accuracy"],
        "frames kept, %": lambda r: r["kept"],
        "pseudo-labels right, %": lambda r: r["pseudo_accuracy"],
    }
    figure, panels = _panels(len(quantities))
    for (label, quantity), axes in zip(quantities.items(), panels, strict=True):
        for (row, ipc), trials in _cells(results).items():
            values = sorted({t["value"] for t in trials})
            runs = [[quantity(t) for t in trials if t["value"] == value] for value in values]
            known = [[100 * q for q in run if q is not None] for run in runs]
            points = [(v, np.mean(k), np.std(k)) for v, k in zip(values, known, strict=True) if k]
            if points:
                x, mean, spread = np.array(points, np.float64).T
                axes.errorbar(x, mean, spread, marker="o", capsize=3, label=f"{row}, ipc {ipc}")
        if values and values[0] > 0 and values[-1] / values[0] >= 50:
            axes.set_xscale("log")
        axes.set(xlabel=STUDIED.get(key, key), ylabel=label)
        if axes.lines:
            axes.legend(fontsize="small")
    return figure


def buffers(results: Sequence[Result], folder: Path) -> dict[str, Figure]:
    """The buffer's images before and after the stream, side by side, one line per class; of each row's first seed."""
    figures = {}
    for (row, ipc), trials in _cells(results).items():
        trial = min(trials, key=lambda t: t["seed"])
        file = folder / Path(trial["file"]).with_suffix(".npz").name
        if not file.exists():
            continue
        try:
            with np.load(file, allow_pickle=False) as stored:
                if not stored.files:  # of a row that keeps no images
                    continue
                grids = {when: grid(stored[when], stored[f"y_{when}"]) for when in ("before", "after")}
        except Exception as error:  # numpy and zipfile raise a dozen kinds
            raise DataError(
                f"expected {file} to hold the buffer of a trial, but: {first_line(error)}; remove it"
            ) from error
        figure = Figure(figsize=(10, 5))
        for number, (when, picture) in enumerate(grids.items()):
            axes = figure.add_subplot(1, 2, number + 1)
            axes.imshow(picture[..., ::-1], interpolation="nearest")
            axes.set_axis_off()
            axes.set_title(f"{row}: {when} the stream")
        figures[f"buffer-{_plain(row)}-ipc{ipc}"] = figure
    return figures


def grid(pixels: np.ndarray, labels: np.ndarray, most: int = 10) -> np.ndarray:
    """(n, s, s, 3) uint8 → one picture: a line for each class of `labels`, with up to `most` of its images."""
    size, classes = pixels.shape[1], np.unique(labels)
    width = min(most, int(np.bincount(labels).max()))
    picture = np.full((len(classes) * size, width * size, 3), 255, np.uint8)
    for line, c in enumerate(classes):
        for place, image in enumerate(pixels[labels == c][:most]):
            picture[line * size : (line + 1) * size, place * size : (place + 1) * size] = image
    return picture


def _where(result: Result) -> tuple[Any, ...]:
    """What trials must share to be drawn together, besides row, ipc and seed."""
    config = result["config"]
    scored: tuple[str, ...] = ("validation",) if config.get("validation") else ()
    scored += ("augmented",) if config.get("pretraining", "plain") != "plain" else ()
    scored += (f"from {config['labelled_from']}",) if config.get("labelled_from") else ()
    return result["dataset"], f"{result['labelled']:g}", result["stream"], config.get("preset", ""), *scored


def _settings(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results of the unchanged recipe, by what they share, as part of a file name."""
    plain = [result for result in results if not result["config"].get("settings")]
    return grouped(plain, lambda result: "-".join(map(_plain, _where(result))))


def _plain(text: object) -> str:
    """A text as part of a file name."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in str(text)).strip("-").lower()


def _by_row(results: Iterable[Result]) -> dict[str, list[Result]]:
    found = grouped(results, lambda result: result["row"])
    return {row: found[row] for row in sorted(found, key=rank)}


def _cells(results: Iterable[Result]) -> dict[tuple[str, int], list[Result]]:
    return grouped(results, lambda result: (result["row"], result["ipc"]))


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.5 * count, 4))
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels


def _line(axes: Axes, x: Sequence[float], runs: Doubles, label: str) -> None:
    mean, spread = runs.mean(axis=0), runs.std(axis=0)
    axes.plot(x, mean, label=f"{label} ({len(runs)} seed{'s' if len(runs) > 1 else ''})")
    axes.fill_between(x, mean - spread, mean + spread, alpha=0.15)
