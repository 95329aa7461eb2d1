"""What the stress scripts report: figures with the system they come from, printed and kept."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import click
import numpy as np


def publish(figures: dict[str, Any], out: Path | None) -> None:
    """Print the figures as JSON, and write them to `out`, if given."""
    system = f"{platform.system()} {platform.machine()}"
    content = {**figures, "python": platform.python_version(), "numpy": np.__version__, "system": system}
    text = json.dumps(content, indent=1) + "\n"
    if out:
        out.write_text(text, "utf-8")
    click.echo(text, nl=False)
