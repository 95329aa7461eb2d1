"""deco-doctor as users run it, and what it says of packages that die on import and of cameras without a picture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deco_runtime
import numpy as np
import pytest
from deco_runtime.doctor import camera, packages
from deco_runtime.doctor.findings import Finding
from mjpeg_server import mjpeg_server

RUNTIME = Path(deco_runtime.__file__).parents[1]
PROGRAM = "from deco_runtime.doctor.cli import main; main()"
WITHOUT_PACKAGES = f"from deco_runtime.doctor import packages; packages.PACKAGES = (); {PROGRAM}"
"""The same, but quicker, where it is not the packages that matter."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, bundle_path: Path) -> Path:
    """A place for PYTHONPATH that hides torch: the training build of onnxruntime takes seconds to import it."""
    place = tmp_path_factory.mktemp("quick")
    (place / "torch.py").write_text("raise ImportError('no device has it')")
    return place


def doctor(
    *arguments: object, places: list[Path], program: str = PROGRAM, **variables: str
) -> subprocess.CompletedProcess[str]:
    """deco-doctor in a process of its own; places come first on PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*places, RUNTIME])), **variables},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_help_teaches(quick: Path) -> None:
    done = doctor("--help", places=[quick])
    assert done.returncode == 0
    for word in ("--bundle", "--camera", "--seconds", "--json", "exit code is 1"):
        assert word in done.stdout
    assert "deco-doctor --bundle bundle --camera 0" in done.stdout  # a line to copy
    assert done.stdout == doctor("-h", places=[quick]).stdout


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--seconds", "0"], "--seconds"), (["--nonsense"], "No such option")]
)
def test_wrong_options(arguments: list[str], words: str, quick: Path) -> None:
    done = doctor(*arguments, places=[quick])
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


def test_a_good_board_and_bundle_as_json(quick: Path, bundle_path: Path) -> None:
    from deco_runtime.engines.registry import by_preference
    from deco_runtime.storage.bundle import open_bundle

    done = doctor("--bundle", bundle_path, "--json", places=[quick])
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    found = json.loads(done.stdout, parse_constant=pytest.fail)  # no NaN: not everybody's JSON has it
    assert found["can_run"] is True
    assert found["verdict"].startswith("this board can run and learn with this bundle")
    assert {f["level"] for f in found["findings"]} <= {"OK", "WARN"}  # WARN: the memory of a busy machine
    checks = {f["check"]: f["figures"] for f in found["findings"]}
    assert {"python", "board", "cores", "numpy", "cv2", "onnxruntime", "bundle", "disk"} <= set(checks)
    opened = open_bundle(bundle_path)
    for engine in (name for name, reason in by_preference(opened).items() if reason is None):
        for graph in ("predict", "weight_gradient", "input_gradient", "feature_gradient", "input_gradient_tangent"):
            figures = checks[f"graph {graph} on {engine}"]
            assert 0 <= figures["error"] <= 1e-3
            assert figures["first_seconds"] > 0 < figures["again_seconds"]
            assert figures["images"] == 2
    assert not bundle_path.with_name(bundle_path.name + "-state").exists()


def test_the_disk_of_the_state(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    for state, code, words in ((tmp_path / "states" / "a", 0, "OK    disk: "), (tmp_path / "file", 1, "FAIL  disk: ")):
        done = doctor("--state", state, places=[quick])
        assert done.returncode == code, done.stdout
        (line,) = (each for each in done.stdout.splitlines() if "disk: " in each)
        assert line.startswith(words)
        assert str(tmp_path) in line
    assert not (tmp_path / "states").exists()


def test_no_bundle_and_a_camera(quick: Path) -> None:
    with mjpeg_server(moving) as url:
        done = doctor("--camera", url, "--seconds", 0.5, places=[quick])
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line[:6] in ("OK    ", "WARN  ") for line in lines[:-1])
    for start in ("camera: http://", "camera motion: ", "camera picture: ", "camera colour: three channels"):
        assert sum(line.startswith(f"OK    {start}") for line in lines) == 1
    assert lines[-1].startswith("verdict: deco-run's packages work on this board")
    assert lines[-1].endswith("give --bundle to try the learning graphs too")


DEATHS = {
    "SIGILL": ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "its build is for a newer processor"),
    "SIGSEGV": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11 (Segmentation fault)"),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "memory has run out"),
    "libGL": (
        "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')",
        "pip install --force-reinstall opencv-python-headless",
    ),
    "library": (
        "raise ImportError('libatomic.so.1: cannot open shared object file: No such file or directory')",
        "install the system package that holds libatomic.so.1",
    ),
    "TLS": (
        "raise ImportError('/usr/lib/libgomp.so.1: cannot allocate memory in static TLS block')",
        "put LD_PRELOAD=/usr/lib/libgomp.so.1 before the command",
    ),
    "absent": ("raise ModuleNotFoundError(\"No module named 'cv2'\")", "pip install opencv-python-headless"),
    "silent end": ("import os; os._exit(0)", "ends the program with code 0"),
    "last words": ("import os; print('so long'); os._exit(3)", "ends the program with code 3"),
    "empty": ("__version__ = '4.8.1'\n", "fails with AttributeError"),  # a name without its content
}


@pytest.mark.parametrize("how", DEATHS)
def test_a_package_that_dies_is_a_finding(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, said = DEATHS[how]
    found = cv2_with(body, tmp_path, monkeypatch)
    assert found.level == "FAIL"
    assert found.sentence.startswith("expected to import cv2, but that ")
    assert said in found.sentence
    assert found.figures == {"imported": False}


def test_an_import_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "IMPORT_S", 0.5)
    started = time.monotonic()
    found = cv2_with("import time; time.sleep(600)", tmp_path, monkeypatch)
    assert time.monotonic() - started < 10
    assert found.level == "FAIL"
    assert "does not come back within 0.5 s; look with top and dmesg" in found.sentence


def cv2_with(body: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What is said of a cv2 that is this."""
    (place / "cv2.py").write_text(body)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setattr(packages, "PACKAGES", [package for package in packages.PACKAGES if package.module == "cv2"])
    (found,) = packages.findings()
    return found


def test_a_board_whose_opencv_dies(quick: Path, tmp_path: Path, bundle_path: Path) -> None:
    (tmp_path / "cv2.py").write_text(DEATHS["SIGILL"][0])
    done = doctor("--bundle", bundle_path, "--camera", "0", places=[tmp_path, quick])
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert sum(line.startswith("FAIL  cv2: ") for line in lines) == 1
    assert any(line.startswith("OK    onnxruntime: ") for line in lines)  # the others are tried all the same
    assert "WARN  bundle: not tried, because it needs cv2; mend that first" in lines
    assert "WARN  camera: not tried, because it needs cv2; mend that first" in lines
    assert lines[-1] == "verdict: this board cannot run and learn as it is; mend cv2, then run deco-doctor again"


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_sigterm_ends_what_was_started(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        f"import os, time; open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r}); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [tmp_path, quick, RUNTIME]))}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM
        assert process.stderr.read() == b"\ninterrupted\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def moving(number: int) -> np.ndarray:
    picture = np.full((48, 64, 3), 90, np.uint8)
    picture[:, number % 60 : number % 60 + 4] = (20, 180, 220)
    return picture


def grey(number: int) -> np.ndarray:
    return np.repeat(np.roll(np.arange(0, 256, 4, np.uint8), number)[None, :, None], 48, axis=0).repeat(3, axis=2)


CAMERAS: dict[str, tuple[Callable[[int], Any], dict[str, str], str]] = {
    "frozen": (lambda i: moving(0), {"motion": "WARN", "picture": "OK", "colour": "OK"}, "as from a frozen sensor"),
    "black": (
        lambda i: np.full((48, 64, 3), i % 3 * 4, np.uint8),
        {"motion": "OK", "picture": "WARN"},
        "frames are black; take off the lens cap",
    ),
    "grey": (grey, {"motion": "OK", "picture": "OK", "colour": "OK"}, "the picture is grey, so red and blue cannot"),
}


@pytest.mark.parametrize("kind", CAMERAS)
def test_what_a_camera_shows(kind: str) -> None:
    picture, levels, said = CAMERAS[kind]
    with mjpeg_server(picture) as url:
        found = list(camera.findings(url, 0.5, ()))
    assert {f.check: f.level for f in found} == {"camera": "OK", **{f"camera {k}": v for k, v in levels.items()}}
    assert any(said in f.sentence for f in found)
    assert "64×48 pixels" in found[0].sentence
    figures = found[0].figures
    assert figures["sizes"] == [[64, 48]]
    assert 10 < figures["rate"] < 60  # 50, less what a busy machine takes
    assert figures["frames"] + figures["dropped"] > 5


def test_what_is_said_of_a_camera() -> None:
    told = {"name": "c", "frames": 9, "dropped": 0, "damaged": 0, "rate": 5.0, "longest_gap": 0.2, "open_seconds": 0.1}
    told |= {"sizes": [[4, 2], [8, 4]], "changed": 3, "brightest": 200.0, "spread": 9.0, "colours_differ": True}
    told |= {"centre": [1.0, 2.0, 3.0]}
    size, motion, _, colour = camera._look(told)
    assert "4×2 and 8×4 pixels" in size.sentence
    assert motion.sentence == "3 of 8 frames differ from the one before"
    assert "blue 1, green 2, red 3; not checked is whether red and blue are exchanged" in colour.sentence
    *_, last = camera._look({**told, "spread": 0.5})
    assert (last.level, last.check) == ("WARN", "camera picture")
    assert "show one plain colour; point the camera at something" in last.sentence
    _, motion, *_ = camera._look({**told, "frames": 1, "changed": 0})
    assert motion.sentence.endswith("give a longer --seconds or a faster camera")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("http://127.0.0.1:9/", "found that 127.0.0.1 refuses connections at port 9"),
        pytest.param(
            "/dev/video99", "plug it in", marks=pytest.mark.skipif(sys.platform != "linux", reason="Video4Linux")
        ),
    ],
)
def test_a_camera_that_is_not_there(value: str, said: str) -> None:
    (found,) = camera.findings(value, 0.5, ())
    assert found.level == "FAIL"
    assert said in found.sentence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="file names are bytes there")
@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "caf\\udce9"), ("ascii", "caf?")])
def test_names_that_are_no_text(encoding: str, shown: str, quick: Path, tmp_path: Path) -> None:
    bundle = os.path.join(tmp_path, "caf\udce9")
    done = doctor("--bundle", bundle, places=[quick], program=WITHOUT_PACKAGES, PYTHONIOENCODING=encoding)
    assert done.returncode == 1
    assert f"{shown}, but found nothing" in done.stdout
