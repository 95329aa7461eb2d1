"""deco-bench run on the small bundle, its stages and processes, and the torch side's answers; no time is asserted."""

from __future__ import annotations

import ast
import inspect
import json
import shutil
import subprocess
import sys
import time
from importlib import util
from pathlib import Path
from typing import Any

import deco_benchmarks.bench
import numpy as np
import pytest
from bundles import without
from click.testing import CliRunner
from deco_benchmarks.bench import cli, jobs, result, runner, sizes, stages, tables
from deco_benchmarks.bench.jobs import measure_in_process
from deco_benchmarks.bench.live import Learning
from deco_benchmarks.bench.stages import Mark
from deco_benchmarks.bench.timing import QUICK
from deco_benchmarks.bench.workload import open_work
from deco_runtime.errors import BundleError, DecoError, RuntimeMissingError
from deco_runtime.host.job import Report
from deco_runtime.host.job_child import function_of
from deco_runtime.learning import registry
from deco_runtime.learning.deco import Deco, five_passes
from deco_runtime.storage.bundle import open_bundle

FOLDER = Path(deco_benchmarks.bench.__file__).parent
STAGES = (
    "random_model", "g_syn", "g_real", "gradient_distance", "theta_plus_minus", "input_gradients", "discrimination",
    "opt_s",
)  # fmt: skip
RATIOS = {
    "iteration_vs_torch_whole_batch",
    "iteration_vs_torch_micro_batch",
    "iteration_onnxruntime_vs_torch_whole_batch",
    "weight_gradient_vs_gemm",
    "peak_memory_vs_torch",
    "cold_start_vs_torch",
    "install_size_vs_torch",
    "segment_vs_deco_full",
    "retrain_vs_torch",
    "predict_p99_learning_vs_idle",
}

needs_torch = pytest.mark.skipif(util.find_spec("torch") is None, reason="compares with torch")


def silent(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total


def test_a_quick_run_from_start_to_end(bundle_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "board.json"
    program = "from deco_benchmarks.bench.cli import main; main()"
    arguments = [
        "run",
        "--bundle",
        bundle_path,
        "--engine",
        "portable",
        "--quick",
        "--sustained",
        "0.002",
        "--out",
        out,
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "one whole iteration" in done.stdout
    assert "quick: segment and update are scaled" in done.stdout
    read = result.read(out)
    found = read.engines["portable"]
    assert set(found) == measured("deco+")
    assert all(q.q1 <= q.median <= q.q3 and q.median > 0 and q.runs >= 1 for q in found.values())
    assert read.content["engines"]["portable"]["scaled"] == {
        "segment": {"iterations_measured": 2, "iterations": 10},
        "update": {"epochs_measured": 3, "epochs": 200},
    }
    assert read.content["quick"] is True
    assert read.content["bundle"]["hash"] == open_bundle(bundle_path).hash
    assert {"deco-edge", "numpy", "rich"} <= set(read.content["engines"]["portable"]["packages_mib"])
    first, last = read.content["sustained"]["samples"]
    assert first["seconds"] == 0
    assert last["iterations_per_second"] > 0
    assert "load" in last
    assert str(tmp_path) not in out.read_text()
    assert not list(bundle_path.parent.glob(".deco-bench-*"))


PAPER_ONLY = {*STAGES, "vote", "iteration", "retrain_step", "segment", "update"}


def measured(recipe: str) -> set[str]:
    """All quantities but those of other learners, and what only earlier versions measured."""

    def of(name: str) -> set[str]:
        return {f"{name.replace('+', '_plus')}_{what}" for what in ("predict", "learn")}

    of_learners = set().union(*map(of, registry.learners()))
    assert of_learners | {"deco_plus_segment"} < set(tables.titles())
    return set(tables.titles()) - of_learners - {"deco_plus_segment"} | of(recipe)


@pytest.mark.parametrize("recipe", ["deco+", "slda"])
def test_a_bundle_without_condensed_images_is_measured_by_what_needs_none(
    recipe: str, bundle_path: Path, tmp_path: Path
) -> None:
    bundle, out = Path(shutil.copytree(bundle_path, tmp_path / "bundle")), tmp_path / "board.json"
    without(bundle, "buffer.npz")
    asked = ["run", "--bundle", str(bundle), "--engine", "portable", "--quick"]
    done = CliRunner().invoke(cli.command, [*asked, "--recipe", recipe, "--sustained", "0.002", "--out", str(out)])
    assert done.exit_code == 0, done.output
    read = result.read(out)
    assert set(read.engines["portable"]) == measured(recipe) - PAPER_ONLY
    assert (read.recipe, read.content["bundle"]["ipc"], read.content["best_engine"]) == (recipe, 0, "portable")
    assert read.content["sustained"]["samples"][-1]["segments_per_second"] > 0
    assert "segments per second at first" in done.stdout
    assert "quick: segment" not in done.stdout
    for more, words in (
        (("--recipe", "paper"), "expected a bundle with condensed images"),
        (("--recipe", "deco+", "--against", "torch"), "expected --recipe paper beside --against torch"),
    ):
        refused = CliRunner().invoke(cli.command, [*asked, *more])
        assert isinstance(refused.exception, DecoError)
        assert words in str(refused.exception)


def test_the_bundles_recipe_is_the_default(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def answers(job: str, bundle: Path, progress: Any, **arguments: Any) -> dict[str, Any]:
        asked.append(arguments)
        return fake_answers(1.0)(job, bundle, progress, **arguments)

    monkeypatch.setattr(runner, "measure_in_process", answers)
    content = runner.Bench(runner.Options(bundle_path, "fast", True, None, False), silent).measure(lambda _: None)
    assert content["recipe"]["name"] == open_bundle(bundle_path).recipe.name == "paper"
    assert {arguments["recipe"] for arguments in asked[1:]} == {"paper"}


def test_stages_add_up_to_the_iteration(bundle_path: Path) -> None:
    work = open_work(bundle_path, "portable")
    found = stages.iterations(work, QUICK)
    assert tuple(found) == (*STAGES, "iteration")
    for values in zip(*found.values(), strict=True):
        assert sum(values[:-1]) == pytest.approx(values[-1])
    assert all(s >= 0 for times in found.values() for s in times)


def test_each_stage_is_taken_from_its_calls() -> None:
    names = ("weight", "weight", "distance", "input", "input", "predict", "feature")
    marks = [Mark(name, 2.0 * n, 2.0 * n + 1) for n, name in enumerate(names, 1)]  # 2 to 3, 4 to 5 … 14 to 15
    found = stages.stages_of(marks, 0.0, 1.5, 16.0)
    assert found == {
        "random_model": 1.5,
        "g_syn": 1,
        "g_real": 1,
        "gradient_distance": 1,
        "theta_plus_minus": 2,
        "input_gradients": 2,
        "discrimination": 3,
        "opt_s": 4.5,
        "iteration": 16,
    }


def test_a_learner_that_fails_beside_the_predictions_is_heard(bundle_path: Path) -> None:
    work = open_work(bundle_path, "portable")
    learner = work.learner()
    learner.model = learner.model[:-1]
    with pytest.raises(DecoError, match="expected the learner to learn"), Learning(learner, work.segment):
        pass


def test_errors_of_a_process_are_raised_here(bundle_path: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="expected a bundle at"):
        measure_in_process("start", tmp_path, silent, engine="portable", recipe="paper")
    with pytest.raises(
        DecoError, match=r"expected the measurement 'start' to end, but its process failed with: TypeErr"
    ):
        measure_in_process("start", bundle_path, silent, colour="red")


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("died", code=-9, complaint="warning"), "was ended by signal 9, as when memory runs out"),
        (Report("died", code=-6), "was ended by signal 6"),
        (Report("died", code=3), "ended with code 3"),
        (Report("died", code=3, complaint="Out of paper"), "failed with: Out of paper"),
        (Report("failed", complaint="OSError: no paper"), "failed with: OSError: no paper"),
    ],
)
def test_ends_of_a_process(report: Report, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "run_job", lambda *_, **__: report)
    with pytest.raises(DecoError) as raised:
        measure_in_process("start", Path("bundle"), silent)
    assert str(raised.value) == (
        f"expected the measurement 'start' to end, but its process {words}; "
        "measure with --quick, another --engine or a smaller bundle"
    )


def test_progress_and_modules_of_a_measurement(bundle_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    how = {"engine": "portable", "recipe": "deco+"}
    before = time.monotonic()
    found = measure_in_process("live", bundle_path, lambda *stage: heard.append(stage), quick=True, **how)
    assert heard == [("portable: predicting while learning", turn, 2) for turn in range(3)]
    assert {"numpy", "deco_runtime", "onnxruntime"} <= set(found["modules"])
    assert "torch" not in found["modules"]
    assert before <= found["started"] <= time.monotonic()
    assert found["quantities"]["frames_per_second_idle"]["median"] > 0


@needs_torch
def test_the_table_names_functions_that_measure() -> None:
    for name, function in jobs.JOBS.items():
        assert list(inspect.signature(function_of(function)).parameters)[:2] == ["path", "progress"], name


def test_only_the_torch_side_and_growth_need_the_workstation() -> None:
    workstation = {"torch", "onnx", "scipy", "sklearn", "deco_export", "deco_models", "matplotlib", "ray"}
    for file in FOLDER.glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        needs = {name.partition(".")[0] for name in names} & workstation
        assert not needs or file.name in ("torch_side.py", "against.py", "growth.py")
        assert not {"deco_benchmarks.bench.torch_side", "deco_benchmarks.bench.against"} & set(names)
    code = "import json, sys, deco_benchmarks.bench.cli\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {name.partition(".")[0] for name in json.loads(done.stdout)} & {*workstation, "onnxruntime", "cv2"}


def fake_answers(peak: float | None) -> Any:
    """In place of processes: what each job answers."""
    one = {"median": 2.0, "q1": 2.0, "q3": 2.0, "runs": 1, "unit": "ms"}
    taken = sorted(r for r in RATIOS if "memory" not in r and "start" not in r)
    taken = [name for name in taken if name not in ("install_size_vs_torch", "predict_p99_learning_vs_idle")]

    def answer(job: str, bundle: Path, progress: Any, **arguments: Any) -> dict[str, Any]:
        slow = 3.0 if arguments.get("engine") == "slow" else 1.0
        return {
            "engines": {"usable": ["slow", "fast"], "unusable": {"broken": "expected more, but found less"}},
            "start": {"predicted": 1.0, "started": 0.5, "peak_mib": peak, "modules": ["rich"]},
            "torch-start": {"predicted": 2.5, "started": 0.5, "peak_mib": peak, "modules": ["json"]},
            "stages": {"quantities": {"iteration": {**one, "median": slow}}, "scaled": {}},
            "live": {"quantities": {"predict_p99_idle": one, "predict_p99_learning": {**one, "median": 3.0}}},
            "memory": {"peak_mib": peak},
            "torch-memory": {"peak_mib": 400.0},
            "against-torch": {
                "best_engine": "fast",
                "ratios": dict.fromkeys(taken, one),
                "missing": {},
                "started": 0.5,
            },
        }[job]

    return answer


@pytest.mark.parametrize("peak", [100.0, None])
def test_ratios_and_what_is_missing(bundle_path: Path, monkeypatch: pytest.MonkeyPatch, peak: float | None) -> None:
    monkeypatch.setattr(runner, "measure_in_process", fake_answers(peak))
    monkeypatch.setattr(sizes, "installed", lambda names: {"a": 8.0} if "torch" in names else {"a": 1.5, "b": 0.5})
    kept: list[dict[str, Any]] = []
    content = runner.Bench(runner.Options(bundle_path, "all", True, None, True), silent).measure(kept.append)
    assert kept == [content]
    assert content["best_engine"] == "fast"
    assert content["unusable"] == {"broken": "expected more, but found less"}
    assert set(content["ratios"]) | set(content["missing"]) == RATIOS
    assert not set(content["ratios"]) & set(content["missing"])
    assert content["ratios"]["cold_start_vs_torch"] == 0.25
    assert content["ratios"]["install_size_vs_torch"] == 0.25
    assert content["ratios"]["predict_p99_learning_vs_idle"] == 1.5
    assert content["ratios"].get("peak_memory_vs_torch") == (0.25 if peak else None)
    assert result.parse("x", json.loads(json.dumps(content))).ratios == content["ratios"]


def test_which_engines_are_measured(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "measure_in_process", fake_answers(1.0))
    for asked, names in (("all", ["slow", "fast"]), ("auto", ["slow"]), ("fast", ["fast"])):
        content = runner.Bench(runner.Options(bundle_path, asked, True, None, False), silent).measure(lambda _: None)
        assert list(content["engines"]) == names
        assert "ratios" not in content
    with pytest.raises(RuntimeMissingError, match="found less"):
        runner.Bench(runner.Options(bundle_path, "broken", True, None, False), silent).measure(lambda _: None)


@pytest.mark.parametrize(("absent", "words"), [("cv2", "OpenCV"), ("deco_models", "found no module deco_models")])
def test_a_module_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, absent: str, words: str) -> None:
    known = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == absent else known("json"))
    with pytest.raises(RuntimeMissingError, match=words):
        cli._check_modules(against_torch=True)


@needs_torch
def test_torch_does_the_same_work(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from deco_benchmarks.bench import against, torch_side

    before = torch.get_num_threads()
    monkeypatch.setattr(against, "GEMM_SIDE", 64)
    monkeypatch.setattr(torch_side, "threads", lambda: 1)  # torch's and the engine's threads wait for each other
    try:
        found = against.measure(bundle_path, silent, ["portable"], True)
    finally:
        torch.set_num_threads(before)
    assert found["agreement"]["portable"] < 0.05
    assert found["best_engine"] == "portable"
    assert set(found["ratios"]) < RATIOS
    assert found["missing"] == {}
    assert found["ratios"]["segment_vs_deco_full"]["median"] < 0.5  # ten loops of ten iterations against one
    deco, full = (found["segment"][side]["median"] for side in ("DECO", "DECO-Full"))
    assert deco < full
    assert all(value["median"] > 0 for value in found["ratios"].values())
    assert set(found["iteration"]) == {"portable", "torch whole batch", "torch micro-batch"}


@needs_torch
def test_micro_batches_of_torch_add_up(bundle_path: Path, one_thread: None) -> None:
    from deco_benchmarks.bench import against, torch_side

    work = open_work(bundle_path, "portable")
    model, theta, data = torch_side.build(work.bundle), work.kind_of(Deco).random_model(), against._matching(work)
    torch_side.load(model, theta)
    before = theta.copy()
    tensors = torch_side.matching(*data, 0.01)
    whole = torch_side.match_gradients(model, tensors).numpy()
    parts = torch_side.match_gradients(model, tensors, 16).numpy()
    device = five_passes(work.engine, theta, *data, 0.01)[1]
    assert np.linalg.norm(parts - whole) <= 0.05 * np.linalg.norm(whole)
    assert np.linalg.norm(device - whole) <= 0.05 * np.linalg.norm(whole)
    assert np.array_equal(theta, before)


@needs_torch
def test_multiply_adds_of_a_convnet(bundle_path: Path) -> None:
    from deco_benchmarks.bench import torch_side

    model = torch_side.build(open_bundle(bundle_path))  # width 8, depth 2, 16 pixels
    first, second = 16 * 16 * 8 * 27, 8 * 8 * 8 * 8 * 9
    assert torch_side.multiply_adds(model, (3, 16, 16)) == 2 * first + 3 * second


@needs_torch
def test_a_bundle_whose_model_is_not_known_is_refused(bundle_path: Path) -> None:
    from dataclasses import replace

    from deco_benchmarks.bench import torch_side

    bundle = open_bundle(bundle_path)
    with pytest.raises(BundleError, match="names its model"):
        torch_side.build(replace(bundle, made_with={}))
    with pytest.raises(BundleError, match=f"to have {bundle.weight_count} weights"):
        torch_side.build(replace(bundle, made_with={**bundle.made_with, "width": 4}))


@needs_torch
def test_the_torch_side_of_start_and_memory(bundle_path: Path, one_thread: None, monkeypatch) -> None:
    from deco_benchmarks.bench import torch_side

    monkeypatch.setattr(torch_side, "threads", lambda: 1)
    assert {"predicted", "peak_mib"} <= set(torch_side.start(bundle_path, silent))
    assert torch_side.memory(bundle_path, silent)["peak_mib"] > 0
