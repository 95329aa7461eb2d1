"""examples/paper-figure as it is, with one seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "paper-figure" / "run.sh"


def test_it_makes_a_table_and_the_figures(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SEEDS": "1"}
    done = subprocess.run([str(SCRIPT), str(tmp_path)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "table.md").read_text("utf-8")
    assert [row for row in ("Frozen", "Head", "FIFO", "DECO", "DECO+") if f"| {row} | 2 | 1 |" not in table] == []
    (curves,) = (tmp_path / "figures").glob("learning-curves-*.png")
    assert cv2.imread(str(curves)).std() > 1
