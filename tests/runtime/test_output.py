"""Answers on their way out: when a class counts as another one, addresses, and ways that wait, fail and come back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from importlib import util
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.errors import DecoError, RuntimeMissingError, UsageError
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry import output
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.output import NotSentError, Way, discover, mqtt, open_way
from deco_runtime.telemetry.output.debounce import Change, Debouncer
from deco_runtime.telemetry.output.home_assistant import sensor
from deco_runtime.telemetry.output.message import Message
from deco_runtime.telemetry.output.outputs import Outputs
from deco_runtime.telemetry.output.sender import Sender
from deco_runtime.telemetry.output.webhook import Webhook
from deco_runtime.types import Frame, Notice
from hypothesis import given
from hypothesis import strategies as st
from mqtt_broker import broker, free_port, listening
from web_server import Hook, web_server

needs_broker = pytest.mark.skipif(
    util.find_spec("paho") is None or util.find_spec("amqtt") is None, reason="needs paho-mqtt and amqtt, see [dev]"
)
PIXELS = np.zeros((2, 2, 3), np.uint8)
NOW = datetime(2030, 1, 2, 3, 4, 5, 678000, timezone.utc)

# --- when a class counts as another one

labels = st.sampled_from(["cat", "dog", None])
streams = st.lists(
    st.tuples(labels, st.integers(0, 20)), max_size=60
).map(  # (label, time): times never go back
    lambda items: [(label, float(sum(gap for _, gap in items[: i + 1]))) for i, (label, _) in enumerate(items)]
)
seconds = st.integers(0, 30).map(float)


def changes(frames: list[tuple[str | None, float]], after: float) -> list[tuple[float, Change]]:
    debouncer = Debouncer(after)
    found = [(time, debouncer.see(label, time)) for label, time in frames]
    return [(time, change) for time, change in found if change is not None]


@given(streams, seconds)
def test_a_change_was_there_for_so_long_and_is_another_class(
    frames: list[tuple[str | None, float]], after: float
) -> None:
    told = changes(frames, after)
    for time_, change in told:
        # A run of frames of the class, up to one at this time, that is as long as it has to be.
        runs = [[t for _, t in run] for label, run in groupby(frames, lambda f: f[0]) if label == change.label]
        assert any(time_ in run and time_ - run[0] >= after for run in runs)
    assert all(a.label != b.label and b.previous == a.label for (_, a), (_, b) in pairwise(told))
    assert [change.previous_seconds is None for _, change in told] == [i == 0 for i in range(len(told))]


@given(streams, seconds)
def test_nothing_that_is_there_for_so_long_is_missed(frames: list[tuple[str | None, float]], after: float) -> None:
    told = [change.label for _, change in changes(frames, after)]
    long = [label for label, run in groupby(frames, lambda f: f[0]) if (t := [t for _, t in run])[-1] - t[0] >= after]
    assert told == [label for label, _ in groupby(long)]


@given(streams, seconds)
def test_classes_last_from_one_to_the_next_without_gaps(frames: list[tuple[str | None, float]], after: float) -> None:
    told = changes(frames, after)
    starts = {frames[0][1] if frames else 0.0} | {b[1] for a, b in pairwise(frames) if a[0] != b[0]}
    lasted = [change.previous_seconds for _, change in told if change.previous_seconds is not None]
    assert all(each >= after for each in lasted)  # so no seconds of flicker are told of
    if lasted:
        begin, end = told[0][0], told[-1][0]
        assert sum(lasted) in {b - a for a in starts for b in starts if a <= begin and b <= end}


@given(streams)
def test_without_a_delay_every_other_answer_is_a_change(frames: list[tuple[str | None, float]]) -> None:
    assert [change.label for _, change in changes(frames, 0.0)] == [label for label, _ in groupby(f[0] for f in frames)]


@given(streams, streams, st.floats(0, 1e6), seconds)
def test_times_that_begin_anew(
    first: list[tuple[str | None, float]], second: list[tuple[str | None, float]], gap: float, after: float
) -> None:
    """Nothing is told sooner for it, and no class lasts less than no time."""
    debouncer = Debouncer(after)
    for label, time_ in [*((label, time_ + gap) for label, time_ in first), *second]:
        change = debouncer.see(label, time_)
        assert change is None or change.previous_seconds is None or change.previous_seconds >= 0


def test_what_was_not_seen_does_not_count() -> None:
    debouncer = Debouncer(2.0)
    assert debouncer.see("cat", 0.0) is None
    debouncer.interrupt()  # the camera was away for an hour
    assert debouncer.see("cat", 3600.0) is None
    assert debouncer.see("cat", 3602.0) == Change("cat", None, None)


# --- addresses


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("-", "standard output"),
        ("http://host", "http://host"),
        ("https://me:Secret@host:8443/hook/Secret?key=Secret", "https://host:8443/***"),
        ("HTTP://[::1]:80/", "http://[::1]:80"),
    ],
)
def test_addresses_and_how_they_are_shown(address: str, name: str) -> None:
    assert open_way(address).name == name


@needs_broker
@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("mqtt://host/door", "mqtt://host/door"),
        ("mqtts://me:Sec%2Fret@host:1/a/b?discovery=", "mqtts://host:1/a/b"),
        ("mqtt://[fe80::1]/t%C3%BCr", "mqtt://[fe80::1]/tür"),
    ],
)
def test_addresses_of_brokers(address: str, name: str) -> None:
    assert open_way(address).name == name


@pytest.mark.parametrize(
    "address",
    [
        *("", "--", "door", "ftp://me:Secret@host/x", "me:Secret@host/x", "http://", "http:///x", "http://host:0/"),
        *("http://host:Secret/", "https://me:Sec/ret@host/", "https://me:1/Secret@host/", "http://[host/Secret"),
        *("http://me:Sec#ret@host/", "http://ho st/Secret", "http://host/\nSecret", "http://höst/Secret"),
        *("mqtt://host", "mqtt://host/", "mqtt://host/a/+", "mqtt://host/%23", "mqtt://host/a?Secret=1"),
        *("mqtt://me:Secret@host/?x", "mqtt://host:99999/Secret"),
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_way(address)
    said = str(caught.value)
    assert re.match("expected --output ", said)
    assert "Secret" not in said
    assert "\n" not in said


@given(st.text() | st.from_regex(r"(mqtts?|https?)://[!-~]*", fullmatch=True))
def test_any_text_is_an_address_or_refused_in_a_sentence(text: str) -> None:
    said = ""
    try:
        open_way(text)
    except DecoError as error:
        said = str(error)
    assert "\n" not in said


def test_a_broker_needs_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho", None)
    monkeypatch.setattr(mqtt.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeMissingError, match=r"expected the package paho-mqtt 2 .* install 'deco-edge\[mqtt\]'"):
        open_way("mqtt://host/door")


def test_every_way_out_says_what_it_is() -> None:
    assert list(discover()) == ["-", "http", "https", "mqtt", "mqtts"]
    for module in discover().values():
        assert isinstance(module.NETWORK, bool)
        assert module.EXAMPLE.partition(":")[0] in ("-", *module.SCHEMES)


def test_a_new_way_out_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lamp.py").write_text(
        "SCHEMES, NETWORK, EXAMPLE = ('lamp',), False, 'lamp://GPIO'\n"
        "class Lamp:\n"
        "    name = 'the lamp'\n"
        "def open_way(address):\n"
        "    return Lamp()\n"
    )
    monkeypatch.setattr(output, "__path__", [*output.__path__, str(tmp_path)])
    discover.cache_clear()
    try:
        assert open_way("lamp://17").name == "the lamp"
        with pytest.raises(UsageError, match="one of -, https://HOST/PATH, lamp://GPIO, mqtt://HOST/TOPIC, but"):
            open_way("lamps://17")
    finally:
        discover.cache_clear()
        sys.modules.pop(f"{output.__name__}.lamp", None)


# --- a way out of its own thread


class Slow:
    """A way out that does as it is told: what `send` waits for, and what it raises."""

    name = "somewhere"

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.go = threading.Event()
        self.error: Exception | None = None
        self.closed = threading.Event()

    def send(self, message: Message) -> None:
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        self.sent.append(message.stream)

    def tend(self) -> bool:
        return False

    def close(self) -> None:
        self.closed.set()


def message(number: int) -> Message:
    return Message("frame", number, NOW, {})


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


def wait_for_failure(sender: Sender) -> None:
    limit = soon(30)
    while not sender._failing:
        assert time.monotonic() < limit
        time.sleep(0.01)


@contextmanager
def sending(way: Way, most: int = 1000) -> Iterator[Sender]:
    sender = Sender(way, first_s=0.02, most=most)
    yield sender
    sender.end()
    sender.join(soon())


def test_a_way_out_that_hangs_holds_up_nobody_and_loses_the_oldest() -> None:
    way = Slow()
    with sending(way, most=10) as sender:
        begun = time.monotonic()
        for number in range(5000):
            sender.give(message(number))
        sender.settle(soon(0.2))
        assert time.monotonic() - begun < 5
        assert sender.lost == 5000  # ten wait, one is in hand or was not yet
        way.go.set()
        sender.settle(soon())
        assert way.sent[-10:] == list(range(4990, 5000))
        assert sender.lost == 5000 - len(way.sent)
    assert way.closed.is_set()


def test_one_that_fails_is_tried_again_and_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    way = Slow()
    way.go.set()
    with sending(way) as sender:
        for _ in range(2):
            way.error = NotSentError("nobody is there")
            for number in range(5):
                sender.give(message(number))
            wait_for_failure(sender)
            time.sleep(0.1)  # some tries more
            way.error = None
            sender.settle(soon())
        assert way.sent == [*range(5), *range(5)]
        assert sender.lost == 0
    said = capsys.readouterr().err.splitlines()
    assert said == 2 * [
        "warning: expected to send to somewhere, but nobody is there; goes on, and tries again until it works",
        "note: sending to somewhere works again",
    ]


def test_what_is_refused_is_not_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    way = Slow()
    way.go.set()
    way.error = NotSentError("it answers 400", again=False)
    with sending(way) as sender:
        sender.give(message(1))
        sender.settle(soon())
        way.error = ValueError("of a way out with a defect,\nin two lines")
        sender.give(message(2))
        sender.settle(soon())
        assert sender.lost == 2
        way.error = None
        sender.give(message(3))
        sender.settle(soon())
        assert (way.sent, sender.lost) == ([3], 2)
    assert capsys.readouterr().err.count("\n") == 2


def test_nothing_is_sent_after_the_end() -> None:
    way = Slow()
    with sending(way) as sender:
        for number in range(3):
            sender.give(message(number))
        sender.settle(soon(0.1))
        sender.end()
        way.go.set()
        sender.join(soon())
        sender.give(message(3))
        assert len(way.sent) <= 1
        assert sender.lost == 4 - len(way.sent)


# --- what is sent, and when


def told(bus: Bus, *frames: tuple[str | None, float]) -> None:
    for label, time_ in frames:
        bus.emit(happened.FramePredicted(label, 0.98765, Frame(PIXELS, time_), {}))


def opened(live: bool) -> happened.SourceOpened:
    return happened.SourceOpened("cam", live, 0, {})


def test_changes_of_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    """Seconds of the recording count, however fast it is replayed."""
    with Bus(Outputs(["-"], after=1.0)) as bus:
        bus.emit(opened(live=False))
        told(bus, *(("cat", i / 10) for i in range(11)), ("dog", 1.1), *((None, 1.2 + i / 10) for i in range(11)))
        assert bus.lost() == {"lost_outputs": 0}
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(datetime.fromisoformat(line.pop("time")).utcoffset() == timedelta(0) for line in lines)
    first = {"event": "change", "stream": 0, "class": "cat", "unknown": False, "confidence": 0.9877, "at": 1.0}
    assert lines[0] == {**first, "previous_class": None, "previous_seconds": None}
    second = {"event": "change", "stream": 0, "class": None, "unknown": True, "confidence": 0.9877, "at": 2.2}
    assert lines[1] == {**second, "previous_class": "cat", "previous_seconds": 1.2}
    assert len(lines) == 2


def test_frames_of_a_camera_have_the_time_when_they_were_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with Bus(Outputs(["-"], on="frame")) as bus:
        bus.emit(opened(live=True))
        told(bus, ("cat", time.monotonic() - 5), ("<b>\udce9", time.monotonic()))
        bus.emit(happened.SourceNotice("cam", Notice("lost", "it is gone")))
        bus.emit(happened.SourceNotice("cam", Notice("waiting")))
        bus.emit(happened.SourceNotice("cam", Notice("reconnected", "it is back")))
        bus.lost()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["frame", "frame", "lost", "back"]
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert 4.9 < (times[1] - times[0]).total_seconds() < 5.1
    assert abs((times[1] - datetime.now(timezone.utc)).total_seconds()) < 5
    assert lines[1]["class"] == "<b>\udce9"
    assert "at" not in lines[0]


def test_each_of_several_cameras_has_its_own_changes(capsys: pytest.CaptureFixture[str]) -> None:
    with Bus(Outputs(["-"], after=1.0)) as bus:
        bus.emit(opened(live=True))
        for i in range(12):
            for stream, label in enumerate(("cat", "dog")):
                frame = Frame(PIXELS, i / 10, stream=stream)
                bus.emit(happened.FramePredicted(label, 0.9, frame, {}, stream=f"camera {stream}"))
        bus.emit(happened.SourceNotice("camera 1", Notice("lost", "it is gone", stream=1), "camera 1"))
        bus.lost()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["event"], line["stream"], line.get("class")) for line in told] == [
        ("change", 0, "cat"),
        ("change", 1, "dog"),
        ("lost", 1, None),
    ]


def test_a_confidence_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON knows none, and who reads it should not have to."""
    with Bus(Outputs(["-"], on="frame")) as bus:
        bus.emit(happened.FramePredicted("cat", float("nan"), Frame(PIXELS, time.monotonic()), {}))
        assert bus.lost() == {"lost_outputs": 0}
    assert json.loads(capsys.readouterr().out)["confidence"] is None


def test_a_camera_that_was_away_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    with Bus(Outputs(["-"], after=1.0)) as bus:
        bus.emit(opened(live=True))
        told(bus, ("cat", 0.0), ("cat", 1.0), ("dog", 2.0))
        bus.emit(happened.SourceNotice("cam", Notice("lost", "it is gone")))
        bus.emit(happened.SourceNotice("cam", Notice("reconnected", "it is back")))
        told(bus, ("dog", 100.0), ("dog", 100.9))
        bus.lost()
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["change", "lost", "back"]


def test_no_output_costs_nothing() -> None:
    before = threading.active_count()
    outputs = Outputs([])
    assert outputs.hears() == {}
    with Bus(outputs) as bus:
        told(bus, ("cat", 0.0))
        assert bus.lost() == {"lost_outputs": 0}
    assert threading.active_count() == before


# --- webhooks


def hook_url(hook: Hook) -> str:
    return f"http://me:p%40ss@127.0.0.1:{hook.port}/hook/Secret?key=Secret"


def test_a_webhook_gets_the_json() -> None:
    with web_server() as hook, sending(open_way(hook_url(hook))) as sender:
        sender.give(Message("change", 0, NOW, {"class": "Käfer"}))
        sender.settle(soon())
        ((path, headers, body),) = hook.got
    assert path == "/hook/Secret?key=Secret"
    assert headers["Content-Type"] == "application/json"
    assert headers["Authorization"] == "Basic bWU6cEBzcw=="  # me:p@ss
    assert body == {"event": "change", "time": "2030-01-02T03:04:05.678+00:00", "stream": 0, "class": "Käfer"}


def test_a_webhook_that_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong with one message does not hold up the next; what may be over soon is waited for."""
    with web_server() as hook, sending(open_way(hook_url(hook))) as sender:
        hook.answers[:] = [400, 503, 429, 302, 200]
        for number in range(3):
            sender.give(message(number))
        assert [body["stream"] for body in hook.wait(1)] == [2]
        sender.settle(soon())
        assert sender.lost == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [
        f"warning: expected to send to http://127.0.0.1:{hook.port}/***, but it answers 400, see its own log; goes on, "
        "and tries again until it works",
        f"note: sending to http://127.0.0.1:{hook.port}/*** works again",
    ]


def test_a_webhook_that_hangs_and_wakes(capsys: pytest.CaptureFixture[str]) -> None:
    with web_server() as hook:
        hook.hang.set()
        way = Webhook(_parsed(hook), timeout_s=0.2)
        with sending(way) as sender:
            for number in range(3):
                sender.give(message(number))
            while hook.asked < 2:
                time.sleep(0.01)
            hook.hang.clear()
            assert [body["stream"] for body in hook.wait(3)] == [0, 1, 2]
            sender.settle(soon())
            assert sender.lost == 0
    assert "but it does not answer in time; goes on" in capsys.readouterr().err


def _parsed(hook: Hook):
    from deco_runtime.telemetry.output.address import parse

    return parse(hook_url(hook), "")


def test_a_webhook_that_dies_and_returns(capsys: pytest.CaptureFixture[str]) -> None:
    hook = Hook()
    with web_server(hook):
        way = open_way(hook_url(hook))
    with sending(way) as sender:
        sender.give(message(0))
        sender.give(message(1))
        wait_for_failure(sender)
        with web_server(hook):
            assert [body["stream"] for body in hook.wait(2)] == [0, 1]
            sender.settle(soon())
        sender.give(message(2))
        wait_for_failure(sender)
        with web_server(hook):
            assert [body["stream"] for body in hook.wait(3)] == [0, 1, 2]
            sender.settle(soon())
    said = capsys.readouterr().err
    assert said.count("the system says: Connection refused") == said.count("works again") == 2
    assert "Secret" not in said
    assert "ss@" not in said


def test_what_answers_is_no_web_server(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-me\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with sending(open_way(f"http://127.0.0.1:{server.getsockname()[1]}/")) as sender:
            sender.give(message(0))
            thread.join()
            server.close()
            wait_for_failure(sender)
    assert "what it answers is no HTTP (BadStatusLine)" in capsys.readouterr().err


# --- MQTT


@needs_broker
def test_a_broker_gets_answers_and_home_assistant_a_sensor(capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with broker(port), listening(port) as heard:
        with sending(open_way(f"mqtt://127.0.0.1:{port}/home/door")) as sender:
            sender.start()
            assert heard.hear("home/door/program") == "online"  # before any answer
            sender.give(Message("change", 0, NOW, {"class": "cat"}))
            sender.give(Message("change", 1, NOW, {"class": None}))
            sender.give(Message("lost", 0, NOW, {}))
            sender.settle(soon())
            assert sender.lost == 0
            answer = {"event": "change", "time": "2030-01-02T03:04:05.678+00:00", "stream": 0, "class": "cat"}
            assert json.loads(heard.hear("home/door")) == answer
            assert json.loads(heard.hear("home/door/1"))["class"] is None
            assert heard.hear("home/door/camera", "offline")
            with listening(port) as late:  # retained
                assert "cat" in late.hear("home/door")
                config = json.loads(late.hear(next(t for t, _ in heard.heard if t.startswith("homeassistant/"))))
        assert heard.hear("home/door/program", "offline")
    assert config["state_topic"] == config["json_attributes_topic"] == "home/door"
    assert config["availability"] == [{"topic": "home/door/program"}, {"topic": "home/door/camera"}]
    assert config["unique_id"] in config["device"]["identifiers"]
    configs = {topic for topic, _ in heard.heard if topic.startswith("homeassistant/")}
    assert configs == {f"homeassistant/sensor/{config['unique_id']}{end}/config" for end in ("", "_1")}
    assert capsys.readouterr().err == ""


def test_home_assistant_reads_the_class() -> None:
    jinja2 = pytest.importorskip("jinja2")  # which its templates are
    config = json.loads(sensor("mqtt://host", "door", "door/program", "door/camera", "door", 0)[1])
    render = jinja2.Template(config["value_template"]).render
    assert [render(value_json={"class": each}) for each in ("cat", None)] == ["cat", "none"]


@needs_broker
def test_a_broker_that_dies_and_returns_hears_all_again(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """It has forgotten what it was told: sensor, availability and the last answer come again, without a new one."""
    monkeypatch.setattr("deco_runtime.telemetry.output.sender.TEND_S", 0.1)
    port = free_port()
    with sending(open_way(f"mqtt://127.0.0.1:{port}/door?discovery=ha")) as sender:
        sender.start()
        wait_for_failure(sender)
        with broker(port), listening(port) as heard:
            heard.hear("door/program", "online")
            sender.give(Message("change", 0, NOW, {"class": "cat"}))
            heard.hear("door", "cat")
        wait_for_failure(sender)
        with broker(port), listening(port) as heard:
            heard.hear("door/program", "online")
            heard.hear("door", "cat")
            assert [topic for topic, _ in heard.heard if topic.startswith("ha/sensor/deco_door_")]
            sender.give(Message("change", 0, NOW, {"class": "dog"}))
            heard.hear("door", "dog")
            sender.settle(soon())
        assert sender.lost == 0
    said = capsys.readouterr().err
    assert said.count("but the system says: Connection refused; goes on") == 2
    assert said.count(f"note: sending to mqtt://127.0.0.1:{port}/door works again\n") == 2


@needs_broker
def test_a_broker_that_wants_to_know_who_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with broker(port, ("me", "p/w"), tmp_path):
        with sending(open_way(f"mqtt://me:p%2Fw@127.0.0.1:{port}/door")) as sender:
            sender.give(message(0))
            sender.settle(soon())
            assert sender.lost == 0
        with sending(open_way(f"mqtt://me:Secret@127.0.0.1:{port}/door")) as sender:
            sender.give(message(0))
            wait_for_failure(sender)
            assert sender.lost == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search("but the broker (says: |hangs up)", said)
    assert "Secret" not in said


@needs_broker
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, for a certificate")
def test_a_broker_with_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert)]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(made, check=True, capture_output=True)
    port = free_port()
    with broker(port, files=tmp_path):
        with sending(open_way(f"mqtts://127.0.0.1:{port}/door")) as sender:
            sender.give(message(0))
            wait_for_failure(sender)
            assert sender.lost == 1
        assert "its certificate is not trusted: self" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with sending(open_way(f"mqtts://127.0.0.1:{port}/door")) as sender:
            sender.give(message(0))
            sender.settle(soon())
            assert sender.lost == 0


@needs_broker
def test_a_broker_that_accepts_and_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"mqtt://127.0.0.1:{server.getsockname()[1]}/door"
        way = open_way(address)
        assert isinstance(way, mqtt.Mqtt)
        way._timeout_s = 0.2
        with sending(way) as sender:
            sender.give(message(0))
            wait_for_failure(sender)
            assert sender.lost == 1
    assert "the broker does not answer in time" in capsys.readouterr().err
