"""Flower's SuperNode on a device. It starts programs of Flower's by their names, among them what the server sends: here
these names mean `_task`, which runs nothing but what is installed on the device."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from deco_runtime.fleet.flower import ours
from deco_runtime.fleet.keeper import end_with_parent


def main() -> None:
    """With the arguments of flower-supernode."""
    end_with_parent()
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
    from flwr.supernode.cli import flower_supernode

    folder = Path(os.environ["FLWR_HOME"]) / "bin"
    folder.mkdir(exist_ok=True)
    for name in TASK_TYPE_TO_COMMAND.values():
        file = folder / name
        new = file.with_name(f"{name}.new")
        new.write_text(f'#!/bin/sh\nexec {shlex.join(ours("_task", name))} "$@"\n', "utf-8")
        new.chmod(0o700)
        os.replace(new, file)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    sys.argv[0] = "flower-supernode"
    flower_supernode()


if __name__ == "__main__":
    main()
