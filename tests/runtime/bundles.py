"""Bundles as other exports would have made them."""

from __future__ import annotations

import json
from pathlib import Path


def without(bundle: Path, *names: str) -> None:
    """The bundle as if it had been exported without these files."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    for name in names:
        del manifest["files"][name]
        (bundle / name).unlink()
    (bundle / "manifest.json").write_text(json.dumps(manifest), "utf-8")
