"""The report's pictures of numbers: inline SVG, whose colours the page's style gives."""

from __future__ import annotations

from math import log2

from deco_export.report.accuracy import Share
from deco_export.report.curve import Curve, Forecast

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 300, 52, 90, 14, 40


def bar(share: Share, title: str) -> str:
    """A share as a bar, with its interval as a line over it. title: said to who cannot see it, already escaped."""
    low, high, value = (100 * each for each in (share.low, share.high, share.value))
    return (
        f'<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f'<rect class="rail" width="100" height="8"/><rect class="value" width="{value:.1f}" height="8"/>'
        f'<path class="range" d="M{low:.1f} 4H{high:.1f}M{low:.1f} 1.5V6.5M{high:.1f} 1.5V6.5"/></svg>'
    )


def curve_chart(curve: Curve, forecast: Forecast, now: float, twice: float) -> str:
    """Right answers by the number of takes trained on, and where twice as many may lead.

    now: accuracy with all labels, from which the forecast starts; twice: the number of takes it is for.
    """
    right = [1 - float(each) for each in curve.errors()]
    ends = [1 - (1 - now) * factor for factor in (forecast.high, forecast.low)]
    points = list(zip(curve.takes.tolist(), right, strict=True))
    floor = max(0.0, int(10 * min(*right, now, *ends) - 0.5) / 10)
    first, last = log2(points[0][0]), log2(twice)

    def x(takes: float) -> float:
        return _LEFT + (log2(takes) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _TOP + (1 - share) / (1 - floor) * (_HEIGHT - _TOP - _BOTTOM)

    lines, step = [], 0.1 if floor >= 0.5 else 0.2
    for n in range(round((1 - floor) / step) + 1):
        share = 1 - n * step
        lines.append(f'<path class="grid" d="M{_LEFT} {y(share):.1f}H{_WIDTH - _RIGHT}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    for takes in (*(each for each, _ in points), twice):
        label = f'<text x="{x(takes):.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{takes:,.0f}</text>'
        lines.append(label)
    path = "L".join(f"{x(takes):.1f} {y(share):.1f}" for takes, share in points)
    dots = "".join(f'<circle class="dot" cx="{x(t):.1f}" cy="{y(s):.1f}" r="4"/>' for t, s in points)
    low, high = (y(end) for end in ends)
    right_edge = x(twice)
    cast = (
        f'<path class="cast" d="M{right_edge:.1f} {min(high, low - 3):.1f}V{low:.1f}"/>'
        f'<text x="{right_edge + 12:.1f}" y="{(low + high) / 2 + 4:.1f}">expected</text>'
    )
    return (
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Right answers by takes">'
        f'{"".join(lines)}<path class="line" d="M{path}"/>{dots}{cast}'
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 3}" text-anchor="middle">takes trained on</text>'
        "</svg>"
    )
