"""What tests of the runtime share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deco_runtime.engine import Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.storage.bundle import Bundle, open_bundle


@pytest.fixture(scope="module", autouse=True)
def _as_on_a_device(no_torch_in_processes: None) -> None:
    """Commands that these tests start."""


@pytest.fixture(scope="module")
def bundle(bundle_path: Path) -> Bundle:
    """The small digits bundle, open."""
    return open_bundle(bundle_path)


@pytest.fixture(scope="module")
def runs_on(bundle: Bundle) -> Engine:
    """Its engine that every environment has."""
    return open_engine(bundle, "portable")


@pytest.fixture
def place() -> Iterator[Path]:
    """A state directory of a short name, as a socket needs it."""
    with tempfile.TemporaryDirectory(prefix="deco-") as name:
        yield Path(name) / "state"
