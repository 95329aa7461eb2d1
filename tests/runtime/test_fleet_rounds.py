"""The server's rounds with Flower's own messages, and devices that answer whatever they like."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'deco-edge[fleet]'")

from deco_runtime.fleet import client
from deco_runtime.fleet._server_app import GIVE, Rounds
from deco_runtime.fleet.ledger import Ledger
from deco_runtime.fleet.serving import open_pool
from deco_runtime.fleet.status import lines
from deco_runtime.storage.bundle import Bundle
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from test_door import going
from test_fleet_client import LEAST, learn

Content = RecordDict | Error | None


class Devices:
    """Flower's side of the rounds, with what each node answers to GIVE; None for one that never does."""

    def __init__(self, answers: dict[int, Content]) -> None:
        self.answers, self.waiting, self.taken = answers, list[Message](), dict[int, RecordDict]()

    def get_node_ids(self) -> Iterable[int]:
        return list(self.answers)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        made = []
        for message in messages:
            node = message.metadata.dst_node_id
            made.append(f"{message.metadata.message_type} {node}")
            message.metadata.__dict__["_message_id"] = made[-1]
            answer = self.answers[node]
            if message.metadata.message_type != GIVE:
                self.taken[node] = message.content
                answer = RecordDict({"told": ConfigRecord({"refused": ""})}) if node == 1 else RecordDict()
            if answer is not None:
                self.waiting.append(Message(answer, reply_to=message))  # type: ignore[call-overload]
        return made

    def pull_messages(self, ids: Iterable[str]) -> Iterable[Message]:
        found, self.waiting = self.waiting, []
        return found


def offer(values: dict[str, Any], arrays: dict[str, Array]) -> RecordDict:
    return RecordDict({"offer": ConfigRecord(values), "sums": ArrayRecord(arrays)})


@pytest.fixture(autouse=True)
def _as_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # as Flower sets them for the process of a task
        monkeypatch.setattr(TaskIdentity, name, 1)


def test_images_go_round_as_sums_do(bundle: Bundle, place: Path, tmp_path: Path) -> None:
    """Under `paper`, with a server's own recipe: two devices whose images are new, one with noise in their place."""
    with going(bundle, place, "paper") as run:
        learn(run, 3)
        it = client.give(place, None, "fp32", LEAST)
    x = it.arrays["x"]
    good = {"name": it.name, "number": it.number, "how": it.how, "bundle": it.bundle}
    noise = np.random.default_rng(0).normal(0, 1, x.shape).astype(np.float32)
    pool, _ = open_pool(bundle, "paper", LEAST, tmp_path)
    before = pool.handed.x
    grid = Devices(
        {
            1: offer(good, {"x": Array(x)}),
            2: offer({**good, "name": "other"}, {"x": Array((0.9 * x).astype(np.float32))}),
            3: offer({**good, "name": "noise"}, {"x": Array(noise)}),
            4: offer({**good, "name": "sums"}, {"a": Array(x)}),
        }
    )
    said: list[str] = []
    Rounds(grid, pool, tmp_path, "fp32", LEAST, said.append).go(1.0)
    ledger = Ledger.read(tmp_path)
    assert (ledger.asked, ledger.taken, ledger.unit) == (4, pool.taken, "condensed images")
    assert pool.taken + len(pool.left_out) == 2
    assert (np.abs(pool.handed.x - before).max() > 0) == (pool.taken > 0)
    assert any("noise has labels of which" in line for line in said), said
    assert any("sums does not fit the bundle" in line for line in said), said
    np.testing.assert_array_equal(grid.taken[1].array_records["sums"]["x"].numpy(), pool.handed.x)
    assert grid.taken[1].config_records["has"]["number"] == pool.number(it.name)
    shown = "\n".join(lines(tmp_path))
    assert f"learned of {20 * (1 + pool.taken)} condensed images" in shown


def test_whatever_devices_answer_a_round_ends(bundle: Bundle, place: Path, tmp_path: Path) -> None:
    """And what a good one sends is added."""
    with going(bundle, place) as run:
        learn(run, 3)
        it = client.give(place, None, "fp32", LEAST)
    good = {"name": it.name, "number": it.number, "how": it.how, "bundle": it.bundle}
    arrays = {name: Array(array) for name, array in it.arrays.items()}
    junk = Array("float32", (3,), "numpy.ndarray", b"junk")
    pool, _ = open_pool(bundle, "deco+", LEAST, tmp_path)
    before = pool.frames
    grid = Devices(
        {
            1: offer(good, arrays),
            2: RecordDict(),
            3: offer({**good, "name": "a\n\x1b[2Jb"}, arrays),
            4: offer({**good, "name": "other", "number": "many"}, arrays),
            5: offer({**good, "name": "other"}, {"a": junk, "b": junk}),
            6: Error(1, "expected\nsomething\x1b[31m " + "x" * 1000),
            7: None,
            8: offer({**good, "name": 7.5, "bundle": 0.0}, arrays),
            9: offer({**good, "name": "other", "how": "fp16"}, arrays),
            10: offer({**good, "name": "empty", "number": 0}, {}),
        }
    )
    said: list[str] = []
    rounds = Rounds(grid, pool, tmp_path, "fp32", LEAST, said.append)
    rounds.go(1.0)
    assert pool.places[it.name].number == 1
    assert len(pool.places) == 1
    assert pool.frames == pytest.approx(before + 60, abs=1)
    assert all(line.isprintable() and len(line) < 400 for line in said), said
    ledger = Ledger.read(tmp_path)
    assert (ledger.rounds, ledger.asked, ledger.taken) == (1, 10, 1)
    assert ledger.refused == len(ledger.refusals) >= 7
    np.testing.assert_array_equal(grid.taken[1].array_records["sums"]["a"].numpy(), pool.sums.a)
    assert grid.taken[1].config_records["has"]["number"] == 1
    assert {node: grid.taken[node].config_records["has"]["number"] for node in (9, 10)} == {9: 0, 10: 0}
    assert 7 not in grid.taken

    grid.taken.clear()
    grid.answers = {1: grid.answers[1]}
    rounds.go(1.0)
    assert grid.taken == {}  # who has the sums is not sent them again
    shown = "\n".join(lines(tmp_path))
    assert "2 rounds" in shown
    assert f"{it.name:18}{1:>8}" in shown
    assert all(line.isprintable() for line in lines(tmp_path))
