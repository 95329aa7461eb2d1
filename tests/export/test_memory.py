"""What an export holds in memory, measured by the system: not all pictures at once, and no copies of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cv2 = pytest.importorskip("cv2")

SIZE, CLASSES = 224, 3
FEW, MANY = 140, 600
"""Of both, nine tenths make batches of nearly as many images as a batch may have."""
COARSE = """
from torch import nn

def build(classes, image_size):
    side = image_size // 16
    return nn.Sequential(
        nn.Conv2d(3, 2, 8, stride=8), nn.ReLU(), nn.Conv2d(2, 2, 2, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * side * side, classes),
    )
"""
"""A model that costs little at 224 pixels, in time and in memory."""
MEASURED = """
from deco_export.cli import main
try:
    main()
finally:
    status = open("/proc/self/status").read()
    print("peak", status.split("VmHWM:")[1].split()[0])
"""


def photos(root: Path, count: int) -> Path:
    """A folder of pictures that all differ."""
    rng = np.random.default_rng(0)
    for i in range(count):
        folder = root / f"class {i % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        blocks = rng.integers(0, 256, (7, 7, 3), np.uint8)
        cv2.imwrite(str(folder / f"{i}.png"), cv2.resize(blocks, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST))
    return root


def peak(folder: Path, count: int) -> int:
    """Bytes resident, at most, of an export of so many pictures."""
    data = photos(folder / str(count), count)
    (folder / "coarse.py").write_text(COARSE, "utf-8")
    found = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), found)))}
    arguments = ["--data", data, "--out", folder / f"bundle {count}", "--model", "coarse:build", "--labelled", 1]
    arguments += ["--image-size", SIZE, "--epochs", 1]
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert f"labelled images    {count}\n" in ran.stdout
    return 1024 * int(ran.stdout.split("peak ")[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak of a process")
def test_more_pictures_take_at_most_one_and_a_half_times_their_pixels(tmp_path: Path) -> None:
    """They are read as they are needed, and no step takes all of them at once, in whatever type."""
    more = peak(tmp_path, MANY) - peak(tmp_path, FEW)
    assert more < 1.5 * (MANY - FEW) * SIZE * SIZE * 3, f"{more / 1e6:.0f} MB more"
