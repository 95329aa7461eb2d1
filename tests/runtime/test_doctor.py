"""deco-doctor as users run it: packages that die on import, graphs that are wrong here, cameras without a picture."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import deco_runtime
import numpy as np
import pytest
from deco_runtime.bundle import open_bundle
from deco_runtime.doctor import pieces
from deco_runtime.doctor.process import run_job
from deco_runtime.engine import open_engine
from deco_runtime.golden import golden_check
from mjpeg_server import mjpeg_server

DOCTOR = (sys.executable, "-c", "from deco_runtime.doctor.cli import main; main()")


def doctor(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    places = [str(path)] if path else []
    places.append(str(Path(deco_runtime.__file__).parents[1]))
    return subprocess.run(
        [*DOCTOR, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def changed_golden(bundle: Path, out: Path, name: str, factor: float) -> Path:
    """A copy of the bundle in which one golden value is another, with the manifest's checksum to match."""
    shutil.copytree(bundle, out)
    with np.load(out / "golden.npz") as archive:
        golden = {key: archive[key] for key in archive.files}
    golden[name] = golden[name] * np.float32(factor)
    np.savez(out / "golden.npz", **golden)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    manifest["files"]["golden.npz"] = hashlib.sha256((out / "golden.npz").read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return out


def test_a_good_board_and_bundle(bundle_path: Path) -> None:
    done = doctor("--bundle", bundle_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "verdict: this board can run and learn with this bundle"
    for graph in ("predict", "weight_gradient", "input_gradient", "feature_gradient", "input_gradient_tangent"):
        assert any(line.startswith(f"OK    graph {graph} on portable: off by ") for line in lines), graph
    assert not any(line.startswith("FAIL") for line in lines)


def test_the_same_as_json(bundle_path: Path) -> None:
    found = json.loads(doctor("--bundle", bundle_path, "--json").stdout)
    assert found["can_run"] is True
    assert {finding["level"] for finding in found["findings"]} <= {"OK", "WARN"}
    assert {"python", "numpy", "cv2", "onnxruntime", "bundle", "disk"} <= {f["check"] for f in found["findings"]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "its build is for a newer processor"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "pip install --force-reinstall"),
        (
            "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')",
            "pip install --force-reinstall opencv-python-headless",
        ),
        ("import os; os._exit(0)", "FAIL  cv2"),
    ],
    ids=["SIGILL", "SIGSEGV", "libGL", "silent end"],
)
def test_a_package_that_dies_is_a_finding(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(body)
    done = doctor(path=tmp_path)
    assert done.returncode == 1
    assert said in next(line for line in done.stdout.splitlines() if line.startswith("FAIL  cv2"))
    assert "mend cv2" in done.stdout.splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr


def test_an_import_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cv2.py").write_text("import time; time.sleep(600)")
    monkeypatch.syspath_prepend(str(tmp_path))
    report = run_job("import", 2.0, module="cv2")
    assert report.end == "silent"
    (cv2,) = [piece for piece in pieces.PIECES if piece.module == "cv2"]
    assert "top and dmesg" in pieces.advice(cv2, report)


@pytest.mark.parametrize("graph", ["predict", "weight_gradient", "input_gradient"])
def test_a_graph_that_is_wrong_here_fails_by_name(graph: str, bundle_path: Path, tmp_path: Path) -> None:
    value = "logits" if graph == "predict" else graph
    bundle = changed_golden(bundle_path, tmp_path / "bundle", value, 1.1)
    done = doctor("--bundle", bundle)
    assert done.returncode == 1
    assert f"FAIL  graph {graph} on portable" in done.stdout
    assert "OK    graph feature_gradient on portable" in done.stdout


def test_deco_run_checks_before_it_predicts(bundle_path: Path, tmp_path: Path) -> None:
    good = open_bundle(bundle_path)
    engine = open_engine(good, "portable")
    assert golden_check(good, engine) is None
    wrong = open_bundle(changed_golden(bundle_path, tmp_path / "wrong", "weight_gradient", 1.1))
    assert golden_check(wrong, engine, learn=False) is None  # predictions are right
    complaint = golden_check(wrong, engine)
    assert complaint is not None
    assert "expected the graph weight_gradient of" in complaint
    command = [sys.executable, "-c", "from deco_runtime.cli import main; main()"]
    done = subprocess.run(
        [*command, "--bundle", str(wrong.path), "--demo", "--engine", "portable", "--state", str(tmp_path / "state")],
        env={**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4, done.stderr
    assert "expected the graph weight_gradient of" in done.stderr


def test_a_bundle_of_an_earlier_version_is_checked_as_far_as_it_goes(bundle_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "older"
    shutil.copytree(bundle_path, out)
    np.savez(out / "golden.npz", x=np.zeros((1, 3, 16, 16), np.float32))
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    manifest["files"]["golden.npz"] = hashlib.sha256((out / "golden.npz").read_bytes()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    older = open_bundle(out)
    assert golden_check(older, open_engine(older, "portable")) is None


def moving(number: int) -> np.ndarray:
    picture = np.full((48, 64, 3), 90, np.uint8)
    picture[:, number % 60 : number % 60 + 4] = (20, 180, 220)
    return picture


@pytest.mark.parametrize(
    ("picture", "level", "said"),
    [
        (moving, "OK", "64×48"),
        (lambda number: moving(0), "WARN", "same"),
        (lambda number: np.zeros((48, 64, 3), np.uint8), "WARN", "black"),
    ],
    ids=["good", "frozen", "black"],
)
def test_cameras(picture, level: str, said: str) -> None:
    with mjpeg_server(picture, fps=20) as url:
        done = doctor("--camera", url, "--seconds", 1.5)
    lines = [line for line in done.stdout.splitlines() if "camera" in line.split(":")[0]]
    assert any(line.startswith(level) and said in line for line in lines), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_camera_that_is_not_there() -> None:
    done = doctor("--camera", "http://127.0.0.1:9/", "--seconds", 1)
    assert done.returncode == 1
    assert "FAIL  camera" in done.stdout
