"""A device's connection to its fleet: Flower's SuperNode, kept going beside whatever run has the state, or none."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deco_runtime.fleet import flower
from deco_runtime.fleet.keeper import LOG, NODE, going, kept_going, said
from deco_runtime.fleet.told import Hearer

STRANGER = "[code: 2004]"
"""What Flower says where a server does not know the key of a device."""


@dataclass(frozen=True)
class Joined:
    """What a device is told. server: HOST:PORT. bundle: None for that of the state's name. authority: certificate of
    whoever signed the server's, None for those that the system trusts. key: private, None for none. least: frames that
    leave the device together, at least. noise: ε, None for none."""

    state: Path
    server: str
    bundle: Path | None
    authority: Path | None
    key: Path | None
    insecure: bool
    least: float
    noise: float | None


def join(it: Joined, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Until `stopped`. Raises RuntimeMissingError without Flower, StateError where nothing can be written."""
    flower.needed()
    folder = flower.home(it.state)
    more = {NODE["state"]: str(it.state.resolve()), NODE["least"]: str(it.least)}
    if it.noise is not None:
        more[NODE["noise"]] = str(it.noise)
    if it.bundle is not None:
        more[NODE["bundle"]] = str(it.bundle.resolve())
    env, hearer = flower.environment(folder, **more), Hearer(it.state)
    try:
        kept_going(lambda stopped: _once(it, env, folder / LOG, hearer, stopped, say), stopped, say)
    finally:
        hearer.close()


def _once(
    it: Joined, env: dict[str, str], log: Path, hearer: Hearer, stopped: Callable[[], bool], say: Callable[[str], None]
) -> str | None:
    """As `kept_going` has it."""
    safety = ["--insecure"] if it.insecure else []
    safety += ["--root-certificates", str(it.authority)] if it.authority else []
    safety += ["--auth-supernode-private-key", str(it.key)] if it.key else []
    command = flower.ours("_supernode", "--superlink", it.server, "--port", str(_free_port()), *safety)
    with going(command, env, log) as node:
        while not stopped():
            for line in hearer.hear(0.2) or ():
                say(line)
            if node.poll() is not None:
                why = said(log)
                if STRANGER in why and it.key is not None:
                    return f"the server at {it.server} does not know this key; deco-fleet allow {it.key.name}.pub there"
                return f"the connection to {it.server} has ended: {why}"
            time.sleep(0.1)  # between two messages nobody has the other end of the pipe, which is no reason to wait
    return None


def _free_port() -> int:
    """One on loopback, where Flower's programs on the device talk to each other."""
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        port: int = it.getsockname()[1]
        return port
