"""What an image file says of itself besides its pixels: its format, how it is to be turned, how bright white is.

Read here and not by OpenCV, whose versions differ in what they look at. None of these readers raises or trusts: what a
file says wrong or not at all is as if it said nothing.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_SIGNATURES = (
    (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG\r\n\x1a\n", "PNG"),
    (rb"BM", "BMP"),
    (rb"RIFF....WEBP", "WebP"),
    (rb"II[*+]\0|MM\0[*+]", "TIFF"),
    (rb"P[1-6]\s", "PNM"),
    (rb"GIF8", "GIF"),
    (rb"....ftyp(heic|heix|hevc|heim|mif1|msf1)", "HEIC"),
    (rb"....ftypavi[fs]", "AVIF"),
    (rb"....jP  |\xff\x4f\xff\x51", "JPEG 2000"),
    (rb"P7\s", "PAM"),
    (rb"P[Ff]\s", "PFM"),
)
READ = ("JPEG", "PNG", "BMP", "WebP", "TIFF", "PNM")
"""Formats that every allowed version of OpenCV reads, and reads alike."""

ORIENTATION, MAX_SAMPLE, PHOTOMETRIC, EXTRA_SAMPLES = 0x0112, 0x0119, 0x0106, 0x0152
_ENTRIES = 4096  # of one directory: far more than there are kinds of tags


def format_of(data: bytes) -> str | None:
    """The name of a file's format by how it begins, whatever its ending says; None for another or no image."""
    for start, name in _SIGNATURES:
        if re.match(start, data, re.DOTALL):
            return name
    return None


@dataclass(frozen=True)
class Tag:
    """A tag of a TIFF directory. values: numbers; place: where the first of them lies in the file."""

    values: tuple[int, ...]
    place: int


def tiff_tags(data: bytes, start: int = 0) -> dict[int, Tag]:
    """The short and long integers of the first directory of a TIFF, or EXIF block, that begins at `start`.

    BigTIFF has none here.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(data[start : start + 4])
    tags: dict[int, Tag] = {}
    if order is None:
        return tags
    try:
        (offset,) = struct.unpack_from(f"{order}I", data, start + 4)
        (count,) = struct.unpack_from(f"{order}H", data, start + offset)
        for entry in range(min(count, _ENTRIES)):
            at = start + offset + 2 + 12 * entry
            tag, kind, number = struct.unpack_from(f"{order}HHI", data, at)
            code, size = {3: ("H", 2), 4: ("I", 4)}.get(kind, ("", 0))
            if not code or not 0 < number <= 64:
                continue
            place = at + 8
            if number * size > 4:
                place = start + struct.unpack_from(f"{order}I", data, place)[0]
            tags.setdefault(tag, Tag(struct.unpack_from(f"{order}{number}{code}", data, place), place))
    except struct.error:  # it points outside
        pass
    return tags


def orientation(data: bytes, kind: str) -> int:
    """How a picture is to be turned, 1 … 8 as in EXIF; 1, not at all, where the file says nothing that makes sense.

    kind: its format, of `READ`.
    """
    readers = {"JPEG": _exif_of_jpeg, "PNG": _exif_of_png, "WebP": _exif_of_webp}
    at = 0 if kind == "TIFF" else readers[kind](data) if kind in readers else None
    if at is None:
        return 1
    tag = tiff_tags(data, at).get(ORIENTATION)
    return tag.values[0] if tag is not None and 1 <= tag.values[0] <= 8 else 1


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width in pixels that a JPEG's frame header gives; None where there is none."""
    for marker, at in _jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and at + 5 <= len(data):
            return int.from_bytes(data[at + 1 : at + 3], "big"), int.from_bytes(data[at + 3 : at + 5], "big")
    return None


def _exif_of_jpeg(data: bytes) -> int | None:
    for marker, at in _jpeg_segments(data):
        if marker == 0xE1 and data[at : at + 6] == b"Exif\0\0":
            return at + 6
    return None


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and place of the content of each segment of a JPEG, up to its first scan."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xFF:  # markers may be filled up
            at += 1
            continue
        if marker in (0xD9, 0xDA) or length < 2:
            return
        yield marker, at + 4
        at += 2 + length


def _exif_of_png(data: bytes) -> int | None:
    return next((at for name, at, _ in png_chunks(data) if name == b"eXIf"), None)


def _exif_of_webp(data: bytes) -> int | None:
    for name, at, _ in _riff_chunks(data):
        if name == b"EXIF":
            return at + 6 if data[at : at + 6] == b"Exif\0\0" else at  # some writers keep JPEG's prefix
    return None


def is_animated_webp(data: bytes) -> bool:
    return any(name == b"ANIM" for name, _, _ in _riff_chunks(data))


def _riff_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, place and length of each chunk of a WebP file."""
    at = 12
    while at + 8 <= len(data):
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        yield data[at : at + 4], at + 8, length
        at += 8 + length + length % 2


def png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, place and length of each chunk of a PNG file, up to the first that is cut short."""
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if at + 12 + length > len(data):
            return
        yield data[at + 4 : at + 8], at + 8, length
        at += 12 + length


def plain_png(data: bytes) -> bytes:
    """A PNG file with nothing but what makes up its picture, the first of an animation.

    Raises ValueError where bytes are missing or, by a check sum, wrong.
    """
    kept = [data[:8]]
    for name, at, length in png_chunks(data):
        if name in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"):
            end = at + length
            if zlib.crc32(memoryview(data)[at - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
                raise ValueError("it is damaged")
            kept.append(data[at - 8 : end + 4])
        if name == b"IEND":
            return b"".join(kept)
    raise ValueError("it is cut short")


def is_deep(head: bytes) -> bool:
    """Whether an image file that begins so may have more than 8 bits a value, and not say how many. Not all formats."""
    kind = format_of(head)
    deep_png = kind == "PNG" and head[24:25] == b"\x10"
    return kind == "TIFF" or deep_png or (kind == "PNM" and pnm_white(head) == 65535)


def pnm_white(data: bytes) -> int | None:
    """The value that the header of a PGM or PPM gives for white, 1 … 65535; None where it has none."""
    match = re.match(rb"P[2356](?:\s+|\s*#[^\n]*\n)+" + 2 * rb"\d+(?:\s+|\s*#[^\n]*\n)+" + rb"(\d{1,5})\s", data[:4096])
    return int(match[1]) if match and 0 < int(match[1]) < 1 << 16 else None
