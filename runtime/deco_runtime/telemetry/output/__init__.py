"""Where answers go: `--output`. A new way out is one new file in this folder, and no edit elsewhere.

Every module here that has SCHEMES is a way out. It defines

    SCHEMES: tuple[str, ...]           of the addresses it takes: what stands before "://", or the whole of "-"
    NETWORK: bool                      whether it needs the network, which the sandbox of a service forbids otherwise
    EXAMPLE: str                       an address, for the help and for messages
    open_way(address: str) -> Way      connects nothing yet; raises UsageError, or RuntimeMissingError for a package

and imports what not every device has inside functions only. `sender` gives each way a thread and a bounded queue of its
own, so that a way out may wait, fail and be tried again.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import Protocol

from deco_runtime.errors import UsageError
from deco_runtime.telemetry.output.message import Message
from deco_runtime.telemetry.redact import redact

VARIABLE = "DECO_RUN_OUTPUT"
"""Of the environment, in place of the option: no other user sees it there, as in the list of processes."""
TIMEOUT_S = 10.0
"""Longest time that a way out waits for an answer of the other side."""


class NotSentError(Exception):
    """A way out could not send. words: why, as the end of a sentence, without secrets. again: whether the same message
    may go through later; one that the other side refuses does not."""

    def __init__(self, words: str, again: bool = True) -> None:
        super().__init__(words)
        self.words, self.again = words, again


class Way(Protocol):
    """One way out. All but `name` is called in one thread of its own, and may wait some TIMEOUT_S there.

    name: the address as it may be shown to everybody.
    """

    name: str

    def send(self, message: Message) -> None:
        """Send it, and be sure that it arrived. Raises NotSentError."""

    def tend(self) -> bool:
        """At the start, and whenever there was nothing to send for some seconds: see that it is connected. Returns
        whether that is known. Raises NotSentError."""

    def close(self) -> None:
        """Say goodbye, and give back what is open. Raises NotSentError."""


@cache
def discover() -> dict[str, ModuleType]:
    """All ways out by the schemes of their addresses, sorted by these."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return dict(sorted((scheme, module) for module in modules for scheme in getattr(module, "SCHEMES", ())))


def way_of(address: str) -> ModuleType:
    """The module that takes this address; UsageError lists those there are."""
    scheme, separator, _ = address.partition("://")
    found = discover().get(scheme.lower() if separator else address)
    if found is None:
        examples = ", ".join(dict.fromkeys(module.EXAMPLE for module in discover().values()))
        raise UsageError(f"expected --output to be one of {examples}, but found {redact(address)!r:.80}; change it")
    return found


def open_way(address: str) -> Way:
    """The way out of this address, which connects nothing yet. Raises UsageError, and RuntimeMissingError where a
    package is missing."""
    way: Way = way_of(address).open_way(address)
    return way
