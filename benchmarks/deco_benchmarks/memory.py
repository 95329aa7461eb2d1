"""What an export holds in memory, by number of pictures: synthetic JPEGs, an export of its own process, its peak."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cv2
import numpy as np

if TYPE_CHECKING:
    from torch import nn

CLASSES = 10
BLOCKS = 14
"""A picture is so many random blocks each way: all differ, and none is a near duplicate."""
CHILD = """
import resource, sys
from pathlib import Path
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
from deco_export.cli import main
try:
    main()
finally:
    print("peak", Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


def coarse(classes: int, image_size: int) -> nn.Module:
    """A model that costs little, in time and in memory, so that what is left is the pictures'; for sides from 16."""
    from torch import nn

    side = image_size // 16
    layers = (nn.Conv2d(3, 2, 8, stride=8), nn.ReLU(), nn.Conv2d(2, 2, 2, stride=2), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * side * side, classes))


def write_photos(root: Path, count: int, size: int) -> None:
    """`count` JPEGs of this side in CLASSES class folders."""
    rng = np.random.default_rng(0)
    for i in range(count):
        folder = root / f"class{i % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        blocks = rng.integers(0, 256, (BLOCKS, BLOCKS, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i:06}.jpg"), cv2.resize(blocks, (size, size), interpolation=cv2.INTER_NEAREST))


def measure(folder: Path, count: int, size: int, given: tuple[str, ...], limit: int = 0) -> dict[str, Any]:
    """Export `count` pictures, all of them labelled. limit: bytes of data the process may have, 0 for any number."""
    data = folder / str(count)
    write_photos(data, count, size)
    arguments = ["--data", data, "--out", folder / f"bundle-{count}", "--labelled", 1, "--image-size", size, *given]
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(limit), *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True
    )
    return {
        "images": count,
        "size": size,
        "options": list(given),
        "limit_bytes": limit or None,
        "pixel_bytes": count * size * size * 3,
        "peak_bytes": 1024 * int(done.stdout.split("peak ")[1]),
        "seconds": round(time.monotonic() - start, 1),
    }


@click.command(context_settings={"show_default": True, "ignore_unknown_options": True})
@click.option("--images", default="100,1500,40000", help="Numbers of pictures, one export each.")
@click.option("--size", default=224, type=click.IntRange(8), help="Side of the pictures in pixels.")
@click.option("--limit", default=0, type=click.IntRange(0), help="Bytes of data that an export may have; 0 for any.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE")
@click.argument("given", nargs=-1, type=click.UNPROCESSED)
def main(images: str, size: int, limit: int, out: Path, given: tuple[str, ...]) -> None:
    """Measure exports on Linux; GIVEN are further options of deco-export.

    \b
    python -m deco_benchmarks.memory --out FILE --model deco_benchmarks.memory:coarse --epochs 1
    """
    found = []
    for count in map(int, images.split(",")):
        with tempfile.TemporaryDirectory(dir=out.parent) as folder:
            found.append(measure(Path(folder), count, size, given, limit))
        out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
