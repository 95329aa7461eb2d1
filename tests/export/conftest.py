"""What tests of the export share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import util

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_table_of_operators() -> Iterator[None]:
    """torch.onnx makes its table of some five hundred operators anew for each network that it writes, which takes as
    long as all the rest; nothing changes it, so that tests of one process share it."""
    if util.find_spec("torch") is None:
        yield
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield
