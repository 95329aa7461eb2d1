"""The page's server, asked by real requests of a real run: who may see and change what, what is told, metrics."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import cv2
import numpy as np
import pytest
from deco_runtime.errors import UsageError
from deco_runtime.page import pictures
from deco_runtime.page.access import HEADER, LEAST_TOKEN, TOKEN_FILE, VARIABLE, Access, is_loopback, parse, token_for
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.telemetry.happenings import FramePredicted
from deco_runtime.types import Frame
from hypothesis import given
from hypothesis import strategies as st
from page_runs import COMMAND, Open, box, digits, page_of

TOKEN = "a-token-that-is-long-enough"
HERE = {"host": "127.0.0.1:8080"}


@pytest.fixture(scope="module")
def page(bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    pytest.importorskip("starlette", reason="the page needs the extra [page]")
    pytest.importorskip("uvicorn", reason="the page needs the extra [page]")
    pytest.importorskip("prometheus_client", reason="the page needs the extra [page]")
    shown = digits(bundle_path)
    with page_of(
        bundle_path, tmp_path_factory.mktemp("page") / "state",
        lambda i: box(i) if i // 60 % 3 == 2 else shown(i), "--recipe", "deco+",
    ) as opened:  # fmt: skip
        yield opened


def test_who_may_see_and_who_may_change() -> None:
    alone, token = Access("127.0.0.1", 8080, None), Access("0.0.0.0", 8080, TOKEN)

    def refusal(access: Access, method: str = "GET", path: str = "/", query: str | None = None,
                cookie: str | None = None, **headers: str) -> int:  # fmt: skip
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return access.refusal(method, path, {**HERE, **given}, query, cookie)

    ours = {HEADER.replace("-", "_"): "page"}
    assert refusal(alone) == 0
    for host in ("evil.example", "evil.example:8080", "", "169.254.169.254", "10.0.0.7:8080"):
        assert refusal(alone, host=host) == 403  # a site that lets its own name point here
        assert refusal(token, host=host, query=TOKEN) == 0
    for host in ("localhost:8080", "[::1]:8080", "127.0.0.1"):
        assert refusal(alone, host=host) == 0
    assert refusal(token) == 401
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é"):
        assert refusal(token, query=wrong) == refusal(token, cookie=wrong) == 401
        assert refusal(token, authorization=f"Bearer {wrong}") == 401
    assert refusal(token, query=TOKEN) == refusal(token, cookie=TOKEN) == 0
    assert refusal(token, authorization=f"Bearer {TOKEN}") == 0
    assert refusal(token, path="/healthz") == 0
    for access, more in ((alone, {}), (token, {"cookie": TOKEN})):
        assert refusal(access, "POST", **more) == 403
        assert refusal(access, "POST", **ours, **more) == 0
        assert refusal(access, "POST", **ours, origin="http://127.0.0.1:8080", **more) == 0
        for origin in ("http://evil.example", "null", "http://127.0.0.1:9090", "http://127.0.0.1:8080.evil.example"):
            assert refusal(access, "POST", **ours, origin=origin, **more) == 403
        for site in ("cross-site", "same-site", "none"):
            assert refusal(access, "POST", **ours, sec_fetch_site=site, **more) == 403
    assert refusal(token, "POST", **ours) == 401


@given(st.text(max_size=40))
def test_an_address_is_read_or_refused_in_a_sentence(where: str) -> None:
    with suppress(UsageError):
        host, port = parse(where)
        assert host
        assert 0 <= port < 65536


def test_addresses() -> None:
    assert parse("127.0.0.1:8081") == ("127.0.0.1", 8081)
    assert parse(":9000") == ("127.0.0.1", 9000)
    assert parse("0.0.0.0") == ("0.0.0.0", 8080)
    assert parse("[::1]:8080") == ("::1", 8080)
    for wrong in ("a:b", "127.0.0.1:99999", "http://here", "a b", "[::1", "user@host:1"):
        with pytest.raises(UsageError, match=r"expected --page HOST:PORT, such as 127\.0\.0\.1:8080, but found"):
            parse(wrong)
    assert [is_loopback(each) for each in ("localhost", "127.8.1.2", "::1", "0.0.0.0", "board", "10.0.0.1")] == [
        *(True, True, True), *(False, False, False)]  # fmt: skip


def test_a_token_is_asked_for_elsewhere_and_kept_for_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert token_for("127.0.0.1", tmp_path) is None
    token = token_for("0.0.0.0", tmp_path / "state")
    assert token is not None
    assert len(token) >= LEAST_TOKEN
    assert token_for("::", tmp_path / "state") == token
    assert (tmp_path / "state" / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
    assert token_for("0.0.0.0", tmp_path / "other") != token
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert token_for("0.0.0.0", tmp_path / "state") == token_for("127.0.0.1", tmp_path) == TOKEN
    for wrong in ("short", "", "x" * 15, "with a space in it"):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(UsageError, match=f"expected {VARIABLE} to hold a token of {LEAST_TOKEN}"):
            token_for("0.0.0.0", tmp_path)


def test_a_frame_is_encoded_once_for_all_viewers() -> None:
    frames = pictures.Frames()
    assert frames.newest() is None
    event = FramePredicted("a", 0.5, Frame(np.full((600, 1280, 3), 200, np.uint8), 0.0), {})
    frames.put(event)
    first, second = frames.newest(), frames.newest()
    assert first is not None and second is not None  # noqa: PT018
    assert first[1] is second[1]
    assert frames.newest(event) is None
    assert cv2.imdecode(np.frombuffer(first[1], np.uint8), cv2.IMREAD_COLOR).shape == (300, 640, 3)


def test_condensed_images_are_shown_as_they_are() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 16, 16, 3), np.uint8)
    how = Preprocessing(16, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    sheet = pictures.condensed(normalise(pixels, how), np.array([0, 0, 1, 1, 2, 2]), how)
    side = 48
    assert sheet.shape == (3 * (side + 2), 2 * (side + 2), 3)
    for number, image in enumerate(pixels):
        top, left = number // 2 * (side + 2), number % 2 * (side + 2)
        shown = sheet[top : top + side, left : left + side][1::3, 1::3].astype(int)
        assert np.abs(shown - image).max() <= 1


def test_what_is_told(page: Open) -> None:
    now = page.until(lambda now: len(now["segments"]) >= 2, "segments")
    assert now["recipe"] == "deco+"
    assert now["classes"][:10] == [str(c) for c in range(10)]
    assert now["answer"]["label"] is None or now["answer"]["label"] in now["classes"]
    assert sum(now["segments"][0]["votes"].values()) == 32
    assert {"frames", "share", "held_out"} >= set(now["known"][0]) - {"class"} >= {"frames", "share"}
    assert now["fps"] > 5
    assert now["memory_mb"] > 50
    status, text = page.get("/")
    assert status == 200
    assert b"no picture is kept" in text
    assert page.get("/healthz") == (200, b"ok\n")
    assert page.get("/nowhere")[0] == page.get("/static/../listener.py")[0] == page.get("/thumb/999999.jpg")[0] == 404
    assert page.get("/buffer.jpg")[0] == 404  # deco+ has none
    groups = json.loads(page.get("/recent.json")[1])["groups"]
    assert [g["certain"] for g in groups] == sorted(g["certain"] for g in groups)
    status, picture = page.get(f"/thumb/{groups[0]['numbers'][0]}.jpg")
    assert status == 200
    assert cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR) is not None


def test_headers_keep_other_sites_out(page: Open) -> None:
    with socket.create_connection(("127.0.0.1", int(page.root.rpartition(":")[2]))) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        head = connection.makefile("rb").read().split(b"\r\n\r\n")[0].decode().lower()
    assert "content-security-policy: default-src 'none'; script-src 'self'" in head
    assert "x-content-type-options: nosniff" in head
    assert "cache-control: no-store" in head
    assert "uvicorn" not in head
    assert page.get("/state.json", {"Host": "evil.example"})[0] == 403


def test_changes_are_taken_from_the_page_alone(page: Open) -> None:
    for headers in ({"X-Deco": ""}, {"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        status, told = page.post("hold", {"held": True}, headers)
        assert (status, page.state()["held"]) == (403, False), told
    status, told = page.post("hold", {"held": True})
    assert (status, told) == (200, {"words": "learning waits"})
    before = page.until(lambda now: now["held"] and now["learning"] == "held by a person", "a pause")
    time.sleep(1.5)
    after = page.state()
    assert after["frames"] > before["frames"]
    assert after.get("segment", 0) <= before.get("segment", 0) + 1  # the one in work
    assert page.post("hold", {"held": False})[1] == {"words": "learning goes on"}
    page.until(lambda now: now.get("segment", 0) > after.get("segment", 0), "learning that goes on")


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("teach", {}),
        ("teach", {"class": "x", "numbers": "all"}),
        ("teach", {"class": "x", "numbers": [[1]] * 3 + ["a"]}),
        ("judge", {"right": True}),
        ("nothing", {}),
        ("hold", []),
        ("hold", b"{"),
        ("hold", b"[" * 100_000),
        ("hold", b"x" * 70_000),
        ("teach", {"class": "x", "numbers": [1e300]}),
    ],
)
def test_what_is_no_request_is_refused(page: Open, what: str, asked: object) -> None:
    status, told = page.post(what, asked)
    assert status in (400, 413), told
    assert told["error"].startswith("expected a")


def test_sentences_of_what_cannot_be_done(page: Open) -> None:
    for what, asked, words in (
        ("teach", {"class": "x", "numbers": [10**9]}, "expected frames of the last minutes, but found none of these"),
        ("teach", {"class": " \n", "numbers": [1]}, "expected"),
        ("back", {"to": "yesterday"}, "expected to go back to one of saved, previous, start, but found 'yesterday'"),
    ):
        status, told = page.post(what, asked)
        assert status == 409, told
        assert told["error"].startswith(words)


def test_metrics_are_as_prometheus_reads_them(page: Open) -> None:
    from prometheus_client.parser import text_string_to_metric_families as families

    page.until(lambda now: len(now["segments"]) >= 1, "a segment")
    status, text = page.get("/metrics")
    assert status == 200
    found = {family.name: family for family in families(text.decode())}
    ours = [each for name, each in found.items() if name.startswith("deco_") and not name.endswith("_created")]
    assert all(family.documentation.endswith(".") for family in ours)
    assert {"deco_answers", "deco_segments", "deco_frame_age_seconds", "deco_updates", "deco_source_up",
            "deco_class_frames", "deco_class_share_ratio", "deco_temperature_celsius", "deco_learning_held",
            "deco_run_info", "process_resident_memory_bytes"} <= set(found)  # fmt: skip
    values = {sample.name: sample.value for sample in found["deco_segments"].samples}
    assert values["deco_segments_total"] >= 1
    assert sum(s.value for s in found["deco_answers"].samples if s.name == "deco_answers_total") >= 32


def test_the_dashboard_asks_for_metrics_that_there_are(page: Open) -> None:
    file = Path(__file__).parents[2] / "docs" / "guide" / "grafana.json"
    if not file.exists():
        pytest.skip("the documents are not beside these tests")
    asked = {name for panel in json.loads(file.read_text("utf-8"))["panels"] for target in panel["targets"]
             for name in re.findall(r"\b(?:deco|process)_\w+", target["expr"])}  # fmt: skip
    text = page.get("/metrics")[1].decode()
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    for name in asked:
        assert name in names or re.sub(r"_(bucket|sum|count)$", "", name) in names, name
    documented = (file.parent / "page.md").read_text("utf-8")
    assert all(name in documented for name in names if name.startswith("deco_") and not name.endswith("_created"))


CONNECTIONS = Path("/proc/net/tcp")


def is_held(port: int, viewer: socket.socket) -> bool:
    """Whether a program still has the page's end of this connection: an inode in the kernel's table."""
    ends = [f"0100007F:{each:04X}" for each in (port, viewer.getsockname()[1])]
    rows = [line.split() for line in CONNECTIONS.read_text().splitlines()[1:]]
    return any(row[1:3] == ends and row[9] != "0" for row in rows)


def frames_of(stream: BinaryIO) -> Iterator[bytes]:
    """The pictures of a live stream, as JPEG files."""
    while line := stream.readline():
        if line.lower().startswith(b"content-length"):
            stream.readline()
            yield stream.read(int(line.split(b":")[1]))


@pytest.mark.skipif(not CONNECTIONS.exists(), reason="asks Linux for its connections")
def test_a_viewer_that_does_not_read_is_dropped_and_others_go_on(bundle_path: Path, tmp_path: Path) -> None:
    """In seconds: what is sent to it fills what the kernel keeps for it, and then it has SLOW_S."""
    pytest.importorskip("starlette", reason="the page needs the extra [page]")
    noise = np.random.default_rng(0).integers(0, 256, (8, 480, 640, 3), np.uint8)
    request = b"GET /live.mjpg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with page_of(
        bundle_path, tmp_path / "state", lambda i: noise[i % 8], "--recipe", "deco+", "--no-learn", fps=10,
        first="from deco_runtime.page import _connection; _connection.SLOW_S = 1.0",
    ) as page, socket.socket() as stuck:  # fmt: skip
        port = int(page.root.rpartition(":")[2])
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", port))
        stuck.sendall(request)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as other:
            other.sendall(request)
            seen = frames_of(other.makefile("rb"))
            assert next(seen) != next(seen)
            assert is_held(port, stuck)
            limit = time.monotonic() + 60
            while is_held(port, stuck):
                next(seen)
                assert time.monotonic() < limit, "the viewer that does not read is not dropped"
            first, second = next(seen), next(seen)
            assert is_held(port, other)
    for each in (first, second):
        assert cv2.imdecode(np.frombuffer(each, np.uint8), cv2.IMREAD_COLOR).shape == (480, 640, 3)
    assert first != second


def test_elsewhere_a_token_is_needed(bundle_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the page needs the extra [page]")
    with page_of(bundle_path, tmp_path / "state", digits(bundle_path), "--recipe", "deco+", where="0.0.0.0:0",
                 env={VARIABLE: TOKEN}) as page:  # fmt: skip
        assert page.token == TOKEN
        assert page.get("/state.json")[0] == 200
        page.token = "wrong-token-wrong-token"
        for path in ("/", "/state.json", "/live.mjpg", "/metrics", "/recent.json", "/static/page.js"):
            assert page.get(path)[0] == 401
        assert page.post("hold", {"held": True})[0] == 401
        assert page.get("/healthz")[0] == 200
    assert not (tmp_path / "state" / TOKEN_FILE).exists()


def test_addresses_and_files_that_cannot_be_used(bundle_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("starlette", reason="the page needs the extra [page]")
    (tmp_path / "text.pem").write_text("no certificate\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, words in (
            (("--page", f"127.0.0.1:{port}"), f"expected --page to open 127.0.0.1:{port}, but the system says: "),
            (("--page", "127.0.0.1:99999"), "expected --page HOST:PORT"),
            (("--page", "203.0.113.7:8080"), "expected --page to open 203.0.113.7:8080"),
            (("--page", "127.0.0.1:0", "--page-tls", tmp_path / "text.pem", tmp_path / "text.pem"),
             "expected a certificate and its key in"),
            (("--page", "127.0.0.1:0", "--page-tls", tmp_path / "none", tmp_path / "none"), "No such file"),
        ):  # fmt: skip
            command = [*COMMAND, "--bundle", str(bundle_path), "--demo", "--state", str(tmp_path / "state")]
            done = subprocess.run(
                [*command, *map(str, options)],
                capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
            assert words in done.stderr
            assert "Traceback" not in done.stderr


def test_small_pictures_are_small() -> None:
    picture = pictures.small(np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8))
    shape = cv2.imdecode(np.frombuffer(io.BytesIO(picture).getvalue(), np.uint8), cv2.IMREAD_COLOR).shape
    assert shape == (84, 112, 3)
