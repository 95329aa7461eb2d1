"""--roi, --rotate and --every, for every command that looks at pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from deco_runtime.errors import UsageError
from deco_runtime.sources.view import ROTATIONS, Roi, Rotation, View


class RoiType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """The value of --roi."""

    name = "roi"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Roi:
        return value if isinstance(value, Roi) else Roi.parse(value)


def view_options() -> list[click.Option]:
    """The three of them."""
    return [
        click.Option(
            ["--roi"],
            type=RoiType(),
            multiple=True,
            metavar="X,Y,W,H",
            help="Look only at this part of each picture, as it is after --rotate: X,Y is its upper left corner, W,H "
            "its width and height. Whole numbers are pixels; with a point or a percent sign in one of them, all are "
            "shares of the picture, as in 25%,0,50%,100% or 0.25,0,0.5,1, and follow a camera that changes its size. "
            "Of several cameras --roi and --rotate are given once for all, or once for each in order.",
        ),
        click.Option(
            ["--rotate"],
            type=click.Choice([str(degrees) for degrees in ROTATIONS]),
            multiple=True,
            help="Turn each picture clockwise by so many degrees, before anything is cut out.  [default: 0]",
        ),
        click.Option(
            ["--every"],
            default=1,
            show_default=True,
            type=click.IntRange(1),
            metavar="N",
            help="Take every N-th picture only, of a fast camera or a video; the others do not count as dropped.",
        ),
    ]


def views(sources: int, roi: Sequence[Roi], rotate: Sequence[str], every: int) -> list[View]:
    """How each of so many sources is looked at: --roi and --rotate are given once for all, or once for each in order.

    Raises UsageError.
    """
    for name, given in (("--roi", roi), ("--rotate", rotate)):
        if len(given) not in (0, 1, sources):
            each = f", or {sources}, one for each camera in its order" if sources > 1 else ""
            raise UsageError(f"expected one {name} for all pictures{each}, but found {len(given)}; leave some out")
    return [View(_of(roi, i, None), _degrees(_of(rotate, i, "0")), every) for i in range(sources)]


def words(order: Sequence[int], roi: Sequence[Roi], rotate: Sequence[str], every: int) -> tuple[str, ...]:
    """The options again as a command line has them, for sources in another order: place by place the number of the
    source that they were given for. Raises UsageError."""
    views(len(order), roi, rotate, every)  # raises
    said = [("--roi", str(_of(roi, i, None))) for i in (order if len(roi) > 1 else range(len(roi)))]
    said += [("--rotate", _of(rotate, i, None)) for i in (order if len(rotate) > 1 else range(len(rotate)))]
    said += [("--every", str(every))] if every > 1 else []
    return tuple(word for pair in said for word in pair)


def _of(given: Sequence[Any], i: int, none: Any) -> Any:
    return none if not given else given[min(i, len(given) - 1)]


def _degrees(text: str) -> Rotation:
    return next(degrees for degrees in ROTATIONS if str(degrees) == text)
