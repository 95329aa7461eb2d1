"""Image files as cameras, scanners and phones write them, and OpenCV's writer does not."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


def exif(orientation: int, order: str = "<", thumbnail: bytes = b"") -> bytes:
    """An EXIF block that holds an orientation, and a thumbnail in a second directory."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    first = struct.pack(f"{order}HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 26 if thumbnail else 0)
    if not thumbnail:
        return head + first
    entries = struct.pack(f"{order}HHII", 0x0201, 4, 1, 26 + 30) + struct.pack(
        f"{order}HHII", 0x0202, 4, 1, len(thumbnail)
    )
    return head + first + struct.pack(f"{order}H", 2) + entries + bytes(4) + thumbnail


def jpeg_with(jpeg: bytes, block: bytes) -> bytes:
    """A JPEG with an EXIF block, behind one of another kind."""
    segments = [(b"\xff\xe1", b"http://ns.adobe.com/xap/1.0/\0"), (b"\xff\xe1", b"Exif\0\0" + block)]
    packed = [marker + struct.pack(">H", len(content) + 2) + content for marker, content in segments]
    return jpeg[:2] + b"".join(packed) + jpeg[2:]


def webp_with(webp: bytes, block: bytes, height: int, width: int) -> bytes:
    """A simple WebP file in the extended format, with an EXIF block."""
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    chunks = b"VP8X" + struct.pack("<I", 10) + bytes([8, 0, 0, 0]) + canvas + webp[12:]
    chunks += b"EXIF" + struct.pack("<I", len(block)) + block + bytes(len(block) % 2)
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(values: Values, extra: bytes = b"", kind: int | None = None, bits: int | None = None) -> bytes:
    """A PNG of uint8 or uint16 values (height, width), or with 2, 3 or 4 channels R, G, B, opacity.

    extra: chunks before the pixels. kind: 3 for indices into a palette. bits: 1, 2 or 4 for values that are packed.
    """
    height, width, channels = (*values.shape, 1)[:3]
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels] if kind is None else kind
    rows = values.astype(values.dtype.newbyteorder(">")).reshape(height, -1)
    if bits is not None:
        rows = np.packbits(np.unpackbits(values[..., None], axis=2)[..., 8 - bits :].reshape(height, -1), axis=1)
    bits = bits or 8 * values.dtype.itemsize
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + head + extra + data + chunk(b"IEND", b"")


def tiff(values: Values, order: str = "<", **tags: int) -> bytes:
    """An uncompressed TIFF of values (height, width), or with channels R, G, B and others.

    tags: orientation, extra_samples, max_sample.
    """
    height, width, channels = (*values.shape, 1)[:3]
    size = values.dtype.itemsize
    bits_at = 8
    data_at = bits_at + 2 * channels + 2 * channels
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    directory_at = data_at + len(data) + len(data) % 2
    sample_format = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    entries: list[tuple[int, int, int, int]] = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, channels, bits_at if channels > 2 else 8 * size),
        (259, 3, 1, 1),
        (262, 3, 1, 2 if channels > 2 else 1),
        (273, 4, 1, data_at),
        (277, 3, 1, channels),
        (278, 4, 1, height),
        (279, 4, 1, len(data)),
        (339, 3, channels, bits_at + 2 * channels if channels > 2 else sample_format),
    ]
    numbers = {"orientation": 274, "max_sample": 281, "extra_samples": 338}
    entries += [(numbers[name], 3, 1, value) for name, value in tags.items()]
    packed = struct.pack(f"{order}H", len(entries))
    for tag, kind, count, value in sorted(entries):
        packed += struct.pack(f"{order}HHI", tag, kind, count)
        inline = [value] * count + [0] * (2 - count)
        packed += struct.pack(f"{order}HH", *inline) if kind == 3 and count < 3 else struct.pack(f"{order}I", value)
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", directory_at)
    arrays = struct.pack(f"{order}{channels}H", *[8 * size] * channels)
    arrays += struct.pack(f"{order}{channels}H", *[sample_format] * channels)
    return head + arrays + data + bytes(len(data) % 2) + packed + bytes(4)
