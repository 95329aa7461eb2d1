"""Packages of others, as pip leaves them, and commands that run where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import deco_runtime


def package(folder: Path, module: str, source: str, entry: str, group: str = "deco_edge.learners") -> Path:
    """A folder with an installed distribution: one module, and its entry point in that group."""
    folder.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source, "utf-8")
    about = folder / f"{module.replace('_', '.')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", "utf-8")
    (about / "RECORD").write_text(f"{module}.py,,\n{about.name}/METADATA,,\n{about.name}/entry_points.txt,,\n", "utf-8")
    (about / "entry_points.txt").write_text(f"[{group}]\n{entry}\n", "utf-8")
    return folder


def command(site: Path, *arguments: object, start: str = "") -> subprocess.CompletedProcess[str]:
    """deco-run where that package is installed, or another command by its name in `deco_runtime.start`."""
    begin = (
        ("-c", f"from deco_runtime.start import {start}; {start}()") if start else ("-m", "deco_runtime.commands.run")
    )
    paths = [str(Path(deco_runtime.__file__).parents[1]), str(site), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *begin, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
