"""Draw a part that no bundle of digits knows: parts.py OUT. Twelve pictures to teach it by, OUT/square-nut, and a film
of others as the belt brings them, OUT/belt.avi."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np


def square_nut(number: int) -> np.ndarray:
    """(64, 64, 3) uint8: a bright outline, of another place, size and light for each number."""
    rng = np.random.default_rng(number)
    picture = np.full((64, 64, 3), rng.integers(0, 20), np.uint8)
    x, y, wide, high = (int(v) for v in (*rng.integers(4, 14, 2), *rng.integers(36, 46, 2)))
    cv2.rectangle(picture, (x, y), (x + wide, y + high), (int(rng.integers(200, 255)),) * 3, 5)
    return picture


out = Path(sys.argv[1])
(out / "square-nut").mkdir(parents=True, exist_ok=True)
for number in range(12):
    cv2.imwrite(str(out / "square-nut" / f"{number:02}.png"), square_nut(number))
belt = cv2.VideoWriter(str(out / "belt.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30, (64, 64))
for number in range(100, 130):
    belt.write(square_nut(number))
belt.release()
