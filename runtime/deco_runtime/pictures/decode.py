"""The bytes of an image file → its picture as everything here takes it: upright, opaque, 8 bits, blue first.

OpenCV only decodes. Its versions differ in what they do besides, and all shift 16 bits by 8, show hidden colours and
take half a JPEG for a whole one; so it is asked for the values as they are, and what they mean is decided here:

- More than 8 bits: the highest 8 of those that are used, of 8, 10, 12, 14 or 16. A file rarely says how many these
  are, and a sensor's 12 bits in a 16-bit file are the rule. So it is told by the largest value, in the picture or in
  others of its folder (`Seen`): a dark picture must not come out brighter than its neighbours.
- Floating-point numbers are 0 … 1, or 0 … 255 where one above 1.05 is seen; a little beyond is black or white.
- What is transparent shows a white background.
- Turned as EXIF says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from deco_runtime.pictures import containers
from deco_runtime.pictures.overhear import overhear
from deco_runtime.types import Pixels

BACKGROUND = 255
"""Of 0 … 255, what transparent pixels show in every channel."""

PADDING = 16
"""Bytes between a JPEG's data and its end that are no damage: some cameras fill up with them."""

SAMPLE = 64
"""Files of a folder that are looked at for their largest value."""

_BEYOND = 0.05
"""Of white, by which floating-point values may lie beyond black and white: compression and sharpening go there."""

_DEPTHS = (8, 10, 12, 14, 16)
_DAMAGE = re.compile(r"^Corrupt JPEG data: (?:(\d+) extraneous bytes before marker 0xd9)?|^Premature end", re.MULTILINE)

Values = npt.NDArray[Any]


class Seen(NamedTuple):
    """The largest values of a folder's deep pictures, 0 where there are none: of 16-bit integers, and of floats."""

    integer: int = 0
    real: float = 0.0


NOTHING = Seen()


def decode(data: bytes, seen: Seen = NOTHING) -> Pixels:
    """The picture as (height, width, 3) uint8 B, G, R. seen: in the other pictures of its folder.

    Raises ValueError, with words that go on "a.png: …", for what is no image, damaged, or of unclear meaning.
    """
    kind, values, alpha = _values(data)
    colour = _eight_bits(values, seen, _white(data, kind))
    if colour.ndim == 2 or colour.shape[2] == 1:
        colour = cv2.cvtColor(colour, cv2.COLOR_GRAY2BGR)
    if alpha is not None:
        colour = _on_background(colour, _eight_bits(alpha), kind == "TIFF" and _is_premultiplied(data, alpha))
    return _upright(colour, containers.orientation(data, kind))


def decode_jpeg(data: bytes) -> Pixels:
    """A JPEG, also one without its end mark, as (height, width, 3) uint8 B, G, R, not turned.

    Raises ValueError for one that is cut short or has other damage that its decoder notices.
    """
    values = _decode(data + b"\xff\xd9")  # whole data ends before it, cut data runs into it, which the decoder tells
    if values.dtype != np.uint8 or (values.ndim == 3 and values.shape[2] != 3):
        raise ValueError("it is no JPEG of 8 bits")
    return cv2.cvtColor(values, cv2.COLOR_GRAY2BGR) if values.ndim == 2 else values


def seen_in(files: Sequence[Path]) -> Seen:
    """The largest values in pictures of more than 8 bits, of up to SAMPLE of the files, evenly spread."""
    deep = [file for file in files if file.suffix.lower() in (".png", ".tif", ".tiff", ".pgm", ".ppm")]
    integer, real = 0, 0.0
    for i in np.unique(np.linspace(0, len(deep) - 1, min(SAMPLE, len(deep))).astype(int)):
        try:
            with deep[i].open("rb") as file:
                head = file.read(512)
                if not containers.is_deep(head):
                    continue
                _, values, _ = _values(head + file.read())
        except (OSError, ValueError):  # told when its turn comes
            continue
        if values.dtype.kind == "f" and np.isfinite(values).all():
            real = max(real, float(values.max()))
        elif values.dtype.itemsize == 2:
            integer = max(integer, int(values.max()))
    return Seen(integer, real)


def _values(data: bytes) -> tuple[str, Values, Values | None]:
    """Format, values (height, width) or (height, width, 3) as they are in the file, and (height, width) of opacity."""
    if not data:
        raise ValueError("it is empty")
    kind = containers.format_of(data)
    if kind not in containers.READ:
        raise ValueError(f"it is {kind}, convert it to JPEG or PNG" if kind else "it is no image of a known format")
    if kind == "JPEG":
        return kind, decode_jpeg(data), None
    if kind == "WebP" and containers.is_animated_webp(data):
        raise ValueError("it is animated")
    alpha = None
    plain = containers.plain_png(data) if kind == "PNG" else _lying(data) if kind == "TIFF" else data
    values = _decode(plain)
    if values.ndim == 3 and values.shape[2] == 4:
        values, alpha = values[..., :3], values[..., 3]
        if kind == "TIFF" and _extra(data) not in (1, 2):
            alpha = None  # a fourth channel of another meaning, such as infrared
    elif values.ndim == 3 and values.shape[2] not in (1, 3):
        raise ValueError(f"it has {values.shape[2]} channels")
    elif kind == "PNG" and values.ndim == 2:
        alpha = _grey_key(plain, values)
    elif kind == "TIFF" and values.ndim == 2 and _extra(data) in (1, 2):
        raise ValueError("it is a grey TIFF with transparency, whose hidden parts cannot be told")
    return kind, values, alpha


def _decode(data: bytes) -> Values:
    def call() -> Values | None:
        try:
            found: Values | None = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        except cv2.error:  # a header that promises more pixels than OpenCV allows
            return None
        return found

    values, said = overhear(call)
    if any(not found[1] or int(found[1]) > PADDING for found in _DAMAGE.finditer(said)):
        raise ValueError("it is damaged or cut short")
    if values is None:
        raise ValueError("OpenCV cannot decode it")
    return values


def _eight_bits(values: Values, seen: Seen = NOTHING, white: int | None = None) -> Pixels:
    """Values of any type, scaled to uint8 as the module says. white: the value that the file gives for it."""
    if values.dtype == np.uint8 and white in (None, 255):
        return values
    largest, low = values.max(), values.min()
    real = values.dtype.kind == "f"
    top = max(float(largest), seen.real) if real else 0.0
    scale = 1 if top <= 1 + _BEYOND else 255
    if not low >= (-_BEYOND * scale if real else 0):  # also NaN
        raise ValueError("it has values below 0 or none at all, whose black and white cannot be told")
    if real:
        if not top <= 255 * (1 + _BEYOND):
            raise ValueError("it has floating-point values outside of 0 … 1 and 0 … 255")
        return _rounded(np.clip(values, 0, scale) * (255 / scale))
    if values.dtype.itemsize > 2 or values.dtype == np.int8:
        raise ValueError(f"it has values of type {values.dtype}, whose white cannot be told")
    if white is not None:
        if largest > white:
            raise ValueError(f"it has values above {white}, which it gives for white")
        return _rounded(values * (255 / white))
    depth = next(bits for bits in _DEPTHS if max(int(largest), seen.integer) < 1 << bits)
    return (values.astype(np.uint16) >> (depth - 8)).astype(np.uint8)


def _rounded(values: Values) -> Pixels:
    eight: Pixels = np.round(values).astype(np.uint8)
    return eight


def _white(data: bytes, kind: str) -> int | None:
    """The value that a file gives for white; None for the largest there is, which is what says who knows of none."""
    white = containers.pnm_white(data) if kind == "PNM" else None
    if kind == "TIFF" and (tag := containers.tiff_tags(data).get(containers.MAX_SAMPLE)) is not None:
        white = max(tag.values)
    return white if white and white < 65535 else None


def _on_background(colour: Pixels, alpha: Pixels, premultiplied: bool) -> Pixels:
    if alpha.min() == 255:
        return colour
    a = alpha[..., None].astype(np.uint16)
    own = colour.astype(np.uint16) if premultiplied else (colour * a + 127) // 255
    shown: Pixels = np.minimum(own + (BACKGROUND * (255 - a) + 127) // 255, 255).astype(np.uint8)
    return shown


def _grey_key(png: bytes, values: Values) -> Values | None:
    """Opacity of a grey PNG in which one value stands for transparent, which OpenCV overlooks."""
    bits, found = png[24], None
    for name, at, length in containers.png_chunks(png):
        if name == b"tRNS" and length == 2:
            key = int.from_bytes(png[at : at + 2], "big")
            found = key * 255 // ((1 << bits) - 1) if bits < 8 else key
    return None if found is None else np.where(values == found, 0, 255).astype(np.uint8)


def _extra(tiff: bytes) -> int:
    """What the channel behind the colours is: 1 and 2 opacity, colours multiplied with it or not; 0 unknown."""
    tag = containers.tiff_tags(tiff).get(containers.EXTRA_SAMPLES)
    return tag.values[0] if tag is not None else 0


def _is_premultiplied(tiff: bytes, alpha: Values) -> bool:
    return alpha.dtype == np.uint8 or _extra(tiff) == 1  # libtiff itself multiplies 8 bits


def _lying(tiff: bytes) -> bytes:
    """The TIFF with its orientation as 1: OpenCV turns TIFFs whatever it is asked, and we do it for all formats."""
    tag = containers.tiff_tags(tiff).get(containers.ORIENTATION)
    if tag is None:
        return tiff
    one = b"\1\0" if tiff[:2] == b"II" else b"\0\1"
    return tiff[: tag.place] + one + tiff[tag.place + 2 :]


_TURNS: dict[int, Callable[[Pixels], Pixels]] = {
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: p[::-1].transpose(1, 0, 2),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: p[:, ::-1].transpose(1, 0, 2),
}


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    return np.ascontiguousarray(_TURNS[orientation](pixels) if orientation in _TURNS else pixels)
