"""Charts as inline SVG: shapes only, stretched to any width; what is to be read stands around them as text.

Colours are classes of the style sheet, c0 … c7 for series, so that they follow light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deco_runtime.story.words import safe

WIDTH, HEIGHT = 1000, 300
"""Of the drawing, in units without a meaning on the screen."""
SERIES = 8
"""Colours that can be told apart."""


@dataclass(frozen=True)
class Line:
    """points: (x, y); x as the chart has it, y in its unit. dashed: for what others are compared with."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    dashed: bool = False


def lines(
    about: str,
    drawn: Sequence[Line],
    values: tuple[float, float],
    labels: tuple[str, str],
    ends: tuple[str, str],
) -> str:
    """Lines over a common x. about: what it shows, for who cannot see it. values: at the top and the bottom, which
    `labels` name. ends: of the left and the right."""
    xs = [x for line in drawn for x, _ in line.points]
    first, span = min(xs, default=0.0), max(xs, default=1.0) - min(xs, default=0.0) or 1.0
    shapes = []
    for line in drawn:
        places = [((x - first) / span * WIDTH, _height(y, *values)) for x, y in line.points]
        if len(places) == 1:
            places.append((WIDTH, places[0][1]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = ' stroke-dasharray="6 5"' if line.dashed else ""
        shapes.append(f'<polyline class="s{line.colour}"{dash} points="{path}"/>')
    legend = [(line.name, line.colour) for line in drawn]
    return _figure(about, "".join(shapes), labels, ends, legend)


def bars(
    about: str,
    columns: Sequence[tuple[str, Sequence[float]]],
    names: Sequence[str],
    ends: tuple[str, str],
) -> str:
    """Shares stacked to 100 %. columns: what a pointer over it is told, and a value ≥ 0 for each of the names."""
    shapes, each = [], WIDTH / max(1, len(columns))
    for i, (words, values) in enumerate(columns):
        total, y = sum(values), float(HEIGHT)
        if total <= 0:
            continue
        shapes.append(f"<g><title>{safe(words)}</title>")
        for colour, value in enumerate(values):
            high = value / total * HEIGHT
            y -= high
            if value > 0:
                shapes.append(f'<rect class="c{colour}" x="{i * each:.1f}" y="{y:.1f}" width="{each + 0.3:.1f}" ')
                shapes.append(f'height="{high:.1f}"/>')
        shapes.append("</g>")
    legend = [(name, colour) for colour, name in enumerate(names)]
    return _figure(about, "".join(shapes), ("100 %", "0"), ends, legend)


def _height(value: float, top: float, bottom: float) -> float:
    return HEIGHT - min(max((value - bottom) / (top - bottom), 0.0), 1.0) * HEIGHT


def _figure(
    about: str, shapes: str, labels: tuple[str, str], ends: tuple[str, str], legend: Sequence[tuple[str, int]]
) -> str:
    keys = "".join(f'<li><i class="c{colour}"></i>{safe(name)}</li>' for name, colour in legend)
    grid = "".join(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in (0, HEIGHT // 2, HEIGHT))
    return (
        f'<figure><ul class="legend">{keys}</ul><div class="plot">'
        f'<div class="y"><span>{safe(labels[0])}</span><span>{safe(labels[1])}</span></div>'
        f'<svg role="img" aria-label="{safe(about)}" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">'
        f"{grid}{shapes}</svg></div>"
        f'<div class="x"><span>{safe(ends[0])}</span><span>{safe(ends[1])}</span></div></figure>'
    )
