"""What the bytes of an image file are taken for: the same by every version of OpenCV, and right or refused."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from deco_runtime.pictures.containers import format_of, orientation, png_chunks, tiff_tags
from deco_runtime.pictures.decode import Seen, decode, decode_jpeg, seen_in
from deco_runtime.pictures.overhear import overhear
from hypothesis import given, settings
from hypothesis import strategies as st
from picture_files import chunk, exif, jpeg_with, png, tiff, webp_with

Values = npt.NDArray[Any]

HEIGHT, WIDTH = 24, 40
Y, X = np.mgrid[:HEIGHT, :WIDTH]
RGB = np.dstack([X * 6, Y * 10, X * 3 + Y * 4]).astype(np.uint8)
GREY = RGB[..., 1].copy()
RIGHT = np.where(X < WIDTH // 2, 0, 255).astype(np.uint8)
"""Opacity: the left half is transparent."""

BGR = RGB[..., ::-1]
GREYS = np.dstack([GREY] * 3)

TURNED: dict[int, Callable[[Values], Values]] = {
    1: lambda p: p,
    2: np.fliplr,
    3: lambda p: np.rot90(p, 2),
    4: np.flipud,
    5: lambda p: np.rot90(np.fliplr(p), 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: np.rot90(np.fliplr(p), -1),
    8: lambda p: np.rot90(p, 1),
}
"""What EXIF says is to be done with what is stored, to see it upright."""


def encoded(extension: str, pixels: Values, *how: int) -> bytes:
    ok, data = cv2.imencode(extension, pixels, how)
    assert ok
    return bytes(data.tobytes())


JPEG = encoded(".jpg", BGR, cv2.IMWRITE_JPEG_QUALITY, 98)
WEBP = encoded(".webp", BGR, cv2.IMWRITE_WEBP_QUALITY, 101)  # above 100: lossless


# --- EXIF


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("number", TURNED)
def test_every_format_is_turned_as_exif_says(number: int, order: str) -> None:
    block = exif(number, order)
    files = {
        "JPEG": jpeg_with(JPEG, block),
        "PNG": png(RGB, chunk(b"eXIf", block)),
        "WebP": webp_with(WEBP, block, HEIGHT, WIDTH),
        "WebP, JPEG's prefix": webp_with(WEBP, b"Exif\0\0" + block, HEIGHT, WIDTH),
        "TIFF": tiff(RGB, order, orientation=number),
        "TIFF of 16 bits": tiff(RGB.astype(np.uint16) * 257, order, orientation=number),
        "TIFF of floats": tiff(RGB.astype(np.float32) / 255, order, orientation=number),
    }
    for name, data in files.items():
        assert orientation(data, name.split()[0].rstrip(",")) == number, name
        pixels = decode(data)
        assert pixels.flags.c_contiguous
        np.testing.assert_allclose(pixels, TURNED[number](BGR), atol=12 if name == "JPEG" else 0, err_msg=name)
    np.testing.assert_array_equal(decode(tiff(GREY, order, orientation=number)), TURNED[number](GREYS))


@pytest.mark.parametrize("number", [0, 9, 65535])
def test_an_orientation_that_makes_no_sense_is_none(number: int) -> None:
    for data in (jpeg_with(JPEG, exif(number)), png(RGB, chunk(b"eXIf", exif(number)))):
        assert decode(data).shape == (HEIGHT, WIDTH, 3)


@given(st.binary(max_size=80), st.sampled_from(["JPEG", "PNG", "WebP", "TIFF"]), st.integers(0, 200))
@settings(max_examples=300)
def test_readers_of_containers_stand_anything(junk: bytes, kind: str, cut: int) -> None:
    begins = {"JPEG": jpeg_with(JPEG, exif(6)), "PNG": png(RGB, chunk(b"eXIf", exif(6))), "TIFF": tiff(RGB)}
    whole = begins.get(kind, webp_with(WEBP, exif(6), HEIGHT, WIDTH))
    for data in (junk, whole[:cut] + junk, whole[:12] + junk):
        assert 1 <= orientation(data, kind) <= 8
        format_of(data)
        list(png_chunks(data))
        tiff_tags(data)


# --- more or fewer than 8 bits


@pytest.mark.parametrize(("bits", "factor"), [(9, 2), (10, 4), (12, 16), (14, 64), (16, 256), (16, 257)])
@pytest.mark.parametrize("kind", ["PNG", "grey PNG", "TIFF", "grey TIFF", "PGM", "PPM", "int16 TIFF"])
def test_values_of_any_depth_keep_their_brightness(kind: str, bits: int, factor: int) -> None:
    colour = "grey" not in kind and kind not in ("PGM", "int16 TIFF")
    values = (RGB if colour else GREY).astype(np.uint16) * factor
    values[0, 0] = 255 * factor
    shown = (BGR if colour else GREYS).copy()
    shown[0, 0] = 255
    if "TIFF" in kind:
        if kind.startswith("int16"):
            if bits == 16:
                return
            values = values.astype(np.int16)
        data = tiff(values)
    elif "PNG" in kind:
        data = png(values)
    else:
        data = encoded(".ppm" if colour else ".pgm", values[..., ::-1] if colour else values)
    expected = shown // 2 if bits == 9 else shown  # nobody has 9 bits: it is taken for 10
    np.testing.assert_array_equal(decode(data), expected)


def test_a_dark_picture_is_not_brighter_than_its_folder(tmp_path: Path) -> None:
    """Of a 12-bit sensor: alone, a dark picture of it would pass for one of 8 bits."""
    bright, dark = GREY.astype(np.uint16) * 17, GREY.astype(np.uint16)
    for name, values in (("a.png", bright), ("b.png", dark), ("c.tif", dark)):
        (tmp_path / name).write_bytes(png(values) if name.endswith("png") else tiff(values))
    (tmp_path / "d.png").write_bytes(png(RGB))
    (tmp_path / "e.png").write_bytes(b"no image")
    seen = seen_in([*sorted(tmp_path.iterdir()), tmp_path / "missing.png"])
    assert seen == Seen(integer=int(bright.max()), real=0.0)
    np.testing.assert_array_equal(decode(png(dark), seen), GREYS // 16)
    np.testing.assert_array_equal(decode(tiff(dark), seen), GREYS // 16)
    np.testing.assert_array_equal(decode(png(dark)), GREYS)
    np.testing.assert_array_equal(decode(png(RGB), seen), BGR)  # 8 bits are 8 bits


def test_a_file_that_says_what_is_white_is_believed() -> None:
    for white in (100, 255, 1000, 4095):
        kind, values = ("<u1", GREY // 3) if white <= 255 else (">u2", GREY.astype(int) * 4)
        header = b"P5 # a comment\n%d %d\n# another\n%d\n" % (WIDTH, HEIGHT, white)
        expected = np.round(values * (255 / white))[..., None]
        np.testing.assert_allclose(decode(header + values.astype(kind).tobytes()), np.dstack([expected] * 3), atol=0)
    plain = b"P2 %d %d 1000\n" % (WIDTH, HEIGHT) + " ".join(map(str, GREY.ravel())).encode() + b"\n"
    np.testing.assert_array_equal(decode(plain)[..., 0], np.round(GREY * 0.255))
    declared = tiff(GREY.astype(np.uint16), max_sample=1000)
    np.testing.assert_array_equal(decode(declared)[..., 0], np.round(GREY * 0.255))
    with pytest.raises(ValueError, match="values above 100"):
        decode(tiff(GREY.astype(np.uint16), max_sample=100))


def test_floating_point_is_up_to_1_or_up_to_255(tmp_path: Path) -> None:
    for kind in (np.float32, np.float64):
        np.testing.assert_array_equal(decode(tiff((GREY / 255).astype(kind))), GREYS)
        np.testing.assert_array_equal(decode(tiff(GREY.astype(kind))), GREYS)
    night = (GREY / 255).astype(np.float32)  # of a folder of 0 … 255
    np.testing.assert_array_equal(decode(tiff(night), Seen(real=200.0)), np.round(GREYS / 255))
    for value, words in ((-0.1, "below 0"), (268.0, "outside of"), (np.nan, "none at all"), (np.inf, "outside of")):
        wrong = night.copy()
        wrong[3, 3] = value
        with pytest.raises(ValueError, match=words):
            decode(tiff(wrong))
    for white in (1, 255):
        beyond = (GREY / 255 * white).astype(np.float32)
        beyond[:2, 0] = -0.03 * white, 1.03 * white
        expected = GREYS.copy()
        expected[:2, 0] = [[0], [255]] if expected.ndim == 3 else [0, 255]
        np.testing.assert_array_equal(decode(tiff(beyond)), expected)
    (tmp_path / "a.tif").write_bytes(tiff(GREY.astype(np.float32)))
    assert seen_in([tmp_path / "a.tif"]) == Seen(real=float(GREY.max()))


def test_floats_as_opencv_writes_them() -> None:
    """Its compression of them is lossy, and white comes back as 1.01."""
    written = cv2.imencode(".tiff", (RGB[..., ::-1] / 255).astype(np.float32))[1].tobytes()
    assert cv2.imdecode(np.frombuffer(written, np.uint8), cv2.IMREAD_UNCHANGED).dtype == np.float32
    assert np.abs(decode(written).astype(int) - RGB[..., ::-1]).mean() < 6


@pytest.mark.parametrize("kind", [np.int8, np.uint32, np.int32])
def test_values_without_a_white_are_refused(kind: type) -> None:
    with pytest.raises(ValueError, match=r"whose white cannot be told|OpenCV cannot decode it"):
        decode(tiff((GREY // 2).astype(kind)))
    with pytest.raises(ValueError, match="below 0"):
        decode(tiff(GREY.astype(np.int16) - 10))


def test_packed_and_indexed_values() -> None:
    for bits in (1, 2, 4):
        top = (1 << bits) - 1
        values = (X % (top + 1)).astype(np.uint8)
        np.testing.assert_array_equal(decode(png(values, bits=bits))[..., 2], values * (255 // top))
        palette = np.random.default_rng(0).integers(0, 256, (top + 1, 3), np.uint8)
        shown = decode(png(values, chunk(b"PLTE", palette.tobytes()), kind=3, bits=bits))
        np.testing.assert_array_equal(shown, palette[values][..., ::-1])


# --- transparency


def on_white(pixels: Values, alpha: Values) -> Values:
    return np.round(pixels * (alpha[..., None] / 255) + 255.0 - alpha[..., None])


@pytest.mark.parametrize("alpha", [RIGHT, (X * 6).astype(np.uint8), np.zeros_like(GREY), np.full_like(GREY, 255)])
def test_what_is_transparent_shows_white(alpha: Values) -> None:
    rgba, la = np.dstack([RGB, alpha]), np.dstack([GREY, alpha])
    deep = rgba.astype(np.uint16) * 257
    multiplied = np.dstack([np.round(RGB * (alpha[..., None] / 255)).astype(np.uint8), alpha])
    webp = encoded(".webp", np.dstack([BGR, alpha]), cv2.IMWRITE_WEBP_QUALITY, 101)
    files: dict[str, tuple[bytes, Values]] = {
        "PNG": (png(rgba), BGR),
        "PNG of 16 bits": (png(deep), BGR),
        "grey PNG": (png(la), GREYS),
        "WebP": (webp, BGR),
        "TIFF": (tiff(rgba, extra_samples=2), BGR),
        "TIFF of 16 bits": (tiff(deep, extra_samples=2), BGR),
        "TIFF, multiplied": (tiff(multiplied, extra_samples=1), BGR),
        "TIFF of 16 bits, multiplied": (tiff(multiplied.astype(np.uint16) * 257, extra_samples=1), BGR),
    }
    for name, (data, colours) in files.items():
        pixels, expected = decode(data).astype(int), on_white(colours, alpha)
        # WebP forgets the colours under full transparency.
        np.testing.assert_allclose(pixels, expected, atol=2, err_msg=name)


def test_a_fourth_channel_that_is_no_opacity_is_ignored() -> None:
    infrared = np.dstack([RGB, RIGHT])
    np.testing.assert_array_equal(decode(tiff(infrared.astype(np.uint16) * 257, extra_samples=0)), BGR)
    np.testing.assert_array_equal(decode(tiff(infrared, extra_samples=0)), BGR)


def test_one_colour_that_stands_for_transparent() -> None:
    red, level = RGB[5, 7], int(GREY[5, 7])
    hidden = (red == RGB).all(axis=2)
    keyed = chunk(b"tRNS", struct.pack(">3H", *map(int, red)))
    np.testing.assert_array_equal(decode(png(RGB, keyed)), np.where(hidden[..., None], 255, BGR))
    grey = np.where(GREY[..., None] == level, 255, GREYS)
    np.testing.assert_array_equal(decode(png(GREY, chunk(b"tRNS", struct.pack(">H", level)))), grey)
    deep = png(GREY.astype(np.uint16) * 257, chunk(b"tRNS", struct.pack(">H", level * 257)))
    np.testing.assert_array_equal(decode(deep), grey)
    palette = chunk(b"PLTE", bytes([9, 9, 9, 40, 50, 60])) + chunk(b"tRNS", bytes([0]))
    indexed = decode(png((X % 2).astype(np.uint8), palette, kind=3))
    np.testing.assert_array_equal(indexed[0, :2], [[255, 255, 255], [60, 50, 40]])


def test_a_grey_tiff_with_transparency_is_refused() -> None:
    with pytest.raises(ValueError, match="grey TIFF with transparency"):
        decode(tiff(np.dstack([GREY, RIGHT]), extra_samples=2))


def test_a_bitmap_whose_fourth_byte_is_unused_is_opaque() -> None:
    rows = np.dstack([BGR, np.zeros_like(GREY)])[::-1].tobytes()
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 32, 0, len(rows), 0, 0, 0, 0)
    data = b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + head + rows
    np.testing.assert_array_equal(decode(data), BGR)


# --- damage


def test_half_a_jpeg_is_damaged_also_with_a_thumbnail_in_it() -> None:
    whole = jpeg_with(JPEG, exif(1, thumbnail=encoded(".jpg", BGR[::4, ::4])))
    assert decode(whole).shape == BGR.shape
    for share in (0.4, 0.5, 0.9):
        with pytest.raises(ValueError, match=r"damaged or cut short|cannot decode"):
            decode(whole[: int(len(whole) * share)])


@pytest.mark.parametrize("how", [(), (cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 2)])
def test_a_jpeg_is_judged_by_its_data_and_not_by_its_end_mark(how: tuple[int, ...]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = encoded(".jpg", noise, *how)
    pixels = decode_jpeg(whole)
    for same in (
        whole[:-2],
        whole[:-1],
        whole + bytes(50),
        whole[:-2] + bytes(9) + whole[-2:],
        whole[:-2] + b"\xff" * 9,
    ):
        np.testing.assert_array_equal(decode_jpeg(same), pixels)
    middle = len(whole) // 2
    lost = whole[:middle] + bytes(len(whole) - middle - 2) + whole[-2:]
    joined = whole[:middle] + whole[middle + 200 :]
    for damaged in (lost, joined, whole[:middle] + whole[-2:], whole[:-30]):
        with pytest.raises(ValueError, match=r"damaged or cut short|cannot decode"):
            decode_jpeg(damaged)


def test_most_wrong_bits_in_a_jpeg_are_noticed() -> None:
    """Not all: some change a colour, or nothing, and leave a JPEG as good as any."""
    rng = np.random.default_rng(0)
    scene = np.clip(
        rng.normal(0, 12, (96, 96, 3)) + 100 + 60 * (np.indices((96, 96)).sum(0) // 24 % 2)[..., None], 0, 255
    )
    whole = encoded(".jpg", scene.astype(np.uint8))
    start = whole.index(b"\xff\xda") + 14
    noticed = 0
    for _ in range(100):
        wrong = bytearray(whole)
        for place in rng.integers(start, len(whole) - 2, 6):
            wrong[place] ^= 1 << int(rng.integers(8))
        try:
            decode_jpeg(bytes(wrong))
        except ValueError:
            noticed += 1
    assert noticed >= 85


def test_any_wrong_bit_in_a_png_is_noticed() -> None:
    whole, rng = png(RGB), np.random.default_rng(0)
    for place in rng.integers(8, len(whole), 60):
        wrong = bytearray(whole)
        wrong[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(ValueError, match=r"\w"):
            decode(bytes(wrong))


REFUSED = {
    "empty": (b"", "it is empty"),
    "text": (b"no image\n" * 30, "no image of a known format"),
    "GIF": (b"GIF89a" + bytes(100), "it is GIF, convert it"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(100), "it is HEIC, convert it"),
    "AVIF": (b"\0\0\0\x18ftypavif" + bytes(100), "it is AVIF, convert it"),
    "PAM": (b"P7\nWIDTH 2\nHEIGHT 2\n", "it is PAM, convert it"),
    "animated": (
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x02" + bytes(9) + b"ANIM\6\0\0\0" + bytes(6),
        "it is animated",
    ),
    "huge": (b"P5 60000 60000 255\n" + bytes(100), "OpenCV cannot decode it"),
    "a half PNG": (png(RGB)[:60], "cut short"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words_and_in_silence(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        decode(data)
    assert capfd.readouterr() == ("", "")


def test_an_animation_shows_its_still_picture() -> None:
    control = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(
        b"fcTL", struct.pack(">IIIIIHHBB", 0, WIDTH, HEIGHT, 0, 0, 1, 1, 0, 0)
    )
    np.testing.assert_array_equal(decode(png(RGB, control)), BGR)


def test_cmyk_as_adobe_stores_it() -> None:
    """Inverted, so that 255 is no ink; of the black ink 128 of 255 are left out."""
    np.testing.assert_allclose(decode(cmyk(200, 100, 50, 255))[4, 4], (50, 100, 200), atol=2)
    np.testing.assert_allclose(decode(cmyk(200, 100, 50, 128))[4, 4], (25, 50, 100), atol=2)


def cmyk(*inks: int) -> bytes:
    """A JPEG of four channels in four scans, each that of a grey JPEG."""
    greys = [encoded(".jpg", np.full((16, 16), ink, np.uint8), cv2.IMWRITE_JPEG_QUALITY, 100) for ink in inks]
    frame, scan = greys[0].index(b"\xff\xc0"), greys[0].index(b"\xff\xda")
    components = b"".join(bytes([number, 0x11, 0]) for number in range(1, 5))
    header = b"\xff\xc0" + struct.pack(">HBHHB", 20, 8, 16, 16, 4) + components
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"
    scans = [
        b"\xff\xda\0\x08\1" + bytes([number, 0]) + b"\0\x3f\0" + grey[grey.index(b"\xff\xda") + 10 : -2]
        for number, grey in enumerate(greys, 1)
    ]
    before, after = greys[0][2:frame], greys[0][frame + 13 : scan]
    return b"\xff\xd8" + adobe + before + header + after + b"".join(scans) + b"\xff\xd9"


# --- what libraries say


def test_only_what_libraries_say_is_kept_and_the_rest_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    def call() -> int:
        os.write(2, b"Corrupt JPEG data: bad Huffman code\nnote: of another thread\n")
        return 7

    assert overhear(call) == (7, "Corrupt JPEG data: bad Huffman code\n")
    assert overhear(lambda: 8) == (8, "")
    with pytest.raises(KeyError):
        overhear(lambda: {}[1])
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "note: of another thread\nafter\n"


def test_without_a_stderr() -> None:
    code = (
        "import os, sys; os.close(2)\n"
        "from deco_runtime.pictures.overhear import overhear\n"
        "print(overhear(lambda: os.write(2, b'libpng warning: x\\n')))\n"
        "try: os.write(2, b'x')\n"
        "except OSError: print('still closed')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "(18, 'libpng warning: x\\n')\nstill closed\n"
