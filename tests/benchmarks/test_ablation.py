"""What each part of deco+ is worth: the whole is the row of deco-eval, and each part changes what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from bases import quick_base
from click.testing import CliRunner
from deco_benchmarks import ablation, datasets
from deco_benchmarks.config import Config
from deco_benchmarks.scores import score
from deco_benchmarks.streams import parse
from deco_benchmarks.trial import as_at_the_end, order_of, recipe_of, run_trial, scored, seen, split
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import DataError
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.regression import PENALTY, Start, Statistics, add, solve
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.preprocess import normalise
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Segment

CONFIG = Config("DECO+", "digits", 0.1, 0, "stc=50,drift=3", 0, "smoke", engine="portable", pretraining="augmented")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("ablation")
    quick_base(CONFIG, folder / ".bases")
    asked = ["--data", "digits", "--preset", "smoke", "--stream", CONFIG.stream, "--engine", "portable", "--seeds", "1"]
    ended = CliRunner().invoke(ablation.main, [*asked, "--out", str(folder / "found.json")])
    assert ended.exit_code == 0, ended.output
    return folder, ended.stdout


def test_the_whole_is_the_row_and_the_parts_are_as_named(done: tuple[Path, str]) -> None:
    folder, printed = done
    content = json.loads((folder / "found.json").read_text())
    found = {r["variant"]: r for r in content["results"]}
    assert list(found) == list(ablation.VARIANTS)
    assert all(f"| {name} |" in printed for name in found)
    (bundle,) = (folder / ".bases").iterdir()
    row, _ = run_trial(CONFIG, datasets.load("digits", 16, 0), bundle, lambda *_: None)
    assert found["deco+"]["accuracy"] == row["final_accuracy"]
    assert found["deco+"]["accuracy_clean"] == row["final_accuracy_clean"]
    assert found["deco+"]["labels_right"] == pytest.approx(row["pseudo_accuracy"])
    assert found["deco+"]["before"] == row["before_accuracy"]
    alone = found["answer: the pre-trained model alone"]
    assert alone["before"] == alone["accuracy"] == row["frozen_accuracy"]
    unlearned = {r["before"] for name, r in found.items() if name.startswith("votes")}
    assert unlearned == {found["deco+"]["before"]}  # no vote was cast yet
    assert found["votes: true labels"]["labels_right"] == 1
    for name in ("answer: equal shares of both models", "answer: the pre-trained model alone"):
        assert found[name]["labels_right"] == found["deco+"]["labels_right"]
    assert len({r["labels_right"] for name, r in found.items() if name.startswith("votes")}) > 1


def test_each_variant_gives_what_its_learner_gives_before_a_stream(done: tuple[Path, str]) -> None:
    """The whole is the product's loop around `deco+`; true labels are the statistics of all frames at once."""
    (path,) = (done[0] / ".bases").iterdir()
    _, images, held_out = split(datasets.load("digits", 16, 0), CONFIG)
    found = {r["variant"]: r for r in ablation.ablate(CONFIG, path, images, held_out, lambda *_: None)}
    bundle, recipe = open_bundle(path), recipe_of(CONFIG)
    engine, how, n = open_engine(bundle, "portable"), bundle.preprocessing, recipe.segment
    spec, weather = parse(CONFIG.stream), np.random.default_rng(CONFIG.seed)
    order, reports = order_of(images, CONFIG), []
    learner = DecoPlus.open(bundle, engine, recipe, np.random.default_rng(0))
    told, truth = DecoPlus.open(bundle, engine, recipe, np.random.default_rng(0)), learner.memory

    class Told(Stream):
        def learned(self, segment: Segment, report: SegmentReport) -> None:
            reports.append(report)

    stream = Told(Unguarded(learner))
    for begin in range(0, n * (len(order) // n), n):
        x = normalise(seen(images, order, begin, n, spec, weather), how)
        y = images.labels[order[begin : begin + n]]
        stream.see(x, y)
        truth = add(truth, learner.observe(x)["phi"], np.eye(10, dtype=np.float32)[y])
    told.memory = truth
    for each in (learner, told):
        each.retrain()
    tests = {"accuracy": as_at_the_end(scored(held_out, CONFIG), spec, CONFIG.seed)}
    tests["accuracy_clean"] = scored(held_out, CONFIG)
    for name, test in tests.items():
        for variant, each in (("deco+", learner), ("votes: true labels", told)):
            assert found[variant][name] == score(each.predict, test, how, 10).accuracy
        alone = score(lambda x: engine.represent(x)[1], test, how, 10).accuracy
        assert found["answer: the pre-trained model alone"][name] == alone
    assert learner.segments == len(reports) == 5
    assert found["deco+"]["labels_right"] == pytest.approx(np.mean([r.pseudo_accuracy for r in reports]))


def test_accuracy_on_the_classes_that_come_and_a_stream_too_short(done: tuple[Path, str]) -> None:
    (bundle,) = (done[0] / ".bases").iterdir()
    _, stream, held_out = split(datasets.load("digits", 16, 0), CONFIG)
    config = replace(CONFIG, stream="stc=50,classes=5")
    held_out = scored(held_out, config)
    found = {r["variant"]: r for r in ablation.ablate(config, bundle, stream, held_out, lambda *_: None)}
    of_five = held_out[np.flatnonzero(held_out.labels < 5)]
    alone = {r["variant"]: r for r in ablation.ablate(config, bundle, stream, of_five, lambda *_: None)}
    for name, result in found.items():
        assert result["accuracy_seen"] == pytest.approx(alone[name]["accuracy"])
        assert result["accuracy"] == result["accuracy_clean"]
    assert any(result["accuracy_seen"] != result["accuracy"] for result in found.values())
    with pytest.raises(DataError, match="expected a stream of at least one segment"):
        ablation.ablate(config, bundle, stream[np.arange(20)], held_out, lambda *_: None)


def test_one_share_for_all_classes_counts_frames_of_whichever() -> None:
    start, now = (
        add(Statistics.zero(1, 2), np.ones((sum(n), 1), np.float32), np.eye(2, dtype=np.float32)[np.repeat([0, 1], n)])
        for n in ([10, 10], [170, 10])
    )
    begun = Start(start, 1.0, 1.0, 1.0, 0.5)
    assert ablation.share_of_all(now, begun) == pytest.approx([9 / 10, 9 / 10])
    assert ablation.fixed(0.5)(now, begun).tolist() == [0.5, 0.5]


def test_the_plain_regression_does_not_weigh_classes() -> None:
    rng = np.random.default_rng(0)
    phi, y = rng.standard_normal((60, 4)).astype(np.float32), np.repeat([0, 1, 2], [40, 15, 5])
    t = np.eye(3, dtype=np.float32)[y]
    statistics = add(Statistics.zero(4, 3), phi, t)
    z = np.c_[phi, np.ones(60)].astype(np.float64)
    a = z.T @ z
    expected = np.linalg.solve(a + PENALTY * np.trace(a) / 5 * np.eye(5), z.T @ t)
    np.testing.assert_allclose(ablation.as_they_come(statistics), expected, atol=1e-5)
    assert not np.allclose(solve(statistics), expected, atol=1e-2)


def test_the_table_holds_means_and_paired_differences() -> None:
    def result(variant: str, seed: int, accuracy: float) -> dict:
        others = {
            "before": 0.4,
            "accuracy_seen": accuracy + 0.01,
            "accuracy_clean": accuracy + 0.02,
            "labels_right": 0.5,
        }
        return {"variant": variant, "seed": seed, "accuracy": accuracy, **others}

    results = [result(name, seed, 0.5 + 0.1 * seed) for name in ablation.VARIANTS for seed in (0, 1)]
    results[2:4] = [result(results[2]["variant"], 0, 0.48), result(results[2]["variant"], 1, 0.56)]
    lines = ablation.table(results).splitlines()
    assert len(lines) == 2 + len(ablation.VARIANTS)
    assert lines[2] == "| deco+ | 40.00 | 55.00 | +0.00 ± 0.00 | 56.00 | 57.00 | 50.0 |"
    assert lines[3].endswith("| 52.00 | -3.00 ± 1.41 | 53.00 | 54.00 | 50.0 |")
