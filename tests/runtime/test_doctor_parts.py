"""The parts of deco-doctor: the graphs on a runtime that misbehaves, golden values, packages, board, disk, verdicts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import deco_runtime
import numpy as np
import pytest
from bundles import without
from deco_runtime.doctor import board, cli, disk, graphs, packages
from deco_runtime.doctor.findings import Finding, as_json, can_run, verdict
from deco_runtime.engine import EXACT, REPRESENTATION, TRUNK
from deco_runtime.engines.golden import BLOCK, INPUTS, golden_check, relative_error
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import BundleError
from deco_runtime.host.job import Report
from deco_runtime.learning import registry, voter
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.buffer import initial
from deco_runtime.storage.bundle import Bundle, open_bundle

RUNTIME = Path(deco_runtime.__file__).parents[1]
OTHERS = ("openvino", "ort-training")
GRAPHS = tuple(graph for graph in INPUTS if graph != TRUNK)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place where processes started by the doctor find modules first; torch, which takes seconds, is none."""
    place = tmp_path / "modules"
    place.mkdir()
    (place / "torch.py").write_text("raise ImportError('no device has it')")
    monkeypatch.syspath_prepend(str(place))
    return place


@pytest.fixture
def copy(tmp_path: Path, bundle_path: Path) -> Path:
    return shutil.copytree(bundle_path, tmp_path / "copy")


def with_golden(path: Path, **values: Any) -> Path:
    """Put other golden values into the bundle, with the hash to match; None takes one out."""
    return with_arrays(path, "golden.npz", **values)


def with_arrays(path: Path, name: str, **values: Any) -> Path:
    with np.load(path / name) as archive:
        arrays = {**archive, **values}
    np.savez(path / name, **{key: value for key, value in arrays.items() if value is not None})
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    manifest["files"][name] = hashlib.sha256((path / name).read_bytes()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return path


def golden(path: Path, name: str) -> Any:
    with np.load(path / "golden.npz") as archive:
        return archive[name]


def levels(found: list[Finding]) -> dict[str, str]:
    return {f.check.removeprefix("graph ").removesuffix(" on portable"): f.level for f in found}


def bytes_of(memory: Any) -> int:
    return sum(array.nbytes for array in arrays_of(memory).values())


# --- graphs against golden values


def test_graphs_that_disagree_are_named(copy: Path) -> None:
    """One output of several is enough, and a graph beside them is not blamed."""
    changed = {"features": "predict", "loss": "weight_gradient", EXACT: EXACT, "votes": REPRESENTATION}
    with_golden(copy, **{value: golden(copy, value) * np.float32(1.1) for value in changed})
    found = list(graphs.findings(copy, OTHERS))
    assert levels(found) == {"bundle": "OK", **dict.fromkeys(GRAPHS, "OK"), **dict.fromkeys(changed.values(), "FAIL")}
    for failed in (f for f in found if f.level == "FAIL"):
        assert failed.sentence.startswith("expected its golden values to within 0.001, but it is off by 9.1e-02")


def test_a_bundle_of_an_earlier_version(copy: Path) -> None:
    """Without the later graphs and their values, as v0.1 exported it; and with the graphs but not the values."""
    with_golden(copy, v=None, input_gradient_tangent=None, representation=None, votes=None)
    for graph in sorted({kind.GRAPH for kind in registry.learners().values()}):
        assert golden_check(open_bundle(copy), open_engine(open_bundle(copy), "portable"), graph) is None
    found = list(graphs.findings(copy, OTHERS))
    expected = {**dict.fromkeys(GRAPHS[:-2], "OK"), **dict.fromkeys(GRAPHS[-2:], "WARN")}
    assert levels(found) == {"bundle": "OK", **expected}
    assert all("no golden values for it; export it again" in f.sentence for f in found[-2:])
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    for graph in GRAPHS[-2:]:
        del manifest["files"][f"graphs/{graph}.onnx"]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    found = list(graphs.findings(copy, OTHERS))
    assert levels(found) == {"bundle": "OK", **dict.fromkeys(GRAPHS[:-2], "OK")}
    assert [f.sentence for f in found[1:3]] == [
        "without the graph input_gradient_tangent, which only gradient=exact needs",
        "without the graph representation, which only deco+ needs",
    ]


def test_a_bundle_without_condensed_images(copy: Path) -> None:
    without(copy, "buffer.npz")
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["recipe"] = registry.named("deco+").to_json()
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    found = list(graphs.findings(copy, OTHERS))
    assert {f.level for f in found} == {"OK"}
    assert found[1].sentence == "without condensed images, which only --recipe paper needs"
    statistics = voter.start(open_bundle(copy)).statistics
    weights = 4 * (len(statistics.b) + 1) * 10  # those of the regression, and its shares
    assert found[0].figures["state_bytes"] == weights + 2 * bytes_of(statistics)


def test_a_bundle_whose_own_recipe_cannot_start(copy: Path) -> None:
    """Every file is as exported, and deco-run would refuse it all the same."""
    (found,) = list(graphs.findings(with_arrays(copy, "fitted/deco+.npz", b=None), OTHERS))[:1]
    assert found.level == "OK"  # the bundle's recipe is the paper's, which does not need that
    bundle = open_bundle(copy)
    assert found.figures["state_bytes"] == bundle.weights().nbytes + 2 * bytes_of(initial(bundle))
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["recipe"] = registry.named("deco+").to_json()
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    (found,) = graphs.findings(copy, OTHERS)
    assert (found.level, found.check) == ("FAIL", "bundle")
    assert found.sentence.startswith(f"expected {copy / 'fitted' / 'deco+.npz'} to hold an array b, but it does not")
    manifest["recipe"] = registry.named("paper").to_json()
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    without(copy, "buffer.npz")
    (found,) = graphs.findings(copy, OTHERS)
    assert (found.level, found.check) == ("FAIL", "bundle")
    assert found.sentence.startswith("expected a bundle with condensed images, which the paper's recipe starts from")


def test_a_bundle_without_guard_images(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    del manifest["files"]["guard.npz"]
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    warned = [f for f in graphs.findings(copy, OTHERS) if f.level == "WARN"]
    assert [f.check for f in warned] == ["bundle"]
    assert warned[0].sentence.startswith("no labelled images for the guard of updates")


def test_an_altered_bundle(copy: Path) -> None:
    (copy / "weights.npy").write_bytes(b"x")
    (found,) = graphs.findings(copy, ())
    assert found.level == "FAIL"
    assert found.sentence == f"expected {copy / 'weights.npy'} as it was exported, but its hash differs; " + (
        "copy the bundle again"
    )


FAKE_RUNTIME = """
import json, os, pathlib, signal, time
import numpy as np
__version__ = "1.20.0"
get_available_providers = list
class SessionOptions:
    def add_session_config_entry(self, *entry): pass
class InferenceSession:
    def __init__(self, model, *rest, **more):
        bundle = pathlib.Path(os.environ["BUNDLE"])
        self.graph = next(file.stem for file in bundle.glob("graphs/*.onnx") if file.read_bytes() == model)
        with np.load(bundle / "golden.npz") as golden:
            self.golden = {name: golden[name] for name in golden.files}
    def run(self, outputs, inputs):
        values = [self.golden[self.graph if name == "gradient" else name].copy() for name in outputs]
        exec(json.loads(os.environ["DEEDS"]).get(self.graph, ""))
        return values
"""

DEEDS = {
    "predict": ("os.kill(os.getpid(), signal.SIGILL)", "FAIL", "it dies of signal 4 (Illegal instruction); install"),
    "weight_gradient": (
        "values[1].flat[np.argmin(abs(values[1]))] += 2e-3 * abs(values[1]).max()",
        "OK",
        "a unit at a kink",
    ),
    "input_gradient": ("raise RuntimeError('no kernel')", "FAIL", "it fails with RuntimeError: no kernel; install"),
    "feature_gradient": ("values[0][0] = np.nan", "FAIL", "it gives what is not finite"),
    "input_gradient_tangent": ("os.kill(os.getpid(), signal.SIGKILL)", "FAIL", "memory has run out"),
}


@pytest.fixture
def fake_runtime(quick: Path, bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(bundle_path))
    (quick / "onnxruntime").mkdir()
    (quick / "onnxruntime" / "__init__.py").write_text(FAKE_RUNTIME)


@pytest.mark.usefixtures("fake_runtime")
def test_a_runtime_that_misbehaves(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each finding names its graph, and the graphs behind it are tried all the same."""
    monkeypatch.setenv("DEEDS", json.dumps({graph: deed for graph, (deed, _, _) in DEEDS.items()}))
    bundle, *found = graphs.findings(bundle_path, OTHERS)
    assert bundle.level == "OK"
    assert [f.check for f in found] == [f"graph {graph} on portable" for graph in GRAPHS]
    for graph, (_, level, said) in DEEDS.items():
        (one,) = (f for f in found if f.check == f"graph {graph} on portable")
        assert one.level == level
        assert said in one.sentence
    json.loads(as_json(found, "verdict"), parse_constant=pytest.fail)


@pytest.mark.usefixtures("fake_runtime")
def test_a_graph_that_never_ends(bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEDS", json.dumps({REPRESENTATION: "time.sleep(600)"}))
    monkeypatch.setattr(graphs, "GRAPH_S", 3.0)  # enough to start a process on a busy machine
    *found, last = graphs.findings(bundle_path, OTHERS)
    assert {f.level for f in found} == {"OK"}
    assert last.level == "FAIL"
    assert "it does not come back within 3 s; install another release of onnxruntime" in last.sentence


def test_an_engine_that_nobody_has_to_take_only_warns() -> None:
    told = {"graph": "predict", "agrees": False, "error": 0.5, "l2": 0.4, "tolerance": 1e-3, "images": 2}
    told |= {"first_seconds": 0.1, "again_seconds": 0.1}
    found = graphs._graph("openvino", told, "WARN")
    assert found.level == "WARN"
    assert found.sentence.endswith("install another release of openvino, or use --engine portable")


# --- deco-run's quick form


class Bent:
    """An engine that moves one value of the weight gradient, and one of φ, by a share of the largest."""

    precision = "fp32"

    def __init__(self, bundle: Bundle, share: float) -> None:
        self._engine, self._share, self.name = open_engine(bundle, "portable"), share, "bent"

    def predict(self, theta: Any, x: Any) -> Any:
        return self._engine.predict(theta, x)

    def weight_gradient(self, theta: Any, x: Any, t: Any) -> Any:
        loss, gradient = self._engine.weight_gradient(theta, x, t)
        return loss, self._bent(gradient)

    def represent(self, x: Any) -> Any:
        phi, votes = self._engine.represent(x)
        return self._bent(phi), votes

    def _bent(self, values: Any) -> Any:
        values.flat[np.argmin(abs(values))] += self._share * abs(values).max()
        return values


def test_a_gradient_may_cross_a_kink(bundle_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    for share, right in ((0.0, True), (0.01, True), (1.0, False), (float("nan"), False)):
        engine: Any = Bent(bundle, share)
        complaint = golden_check(bundle, engine, "weight_gradient")
        assert (complaint is None) is right, (share, complaint)
        assert golden_check(bundle, engine, "predict") is None
    assert complaint is not None
    assert complaint.startswith(f"expected the graph weight_gradient of {bundle_path} to give its golden values")
    assert "with --engine bent it" in complaint


def test_a_representation_may_not(bundle_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    for share, right in ((0.0, True), (0.01, False), (float("nan"), False)):
        engine: Any = Bent(bundle, share)
        complaint = golden_check(bundle, engine, "representation")
        assert (complaint is None) is right, (share, complaint)
    assert complaint is not None
    assert complaint.startswith(f"expected the graph representation of {bundle_path} to give its golden values")


@pytest.mark.parametrize("of", ["representation", "votes"])
def test_a_graph_of_deco_plus_that_is_wrong_is_met_by_deco_plus(of: str, copy: Path) -> None:
    bundle = open_bundle(with_golden(copy, **{of: golden(copy, of) * np.float32(1.01)}))
    engine = open_engine(bundle, "portable")
    assert golden_check(bundle, engine, "weight_gradient") is None
    complaint = golden_check(bundle, engine, "representation")
    assert complaint is not None
    assert "the graph representation of" in complaint
    assert "is off by 9.9e-03 of the largest" in complaint


def test_statistics_of_another_representation_are_met(copy: Path) -> None:
    """Of one value fewer: the graph would run, and its φ fit nothing."""
    was = voter.start(open_bundle(copy)).statistics
    size = len(was.b) - 1
    bundle = open_bundle(with_arrays(copy, "fitted/deco+.npz", b=was.b[:-1], a=was.a[: size * (size + 1) // 2]))
    for name in ("deco+", "slda"):
        words = rf"deco\+.npz to hold b of float32 and shape \({size + 1}, 10\), but it does not; export the bundle"
        with pytest.raises(BundleError, match=words):
            registry.started(registry.learner(name), bundle)
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    manifest["represented"] = size - 1  # which is what they are of, now that the graph is of another
    (copy / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    bundle = open_bundle(copy)
    assert len(voter.start(bundle).statistics.b) == size
    with pytest.raises(BundleError, match=r"golden.npz to hold representation of float32 and shape .* export the"):
        golden_check(bundle, open_engine(bundle, "portable"), "representation")


def test_predictions_may_not(copy: Path) -> None:
    logits = golden(copy, "logits")
    logits.flat[np.argmin(abs(logits))] += 2e-3 * abs(logits).max()
    bundle = open_bundle(with_golden(copy, logits=logits))
    complaint = golden_check(bundle, open_engine(bundle, "portable"), "predict")
    assert complaint is not None
    assert "the graph predict of" in complaint


def test_an_engine_that_raises_is_a_sentence(bundle_path: Path) -> None:
    class Broken(Bent):
        def predict(self, theta: Any, x: Any) -> Any:
            raise RuntimeError("no kernel\nfor this")

    bundle = open_bundle(bundle_path)
    engine: Any = Broken(bundle, 0)
    complaint = golden_check(bundle, engine, "weight_gradient")
    assert complaint is not None
    assert "it fails with: no kernel; see deco-doctor --bundle" in complaint
    assert "\n" not in complaint


@pytest.mark.parametrize("x", [np.zeros((2, 3, 8, 8), np.float32), np.zeros((2, 3, 16, 16)), np.float32(1)])
def test_malformed_golden_values(x: Any, copy: Path) -> None:
    bundle = open_bundle(with_golden(copy, x=x))
    engine = open_engine(bundle, "portable")
    with pytest.raises(BundleError, match=r"to hold x of float32 and shape .* export the bundle again"):
        golden_check(bundle, engine, "weight_gradient")
    (copy / "golden.npz").write_bytes(b"no archive")
    with pytest.raises(BundleError, match="to hold a numpy archive"):
        golden_check(bundle, engine, "weight_gradient")


@pytest.mark.parametrize(
    ("graph", "arguments", "code"),
    [
        ("weight_gradient", [], 4),
        ("weight_gradient", ["--no-learn"], 0),
        ("representation", ["--recipe", "deco+"], 4),
        ("representation", ["--recipe", "slda"], 4),
        ("representation", [], 0),
        ("representation", ["--recipe", "deco+", "--no-learn"], 0),
    ],
)
def test_deco_run_refuses_a_graph_that_is_wrong_here(graph: str, arguments: list[str], code: int, copy: Path) -> None:
    """One that it learns with: plain predictions need none of them."""
    with_golden(copy, **{graph: golden(copy, graph) * np.float32(1.1)})
    program = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "--bundle",
            copy,
            "--engine",
            "portable",
            "--demo",
            "--max-segments=1",
            *arguments,
        ],
        env={**os.environ, "PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr.startswith(f"error: expected the graph {graph} of {copy} to give its golden values")
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


# --- packages


def test_versions_are_those_of_pyproject() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    for package in packages.PACKAGES:
        oldest, below = re.search(rf'"{package.install}>=([\d.]+),<([\d.]+)"', text).groups()  # type: ignore[union-attr]
        assert (package.oldest, package.below) == tuple(tuple(map(int, v.split("."))) for v in (oldest, below))
    (lowest,) = re.findall(r'requires-python = ">=([\d.]+)"', text)
    assert tuple(map(int, lowest.split("."))) == board.OLDEST_PYTHON


@pytest.mark.parametrize(
    ("module", "version", "level"),
    [
        ("onnxruntime", "1.17.3", "FAIL"),
        ("onnxruntime", "1.18.0+jetson", "OK"),
        ("onnxruntime", "2.0.0", "WARN"),
        ("openvino", "2023.1.0-12185-e6c", "WARN"),
        ("cv2", "4.10.0-dev", "OK"),
    ],
)
def test_versions(module: str, version: str, level: str) -> None:
    (package,) = (package for package in packages.PACKAGES if package.module == module)
    found = packages._finding(package, Report("done", answers=[{"version": version, "seconds": 0.1}]))
    assert (found.level, found.figures["version"]) == (level, version)
    assert level == "OK" or f"but found {version}" in found.sentence


def test_two_packages_that_own_onnxruntime_are_named(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnxruntime_gpu", "onnxruntime_elsewhere"):
        (quick / f"{name}-1.20.0.dist-info").mkdir()
        (quick / f"{name}-1.20.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1.20.0\n")
        (quick / f"{name}-1.20.0.dist-info" / "RECORD").write_text("onnxruntime/__init__.py,,\n")
    monkeypatch.setattr(
        packages, "PACKAGES", [package for package in packages.PACKAGES if package.module == "onnxruntime"]
    )
    (found,) = packages.findings()
    assert found.level == "FAIL"
    assert found.sentence.startswith("expected one package that provides onnxruntime, but found 3: ")
    assert "onnxruntime_elsewhere, onnxruntime_gpu" in found.sentence


def test_nothing_is_tried_without_numpy(quick: Path) -> None:
    (quick / "numpy.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    first, second = packages.findings()
    assert (first.check, first.level) == ("numpy", "FAIL")
    assert "install an older release of numpy" in first.sentence
    assert second == Finding("WARN", "cv2, onnxruntime", "not tried, because both need numpy; mend that first")


def test_openvino_broken_is_a_warning_and_its_engine_is_left_out(quick: Path, bundle_path: Path) -> None:
    (quick / "openvino.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = list(packages.findings())
    assert [f.level for f in found] == ["OK", "OK", "OK", "WARN"]
    assert found[3].sentence.endswith("take another release of openvino, and use --engine portable until then")
    assert not any("openvino" in f.check for f in graphs.findings(bundle_path, {"openvino", "ort-training"}))


def test_the_doctor_itself_imports_nothing_that_could_die() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, deco_runtime.doctor.cli; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not {"numpy", "cv2", "onnxruntime", "openvino"} & set(loaded.stdout.split())


# --- board, disk, verdict


def test_a_board_that_shows_itself(tmp_path: Path) -> None:
    for name, text in {
        "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
        "proc/meminfo": "MemTotal: 3884000 kB\nMemFree: 1 kB\nMemAvailable: 102400 kB\n",
        "sys/class/thermal/thermal_zone0/temp": "83500\n",
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
        "sys/class/thermal/thermal_zone1/temp": "45000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {f.check: f for f in board.findings(tmp_path)}
    assert found["board"].sentence.startswith("Raspberry Pi 4 Model B Rev 1.4; ")
    assert (found["memory"].level, found["memory"].figures) == ("WARN", {"total_mib": 3792, "free_mib": 100})
    assert found["temperature"].level == "WARN"
    assert "cpu-thermal is at 84 °C" in found["temperature"].sentence
    assert found["cores"].figures["allowed"] >= 1


def test_a_board_that_shows_nothing(tmp_path: Path) -> None:
    assert [f.check for f in board.findings(tmp_path)] == ["python", "board", "cores"]


@pytest.mark.parametrize(
    ("version", "wide", "level"),
    [((3, 9, 2), True, "FAIL"), ((3, 11, 2), True, "OK"), ((3, 11, 2), False, "WARN"), ((3, 15, 0), True, "WARN")],
)
def test_pythons(version: tuple[int, ...], wide: bool, level: str) -> None:
    assert board._python(version, wide).level == level


def test_a_disk(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    (found,) = disk.findings(tmp_path / "not" / "yet", 1000)
    assert found.level == "OK"
    assert found.figures["directory"] == str(tmp_path)
    assert found.figures["fsync_seconds"] > 0
    assert sorted(tmp_path.rglob("*")) == before
    (found,) = disk.findings(tmp_path, 1 << 60)
    assert found.level == "FAIL"
    assert "free for learned state in" in found.sentence
    (found,) = disk.findings(tmp_path / "a\udce9" / ("b" * 5000), 0)  # a name no file can have: deco-run's to refuse
    assert found.level == "OK"


def test_a_disk_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = disk.findings(tmp_path / "file" / "state", 0)
    assert found.level == "FAIL"
    assert f"but {tmp_path / 'file'} is a file" in found.sentence
    if not os.path.isdir("/proc/self"):
        return
    (found,) = disk.findings(Path("/proc/self/state"), 0)
    assert found.level == "FAIL"
    assert "but the system says: " in found.sentence


@pytest.mark.parametrize("name", ["missing", "loop", "a" * 5000, "/"])
def test_what_is_no_bundle(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "PACKAGES", ())
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert cli.command.main(["--bundle", str(tmp_path / name)], standalone_mode=False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("FAIL  bundle: expected a bundle at ") for line in lines) == 1
    assert lines[-1].startswith("verdict: this board cannot run and learn as it is; mend bundle")


@pytest.mark.parametrize("order", [np.inf, 2])
@pytest.mark.parametrize("shape", [(), (3, 5), (BLOCK,), (2, BLOCK + 7)])
def test_the_relative_error_is_that_of_all_elements(shape: tuple[int, ...], order: float) -> None:
    rng = np.random.default_rng(0)
    expected = np.asarray(rng.standard_normal(shape), np.float32)
    found = np.asarray(expected * np.float32(1.01) + np.float32(0.1), np.float32)
    found_64, expected_64 = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    norm, whole = np.linalg.norm(found_64 - expected_64, order), np.linalg.norm(expected_64, order)
    assert relative_error(found, expected, order) == pytest.approx(norm / whole, rel=1e-12)
    assert relative_error(found[None], expected, order) == np.inf
    found[...] = np.nan
    assert np.isnan(relative_error(found, expected, order))


def test_verdicts() -> None:
    good, warned, failed = (Finding(level, level.lower(), "…") for level in ("OK", "WARN", "FAIL"))
    assert can_run([good, warned])
    assert not can_run([good, failed])
    assert verdict([good], True) == "this board can run and learn with this bundle"
    assert verdict([good, warned, warned], True) == "this board can run and learn with this bundle; 2 warnings above"
    assert "1 warning above" in verdict([warned], False)
    assert "learn" not in verdict([good], False).replace("learning graphs", "")
    assert "mend fail, then" in verdict([failed, failed], True)
    found = json.loads(as_json([Finding("OK", "x", "y", {"error": float("nan"), "n": 1})], "z"))
    assert found == {
        "can_run": True,
        "verdict": "z",
        "findings": [{"level": "OK", "check": "x", "sentence": "y", "figures": {"error": None, "n": 1}}],
    }
