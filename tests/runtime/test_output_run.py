"""Answers that leave a real deco-run, to real servers, brokers and pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from importlib import util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from mjpeg_server import mjpeg_server
from mqtt_broker import broker, free_port, listening
from processes import started
from web_server import web_server

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()",
]
needs_broker = pytest.mark.skipif(
    util.find_spec("paho") is None or util.find_spec("amqtt") is None, reason="needs paho-mqtt and amqtt, see [dev]"
)


def arguments(bundle: Path, *more: str) -> list[str]:
    return [*COMMAND, "--bundle", str(bundle), "--engine", "portable", "--no-learn", *more]


def run(bundle: Path, *more: str, code: int = 0, env: dict[str, str] | None = None) -> tuple[list[dict], str]:
    """The JSON lines on standard output, and standard error."""
    done = subprocess.run(
        arguments(bundle, *more), env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "; the run goes on" not in done.stderr  # as the bus says of a listener that failed
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def noise(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 200, (48, 64, 3), dtype=np.uint8)


def test_every_way_says_the_same_and_the_summary_is_the_last_line(bundle_path: Path) -> None:
    with web_server() as hook:
        url = f"http://127.0.0.1:{hook.port}/hook"
        lines, _ = run(bundle_path, "--demo", "--output", "-", "--output", url, "--output-after", "0.2")
        assert [body for _, _, body in hook.got] == lines[:-1]
    *changes, summary = lines
    assert summary["lost_outputs"] == 0
    assert len(changes) > 5
    assert all(a["class"] == b["previous_class"] and a["at"] < b["at"] for a, b in pairwise(changes))
    assert all(change["event"] == "change" and change["unknown"] == (change["class"] is None) for change in changes)
    assert changes[0]["previous_seconds"] is None
    assert all(change["previous_seconds"] >= 0.2 for change in changes[1:])
    assert sum(c["previous_seconds"] for c in changes[1:]) <= summary["frames"] / 30
    assert all(datetime.fromisoformat(change["time"]).tzinfo for change in changes)


def test_what_a_recording_says_does_not_depend_on_the_machine(bundle_path: Path) -> None:
    def told(*more: str) -> list[dict]:
        lines, _ = run(bundle_path, "--demo", "--output", "-", "--output-after", "0.5", *more)
        return [{key: value for key, value in line.items() if key != "time"} for line in lines[:-1]]

    first = told()
    assert first
    assert told("--threads", "1") == first


def test_every_frame(bundle_path: Path) -> None:
    *frames, summary = run(bundle_path, "--demo", "--output", "-", "--output-on", "frame")[0]
    assert len(frames) + summary["lost_outputs"] == summary["frames"]
    assert summary["lost_outputs"] == 0
    assert {frame["event"] for frame in frames} == {"frame"}
    assert [round(frame["at"] * 30) for frame in frames] == list(range(len(frames)))


def test_ways_that_do_not_work_neither_end_nor_hold_up_a_run(bundle_path: Path) -> None:
    with web_server() as hook:
        hook.hang.set()
        hanging = f"http://127.0.0.1:{hook.port}/Secret"
        refusing = f"http://me:Secret@127.0.0.1:{free_port()}/"
        begun = time.monotonic()
        lines, said = run(
            bundle_path, "--demo", "--output", hanging, "--output", refusing, "--output", "-", "--output-after", "0.2"
        )
        assert time.monotonic() - begun < 60
    *changes, summary = lines
    assert summary["lost_outputs"] == 2 * len(changes)
    assert said.count("but the system says: Connection refused; goes on") == 1
    assert "Secret" not in said
    frozen = run(bundle_path, "--demo")[0][-1]
    assert summary["stream_accuracy"] == frozen["stream_accuracy"]


def test_a_reader_that_sleeps_gets_the_summary_last(bundle_path: Path) -> None:
    """The pipe is full long before the end: what does not fit is counted."""
    command = arguments(bundle_path, "--demo", "--output", "-", "--output-on", "frame")
    with started(command) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("after: " in line for line in process.stderr)
        time.sleep(4)  # longer than a run waits at its end
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(30) == 0
    *frames, summary = lines
    assert "frames" in summary
    assert all(frame["event"] == "frame" for frame in frames)
    assert summary["lost_outputs"] > 100
    # One line was on its way, and nobody knew how far it would come.
    assert summary["frames"] <= len(frames) + summary["lost_outputs"] <= summary["frames"] + 1


def test_a_reader_that_is_gone(bundle_path: Path) -> None:
    with started(arguments(bundle_path, "--demo", "--output", "-", "--output-on", "frame")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == 0
    assert "Traceback" not in said
    assert said.count("warning: expected to send to standard output, but the system says: Broken pipe") == 1


def test_the_variable_is_the_option(bundle_path: Path) -> None:
    with web_server() as hook:
        variable = {"DECO_RUN_OUTPUT": f"- http://me:Secret@127.0.0.1:{hook.port}/Secret"}
        lines, said = run(bundle_path, "--demo", "--output-after", "0.5", env=variable)
        assert [body for _, _, body in hook.got] == lines[:-1]
    assert "Secret" not in said


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--output", "door"], "error: expected --output to be one of -, https://HOST/PATH, mqtt://HOST/TOPIC, but"),
        (["--output", "http://me:Sec/ret@host"], "error: expected --output to be an address such as https://HOST/PATH"),
        (["--output-after", "-1"], "error: Invalid value for '--output-after'"),
        (["--output-on", "day"], "error: Invalid value for '--output-on'"),
    ],
)
def test_mistakes_are_met_before_anything_is_opened(more: list[str], words: str, tmp_path: Path) -> None:
    lines, said = run(tmp_path / "no-bundle", "--demo", *more, code=2)
    assert lines == []
    assert said.startswith(words)
    assert said.count("\n") == 1


def test_several_cameras(bundle_path: Path, tmp_path: Path) -> None:
    """Each has its number in the answers, and its name in the story."""
    with mjpeg_server(noise, fps=30) as first, mjpeg_server(noise, fps=30) as second:
        more = ["--video", first, "--video", second, "--set", "segment=16", "--max-segments", "6"]
        more += ["--output", "-", "--output-on", "frame", "--events", str(tmp_path / "e")]
        *frames, summary = run(bundle_path, *more)[0]
    assert {frame["stream"] for frame in frames} == {0, 1}
    assert len(frames) == summary["frames"]
    done = subprocess.run(
        [*COMMAND, "show", "--events", str(tmp_path / "e"), "--out", str(tmp_path / "r.html")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("of 1 runs\n"), done.stderr
    page = (tmp_path / "r.html").read_text("utf-8")
    assert page.count(f"<td>{first}</td>") == page.count(f"<td>{second}</td>") == 1


@pytest.mark.everywhere
@needs_broker
def test_a_camera_and_a_broker_that_come_and_go(bundle_path: Path) -> None:
    """Home Assistant sees the camera go and come, and the program when it is killed."""
    port, camera = free_port(), free_port()
    output = f"mqtt://127.0.0.1:{port}/door"
    with ExitStack() as stack:
        stack.enter_context(broker(port))
        heard = stack.enter_context(listening(port))
        with mjpeg_server(noise, port=camera) as url:
            more = ["--video", url, "--output", output, "--output-after", "0", "--output-on", "frame"]
            process = stack.enter_context(started(arguments(bundle_path, *more), stdout=subprocess.DEVNULL))
            assert "confidence" in heard.hear("door", "frame")
            assert heard.hear("door/program") == "online"
        heard.hear("door/camera", "offline")
        before = len(heard.heard)
        with mjpeg_server(noise, port=camera):
            while "online" not in [payload for topic, payload in heard.heard[before:] if topic == "door/camera"]:
                time.sleep(0.05)
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
            assert heard.hear("door/program", "offline") == "offline"
        before = len(heard.heard)
        with mjpeg_server(noise, port=camera):
            process = stack.enter_context(started(arguments(bundle_path, *more)))
            while "online" not in [payload for topic, payload in heard.heard[before:] if topic == "door/program"]:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert json.loads(out)["lost_outputs"] == 0
    assert heard.heard[-1] == ("door/program", "offline")
