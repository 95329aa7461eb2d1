"""--version of every command: this release, and the packages beside it that do the work."""

from __future__ import annotations

import contextlib
import platform
from importlib import metadata

import click

from deco_runtime import __version__
from deco_runtime.engines.packages import runtime_packages

PACKAGES = (
    "numpy", "openvino", "tensorrt", "opencv-python-headless", "opencv-python", "opencv-contrib-python-headless",
    "opencv-contrib-python", "pillow", "torch", "onnx", "flwr",
)  # fmt: skip
"""Beside whatever provides onnxruntime; what is not installed is not said."""


def version_option() -> click.Option:
    """An option that prints `lines` and ends the command."""

    def show(context: click.Context, _: click.Parameter, asked: bool) -> None:
        if asked:
            click.echo("\n".join(lines(context.find_root().info_name or "deco-edge")))
            context.exit()

    return click.Option(
        ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=show,
        help="Show the version, and those of the runtimes, and exit.",
    )  # fmt: skip


def lines(command: str) -> list[str]:
    """This release, Python and the machine, and the installed packages, one a line. Nothing is imported for it."""
    found = [
        f"{command} {__version__}",
        f"python {platform.python_version()}, {platform.system()} {platform.machine()}",
    ]
    for package in (*runtime_packages(), *PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return found
