"""The half of a fleet that is at the server: every round asks the devices for what they have learned, adds up (or
condenses), and hands the whole to all.

Flower starts it and hands it, as its run-config: `state`, `bundle`, `recipe`, `rounds`, `every`, `how` and `least`, as
`deco-fleet serve` was told. It tells what happens by a pipe in the state directory, see `told`, and keeps what
`deco-fleet status` shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid, ServerApp

from deco_runtime.errors import DecoError, StateError
from deco_runtime.fleet.flower import FOLDER
from deco_runtime.fleet.keeper import end_with_parent
from deco_runtime.fleet.ledger import Ledger, clean
from deco_runtime.fleet.roll import Roll
from deco_runtime.fleet.serving import START, open_pool
from deco_runtime.fleet.told import DONE, Teller
from deco_runtime.learning.arrays import Array as Numbers
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle

GIVE, TAKE = "query.give", "train.take"
"""Kinds of messages."""
PAUSE_S = 0.2
"""Between two looks for answers."""
AT_ONCE = 50
"""Messages that are put on their way together: each holds the sums."""
PATIENCE_S = 60.0
"""A round waits at least so long for devices, if they do not all answer before."""
HOLD_S = 20.0
"""So long a state directory that another process has is waited for."""
LATE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""What Flower answers for a device that does not."""

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Round after round, until `rounds` are done; 0 for ever."""
    end_with_parent()  # Flower asks a server that was killed again and again, and would keep the state's lock
    config = context.run_config
    directory = Path(str(config["state"]))
    if (directory / FOLDER / START).read_text("utf-8") != config["start"]:
        return  # of a start before the last
    with Teller(directory) as tell:
        try:
            _hold(directory)
            bundle = open_bundle(Path(str(config["bundle"])))
            pool, words = open_pool(bundle, str(config["recipe"]), float(config["least"]), directory)
            if words:
                tell(f"warning: {words}")
            it = Rounds(grid, pool, directory, str(config["how"]), float(config["least"]), tell)
            rounds, every, done = int(config["rounds"]), float(config["every"]), 0
            while not rounds or done < rounds:
                began = time.monotonic()
                it.go(max(every, PATIENCE_S))
                done += 1
                if not rounds or done < rounds:
                    time.sleep(max(0.0, every - (time.monotonic() - began)))
            tell(DONE)
        except DecoError as error:
            tell(f"error: {error}")
            raise
        except Exception as error:  # a defect, whose traceback is in Flower's log
            tell(f"error: the rounds fail with {type(error).__name__}: {clean(str(error))}")
            raise


def _hold(directory: Path) -> None:
    """As `states.hold`; one whose server was killed a moment ago may still have it."""
    end = time.monotonic() + HOLD_S
    while True:
        try:
            states.hold(directory)
        except StateError:
            if time.monotonic() > end:
                raise
            time.sleep(1)
        else:
            return


class Rounds:
    """Of one pool. Nothing that a device answers ends them."""

    def __init__(
        self, grid: Grid, pool: Roll, directory: Path, how: str, least: float, tell: Callable[[str], None]
    ) -> None:
        self._grid, self._pool, self._directory, self._how, self._least = grid, pool, directory, how, least
        self._tell, self._ledger = tell, Ledger.read(directory)
        self._told: dict[str, tuple[int, int]] = {}  # what each device was handed last: segments, its own number

    def go(self, patience: float) -> None:
        """Ask all devices that are there, take in what they answer within so many seconds, and hand what the fleet has
        learned to these unless they have it. Raises StateError where the disk refuses."""
        pool, ledger = self._pool, self._ledger
        asked = RecordDict({"asked": ConfigRecord({"how": self._how, "least": self._least})})
        names: dict[int, str] = {}
        nodes = list(self._grid.get_node_ids())
        for reply in self._answers(((node, asked) for node in nodes), GIVE, patience):
            try:
                name, arrays, number, how, bundle = _read(reply)
            except Exception as error:  # an answer may hold anything
                self._refuse(f"node {reply.metadata.src_node_id}", f"is no answer ({type(error).__name__})")
                continue
            names[reply.metadata.src_node_id] = name
            if arrays and (reason := pool.offer(name, number, how, arrays, bundle)):
                self._refuse(name, reason)
        verdict = pool.settle()
        for who, reason in pool.left_out:
            self._refuse(who, reason)
        if verdict is not None and not verdict.accepted and not pool.left_out:
            self._refuse("this round", f"gives a model that {verdict.reason}")
        pool.save(self._directory)
        ledger.round(len(nodes), len(names), pool.taken, pool.frames, pool.UNIT, verdict)
        ledger.write(self._directory)
        self._tell(
            f"{len(names)} of {len(nodes)} devices answered, {pool.taken} had something new; learned of "
            f"{pool.frames:.0f} {pool.UNIT}"
        )
        sums = ArrayRecord({name: Array(array) for name, array in arrays_of(pool.handed).items()})
        told = (
            (node, RecordDict({"sums": sums, "has": ConfigRecord({"number": pool.number(name), "refused": refused})}))
            for node, name in names.items()
            if (refused := pool.turned_down(name)) or self._told.get(name) != self._now(name)
        )
        for reply in self._answers(told, TAKE, patience):
            name = names[reply.metadata.src_node_id]
            self._told[name] = self._now(name)
            try:
                refused = clean(str(reply.content.config_records["told"]["refused"]))
            except Exception as error:
                refused = f"answers what is none ({type(error).__name__})"
            if refused:
                self._refuse(name, f"did not take the fleet's sums up: that {refused}")
        ledger.write(self._directory)

    def _now(self, name: str) -> tuple[int, int]:
        return self._pool.guarded.learner.segments, self._pool.number(name)

    def _refuse(self, who: str, reason: str) -> None:
        who, reason = clean(who), clean(reason)
        self._ledger.refuse(who, reason)
        self._tell(f"refused: {who} {reason}")

    def _answers(self, contents: Iterator[tuple[int, RecordDict]], kind: str, patience: float) -> Iterator[Message]:
        """The answers to a message to each node as they come, for so many seconds; errors are told and left out."""
        grid, waiting = self._grid, set[str]()
        end, more = time.monotonic() + patience, True
        while (more or waiting) and time.monotonic() < end:
            while more and len(waiting) < AT_ONCE:
                try:
                    node, content = next(contents)
                except StopIteration:
                    more = False
                    break
                message = Message(content, dst_node_id=node, message_type=kind, ttl=max(1.0, end - time.monotonic()))
                waiting |= set(grid.push_messages([message]))
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_error() and reply.error.code in LATE:
                    continue
                if reply.has_error():
                    self._refuse(f"node {reply.metadata.src_node_id}", f"failed: {reply.error.reason}")
                else:
                    yield reply
            if waiting:
                time.sleep(PAUSE_S)


def _read(reply: Message) -> tuple[str, dict[str, Numbers], int, str, str]:
    """Name, arrays, number, kind of numbers and bundle of a device's answer; raises whatever it likes."""
    values = reply.content.config_records["offer"]
    arrays = {key: array.numpy() for key, array in reply.content.array_records["sums"].items()}
    number = int(values["number"])
    return str(values["name"]), arrays, number, str(values["how"]), str(values["bundle"])
