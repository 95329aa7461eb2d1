"""The socket of a run: real connections to a real run's control, good requests and bad ones."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import StateError, UsageError
from deco_runtime.running import door
from deco_runtime.running.assemble import Options, prepare
from deco_runtime.running.door import SOCKET, Door, ask
from deco_runtime.running.loop import Run
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import CURRENT
from deco_runtime.telemetry.bus import Bus
from deco_runtime.telemetry.happenings import Said
from drawn import boxes
from sentences import one_sentence


@contextmanager
def going(bundle: Bundle, state: Path, recipe: str = "deco+") -> Iterator[Run]:
    """A run on the demo stream whose owner does what people ask for, and nothing else."""
    options = Options(
        *(bundle.path, state, "portable", "fp32", recipe, (), None, None, 1, 0, None, 900),
        guard=True,
    )
    run, _ = prepare(options, [("demo", True)], time.monotonic())
    with run.bus:
        owner = threading.Thread(target=_owner, args=(run,))
        owner.start()
        try:
            yield run
        finally:
            run.stop.set()
            owner.join()
            run.requests.end()
            run.source.close()


def _owner(run: Run) -> None:
    while not run.stop.is_set():
        run.requests.serve()
        time.sleep(0.002)


def pictures(bundle: Bundle, count: int, first: int = 0) -> tuple[dict[str, Any], bytes]:
    """A request to teach boxes, and what is behind it."""
    request = {"do": "teach", "class": "box", "takes": list(range(count))}
    return request, boxes(bundle, first, count).tobytes()


def raw(place: Path, send: Callable[[socket.socket], object]) -> dict[str, Any]:
    """The answer to whatever bytes are sent."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        connection.settimeout(30)
        connection.connect(str(place / SOCKET))
        send(connection)
        with connection.makefile("rb") as stream:
            answer = json.loads(stream.readline())
            assert stream.read() == b""
    assert isinstance(answer, dict)
    return answer


def test_people_teach_correct_and_undo(bundle: Bundle, place: Path) -> None:
    with going(bundle, place) as run:
        hello = ask(place, {"do": "hello"})
        assert hello == {"bundle": str(bundle.path.resolve()), "hash": bundle.hash, "recipe": "deco+"}
        told = ask(place, *pictures(bundle, 10))
        assert told is not None
        assert (told["name"], told["frames"], told["new"], told["refused"], told["teachings"]) == (
            *("box", 10, True, None, 1),
        )
        assert told["classes"] == [*bundle.classes, "box"] == list(run.names)
        assert (place / CURRENT).exists()
        again = ask(place, *pictures(bundle, 3, 40))
        assert again is not None
        assert (again["new"], again["teachings"]) == (False, 2)
        undone = ask(place, {"do": "undo"})
        assert undone == {"classes": [*bundle.classes, "box"], "teachings": 1}
        ask(place, {"do": "undo"})
        assert list(run.names) == list(bundle.classes)
        with pytest.raises(UsageError, match="found nothing to undo"):
            ask(place, {"do": "undo"})


def test_the_last_seconds_are_taught(bundle: Bundle, place: Path) -> None:
    from deco_runtime.telemetry.happenings import FramePredicted
    from deco_runtime.types import Frame

    with going(bundle, place) as run:
        shown = boxes(bundle, 0, 8)
        with pytest.raises(UsageError, match="found none of these"):
            ask(place, {"do": "teach last", "class": "box", "seconds": 60})
        for i, pixels in enumerate(shown):
            seen = run.learner.observe(next(normalised_one(pixels, bundle)))
            frame = Frame(pixels, time.monotonic() - 8 + i)
            run.bus.emit(FramePredicted("3", 0.5, frame, seen))
        told = ask(place, {"do": "teach last", "class": "box", "seconds": 4.5})
        assert told is not None
        assert (told["frames"], told["new"]) == (4, True)
        assert len(np.unique(run.learner.taught.takes)) == 1
        for seconds in (float("nan"), 0, -5):
            with pytest.raises(UsageError):
                ask(place, {"do": "teach last", "class": "box", "seconds": seconds})


def normalised_one(pixels: Any, bundle: Bundle) -> Iterator[Any]:
    from deco_runtime.running.scoring import normalised

    return normalised(pixels[None], bundle.preprocessing, lambda: None)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"garbage\n", b"\xff\xfe\n", b"[]\n", b"5\n", b'"do"\n', b"null\n", b"{}\n", b'{"do": "dance"}\n',
        b'{"do": {"a": 1}}\n', b'{"do": "teach"}\n', b'{"do": "teach", "class": "x"}\n',
        b'{"do":"hello","do":"undo"}\n',
        b'{"do": "teach last", "class": "x"}\n', b'{"do": "teach last", "class": "x", "seconds": "many"}\n',
        b'{"do": "hello", "bytes": -1}\n', b'{"do": "hello", "bytes": 1e99}\n', b'{"do": "hello", "bytes": "x"}\n',
        b'{"do": "hello", "bytes": 99999999999999999999}\n', b"[" * 100_000 + b"\n", b'{"do": "' + b"x" * (2 << 20),
        b'{"do": "teach", "class": "x", "takes": [], "bytes": 0}\n',
        b'{"do": "teach", "class": "x", "takes": [0], "bytes": 3}\nabc',
        b'{"do": "teach", "class": "x", "takes": [0, 1], "bytes": 768}\n' + bytes(768),
        b'{"do": "teach", "class": "x", "takes": ["a"], "bytes": 768}\n' + bytes(768),
        b'{"do": "teach", "class": "x", "takes": [1e300], "bytes": 768}\n' + bytes(768),
        b'{"do": "teach", "class": "a\\nb", "takes": [0], "bytes": 768}\n' + bytes(768),
        b'{"do": "teach", "class": "x", "takes": [0], "bytes": 768}\n' + bytes(700),
    ],
)  # fmt: skip
def test_garbage_is_answered_in_one_sentence_and_changes_nothing(
    line: bytes, served: tuple[Run, Path], bundle: Bundle
) -> None:
    run, place = served
    model = run.learner.model

    def send(connection: socket.socket) -> None:
        try:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it answers as soon as it knows

    try:
        answer = raw(place, send)
    except (ConnectionError, json.JSONDecodeError):
        assert len(line) > 1 << 20  # what it did not read is thrown away with its answer
    else:
        assert answer.keys() == {"error", "code"}
        assert answer["error"].startswith("expected ")
        assert answer["error"].isprintable()
        assert answer["code"] in (1, 2)
    assert run.learner.model is model
    assert ask(place, {"do": "hello"}) is not None


@pytest.fixture(scope="module")
def served(bundle: Bundle) -> Iterator[tuple[Run, Path]]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="deco-") as name, going(bundle, Path(name)) as run:
        yield run, Path(name)


def test_a_huge_size_is_refused_before_anything_is_read(served: tuple[Run, Path]) -> None:
    _, place = served
    answer = raw(place, lambda connection: connection.sendall(b'{"do": "teach", "bytes": 1099511627776}\n'))
    assert answer["error"] == "expected at most 256 MiB of pictures, but found 1048576; send fewer"
    assert answer["code"] == UsageError.exit_code


def test_too_much_is_refused_before_it_is_sent(served: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it sent, the connection would break, and nobody know why."""
    monkeypatch.setattr(door, "MOST_BYTES", 10)
    with pytest.raises(UsageError) as refused:
        ask(served[1], {"do": "teach"}, b"x" * 11)
    one_sentence(str(refused.value))


def test_numbers_of_takes_may_be_any(served: tuple[Run, Path], bundle: Bundle) -> None:
    run, place = served
    request, data = pictures(bundle, 3)
    told = ask(place, request | {"takes": [-(2**63), 2**63 - 1, 2**63 - 1]}, data)
    assert told is not None
    assert run.learner.taught.takes.tolist() == [0, 1, 1]
    ask(place, {"do": "undo"})


def test_one_that_says_nothing_or_leaves_does_not_keep_others_out(
    served: tuple[Run, Path], bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "PATIENCE_S", 0.2)
    _, place = served
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as silent:
        silent.connect(str(place / SOCKET))
        assert ask(place, {"do": "hello"}) is not None
    for sent in (b"", b'{"do": "hello"', b'{"do": "hello"}\n'):
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.connect(str(place / SOCKET))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(sent)
        assert ask(place, {"do": "hello"}) is not None


def test_several_at_once_are_answered_in_turn(served: tuple[Run, Path]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(lambda _: ask(served[1], {"do": "hello"}), range(40)))


def test_only_its_owner_may_open_it(served: tuple[Run, Path]) -> None:
    found = os.stat(served[1] / SOCKET)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert f"{SOCKET}.new" not in os.listdir(served[1])


def test_it_is_gone_after_the_run(bundle: Bundle, place: Path) -> None:
    with going(bundle, place):
        assert (place / SOCKET).exists()
    assert not os.path.lexists(place / SOCKET)
    assert ask(place, {"do": "hello"}) is None


def test_a_long_path_is_reached(bundle: Bundle, tmp_path: Path) -> None:
    place = tmp_path / ("x" * 120) / ("y" * 120)
    with going(bundle, place) as run:
        assert stat.S_ISSOCK(os.stat(place / SOCKET).st_mode)
        assert ask(place, {"do": "hello"}) is not None
        assert ask(place, *pictures(bundle, 10)) is not None
        assert run.learner.taught.classes == ("box",)
    assert not os.path.lexists(place / SOCKET)
    assert ask(place, {"do": "hello"}) is None


HOLDER = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(1)
print("ready", flush=True)
time.sleep(60)
"""


def test_the_socket_of_a_killed_run_is_of_no_use_and_in_nobodys_way(bundle: Bundle, place: Path) -> None:
    place.mkdir()
    (place / f"{SOCKET}.new").write_bytes(b"of one that was killed in between")
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(place / SOCKET)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert os.path.lexists(place / SOCKET)
    assert ask(place, {"do": "hello"}) is None
    with going(bundle, place):
        assert ask(place, {"do": "hello"}) is not None
    assert not os.path.lexists(place / SOCKET)


@pytest.mark.parametrize("place_is", ["absent", "a file", "a folder at the socket's name"])
def test_where_no_run_is_none_answers(place_is: str, tmp_path: Path) -> None:
    place = tmp_path / "state"
    if place_is == "a file":
        place.write_bytes(b"")
    elif place_is != "absent":
        (place / SOCKET).mkdir(parents=True)
    assert ask(place, {"do": "hello"}) is None


@pytest.mark.parametrize("said", [b"", b"garbage\n", b"{"])
def test_an_answer_that_is_none_is_one_sentence(said: bytes, place: Path) -> None:
    """As when the run is killed while it is asked."""
    place.mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(place / SOCKET))
        server.listen(1)

        def serve() -> None:
            connection, _ = server.accept()
            with closing(connection):
                connection.recv(1000)
                connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StateError) as refused:
            ask(place, {"do": "hello"})
        thread.join()
    one_sentence(str(refused.value))


def test_a_run_goes_on_where_there_can_be_no_socket(served: tuple[Run, Path], tmp_path: Path) -> None:
    class Hearing:
        said: list[str] = []  # noqa: RUF012

        def hears(self) -> Any:
            return {Said: lambda event: self.said.append(event.words)}

    bus, control = Bus(), None
    hearing: Any = Hearing()
    bus.add(hearing)
    with bus:
        bus._listeners.remove(hearing)
        closed = Door(tmp_path / "nowhere", control, bus)  # type: ignore[arg-type]
        closed.close()
    assert len(hearing.said) == 1
    assert hearing.said[0].startswith("nobody can teach this run, because there can be no socket in ")


def test_the_papers_recipe_is_refused_in_one_sentence(bundle: Bundle, place: Path) -> None:
    with going(bundle, place, "paper") as run:
        model = run.learner.model
        with pytest.raises(UsageError) as refused:
            ask(place, *pictures(bundle, 10))
        one_sentence(str(refused.value))
        assert run.learner.model is model
        assert len(run.learner.taught) == 0
