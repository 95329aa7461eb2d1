"""deco-fleet as people use it: a server and devices as processes with TLS and keys, ended at any moment."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import Any

import deco_runtime
import numpy as np
import pytest
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import Member
from deco_runtime.fleet.serving import open_pool
from deco_runtime.learning.voter import start
from deco_runtime.storage.bundle import Bundle
from fleet_keys import device_key, server_keys
from mjpeg_server import mjpeg_server
from processes import started, wait_for

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "COLUMNS": "120"}
ENVIRONMENT.pop("http_proxy", None)
LEAST, NEVER = "20", "1000000"
"""Frames of a difference: few, and more than there will be."""
PATIENCE_S = 120.0
JOIN = ["join", "--state", "S", "--server", "127.0.0.1:1"]

flower = pytest.mark.skipif(util.find_spec("flwr") is None, reason="needs Flower: pip install 'deco-edge[fleet]'")


def command(program: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", f"from deco_runtime.commands.{program} import main; main()", *map(str, arguments)]


def fleet(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command("fleet", *arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextmanager
def live_run(bundle: Bundle, state: Path, events: Path) -> Iterator[None]:
    """A run on a camera without end, once it has learned."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    shown = np.repeat(np.repeat(pixels[np.argsort(labels, kind="stable")], 4, axis=1), 4, axis=2)
    with mjpeg_server(lambda i: shown[i % len(shown)], fps=30) as url:
        run = command("run", *("--bundle", bundle.path, "--state", state, "--video", url, "--recipe", "deco+"))
        with started([*run, "--events", str(events)], env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
            wait_for(events, "retrain", 2)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def until(what: Callable[[], Any], where: Path | None = None) -> Any:
    """What is found, once something is."""
    end = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < end, where.read_text() if where else what
        time.sleep(0.1)
    return found


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as it:
        it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            it.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def places(state: Path) -> dict[str, Any]:
    """What the server's state says of each device."""
    from deco_runtime.story import learned

    found = learned.read(state) if state.exists() else None
    return dict(found.values["fleet"]) if found else {}


def left_behind(of: Path) -> list[str]:
    """Numbers of processes that deco-fleet has started for states below a folder, and that go on."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"FLWR_HOME={of}".encode() in place.read_bytes():
                found.append(place.parent.name)
    return found


class Going:
    """A command of deco-fleet that goes on, and what it says."""

    def __init__(self, stack: ExitStack, log: Path, *arguments: str | Path) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command("fleet", *arguments), env=ENVIRONMENT, stderr=file, stdout=file)
        stack.callback(self.kill)

    def says(self, words: str) -> None:
        until(lambda: words in self.log.read_text(), self.log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self.log.read_text()


@flower
def test_two_devices_learn_as_one_whoever_is_killed(bundle: Bundle, tmp_path: Path) -> None:
    """One is held by a run, the other is alone; the server is killed between their differences, and so is one of them.
    Each sends one difference, which is known before, and the sums are those in the end."""
    certificate, key, authority = server_keys(tmp_path / "keys")
    keys = [device_key(tmp_path / "keys" / f"device-{i}") for i in range(2)]
    run, alone, server = (tmp_path / name for name in ("run", "alone", "server"))
    port, events = free_port(), tmp_path / "events.jsonl"
    subprocess.run(
        command("run", "--bundle", bundle.path, "--state", alone, "--demo", "--recipe", "deco+"),
        env=ENVIRONMENT,
        check=True,
        timeout=120,
        capture_output=True,
    )
    with ExitStack() as stack:
        stack.enter_context(live_run(bundle, run, events))
        offers = [offered(bundle, state) for state in (run, alone)]

        def serve() -> Going:
            return Going(
                *(stack, tmp_path / "server.log", "serve", "--bundle", bundle.path, "--state", server),
                *("--recipe", "deco+", "--address", f"127.0.0.1:{port}", "--every", "4", "--least", LEAST),
                *("--tls", certificate, key, authority),
            )

        def join(number: int, state: Path) -> Going:
            return Going(
                *(stack, tmp_path / f"{state.name}.log", "join", "--state", state, "--server", f"127.0.0.1:{port}"),
                *("--root-certificates", authority, "--key", keys[number], "--bundle", bundle.path, "--least", NEVER),
            )

        serving = serve()
        devices = [join(0, run)]
        serving.says("0 of 0 devices answered")
        second = fleet("join", "--state", run, "--server", "127.0.0.1:1", "--insecure")
        assert second.returncode == 7, second.stderr
        assert "expected to be the only deco-fleet with" in second.stderr
        devices[0].says("does not know this key; deco-fleet allow device-0.pub there")
        for each in keys:
            done = fleet("allow", "--state", server, each.with_name(f"{each.name}.pub"))
            assert done.returncode == 0, done.stderr
        until(lambda: list(places(server)) == [offers[0].name], serving.log)
        serving.kill()
        until(lambda: is_free(port))  # what it has started ends with it
        killed = join(1, alone)
        killed.says("learns with the fleet")
        killed.kill()
        serving = serve()
        serving.says("1 devices are in it")
        devices.append(join(1, alone))
        until(lambda: set(places(server)) == {each.name for each in offers}, serving.log)
        devices[1].says("were taken up")
        wait_for(events, "fleet", reason=None, frames=round(total(bundle, offers)[1][-1].sum()))
        status = fleet("status", "--state", server)
        for each in [serving, *devices]:
            each.stop()
        until(lambda: not left_behind(tmp_path))

    a, b = total(bundle, offers)
    pool, passed_over = open_pool(bundle, "deco+", float(LEAST), server)
    assert passed_over is None
    np.testing.assert_allclose(pool.sums.a, a, rtol=0, atol=1e-6 * np.abs(a).max())
    np.testing.assert_allclose(pool.sums.b, b, rtol=0, atol=1e-6 * np.abs(b).max())
    assert {place.number for place in pool.places.values()} == {1}
    assert status.returncode == 0
    assert all(each.name in status.stdout for each in offers), status.stdout
    assert "right before the fleet" in status.stdout
    assert "refused: 0" in status.stdout
    # Nothing that the server sends is run on a device: not even its app is there.
    assert not list((run / "flower").glob("apps*"))


def offered(bundle: Bundle, state: Path) -> Member:
    """A device's place, with a difference under way that it made before there was a server."""
    give = f"give(Path({str(state)!r}), Path({str(bundle.path)!r}), 'fp32', {LEAST})"
    program = f"from pathlib import Path; from deco_runtime.fleet.client import give; {give}"
    subprocess.run([sys.executable, "-c", program], env=ENVIRONMENT, check=True, timeout=60)
    place = members.kept(state, start(bundle).statistics, bundle.hash)
    assert place is not None
    assert place.sent is not None
    return place


def total(bundle: Bundle, offers: list[Member]) -> tuple[Any, Any]:
    """The labelled images' sums and what was offered, float64."""
    all_of = [start(bundle).statistics, *(each.sent for each in offers)]
    a, b = (np.sum([getattr(each, key) for each in all_of], axis=0, dtype=np.float64) for key in "ab")
    return a, b


@flower
@pytest.mark.parametrize(
    ("code", "words", "arguments"),
    [
        (2, "expected either --tls", ["serve", "--bundle", "BUNDLE", "--state", "S"]),
        (4, "missing", ["serve", "--bundle", "missing", "--state", "S", "--insecure", "--recipe", "deco+"]),
        (2, "HOST:PORT", ["serve", "--bundle", "BUNDLE", "--state", "S", "--insecure", "--address", "here"]),
        (2, "--key FILE", JOIN),
        (2, "HOST:PORT", ["join", "--state", "S", "--server", "fleet.example", "--insecure"]),
        *(
            (2, "--noise EPSILON to be a finite number above 0", [*JOIN, "--insecure", "--noise", text])
            for text in ("0", "-1", "nan", "inf")
        ),
        (7, "found none", ["status", "--state", "S"]),
        (7, "start deco-fleet serve first", ["allow", "--state", "S", __file__]),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    code: int, words: str, arguments: list[str], bundle: Bundle, tmp_path: Path
) -> None:
    (tmp_path / "S").mkdir()
    given = {"BUNDLE": str(bundle.path), "S": str(tmp_path / "S")}
    done = fleet(*(given.get(each, each) for each in arguments))
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: expected "), done.stderr
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_an_address_in_use_is_said(bundle: Bundle, tmp_path: Path) -> None:
    if util.find_spec("flwr") is None:
        pytest.skip("needs Flower")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ("--bundle", bundle.path, "--state", tmp_path, "--recipe", "deco+", "--insecure")
        done = fleet("serve", *arguments, "--address", address)
    assert done.returncode == 2
    assert "expected an address of this machine that is free" in done.stderr


def test_without_flower_an_extra_is_named(tmp_path: Path) -> None:
    """In an interpreter that has none, as on most devices."""
    program = "import sys; sys.modules['flwr'] = None; from deco_runtime.commands.fleet import main; main()"
    arguments = ["join", "--state", str(tmp_path), "--server", "127.0.0.1:1", "--insecure"]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "deco-edge[fleet]" in done.stderr


@flower
def test_a_device_runs_nothing_that_a_server_asks_for(tmp_path: Path) -> None:
    from deco_runtime.fleet.flower import ours

    for name in ("flwr-agentapp", "flwr-serverapp", "flwr-simulation", "anything"):
        done = subprocess.run(
            ours("_task", name, "--token", "x"), env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert f"the server asks for {name}" in done.stderr


@pytest.mark.parametrize(
    ("kind", "path", "client", "fine"),
    [
        ("http", "/v1/fleet/pull-messages", "203.0.113.7", True),
        ("http", "/v1/control/start-run", "203.0.113.7", False),
        ("http", "/v1/control/start-run", None, False),
        ("http", "/v1/fleet", "203.0.113.7", False),
        ("http", "/v1/fleetx/../control/start-run", "203.0.113.7", False),
        ("http", "/v1/runtime/push-messages", "203.0.113.7", False),
        ("http", "/docs", "203.0.113.7", False),
        ("websocket", "/v1/fleet/pull-messages", "203.0.113.7", False),
        ("http", "/v1/control/start-run", "127.0.0.1", True),
        ("http", "/v1/control/start-run", "::1", True),
        ("http", "/v1/control/start-run", "192.0.2.1", True),
    ],
)
def test_only_devices_are_let_in_from_elsewhere(kind: str, path: str, client: str | None, fine: bool) -> None:
    """The server has the address 192.0.2.1."""
    import asyncio

    from deco_runtime.fleet._superlink import OnlyFromHere

    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "path": path, "client": client and (client, 5), "server": ("192.0.2.1", 8000)}
    asyncio.run(OnlyFromHere(app)(scope, send, send))
    assert bool(reached) == fine
    if not fine:
        assert sent[0].get("status") == 403 or sent[0] == {"type": "websocket.close", "code": 1008}


def test_what_is_told_ends_with_who_tells(tmp_path: Path) -> None:
    from deco_runtime.fleet.told import Hearer, Teller

    hearer = Hearer(tmp_path)
    assert hearer.hear(0) == []
    with Teller(tmp_path) as tell:
        tell("one")
        tell("two")
        assert hearer.hear(1) == ["one", "two"]
        assert hearer.hear(0) == []
    assert hearer.hear(1) is None
    program = (
        f"from deco_runtime.fleet.told import *; t = Teller(Path({str(tmp_path)!r})).__enter__(); t('x'); import os"
    )
    subprocess.run([sys.executable, "-c", f"{program}; os.kill(os.getpid(), 9)"], env=ENVIRONMENT, check=False)
    assert hearer.hear(5) == ["x"]
    assert hearer.hear(5) is None
    hearer.close()
    with Teller(tmp_path) as tell:  # nobody listens
        tell("lost")


def test_a_ledger_that_is_damaged_is_begun_anew(tmp_path: Path) -> None:
    from deco_runtime.fleet.ledger import FILE, MOST, Ledger, clean

    it = Ledger()
    for number in range(MOST + 5):
        it.refuse("x", clean(f"is wrong\n\x1b[1m{number}"))
    it.write(tmp_path)
    found = Ledger.read(tmp_path)
    assert found == it
    assert found.refused == MOST + 5
    assert len(found.refusals) == MOST
    assert found.refusals[-1][2] == f"is wrong  [1m{MOST + 4}"
    for content in ("", "{", '{"x": 1}', json.dumps([1])):
        (tmp_path / FILE).write_text(content)
        assert Ledger.read(tmp_path) == Ledger()
