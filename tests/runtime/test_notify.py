"""What systemd hears of a run: a notify socket of the test's own, and real deco-run processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.systemd import Notifier
from deco_runtime.types import Frame, Notice
from mjpeg_server import mjpeg_server
from processes import started

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd's protocol")

COMMAND = [sys.executable, "-c", "from deco_runtime.commands.run import main; main()"]
PERIOD_S = 0.1


class Listener:
    """The service manager's end: every datagram is a dict of its lines."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)

    def hear(self, timeout: float = 30.0) -> dict[str, str] | None:
        """The next message; None if there is none in time."""
        self.socket.settimeout(timeout)
        try:
            text = self.socket.recv(4096).decode()
        except (TimeoutError, BlockingIOError):
            return None
        return dict(line.split("=", 1) for line in text.split("\n"))

    def hear_until(self, key: str) -> list[dict[str, str]]:
        heard = []
        while not heard or key not in heard[-1]:
            message = self.hear()
            assert message is not None, f"no {key} after {heard}"
            heard.append(message)
        return heard


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    listener = Listener(str(tmp_path / "n"))
    yield listener
    listener.socket.close()


def deco_run(listener: Listener, bundle: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A deco-run process that reports to the listener, with a watchdog of three periods."""
    recipe = ["segment=16", "retrain_interval=1", "retrain_epochs=100000", "iterations=2"]
    settings = [text for setting in recipe for text in ("--set", setting)]
    return started(
        [*COMMAND, "--bundle", str(bundle), "--engine", "portable", *settings, *more],
        env={
            **os.environ,
            "NOTIFY_SOCKET": listener.socket.getsockname(),
            "WATCHDOG_USEC": str(int(3 * PERIOD_S * 1e6)),
        },
        stdout=subprocess.DEVNULL,
    )


def ends(process: subprocess.Popen[str], listener: Listener, number: signal.Signals = signal.SIGTERM) -> None:
    """The signal stops it cleanly, and systemd hears of that."""
    process.send_signal(number)
    assert "STOPPING" in listener.hear_until("STOPPING")[-1]
    assert process.wait(30) == 0


def noise(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 200, (48, 64, 3), dtype=np.uint8)


def test_a_live_run_is_ready_then_alive_while_it_learns_then_stops(
    listener: Listener, bundle_path: Path, tmp_path: Path
) -> None:
    """The learner's thread retrains for hours, and the watchdog is fed by predictions."""
    with (
        mjpeg_server(noise, fps=100) as url,
        deco_run(listener, bundle_path, "--state", f"{tmp_path}/s", "--video", url) as process,
    ):
        first = listener.hear()
        assert first == {"READY": "1", "STATUS": "0 segments, 0 updates; predicting"}
        begun, pings = time.monotonic(), 0
        status = ""
        while pings < 3 or "1 segments, 0 updates; retraining, epoch" not in status:
            message = listener.hear()
            assert message is not None
            assert message.keys() == {"WATCHDOG", "STATUS"}
            status, pings = message["STATUS"], pings + 1
        assert pings <= (time.monotonic() - begun) / PERIOD_S + 1
        ends(process, listener)


def test_waiting_for_a_camera_is_being_alive(listener: Listener, bundle_path: Path, tmp_path: Path) -> None:
    """The camera goes away for longer than the watchdog waits, while the learner's thread is busy."""
    with ExitStack() as stack:
        with mjpeg_server(noise, fps=100) as url:
            process = stack.enter_context(deco_run(listener, bundle_path, "--state", f"{tmp_path}/s", "--video", url))
            listener.hear_until("READY")
            while "retraining" not in listener.hear_until("WATCHDOG")[-1]["STATUS"]:
                pass
        while "waiting for the camera" not in listener.hear_until("WATCHDOG")[-1]["STATUS"]:
            pass
        begun, silence = time.monotonic(), 0.0
        while time.monotonic() - begun < 2:  # several attempts
            before = time.monotonic()
            assert listener.hear_until("WATCHDOG")[-1]["STATUS"] == "1 segments, 0 updates; waiting for the camera"
            silence = max(silence, time.monotonic() - before)
        assert silence < 2
        ends(process, listener)


def test_a_replayed_stream_is_alive_while_it_learns(listener: Listener, bundle_path: Path, tmp_path: Path) -> None:
    """Frames wait for the learner there, so each step of it is progress; and on starting again, time for one more."""
    usual = ["--state", f"{tmp_path}/s", "--demo"]
    with deco_run(listener, bundle_path, *usual) as process:
        listener.hear_until("READY")
        while "retraining, epoch" not in listener.hear_until("WATCHDOG")[-1]["STATUS"]:
            pass
        ends(process, listener, signal.SIGINT)
    with deco_run(listener, bundle_path, *usual) as process:  # the update that was given up is due
        message = listener.hear_until("EXTEND_TIMEOUT_USEC")[-1]
        assert int(message["EXTEND_TIMEOUT_USEC"]) >= 60_000_000
        while "retraining, epoch" not in message["STATUS"]:
            message = listener.hear_until("EXTEND_TIMEOUT_USEC")[-1]
        ends(process, listener)


# The protocol alone.


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic time, which only the test moves."""
    now = [1000.0]
    monkeypatch.setattr("deco_runtime.telemetry.systemd.time.monotonic", lambda: now[0])
    return now


PREDICTED = happened.FramePredicted("cat", 0.9, Frame(np.zeros((2, 2, 3), np.uint8), 0.0), {})
STEPPED, ENDING = happened.Stepped(), happened.RunEnding()
WELL = "0 segments, 0 updates; predicting"


def told(listener: Listener, **more: str) -> Bus:
    return Bus(Notifier({"NOTIFY_SOCKET": listener.socket.getsockname(), **more}))


def in_another_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"WATCHDOG_USEC": "1"}]
)
def test_nobody_listens(environment: dict[str, str]) -> None:
    assert Notifier(environment).hears() == {}


@pytest.mark.parametrize("name", ["@", "/", "/nowhere/n", "@" + "a" * 500, "/" + "a" * 500, "@caf\udce9"])
def test_a_socket_that_is_not_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bus = Bus(Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1"}))
    for _ in range(2):
        bus.emit(STEPPED)
        bus.emit(PREDICTED)
    bus.emit(ENDING)
    assert capsys.readouterr().err == ""  # where the bus would say that it failed


def test_an_abstract_socket() -> None:
    name = f"deco-test-{os.getpid()}"
    listener = Listener(f"\0{name}")
    Bus(Notifier({"NOTIFY_SOCKET": f"@{name}"})).emit(PREDICTED)
    assert listener.hear(1) == {"READY": "1", "STATUS": WELL}
    listener.socket.close()


def test_pings_come_at_a_third_of_the_watchdogs_time(listener: Listener, clock: list[float]) -> None:
    bus = told(listener, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid()))
    bus.emit(PREDICTED)
    assert listener.hear(1) == {"READY": "1", "STATUS": WELL}
    heard = []
    for _ in range(4 * 35):  # four frames a second
        clock[0] += 0.25
        bus.emit(PREDICTED)
        if listener.hear(0.0) is not None:
            heard.append(round(clock[0] - 1000))
    assert heard == [10, 20, 30]


@pytest.mark.parametrize(
    "more",
    [{}, *({"WATCHDOG_USEC": usec} for usec in ("", "0", "-5", "soon")), {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}],
)
def test_without_a_watchdog_of_its_own_there_is_only_a_status(
    more: dict[str, str], listener: Listener, clock: list[float]
) -> None:
    bus = told(listener, **more)
    bus.emit(PREDICTED)
    assert listener.hear(1) == {"READY": "1", "STATUS": WELL}
    clock[0] += 19
    bus.emit(PREDICTED)
    assert listener.hear(0.0) is None
    clock[0] += 2
    bus.emit(PREDICTED)
    assert listener.hear(1) == {"STATUS": WELL}


def test_whose_steps_count(listener: Listener, clock: list[float]) -> None:
    """Any before the first frame and after the last; in between those that frames wait for."""
    bus = told(listener, WATCHDOG_USEC="30000000")
    bus.emit(STEPPED)
    assert listener.hear(1) == {
        "EXTEND_TIMEOUT_USEC": "300000000",
        "STATUS": "0 segments, 0 updates; starting",
    }
    bus.emit(PREDICTED)
    assert listener.hear(1) == {"READY": "1", "STATUS": WELL}
    clock[0] += 60
    in_another_thread(lambda: bus.emit(STEPPED))
    assert listener.hear(0.0) is None
    bus.emit(STEPPED)
    assert listener.hear(1) == {"WATCHDOG": "1", "STATUS": WELL}
    bus.emit(ENDING)
    assert listener.hear(1) == {"STOPPING": "1"}
    in_another_thread(lambda: bus.emit(STEPPED))
    assert listener.hear(1) == {"EXTEND_TIMEOUT_USEC": "300000000", "STATUS": WELL}
    assert listener.hear(0.0) is None


def test_the_status_says_what_keeps_the_run_busy(listener: Listener, clock: list[float], tmp_path: Path) -> None:
    bus = told(listener)

    def status(*events: object) -> str:
        for event in events:
            bus.emit(event)
        clock[0] += 60
        bus.emit(PREDICTED)
        message = listener.hear(1)
        assert message is not None
        return message["STATUS"]

    paused = happened.ResourcesPaused("temperature", 81.0, 80, "cpu is at 81 °C", "cpu")
    lost = happened.SourceNotice("cam", Notice("lost", "the camera is gone"))
    assert status(happened.StateFound(tmp_path, True, 7, 3, None, None)) == "7 segments, 3 updates; predicting"
    assert status(happened.Doing("retraining, epoch", 2, 9)) == "7 segments, 3 updates; retraining, epoch 2 of 9"
    assert status(paused) == "7 segments, 3 updates; too hot to learn"
    clock[0] += 60
    bus.emit(lost)  # which is a sign of life itself
    assert listener.hear(1) == {"STATUS": "7 segments, 3 updates; waiting for the camera"}
    back = happened.SourceNotice("cam", Notice("reconnected", "it is back"))
    assert status(back) == "7 segments, 3 updates; too hot to learn"
    bus.emit(happened.SourceNotice("left", Notice("lost", "it is gone", stream=1), "left"))
    assert status() == "7 segments, 3 updates; too hot to learn, waiting for left"
    bus.emit(happened.SourceNotice("left", Notice("reconnected", "it is back", stream=1), "left"))
    short = happened.ResourcesPaused("free memory", None, 32, "there is no more")
    assert status(short) == "7 segments, 3 updates; too short of memory to learn"
    resumed = happened.ResourcesResumed("free memory")
    assert status(resumed, happened.Doing("predicting", pause=4)) == (
        "7 segments, 3 updates; predicting; learning pauses for 4 segments"
    )


def test_a_manager_that_is_too_busy_hears_of_it_later(listener: Listener, clock: list[float]) -> None:
    """Its queue is full: nothing blocks, and what counts is said again."""
    filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    filler.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            filler.sendto(b"noise=1", listener.socket.getsockname())
    filler.close()
    bus = told(listener, WATCHDOG_USEC="30000000")
    bus.emit(PREDICTED)
    while listener.hear(0.0) == {"noise": "1"}:
        pass
    bus.emit(PREDICTED)
    assert listener.hear(1) == {"READY": "1", "STATUS": WELL}
