"""Bundles that trials start from, pre-trained for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from deco_benchmarks.config import Config
from deco_benchmarks.sweep import read
from deco_benchmarks.trial import base_bundle
from deco_export import pretrain


def quick_base(config: Config, folder: Path) -> Path:
    """The base of this configuration on the digits, where a sweep with this folder as its .bases finds it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "EPOCHS", 15)
        patch.setattr(pretrain, "LEAST_STEPS", 15)
        return base_bundle(read("digits", 16), config, folder, lambda *_: None)
