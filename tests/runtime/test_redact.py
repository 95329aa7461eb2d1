"""What is secret in an address is in nothing that anybody is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import deco_runtime
import pytest
from deco_runtime.doctor.findings import Finding, as_json
from deco_runtime.telemetry.event_log import EventLog
from deco_runtime.telemetry.redact import redact
from hypothesis import example, given
from hypothesis import strategies as st

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "COLUMNS": "120"}
PROGRAM = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"

SHOWN = {
    # user and password before the host, with what people put into passwords
    "rtsp://user:Secret@10.0.0.7:554/live": "rtsp://***@10.0.0.7:554/live",
    "rtsp://user@cam.local/live": "rtsp://***@cam.local/live",
    "RTSP://u:Secret@cam/live": "RTSP://***@cam/live",
    "rtsp://user:Sec/ret@cam/live": "rtsp://***@cam/live",
    "rtsp://user:Sec@ret@cam/live": "rtsp://***@cam/live",
    "rtsp://user:Sec?r#e:t@cam/live": "rtsp://***@cam/live",
    "rtsp://user:12/34@cam/live": "rtsp://***@cam/live",
    "rtsp://user:my Secret@cam/live": "rtsp://***@cam/live",
    "rtsp://user:Secret%40home@cam/live": "rtsp://***@cam/live",
    "rtsp:/user:Secret@cam/live": "rtsp:/***@cam/live",
    "user:Secret@cam:554/live": "***@cam:554/live",
    "rtsp://user:Secret": "rtsp://user:***",
    # in paths
    "rtsp://10.0.0.7/user=admin&password=Secret&channel=1&stream=0.sdp": "rtsp://10.0.0.7/user=***&password=***&channel=1"
    "&stream=0.sdp",
    "rtsp://10.0.0.7/user=admin_password=Secret_channel=1_stream=0.sdp": "rtsp://10.0.0.7/user=***",
    "rtsp://10.0.0.7/channel=1_password=Secret": "rtsp://10.0.0.7/channel=1_password=***",
    "http://cam/token/Secret/live": "http://cam/token/***/live",
    "http://cam/admin:Secret/live": "http://cam/***/live",
    "rtsps://192.168.1.1:7441/9aSecretKeyOf16c": "rtsps://192.168.1.1:7441/***",
    # in queries
    "http://cam/video.cgi?user=admin&pwd=Secret": "http://cam/video.cgi?user=***&pwd=***",
    "http://cam/live?token=Sec/ret==&channel=2": "http://cam/live?token=***&channel=2",
    "http://cam/live?pass%77ord=Secret": "http://cam/live?pass%77ord=***",
    "http://cam/live?Secret": "http://cam/live?***",
    "http://cam/live#token=Secret": "http://cam/live#***",
    "srt://cam:9000?passphrase=Secret&mode=caller": "srt://cam:9000?passphrase=***&mode=***",
    "10.0.0.7/video.cgi?user=admin&pwd=Secret": "10.0.0.7/video.cgi?user=***&pwd=***",
    "http://127.0.0.1/x?mail=me@home.org": "http://127.0.0.1/x?mail=***",
    # in sentences
    "expected a stream at rtsp://u:Secret@cam/x, found none: check it": "expected a stream at rtsp://***@cam/x, found "
    "none: check it",
    "Got unexpected extra argument (rtsp://u:Secret@cam/x)": "Got unexpected extra argument (rtsp://***@cam/x)",
    "rtsp://u:Secret@a:554, then 'http://u:Secret@b/x'.": "rtsp://***@a:554, then 'http://***@b/x'.",
    # what is no secret stays
    **{
        text: text
        for text in (
            *("rtsp://10.0.0.7:554/cam/realmonitor?channel=1&subtype=0", "http://cam.local:8080/?action=stream"),
            *("rtsp://[fe80::1]:554/live", "rtsp://cam: it ended", "images in /data/a, stc 500, seed 0", "/dev/video0"),
            *("expected --set as KEY=VALUE such as segment=64, but found seed=3", "3.5 °C: too hot", ""),
        )
    },
}


@pytest.mark.parametrize("text", SHOWN)
def test_what_is_shown_of_an_address(text: str) -> None:
    assert redact(text) == SHOWN[text]
    assert redact(redact(text)) == SHOWN[text]


@given(st.text(st.characters(exclude_characters="@ \n\r\t\v\f", exclude_categories=["Z", "C"]), min_size=1))
@example("1:2/3?4#5")
@example("http://")
def test_any_password_before_the_host(password: str) -> None:
    shown = redact(f"rtsp://user:x{password}Q@cam.local:554/live")
    assert shown == "rtsp://***@cam.local:554/live"


@given(st.text(st.characters(exclude_characters="&#@ ", exclude_categories=["Z", "C"])))
def test_any_value_of_a_name_that_is_not_known(value: str) -> None:
    shown = redact(f"http://cam.local/x?key=Q{value}Q&channel=3")
    assert shown == "http://cam.local/x?key=***&channel=3"


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    assert redact(redact(text)) == redact(text)


URL = "rtsp://user:Se/cr@et@127.0.0.1:9/pwd=Secret?token=Secret"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            ["--video", URL],
            "expected HOST or HOST:PORT behind rtsp://, found another thing in rtsp://***@127.0.0.1:9/pwd=***?token=***",
        ),
        (
            ["--camera", URL],
            "expected HOST or HOST:PORT behind rtsp://, found another thing in rtsp://***@127.0.0.1:9/pwd=***?token=***",
        ),
        (["--video", "rtsp:/u:Secret@127.0.0.1/x"], "expected a video file, found nothing at rtsp:/***@127.0.0.1/x"),
        (["--camera", "u:Secret@127.0.0.1/x"], "expected a camera at ***@127.0.0.1/x, found"),
        (["--demo", URL], "Got unexpected extra argument (rtsp://***@127.0.0.1:9/pwd=***?token=***)"),
        (["--demo", f"--vidio={URL}"], "No such option"),
        (["--bundle", URL, "--demo"], "expected a bundle at rtsp:/***@127.0.0.1:9/pwd=***?token=***, but found"),
    ],
)
def test_errors(arguments: list[str], shown: str, bundle_path: Path, tmp_path: Path) -> None:
    usual = ["--bundle", str(bundle_path), "--engine", "portable", "--state", str(tmp_path / "s")]
    command = [sys.executable, "-c", PROGRAM, *usual, "--events", str(tmp_path / "e"), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines()[-1].startswith(f"error: {shown}"), done.stderr
    told = (tmp_path / "e").read_text() if (tmp_path / "e").exists() else ""
    assert "Secret" not in done.stderr + done.stdout + told


@pytest.mark.parametrize("part", ["a:", "&", "u:p@", "key=1&", "://", "(:@", "'=", "?x="])
def test_long_words_take_no_hour(part: str) -> None:
    """The patterns take time with the cube of a word's length."""
    words = f"expected {part * 40_000}=: here"
    assert redact(words) == "expected *** here"
    assert redact(redact(words)) == redact(words)
    assert redact("x" * 2000 + " rtsp://u:Secret@cam/x") == "x" * 2000 + " rtsp://***@cam/x"


def test_findings_and_events(tmp_path: Path) -> None:
    finding = Finding("FAIL", "camera", f"expected frames from {URL}", {"name": URL, "tried": [URL]})
    log = EventLog(tmp_path / "e")
    log.write("source", name=URL, reasons=[f"no {URL}"])
    log.close()
    shown = "rtsp://***@127.0.0.1:9/pwd=***?token=***"
    assert finding.line().endswith(f"camera: expected frames from {shown}")
    (found,) = json.loads(as_json([finding], "no"))["findings"]
    assert (found["sentence"], found["figures"]) == (f"expected frames from {shown}", {"name": shown, "tried": [shown]})
    event = json.loads((tmp_path / "e").read_text())
    assert (event["name"], event["reasons"]) == (shown, [f"no {shown}"])
