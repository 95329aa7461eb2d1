"""What learners have fitted at the export: each gets the same images, seen by the engine, and a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from deco_export.data import NONE, Data
from deco_export.fits import fit_learners
from deco_export.images import BATCH, Images
from deco_export.representation import Representation
from deco_runtime.learning import registry
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.origin import Labelled, fitted
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.storage.untrusted import read_npz
from fake_engine import LinearEngine

HOW = Preprocessing(4, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
CLASSES, SIZE, WIDTH = ("ant", "bee", "cow"), 3 * 4 * 4, 5


def images(n: int, seed: int) -> Images:
    rng = np.random.default_rng(seed)
    return Images(rng.integers(0, 256, (n, 4, 4, 3), np.uint8), rng.integers(0, 3, n), rng.integers(0, 9, n))


class Fitting(Learner):
    """Keeps what it was given to fit."""

    given: list[Labelled]


def fitting(name: str, arrays: dict[str, np.ndarray], notes: list[str]) -> type[Fitting]:
    given: list[Labelled] = []

    def fit(labelled: Labelled) -> tuple[dict[str, np.ndarray], list[str]]:
        given.append(labelled)
        return arrays, notes

    return type(name, (Fitting,), {"NAME": name, "fit": staticmethod(fit), "given": given})


@pytest.fixture
def learners(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Fitting]]:
    found = {
        "deep": fitting("deep", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, ["deep is deep"]),
        "plain": fitting("plain", {}, []),
        "wide+": fitting("wide+", {"s": np.float32(3), "t": np.arange(4)}, ["wide is wide", "and flat"]),
    }
    monkeypatch.setattr(registry, "learners", lambda: found)
    return found


def fit(tmp_path: Path, data: Data) -> tuple[list[str], list[tuple[str, int, int]], LinearEngine, Any]:
    rng = np.random.default_rng(0)
    engine = LinearEngine(3, rng.standard_normal(3 * SIZE).astype(np.float32))
    phi, logits = (rng.standard_normal((len(data.train), width)).astype(np.float32) for width in (WIDTH, 3))
    made = Representation(None, WIDTH, lambda: iter([(phi[:20], logits[:20]), (phi[20:], logits[20:])]))
    told: list[tuple[str, int, int]] = []
    notes = fit_learners(tmp_path, made, engine, data, HOW, lambda *stage: told.append(stage))
    return notes, told, engine, (phi, logits)


def data(held: int, none: int) -> Data:
    return Data(CLASSES, images(30, 1), images(held, 2), (), none=images(none, 3) if none else NONE)


def test_every_learner_writes_its_own_file_and_says_what_it_has_to(
    learners: dict[str, type[Fitting]], tmp_path: Path
) -> None:
    notes, told, _, _ = fit(tmp_path, data(7, 0))
    assert notes == ["deep is deep", "wide is wide", "and flat"]
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.npz"))
    assert files == [fitted("deep"), fitted("wide+")]  # none of one that fits nothing
    for name, expected in (("deep", ("w",)), ("wide+", ("s", "t"))):
        with (tmp_path / fitted(name)).open("rb") as file:
            found = read_npz(file)
        assert tuple(found) == expected
    np.testing.assert_array_equal(found["t"], np.arange(4))
    assert found["s"] == 3
    assert told == [("fitting what learners start from", done, 3) for done in range(4)]


def test_without_anything_to_fit_there_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "learners", lambda: {"plain": fitting("plain", {}, [])})
    assert fit(tmp_path, data(7, 0))[0] == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("held", "none"), [(2 * BATCH + 3, 5), (0, 0)])
def test_what_they_fit_to_is_what_the_engine_sees_of_the_images(
    held: int, none: int, learners: dict[str, type[Fitting]], tmp_path: Path
) -> None:
    """The labelled ones as the representation has them already; the others by the engine, batch by batch."""
    given = data(held, none)
    _, _, engine, (phi, logits) = fit(tmp_path, given)
    for kind in learners.values():
        (labelled,) = kind.given
        assert (labelled.size, labelled.classes) == (WIDTH, 3)
        for got, expected in zip(labelled.train.all(WIDTH, 3), (phi, logits), strict=True):
            np.testing.assert_array_equal(got, expected)
        for part, of in ((labelled.held_out, given.validation), (labelled.none, given.none)):
            x = normalise(of.pixels, HOW)
            for _ in range(2):  # each learner, and each of its passes, sees all of them
                seen = list(part.parts())
                assert all(len(one) <= BATCH for one, _ in seen)
                assert sum(len(one) for one, _ in seen) == len(of)
            for got, expected in zip(part.all(SIZE, 3), engine.represent(x) if len(x) else (x, x), strict=True):
                assert len(got) == len(of)
                np.testing.assert_allclose(got, expected.reshape(got.shape), rtol=1e-5)
        for part, of in ((labelled.train, given.train), (labelled.held_out, given.validation)):
            np.testing.assert_array_equal(part.labels, of.labels)
            np.testing.assert_array_equal(part.takes, of.takes)
