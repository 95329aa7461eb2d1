"""The experiments as commands; see the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_runtime.commands.terminal import exit_with
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import UsageError
from deco_runtime.pictures.folder import split_folder
from deco_runtime.storage.bundle import open_bundle

from deco_benchmarks.fleet import hostile, merge, noise, numbers, scale, secure, union
from deco_benchmarks.fleet.footage import observe
from deco_benchmarks.fleet.shared import path, with_bundle


@click.group(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
def main() -> None:
    """What a fleet learns, and what it costs."""


@main.command("observe")
@with_bundle
@click.option("--data", required=True, type=path(), metavar="DIR",
              help="Image folder with train/ or stream/, and test/; what the bundle saw is left out.")  # fmt: skip
@click.option("--out", required=True, type=path(), metavar="FILE.npz")
def look(bundle_path: Path, data: Path, out: Path) -> None:
    """Send all images of a folder through the network once, and keep what learners see in them."""
    bundle = open_bundle(bundle_path)
    engine = open_engine(bundle, "auto")
    stream, test = (data / "stream", data / "test") if (data / "stream").is_dir() else split_folder(data)
    if test is None or not test.is_dir():
        raise UsageError(f"expected {data} to have test/ beside train/ or stream/, but found none; choose another")
    arrays: dict[str, Any] = {}
    for name, root in (("stream", stream), ("test", test)):
        frames = observe(root, bundle, engine)
        click.echo(f"{name}: {len(frames)} frames")
        arrays |= {f"{name}_labels": frames.labels, f"{name}_takes": frames.takes}
        arrays |= {f"{name}_seen_{key}": value for key, value in frames.observed.items()}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(out, **arrays)


for module in (merge, hostile, numbers, noise, secure, union):
    main.add_command(module.command)
main.add_command(scale.scale)
main.add_command(scale.push)

if __name__ == "__main__":
    sys.exit(exit_with(main))
