"""What of a source's pictures is looked at: turned upright, a part of each, every N-th of them.

Live sources look in the capture process, so that less goes through its pipe, and replayed ones where they read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args

from deco_runtime.errors import SourceError, UsageError

if TYPE_CHECKING:
    from deco_runtime.types import Pixels

Rotation = Literal[0, 90, 180, 270]
ROTATIONS: tuple[Rotation, ...] = get_args(Rotation)
"""Degrees, clockwise."""


@dataclass(frozen=True)
class Roi:
    """A region of interest: a rectangle of a picture.

    left, top, width, height: in pixels or, with `shares`, as shares of the picture's width and height.
    """

    left: Fraction
    top: Fraction
    width: Fraction
    height: Fraction
    shares: bool = False

    @classmethod
    def parse(cls, text: str) -> Roi:
        """From X,Y,WIDTH,HEIGHT: pixels if all are whole numbers; with a point or a percent sign in any of them, all
        are shares of the picture. Raises UsageError."""
        words = [word.strip() for word in text.split(",")]
        if len(words) != 4 or not all(re.fullmatch(r"([0-9]{1,9}|[0-9]{0,9}\.[0-9]{1,9})%?", word) for word in words):
            raise _wrong("four numbers X,Y,WIDTH,HEIGHT, pixels like 80,0,480,480 or shares like 25%,0,50%,100%,", text)
        shares = "." in text or "%" in text
        values = [Fraction(word.rstrip("%")) / (100 if word.endswith("%") else 1) for word in words]
        left, top, width, height = values
        if not width or not height:
            raise _wrong("a width and a height above 0", text)
        if shares and (left + width > 1 or top + height > 1):
            raise _wrong("shares of a picture, 0 to 1 or 0% to 100%, that end within it", text)
        return cls(left, top, width, height, shares)

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Left, top, right and bottom in a picture of so many pixels, right and bottom exclusive; at least one pixel.

        Shares are rounded to the nearest pixel. Raises SourceError where the picture ends before the rectangle does.
        """
        if self.shares:
            left, right = _between(self.left, self.width, width)
            top, bottom = _between(self.top, self.height, height)
            return left, top, right, bottom
        left, top = int(self.left), int(self.top)
        right, bottom = left + int(self.width), top + int(self.height)
        if right > width or bottom > height:
            raise SourceError(
                f"expected pictures with --roi {self} in them, that is of at least {right}×{bottom} pixels, found one "
                f"of {width}×{height}: correct it, or give it as shares, such as 25%,25%,50%,50%"
            )
        return left, top, right, bottom

    def __str__(self) -> str:
        if self.shares:
            return ",".join(f"{float(100 * value):.9f}".rstrip("0").rstrip(".") + "%" for value in self._values)
        return ",".join(str(int(value)) for value in self._values)

    @property
    def _values(self) -> Sequence[Fraction]:
        return self.left, self.top, self.width, self.height


@dataclass(frozen=True)
class View:
    """How a source's pictures are looked at: first they are turned, then the roi is cut out.

    roi: in the picture as it is turned; None for all of it. rotate: degrees, clockwise. every: of so many pictures the
    first is taken, and the others are passed over.
    """

    roi: Roi | None = None
    rotate: Rotation = 0
    every: int = 1

    @property
    def cuts(self) -> bool:
        """Whether it changes pictures."""
        return self.roi is not None or self.rotate != 0

    def of(self, pixels: Pixels) -> Pixels:
        """What is seen of a picture (height, width, 3): (h, w, 3). Raises SourceError if the roi is not in it."""
        if not self.cuts:
            return pixels
        import numpy as np  # not at the top: deco-doctor takes these options also where numpy is broken

        turned = np.rot90(pixels, -self.rotate // 90)
        if self.roi is not None:
            left, top, right, bottom = self.roi.box(turned.shape[1], turned.shape[0])
            turned = turned[top:bottom, left:right]
        return np.ascontiguousarray(turned)

    def figures(self) -> dict[str, Any]:
        """What it is, without what changes nothing; `from_figures` takes it."""
        roi = {"roi": str(self.roi)} if self.roi is not None else {}
        return roi | {name: value for name, value, none in self._numbers if value != none}

    @classmethod
    def from_figures(cls, roi: str | None = None, rotate: Rotation = 0, every: int = 1) -> View:
        """What `figures` was of."""
        return cls(Roi.parse(roi) if roi is not None else None, rotate, every)

    def named(self, name: str) -> str:
        """The name of a source that is looked at like this: a state goes on in the same view only."""
        return ", ".join([name, *(f"{key} {value}" for key, value in self.figures().items())])

    @property
    def _numbers(self) -> Sequence[tuple[str, int, int]]:
        return ("rotate", self.rotate, 0), ("every", self.every, 1)


WHOLE = View()
"""Every picture as it comes."""


def _between(start: Fraction, share: Fraction, size: int) -> tuple[int, int]:
    """The pixels from a share of a side on, and for a share of it, of `size` in all."""
    first, last = (int(size * place + Fraction(1, 2)) for place in (start, start + share))
    first = min(first, size - 1)
    return first, max(last, first + 1)


def _wrong(expected: str, found: str) -> UsageError:
    shown = found if len(found) <= 40 else f"{found[:40]}…"
    return UsageError(f"expected {expected} for --roi, but found {shown!r}; correct it")
