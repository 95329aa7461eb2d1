"""Engines and sources that a package outside the project brings, installed as pip leaves them; learners have
test_registry.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from installed import command, package

NOISE = '''"""A source of grey pictures, so many as are asked for."""

import click
import numpy as np

from deco_runtime.types import Frame

OPTION = click.Option(["--noise"], type=int, metavar="N", help="So many frames of noise.")


class Noise:
    name, live, dropped = "noise", False, 0

    def __init__(self, length, view):
        self.length, self._view = length, view

    def frames(self):
        draw = np.random.default_rng(0)
        for number in range(self.length):
            image = self._view.of(draw.integers(0, 256, (40, 40, 3), np.uint8))
            yield Frame(pixels=image, time=number / 30)

    def fingerprints(self):
        return frozenset()

    def note(self):
        return None

    def figures(self):
        return {}

    def close(self):
        pass


def open_source(value, request):
    return Noise(value, request.view)
'''
ENGINE = '''"""ONNX Runtime under another name, to see that it is asked."""

from deco_runtime.engines.portable import PACKAGE, PRECISION, files

NAME, PREFERENCE = "npu", 0


def unusable(bundle):
    return None


def load(root):
    from deco_runtime.engines._sessions import SessionEngine

    return SessionEngine(NAME, files(root))
'''


def test_a_source_of_another_package(bundle_path: Path, tmp_path: Path) -> None:
    site = package(tmp_path / "site", "deco_noise", NOISE, "noise = deco_noise", "deco_edge.sources")
    assert "So many frames of noise." in command(site, "--help").stdout
    done = command(site, "--bundle", bundle_path, "--noise", 40, "--state", tmp_path / "state", "--engine", "portable")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["frames"] == 40


def test_an_engine_of_another_package(bundle_path: Path, tmp_path: Path) -> None:
    site = package(tmp_path / "site", "deco_npu", ENGINE, "npu = deco_npu", "deco_edge.engines")
    given = ("--bundle", bundle_path, "--demo", "--state", tmp_path / "state", "--max-segments", 1, "--engine", "npu")
    done = command(site, *given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == "npu"


@pytest.mark.parametrize(
    ("start", "what", "source", "why"),
    [
        ("", "source", "raise ValueError('no such\\ndevice')", "fails with: no such;"),
        ("", "source", "OPTION = None", "fails with: it lacks open_source;"),
        ("", "engine", "NAME = 'npu'", "fails with: it lacks PRECISION, PACKAGE, PREFERENCE, unusable, load;"),
        ("bench", "engine", "raise OSError('no such device')", "fails with: no such device;"),
    ],
)
def test_one_that_fails_is_named(tmp_path: Path, start: str, what: str, source: str, why: str) -> None:
    site = package(tmp_path / "site", "deco_other", source, "other = deco_other", f"deco_edge.{what}s")
    done = command(site, *(("run", "--help") if start == "bench" else ("--help",)), start=start)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith(f"error: expected a{'n' * (what == 'engine')} {what} from the installed package's ")
    assert why in done.stderr
    assert done.stderr.endswith("; mend or uninstall that package\n")
    assert done.stderr.count("\n") == 1
