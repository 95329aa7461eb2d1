"""The paper's figures from result files, as PNG: learning curves, studies of one value, loss, confusions, buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from deco_runtime.errors import DataError, first_line
from deco_runtime.learning.deco import Deco
from matplotlib.figure import Figure

from deco_benchmarks.looks import (
    buffer_of,
    by_row,
    cells,
    deviation,
    looks_of,
    mean_line,
    never_updated,
    new_panels,
    scored,
    seeds_said,
    title,
)
from deco_benchmarks.table import Result, grouped

SHADES = ("#0072B2", "#66AAD1", "#B3D5E8")
"""Of the classes that one is taken for: most often, and less."""
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
    """Accuracy against frames seen, one panel for each size of a buffer: mean and standard deviation over seeds.

    The never-updated model is a horizontal line. Every other row is a point before the stream, its own at frame 0, and
    the curve from there. Rows without a buffer (ipc 0) are in every panel, to be compared with.
    """
    sizes = sorted({r["ipc"] for r in results} - {0}) or [0]
    looks = looks_of(row for row in by_row(results) if row != "Frozen")
    figure, panels = new_panels(len(sizes), height=4.4)
    for ipc, axes in zip(sizes, panels, strict=True):
        shown = [r for r in results if r["ipc"] in (0, ipc)]
        rows = by_row(shown)
        same = len({len(trials) for trials in rows.values()}) == 1
        lines = [never_updated(axes, shown, same)]
        for row, trials in rows.items():
            if row == "Frozen":
                continue
            frames = [point["frames"] for point in trials[0]["curve"]]
            runs = [[100 * p["accuracy"] for p in t["curve"]] for t in trials if len(t["curve"]) == len(frames)]
            label = row if same else f"{row} ({seeds_said(len(runs))})"
            lines.append(mean_line(axes, frames, np.array(runs), label, **looks[row]))
        start = axes.plot([], [], "o", markersize=4, color="gray", label="before the stream")[0]
        axes.set(xlabel="frames seen", ylabel=scored(results), title=buffer_of(ipc))
        highest_first = sorted(
            lines, key=lambda line: -np.asarray(line.get_ydata(), float)[-1]
        )  # as they stand where they end
        axes.legend(
            handles=[*highest_first, start],
            fontsize="small",
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            handlelength=3.5,
        )
    figure.suptitle(title(results), fontsize="medium")
    return figure


def matching_loss(results: Sequence[Result]) -> Figure | None:
    """D at each iteration of a segment, mean over segments and seeds: one line per way to condense."""
    sizes = sorted({r["ipc"] for r in results if any(r["distances"])})
    if not sizes:
        return None
    looks = looks_of(by_row(results))
    figure, panels = new_panels(len(sizes))
    for ipc, axes in zip(sizes, panels, strict=True):
        for row, trials in by_row([r for r in results if r["ipc"] == ipc]).items():
            segments = [segment for trial in trials for segment in trial["distances"] if segment]
            if segments:
                shortest = min(map(len, segments))
                mean = np.mean([s[:shortest] for s in segments], axis=0)
                axes.plot(np.arange(1, shortest + 1), mean, label=f"{row} ({len(segments)} segments)", **looks[row])
        axes.set(title=buffer_of(ipc), xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="matching iteration in a segment", ylabel="distance D of the gradients")
        axes.legend(fontsize="small")
    figure.suptitle(title(results), fontsize="medium")
    return figure


def confusions(results: Sequence[Result]) -> Figure | None:
    """For each class what it is most often taken for, before the stream and after it, of the first seed of DECO, or of
    DECO+ where there is no DECO."""
    found = [
        r for r in results if r["row"] in ("DECO", "DECO+") and {"confusions_before", "confusions_after"} <= r.keys()
    ]
    if not found:
        return None
    trial = min(found, key=lambda r: (r["row"], -r["ipc"], r["seed"]))
    taken = {when: trial[f"confusions_{when}"] for when in ("before", "after")}
    classes = list(taken["after"])[:20]
    most = max(1, *(sum(count for _, count in taken[when].get(c, [])) for when in taken for c in classes))
    figure = Figure(figsize=(12, 1.2 + 0.4 * len(classes)), layout="constrained")
    for number, when in enumerate(taken):
        axes = figure.add_subplot(1, 2, number + 1)
        for place, name in enumerate(classes):
            others, left = taken[when].get(name, []), 0
            for shade, (_, count) in zip(SHADES, others, strict=False):
                axes.barh(place, count, left=left, color=shade)
                left += count
            words = ", ".join(f"{other} {count}" for other, count in others[: len(SHADES)])
            axes.text(left + most / 50, place, words, va="center", fontsize=8)
        axes.set_yticks(range(len(classes)), classes)
        axes.invert_yaxis()
        axes.set(title=f"{when} the stream", xlabel="test images of the class that are taken for others")
        axes.set(xlim=(0, 2 * most))
    size = f" ({buffer_of(trial['ipc'])})" if trial["ipc"] else ""
    figure.suptitle(f"{trial['row']}{size}, {title([trial])}", fontsize="medium")
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
        scored(results): lambda r: r["final_accuracy"],
        "frames kept, %": lambda r: r["kept"],
        "pseudo-labels right, %": lambda r: r["pseudo_accuracy"],
    }
    looks = looks_of(f"{row}, ipc {ipc}" if ipc else row for row, ipc in cells(results))
    figure, panels = new_panels(len(quantities))
    for (label, quantity), axes in zip(quantities.items(), panels, strict=True):
        for (name, style), trials in zip(looks.items(), cells(results).values(), strict=True):
            values = sorted({t["value"] for t in trials})
            runs = [[quantity(t) for t in trials if t["value"] == value] for value in values]
            known = [[100 * q for q in run if q is not None] for run in runs]
            points = [(v, np.mean(k), deviation(np.array(k))) for v, k in zip(values, known, strict=True) if k]
            if points:
                x, mean, spread = np.array(points, np.float64).T
                axes.errorbar(x, mean, spread, marker="o", capsize=3, label=name, **style)
        if values and values[0] > 0 and values[-1] / values[0] >= 50:
            axes.set_xscale("log")
        axes.set(xlabel=STUDIED.get(key, key), ylabel=label)
        if axes.lines:
            axes.legend(fontsize="small")
    figure.suptitle(title(results), fontsize="medium")
    return figure


def buffers(results: Sequence[Result], folder: Path) -> dict[str, Figure]:
    """The buffer's images before and after the stream, side by side, one line per class; of each row's first seed."""
    figures = {}
    for (row, ipc), trials in cells(results).items():
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
