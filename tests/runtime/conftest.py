"""What tests of the runtime share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _as_on_a_device(no_torch_in_processes: None) -> None:
    """Commands that these tests start."""
