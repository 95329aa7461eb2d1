"""The half of a fleet that is on each device: gives its difference, takes the fleet's sums up.

`deco-fleet join` says by the environment of which device, see `NODE`; nothing that the server sends can change that.
Flower starts a process for each message.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from deco_runtime.errors import DecoError
from deco_runtime.fleet import client as of_device
from deco_runtime.fleet.images import Images
from deco_runtime.fleet.keeper import NODE
from deco_runtime.fleet.member import LEAST
from deco_runtime.fleet.told import Teller
from deco_runtime.learning.arrays import Memory
from deco_runtime.learning.regression import Statistics
from deco_runtime.telemetry.happenings import FleetMerged

client = ClientApp()


@client.query("give")
def give(message: Message, context: Context) -> Message:
    """Answers with the device's next difference."""

    def job() -> RecordDict:
        asked = message.content.config_records["asked"]
        offer = of_device.give(*_device(), str(asked["how"]), _least(float(asked["least"])), _noise())
        values = ConfigRecord({"name": offer.name, "number": offer.number, "how": offer.how, "bundle": offer.bundle})
        arrays = ArrayRecord({name: Array(array) for name, array in offer.arrays.items()})
        return RecordDict({"offer": values, "sums": arrays})

    return _answer(message, job)


@client.train("take")
def take(message: Message, context: Context) -> Message:
    """Has the device go by the fleet's sums, and answers with what came of it."""

    def job() -> RecordDict:
        has = message.content.config_records["has"]
        record = message.content.array_records["sums"]
        fleet: Memory = Images(record["x"].numpy()) if "x" in record else Statistics(*(record[n].numpy() for n in "ab"))
        told = of_device.take(*_device(), fleet, int(has["number"]), str(has["refused"]))
        _say(FleetMerged(**told).words)
        # What the guard says is of what the device itself has seen, without noise.
        return RecordDict({"told": ConfigRecord({"refused": (told["refused"] or "") if _noise() is None else ""})})

    return _answer(message, job)


def _answer(message: Message, job: Callable[[], RecordDict]) -> Message:
    """What the job gives, or why it cannot, in one sentence."""
    try:
        return Message(job(), reply_to=message)
    except DecoError as error:
        words = str(error)
    except (KeyError, ValueError, TypeError, OverflowError) as error:  # the message may hold anything
        words = f"expected a message of this version of deco-fleet, but it fails with {type(error).__name__}; update"
    _say(f"error: {words}")
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, words), reply_to=message)


def _device() -> tuple[Path, Path | None]:
    """State directory and bundle of this device."""
    bundle = os.environ.get(NODE["bundle"])
    return Path(os.environ[NODE["state"]]), Path(bundle) if bundle else None


def _least(asked: float) -> float:
    """Frames that a difference must be of: the server may ask for more than the device does, never for fewer."""
    own = float(os.environ.get(NODE["least"], LEAST))
    return asked if asked > own else own


def _noise() -> float | None:
    """ε; None for no noise."""
    epsilon = os.environ.get(NODE["noise"])
    return None if epsilon is None else float(epsilon)


def _say(words: str) -> None:
    with Teller(_device()[0]) as tell:
        tell(words)
