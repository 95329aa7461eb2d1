"""The two halves of a fleet for Flower, which starts them, carries the messages and keeps strangers out.

    client     on each device: gives its difference, takes the fleet's sums up
    server     once: every round asks the devices for theirs, adds up, and hands the sums to all

Flower reads what they need where it is started: `state` and `bundle` on a device (--node-config), `state`, `bundle`,
`rounds`, `every`, `how` and `least` at the server (--run-config). See docs/fleet.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from logging import INFO, WARNING
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import DecoError
from deco_runtime.fleet import client as of_device
from deco_runtime.fleet.member import LEAST
from deco_runtime.fleet.pool import Pool
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.regression import Statistics
from deco_runtime.running.assemble import open_guard
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import open_bundle

GIVE, TAKE = "query.give", "train.take"
"""Kinds of messages."""
PAUSE_S = 0.2
"""Between two looks for answers."""
AT_ONCE = 50
"""Messages that are put on their way together: each holds the sums."""

client = ClientApp()
server = ServerApp()


@client.query("give")
def give(message: Message, context: Context) -> Message:
    """Answers with the device's next difference."""
    asked = message.content.config_records["asked"]
    offer = of_device.give(*_device(context), str(asked["how"]), float(asked["least"]))  # type: ignore[arg-type]
    values = ConfigRecord({"name": offer.name, "number": offer.number, "how": offer.how, "bundle": offer.bundle})
    arrays = ArrayRecord({name: Array(array) for name, array in offer.arrays.items()})
    return Message(RecordDict({"offer": values, "sums": arrays}), reply_to=message)


@client.train("take")
def take(message: Message, context: Context) -> Message:
    """Has the device go by the fleet's sums, and answers with what came of it."""
    number = int(message.content.config_records["has"]["number"])  # type: ignore[arg-type]
    told = of_device.take(*_device(context), _sums(message.content.array_records["sums"]), number)
    log(INFO, "the fleet's sums of %s frames: %s", told["frames"], told["refused"] or "taken up")
    return Message(RecordDict({"told": ConfigRecord({"refused": told["refused"] or ""})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Round after round, until `rounds` are done; 0 for ever."""
    config = context.run_config
    directory, bundle = Path(str(config["state"])), open_bundle(Path(str(config["bundle"])))
    how, least = str(config.get("how", "fp32")), float(config.get("least", LEAST))
    kind = registry.learner(bundle.recipe.name)
    learner = kind.open(bundle, open_engine(bundle, "auto"), kind.RECIPE, np.random.default_rng(0))
    guarded, _ = open_guard(bundle, learner)
    assert isinstance(guarded, Guarded)
    states.hold(directory)
    pool = Pool(bundle, guarded, least)
    if words := pool.load(directory):
        log(WARNING, words)
    rounds, every, done = int(config.get("rounds", 0)), float(config.get("every", 60)), 0
    while not rounds or done < rounds:
        began = time.monotonic()
        one_round(grid, pool, directory, how, least, every)
        done += 1
        if not rounds or done < rounds:
            time.sleep(max(0.0, every - (time.monotonic() - began)))


def one_round(grid: Grid, pool: Pool, directory: Path, how: str, least: float, patience: float) -> None:
    """Ask all devices that are there, add up what they answer within so many seconds, and hand the sums to these."""
    asked = RecordDict({"asked": ConfigRecord({"how": how, "least": least})})
    names: dict[int, str] = {}
    for reply in _answers(grid, ((node, asked) for node in grid.get_node_ids()), GIVE, patience):
        values = reply.content.config_records["offer"]
        name, node = str(values["name"]), reply.metadata.src_node_id
        names[node] = name
        arrays = {key: array.numpy() for key, array in reply.content.array_records["sums"].items()}
        if arrays:
            number, sent_in = int(values["number"]), str(values["how"])  # type: ignore[arg-type]
            reason = pool.offer(name, number, sent_in, arrays, str(values["bundle"]))
            if reason:
                log(WARNING, "what %s sent %s", name, reason)
    verdict = pool.settle()
    pool.save(directory)
    frames = float(pool.sums.b[-1].sum(dtype=np.float64))
    log(INFO, "%d devices answered; the sums are of %.0f frames", len(names), frames)
    if verdict is not None and not verdict.accepted:
        log(WARNING, "the guard refused this round, whose model %s", verdict.reason)
    sums = ArrayRecord({"a": Array(pool.sums.a), "b": Array(pool.sums.b)})
    told = (
        (node, RecordDict({"sums": sums, "has": ConfigRecord({"number": _number(pool, name)})}))
        for node, name in names.items()
    )
    for reply in _answers(grid, told, TAKE, patience):
        if refused := reply.content.config_records["told"]["refused"]:
            log(WARNING, "%s did not take the sums up: that %s", names[reply.metadata.src_node_id], refused)


def _answers(grid: Grid, contents: Iterator[tuple[int, RecordDict]], kind: str, patience: float) -> Iterator[Message]:
    """The answers to a message to each node as they come, for so many seconds; errors are told and left out."""
    open_ids: set[str] = set()
    end, more = time.monotonic() + patience, True
    while (more or open_ids) and time.monotonic() < end:
        while more and len(open_ids) < AT_ONCE:
            try:
                node, content = next(contents)
            except StopIteration:
                more = False
                break
            message = Message(content, dst_node_id=node, message_type=kind, ttl=max(1.0, end - time.monotonic()))
            open_ids |= set(grid.push_messages([message]))
        for reply in grid.pull_messages(open_ids):
            open_ids.discard(reply.metadata.reply_to_message_id)
            if reply.has_error():
                log(WARNING, "a device failed: %s", reply.error.reason)
            else:
                yield reply
        if open_ids:
            time.sleep(PAUSE_S)


def _number(pool: Pool, name: str) -> int:
    place = pool.places.get(name)
    return place.number if place else 0


def _sums(record: ArrayRecord) -> Statistics:
    return Statistics(record["a"].numpy(), record["b"].numpy())


def _device(context: Context) -> tuple[Path, Path | None]:
    """State directory and bundle of this device."""
    given = context.node_config
    if "state" not in given:
        raise DecoError(
            "expected the device's state directory, but found none; start flower-supernode with --node-config "
            "'state=\"DIR\"'"
        )
    return Path(str(given["state"])), Path(str(given["bundle"])) if "bundle" in given else None
