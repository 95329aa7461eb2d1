"""A trial that was cut off goes on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.storage.bundle import open_bundle

pytest.importorskip("torch")

from deco_benchmarks import trial
from deco_benchmarks.config import Config
from deco_benchmarks.rows import Setup, rows
from deco_benchmarks.sweep import read
from deco_benchmarks.trial import base_bundle, run_trial

SAME = (
    *("before_accuracy", "before_accuracy_clean", "final_accuracy", "final_accuracy_clean", "curve"),
    *("forgetting_per_class", "distances", "kept", "pseudo_accuracy", "segments"),
)
STREAM = "stc=50,drift=2"
ROWS = (
    *("DECO", "DECO+", "SLDA", "FIFO", "Random", "GSS-Greedy", "Selective-BP", "K-Center", "Head", "Oracle"),
    *("NCM", "RanPAC", "T3A", "Tent"),
)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest preset ends before it would save anything."""
    monkeypatch.setattr(trial, "CHECKPOINT_EVERY", 2)


class CutOffError(Exception):
    """Stands for the power."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_bundle(read("digits", 16), config("DECO"), tmp_path_factory.mktemp("bases"), lambda *_: None)


def config(row: str, seed: int = 0) -> Config:
    return Config(row, "digits", 0.1, 2, STREAM, seed, "smoke", engine="portable")


def cut_off_after(segments: int, config: Config, bundle: Path, file: Path) -> None:
    def tick(done: int, total: int) -> None:
        if done == segments:
            raise CutOffError

    with pytest.raises(CutOffError):
        run_trial(config, read("digits", 16), bundle, tick, file)


@pytest.mark.parametrize("row", [*ROWS, "FIFO (per class)", "Upper"])
def test_cut_off_and_taken_up(row: str, bundle: Path, tmp_path: Path) -> None:
    """Rows that have no way back begin anew; either way the result is that of an undisturbed trial."""
    file, numbers = tmp_path / "checkpoints" / "trial.npz", []
    whole, pictures = run_trial(config(row), read("digits", 16), bundle, lambda *_: None)
    cut_off_after(3, config(row), bundle, file)
    found, same = run_trial(config(row), read("digits", 16), bundle, lambda n, _: numbers.append(n), file)
    assert numbers == ([3, 4, 5] if file.exists() else [1, 2, 3, 4, 5])
    assert file.exists() == (row not in ("FIFO (per class)", "Upper"))
    assert {name: found[name] for name in SAME} == {name: whole[name] for name in SAME}
    assert all((same[name] == picture).all() for name, picture in pictures.items())
    assert found["seconds"] >= sum(found["seconds_by_stage"].values()) > 0


@pytest.mark.parametrize("name", ["FIFO", "Random", "GSS-Greedy", "Selective-BP", "K-Center"])
def test_labels_of_real_frames_are_taken_up_unless_they_are_of_no_class(name: str, bundle: Path) -> None:
    opened = open_bundle(bundle)
    y = np.repeat(np.arange(10), 2)
    x = np.random.default_rng(0).standard_normal((20, *opened.image_shape)).astype(np.float32)
    it = rows()[name]
    setup = Setup(open_engine(opened, "portable"), opened, x, y, 2, it.recipe, np.random.default_rng(0))
    learner = it.make(setup).learner
    arrays, values, before = learner.arrays(), learner.values(), learner.memory
    for wrong in (y - 1, y + 1, y[1:], y.astype(np.int32)):
        with pytest.raises(ValueError, match="labels are not those"):
            learner.restore({**arrays, "y_syn": wrong}, values)
        assert learner.memory is before
    with pytest.raises(KeyError):
        learner.restore({**arrays, "y_syn": y[::-1]}, {})
    assert learner.memory is before
    learner.restore({**arrays, "y_syn": y[::-1]}, values)
    assert np.array_equal(learner.memory.y_syn, y[::-1])


def test_a_checkpoint_comes_with_the_first_update_after_enough_segments(bundle: Path, tmp_path: Path) -> None:
    """Updates at 3 only: two segments would be enough, but what is between two updates is not state."""
    file, numbers = tmp_path / "trial.npz", []
    three = replace(config("DECO"), settings=("retrain_interval=3",))
    cut_off_after(5, three, bundle, file)
    run_trial(three, read("digits", 16), bundle, lambda n, _: numbers.append(n), file)
    assert numbers == [4, 5]


def test_the_checkpoint_of_another_trial_or_a_damaged_one_is_left_aside(bundle: Path, tmp_path: Path) -> None:
    file, numbers = tmp_path / "trial.npz", []
    cut_off_after(3, config("DECO"), bundle, file)
    cut_off_after(1, config("DECO", seed=1), bundle, file)
    file.write_bytes(file.read_bytes()[:1000])
    run_trial(config("DECO"), read("digits", 16), bundle, lambda n, _: numbers.append(n), file)
    assert numbers == [1, 2, 3, 4, 5]


def test_a_disk_that_refuses_checkpoints_costs_no_trial(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    where = None, tmp_path / "file" / "row.npz"
    whole, refused = (run_trial(config("DECO"), read("digits", 16), bundle, lambda *_: None, file)[0] for file in where)
    assert {name: refused[name] for name in SAME} == {name: whole[name] for name in SAME}
    assert (tmp_path / "file").read_text() == "precious"
