"""A fleet's server: its pool, and Flower's programs around it, kept going.

Flower's SuperLink takes the devices' messages, and starts the half of the fleet that is the server's, which holds the
state directory. Whichever of the programs ends, at any moment, the others are ended and all are started again.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from deco_runtime.errors import UsageError
from deco_runtime.fleet import flower
from deco_runtime.fleet.flower import Tls
from deco_runtime.fleet.image_pool import ImagePool
from deco_runtime.fleet.keeper import LOG, going, kept_going, last_words, said
from deco_runtime.fleet.pool import Pool
from deco_runtime.fleet.roll import Roll
from deco_runtime.fleet.told import DONE, Hearer
from deco_runtime.learning.replay import ReplayLearner
from deco_runtime.running.assemble import open_fresh
from deco_runtime.storage.bundle import Bundle

START = "start"
"""File in Flower's folder: which start was the last. Flower goes on with the app of one before that was cut short."""
START_S = 120.0
"""A program of Flower's that says nothing for so long does not start."""


@dataclass(frozen=True)
class Served:
    """What a server is told. recipe: "" for the bundle's. host, port: where devices reach it. rounds: 0 for ever.
    every: seconds of one. tls: None for none."""

    bundle: Path
    state: Path
    recipe: str
    host: str
    port: int
    every: float
    how: str
    least: float
    rounds: int
    tls: Tls | None

    @property
    def local(self) -> str:
        """The host as this machine itself reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)


def open_pool(bundle: Bundle, recipe: str, least: float, directory: Path) -> tuple[Roll, str | None]:
    """Where it was left, and a sentence where the newest state had to be passed over.

    recipe: "" for the bundle's own. Raises UsageError for one that no fleet can learn by, BundleError where the
    bundle has no such recipe, StateError where what is in the directory cannot be used.
    """
    guarded = open_fresh(bundle, recipe or bundle.recipe.name)
    pool: Roll
    pool = ImagePool(bundle, guarded) if isinstance(guarded.learner, ReplayLearner) else Pool(bundle, guarded, least)
    return pool, pool.load(directory)


def serve(it: Served, stopped: Callable[[], bool], say: Callable[[str], None]) -> None:
    """Until all rounds are done, or `stopped`.

    Raises UsageError for an address that cannot be used or a certificate that is not for it, RuntimeMissingError
    without Flower, StateError where nothing can be written.
    """
    flower.needed()
    _free(it.host, it.port)
    folder = flower.home(it.state)
    flower.write_settings(folder, f"{_bracketed(it.local)}:{it.port}", it.tls)
    kept_going(lambda stopped: _once(it, folder, stopped, say), stopped, say)


def _app(it: Served, folder: Path) -> Path:
    """What `flwr run` takes, for the next start."""
    config: dict[str, str | int | float] = {
        "state": str(it.state.resolve()),
        "bundle": str(it.bundle.resolve()),
        "recipe": it.recipe,
        "rounds": it.rounds,
        "every": it.every,
        "how": it.how,
        "least": it.least,
        "start": secrets.token_hex(8),
    }
    (folder / START).write_text(str(config["start"]), "utf-8")
    return flower.write_app(folder, config)


def _once(it: Served, folder: Path, stopped: Callable[[], bool], say: Callable[[str], None]) -> str | None:
    """As `kept_going` has it."""
    log, env, app = folder / LOG, flower.environment(folder), _app(it, folder)
    safety = ["--insecure"]
    if it.tls is not None:
        files = (it.tls.certificate, it.tls.key, it.tls.authority)
        names = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile")
        safety = ["--enable-supernode-auth", *(str(x) for pair in zip(names, files, strict=True) for x in pair)]
    command = flower.ours(
        *("_superlink", "--host", it.host, "--port", str(it.port), "--database", str(folder / "flower.db")),
        *("--disable-runtime-dependency-installation", *safety),
    )
    with closing(Hearer(it.state)) as hearer, going(command, env, log) as link:
        end = time.monotonic() + START_S
        while not _answers(it):
            if stopped():
                return None
            if link.poll() is not None or time.monotonic() > end:
                return f"flower-superlink does not start: {said(log)}"
            time.sleep(0.1)
        run = subprocess.run(
            [flower.program("flwr"), "run", str(app), flower.LINK], env=env, capture_output=True, text=True, check=False
        )
        if run.returncode:
            return f"flwr run fails: {last_words(run.stdout + run.stderr)}"
        return _hear(hearer, link, log, stopped, say)


def _hear(
    hearer: Hearer, link: subprocess.Popen[bytes], log: Path, stopped: Callable[[], bool], say: Callable[[str], None]
) -> str | None:
    """What the server's half tells, until it ends."""
    begun, end = False, time.monotonic() + START_S
    while not stopped():
        lines = hearer.hear(0.2)
        for line in lines or ():
            if line == DONE:
                return None
            say(line)
        begun = begun or bool(lines)
        if lines is None:
            return "the rounds have ended" if begun else f"the rounds do not start: {said(log)}"
        if link.poll() is not None:
            return f"flower-superlink has ended: {said(log)}"
        if not begun and time.monotonic() > end:
            return f"the rounds do not start: {said(log)}"
    return None


def _answers(it: Served) -> bool:
    """Whether the server is there. Raises UsageError for a certificate that this machine itself does not trust:
    Flower's programs here could not reach the server then."""
    try:
        with socket.create_connection((it.local, it.port), timeout=10) as connection:
            if it.tls is None:
                return True
            context = ssl.create_default_context(cafile=str(it.tls.authority))
            with context.wrap_socket(connection, server_hostname=it.local):
                return True
    except ssl.SSLCertVerificationError as error:
        raise UsageError(
            f"expected a certificate that is also good for {it.local}, since Flower's own programs use that, but: "
            f"{error.verify_message.rstrip('.')}; make one with subjectAltName IP:{it.local}, see docs/guide/fleet.md"
        ) from error
    except OSError:
        return False


def _free(host: str, port: int) -> None:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as it:
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            it.bind(address)
    except OSError as error:
        raise UsageError(
            f"expected an address of this machine that is free, but of {host}:{port} the system says: "
            f"{error.strerror}; give another --address"
        ) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
