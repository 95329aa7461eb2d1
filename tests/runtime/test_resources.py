"""Limits on what learning takes, for real: the processor's time, resident memory, threads, and files of the system that
say that it is hot or short of memory, as this machine never is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deco_runtime.engines import autoselect, registry
from deco_runtime.host import machine as device
from deco_runtime.host import threads
from deco_runtime.host.job import Report
from deco_runtime.learning.buffer import initial
from deco_runtime.running.limits import Limits, Resources
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.terminal_view import View
from fake_engine import fresh
from mjpeg_server import mjpeg_server
from processes import events, started, wait_for

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
PROGRAM = """
import functools, pathlib, sys
sys.modules["torch"] = None  # the training build of onnxruntime, where it finds it, takes seconds to import it
from deco_runtime.running import limits as resources
if root := sys.argv.pop(1):
    resources.Limits = functools.partial(resources.Limits, root=pathlib.Path(root))
from deco_runtime.commands.run import main
main()
"""
QUICK = ("segment=16", "retrain_interval=2", "retrain_epochs=3", "iterations=2")
ENDLESS = ("segment=16", "retrain_interval=1", "retrain_epochs=1000000", "iterations=1")
ZONE, MEMORY = "sys/class/thermal/thermal_zone0", "proc/meminfo"


def running(
    bundle: Path, place: Path, *more: str, recipe: tuple[str, ...] = QUICK, root: Path | str = ""
) -> AbstractContextManager[subprocess.Popen[str]]:
    """deco-run with its state and events in `place`; without another source, on the demo stream, scored on nothing."""
    source = () if "--video" in more else ("--video", str(bundle / "demo" / "stream.avi"))
    settings = [word for setting in recipe for word in ("--set", setting)]
    usual = ["--bundle", str(bundle), "--engine", "portable", "--state", f"{place}/s", "--events", f"{place}/e"]
    return started([sys.executable, "-c", PROGRAM, str(root), *usual, *settings, *source, *more])


def end(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """The summary, and what was said on stderr."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


def stop(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """As `end`, after a SIGTERM, and within seconds."""
    sent = time.monotonic()
    process.terminate()
    found = end(process)
    assert time.monotonic() - sent < 8
    return found


def learned(place: Path, bundle: Path) -> states.LearnedState:
    found, note = states.load(place / "s", opened := open_bundle(bundle), fresh(opened))
    assert found is not None
    assert note is None
    return found


def write(root: Path, name: str, text: str) -> None:
    """As the kernel does: whole or not at all."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    partial = root / "partial"
    partial.write_text(text)
    os.replace(partial, root / name)


def heat(root: Path, celsius: float) -> None:
    write(root, f"{ZONE}/type", "cpu-thermal\n")
    write(root, f"{ZONE}/temp", f"{1000 * celsius:.0f}\n")


# --- a share of the time


def busy_share(pid: int, seconds: float) -> float:
    """CPU seconds that a process takes per second."""

    def taken() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, begun = taken(), time.monotonic()
    time.sleep(seconds)
    return (taken() - before) / (time.monotonic() - begun)


@LINUX
def test_learning_keeps_to_its_share_of_the_time(bundle_path: Path, tmp_path: Path) -> None:
    """Measured in the middle of an update that takes hours; a signal ends a rest."""
    found = {}
    for share in (100, 10):
        place = tmp_path / str(share)
        place.mkdir()
        more = ["--threads", "1", "--cpu-share", str(share)]
        with running(bundle_path, place, *more, recipe=ENDLESS) as process:
            wait_for(place / "e", "segment", number=1)
            found[share] = busy_share(process.pid, 2 if share == 100 else 6)  # a rest may last for seconds
            summary, _ = stop(process)
        assert learned(place, bundle_path).values["counts"]["segments"] == 1
        assert (summary["paused_seconds"]["cpu share"] > 1) is (share == 10)
    assert 0 < found[10] < 0.3 * found[100]


# --- heat


def test_a_run_that_was_too_hot_learns_the_same(bundle_path: Path, tmp_path: Path) -> None:
    """It gets hot in the middle of an update, and cools in two steps, of which only the second is far enough."""
    root, recipe = tmp_path / "root", ("segment=16", "retrain_interval=2", "retrain_epochs=300", "iterations=2")
    heat(root, 40)
    places = [tmp_path / name for name in ("cool", "hot")]
    for place in places:
        place.mkdir()
    usual = ["--max-segments", "2", "--no-guard"]
    with running(bundle_path, places[0], *usual, recipe=recipe) as process:
        end(process)
    limits = ["--max-temperature", "80", "--cpu-share", "25"]
    with running(bundle_path, places[1], *usual, *limits, recipe=recipe, root=root) as process:
        wait_for(places[1] / "e", "segment", number=2)
        heat(root, 85.4)
        (paused,) = wait_for(places[1] / "e", "resources")
        heat(root, 76)
        time.sleep(1.5)
        assert process.poll() is None
        assert events(places[1] / "e", "resources", decision="resumed") == []
        heat(root, 74)
        summary, said = end(process)
    expected = {"decision": "paused", "reason": "temperature", "measured": 85.4, "limit": 80, "sensor": "cpu-thermal"}
    assert expected.items() <= paused.items()
    (resumed,) = events(places[1] / "e", "resources", decision="resumed")
    assert resumed["measured"] == 74
    assert "learning pauses: cpu-thermal is at 85 °C, and --max-temperature is 80; it goes on at 75" in said
    assert said.count("learning goes on") == 1
    assert summary["paused_seconds"]["temperature"] >= 1.5
    assert (summary["retrains"], summary["dropped_segments"], summary["given_up_segments"]) == (1, 0, 0)
    cool, hot = (learned(place, bundle_path) for place in places)
    assert not np.array_equal(cool.arrays["model"], open_bundle(bundle_path).weights())
    assert {"model", "x_syn", "velocity"} <= cool.arrays.keys()
    of_cool, of_hot = ({name: array.tobytes() for name, array in each.arrays.items()} for each in (cool, hot))
    assert of_cool == of_hot
    assert (cool.values, cool.position, cool.digest) == (hot.values, hot.position, hot.digest)


# --- memory and heat beside a camera, which does not wait


@LINUX
def test_predictions_go_on_while_learning_waits(bundle_path: Path, tmp_path: Path) -> None:
    """Short of memory, then not, then too hot until a signal ends the run."""
    pixels, labels = open_bundle(bundle_path).labelled_pixels("demo/test.npz")
    ones = [cv2.resize(p, (64, 48)) for p in pixels[labels == 1][:8]]
    root = tmp_path / "root"
    heat(root, 40)
    write(root, MEMORY, "MemTotal: 500000 kB\nMemAvailable: 20480 kB\n")
    with mjpeg_server(lambda i: ones[i % 8], fps=100) as url:
        limits = ["--max-temperature", "80", "--video", url]
        with running(bundle_path, tmp_path, *limits, root=root) as process:
            (paused,) = wait_for(tmp_path / "e", "resources")
            assert (paused["decision"], paused["reason"]) == ("paused", "free memory")
            assert (paused["measured"], paused["limit"]) == (20, 32)
            time.sleep(0.5)
            assert events(tmp_path / "e", "segment") == []
            write(root, MEMORY, "MemTotal: 500000 kB\nMemAvailable: 204800 kB\n")
            wait_for(tmp_path / "e", "resources", decision="resumed", reason="free memory")
            wait_for(tmp_path / "e", "retrain")
            heat(root, 90)
            wait_for(tmp_path / "e", "resources", decision="paused", reason="temperature")
            frames, number = (events(tmp_path / "e", "segment")[-1][key] for key in ("frames", "number"))
            time.sleep(1.5)
            summary, said = stop(process)
    assert summary["frames"] > frames + 20
    assert summary["given_up_segments"] >= 1
    assert summary["dropped_segments"] >= 1
    assert summary["paused_seconds"]["free memory"] >= 0.4
    assert summary["paused_seconds"]["temperature"] >= 1.2
    assert "learning pauses: 20 MiB of memory are free, and 32 are left alone; if that stays so, free some" in said
    assert number <= learned(tmp_path, bundle_path).values["counts"]["segments"] <= number + 1


@LINUX
def test_a_program_above_its_memory_limit_predicts_all_and_learns_nothing(bundle_path: Path, tmp_path: Path) -> None:
    limits = ["--memory-limit", "30", "--max-temperature", "80", "--max-segments", "5", "--save-every", "0"]
    with running(bundle_path, tmp_path, *limits, root=tmp_path / "nothing") as process:
        summary, said = end(process)
    assert (summary["frames"], summary["segments"], summary["given_up_segments"]) == (80, 5, 5)
    assert summary["retrains"] == 0
    assert said.count("learning pauses") == 1
    assert " MiB, and --memory-limit is 30; if that stays so, raise it; prediction goes on" in said
    assert said.count("note: --max-temperature has no effect, because no sensor of this machine can be read") == 1
    (paused,) = events(tmp_path / "e", "resources")
    assert paused["measured"] > paused["limit"] == 30
    found, bundle = learned(tmp_path, bundle_path), open_bundle(bundle_path)
    assert np.array_equal(found.arrays["model"], bundle.weights())
    assert np.array_equal(found.arrays["x_syn"], initial(bundle).x_syn)
    assert found.position == 80  # what was passed over is not met again
    assert len(events(tmp_path / "e", "save")) == 5


@LINUX
def test_learning_goes_on_once_memory_was_given_back(tmp_path: Path) -> None:
    """300 MiB of this very process, taken in the middle of a piece of work and given back."""
    before = device.memory_mib_taken()
    assert before is not None
    log = EventLog(tmp_path / "e")
    resources = Resources(Limits(memory_mib=before + 150), Bus(log))
    held: list[np.ndarray] = []

    def check() -> None:
        pass

    def take() -> str:
        held.append(np.ones(300 << 17))
        for _ in range(200):
            resources.step(check)
            time.sleep(0.05)
        return "was let through"

    assert resources.work(lambda: "whole", check) == "whole"
    assert resources.work(take, check) is None
    assert resources.work(lambda: "not tried", check) is None
    wait_for(tmp_path / "e", "resources", decision="paused")
    held.clear()
    limit = time.monotonic() + 30
    while resources.work(lambda: "whole again", check) is None:
        assert time.monotonic() < limit
        time.sleep(0.1)
    log.close()
    assert [e["decision"] for e in events(tmp_path / "e", "resources")] == ["paused", "resumed"]
    assert resources.paused_seconds()["memory"] > 0


def test_work_that_the_system_refuses_memory_is_given_up(tmp_path: Path) -> None:
    """More than any address space has."""
    log = EventLog(tmp_path / "e")
    resources = Resources(Limits(root=tmp_path), Bus(log))

    def check() -> None:
        pass

    assert resources.work(lambda: np.ones(1 << 57, np.uint8), check) is None
    assert resources.work(lambda: "not tried", check) is None
    limit = time.monotonic() + 30
    while resources.work(lambda: "tried", check) is None:
        assert time.monotonic() < limit
        time.sleep(0.1)
    log.close()
    assert [(e["decision"], e["reason"]) for e in events(tmp_path / "e", "resources")] == [
        ("paused", "free memory"),
        ("resumed", "free memory"),
    ]


# --- threads


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_limit", None)  # and what the test sets is undone
    threads.limit_threads(1)


@pytest.mark.everywhere
@pytest.mark.parametrize("name", ["portable", "ort-training", "openvino"])
def test_threads_reach_the_engine(name: str, one: None, bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime says so of every graph that the engine has it open."""
    bundle = open_bundle(bundle_path)
    if reason := registry.engines()[name].unusable(bundle):
        pytest.skip(reason)
    opened: list[Any] = []
    runtime: Any = import_module("openvino" if name == "openvino" else "onnxruntime")
    place, how = (runtime.Core, "compile_model") if name == "openvino" else (runtime, "InferenceSession")
    opening = getattr(place, how)

    def kept(*arguments: Any, **more: Any) -> Any:
        opened.append(opening(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(place, how, kept)
    theta, x = bundle.weights(), np.zeros((1, *bundle.image_shape), np.float32)
    engine = registry.open_engine(bundle, name)
    engine.predict(theta, x)
    engine.weight_gradient(theta, x, np.eye(1, len(bundle.classes), dtype=np.float32))
    assert len(opened) == 2
    for graph in opened:
        if name == "openvino":
            assert graph.get_property("INFERENCE_NUM_THREADS") == 1
        else:
            assert graph.get_session_options().intra_op_num_threads == 1


def test_threads_are_those_of_the_timing(
    one: None, bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that times an engine is told of them, and times of another number are not taken."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)  # two processors everywhere
    bundle = open_bundle(bundle_path)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(autoselect, "by_preference", lambda *_: {"portable": None, "openvino": None})
    monkeypatch.setattr(
        autoselect, "run_job", lambda job, limit, check, **arguments: told.append(arguments) or Report("died")
    )
    for _ in range(2):
        assert autoselect.fastest(bundle, tmp_path, "weight_gradient") == ("auto", None)
        assert [(job["engine"], job["at_most"]) for job in told] == [("portable", 1), ("openvino", 1)]
    threads.limit_threads(99)
    autoselect.fastest(bundle, tmp_path, "weight_gradient")
    assert [(job["engine"], job["at_most"]) for job in told[2:]] == [("portable", 2), ("openvino", 2)]
    answers: list[dict[str, Any]] = []
    autoselect.time_engine(lambda **content: answers.append(content), **told[0])
    assert threads.threads() == 1
    assert answers[0]["seconds"] > 0


@LINUX
@pytest.mark.skipif(threads.threads() < 2, reason="needs two processors")
def test_one_thread_is_fewer_than_two(bundle_path: Path, tmp_path: Path) -> None:
    """Counted by the system in a process that learns."""
    found = []
    for count in ("1", "2"):
        place = tmp_path / count
        place.mkdir()
        with running(bundle_path, place, "--threads", count, recipe=ENDLESS) as process:
            wait_for(place / "e", "segment", number=1)
            found.append(len(os.listdir(f"/proc/{process.pid}/task")))
    assert found[0] < found[1]


# --- what the system's files say


def test_the_hottest_of_each_name(tmp_path: Path) -> None:
    assert device.temperatures(tmp_path) == {}
    write(tmp_path, "sys/class/hwmon/hwmon0/name", "coretemp\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_input", "61000\n")
    write(tmp_path, "sys/class/hwmon/hwmon0/temp1_label", "Core 0\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp2_input", "-4500\n")
    write(tmp_path, "sys/class/hwmon/hwmon1/temp3_input", "\n")
    assert device.temperatures(tmp_path) == {"coretemp Core 0": 61.0, "temp2": -4.5}
    for zone, celsius in enumerate((50, 70, 60)):
        write(tmp_path, f"sys/class/thermal/thermal_zone{zone}/type", "acpitz\n")
        write(tmp_path, f"sys/class/thermal/thermal_zone{zone}/temp", f"{celsius}000\n")
    assert device.temperatures(tmp_path) == {"acpitz": 70.0}


def test_memory_that_is_left_to_a_control_group(tmp_path: Path) -> None:
    """The tightest of the machine and every group around the program; its cache is memory that is given back."""
    assert device.memory_mib_free(tmp_path) is None
    write(tmp_path, MEMORY, "MemAvailable: 1024000 kB\n")
    assert device.memory_mib_free(tmp_path) == 1000
    top, mib = "sys/fs/cgroup", 1 << 20
    write(tmp_path, "proc/self/cgroup", "0::/system.slice/deco.service\n")
    write(tmp_path, f"{top}/system.slice/deco.service/memory.max", "max\n")
    write(tmp_path, f"{top}/system.slice/deco.service/memory.current", f"{150 * mib}\n")
    assert device.memory_mib_free(tmp_path) == 1000
    write(tmp_path, f"{top}/system.slice/memory.max", f"{400 * mib}\n")
    write(tmp_path, f"{top}/system.slice/memory.current", f"{380 * mib}\n")
    write(
        tmp_path,
        f"{top}/system.slice/memory.stat",
        f"anon 5\nactive_file {7 * mib}\ninactive_file {3 * mib}\nworkingset_activate_file 99999999\n",
    )
    assert device.memory_mib_free(tmp_path) == 30
    write(tmp_path, f"{top}/system.slice/deco.service/memory.max", f"{160 * mib}\n")
    assert device.memory_mib_free(tmp_path) == 10


@LINUX
def test_memory_of_this_process_and_machine() -> None:
    free, taken = device.memory_mib_free(), device.memory_mib_taken()
    assert free is not None
    assert taken is not None
    assert 0 < free <= device.memory_mib()["MemTotal"]
    peak = device.peak_memory_mb()
    assert peak is not None
    assert 20 < taken <= peak


def test_nothing_is_said_without_limits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    resources = Resources(Limits(root=tmp_path), Bus(View("test")))
    assert resources.work(lambda: 7, lambda: None) == 7
    assert set(resources.paused_seconds().values()) == {0.0}
    assert capsys.readouterr().err == ""
    with pytest.raises(ZeroDivisionError):  # the work's own errors are its own
        resources.work(lambda: 1 // 0, lambda: None)
