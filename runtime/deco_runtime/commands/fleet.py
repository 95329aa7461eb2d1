"""deco-fleet: devices that learn as one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.terminal import exit_with, interrupted, on_signals
from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet.member import LEAST
from deco_runtime.fleet.noise import check_epsilon
from deco_runtime.fleet.sums import HOW
from deco_runtime.telemetry.console import say, tell

PORT = 8000
DIRECTORY = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=SETTINGS)
def fleet() -> None:
    """Have devices learn as one: what each has learned, as sums, is added up at a server and handed back to all.

    \b
    deco-fleet serve --bundle bundle --state fleet-state --tls server.pem server.key ca.pem
    deco-fleet allow --state fleet-state device-1.pub
    deco-fleet join --state bundle-state --server fleet.example:8000 --root-certificates ca.pem --key device-1
    deco-fleet status --state fleet-state
    """


@fleet.command(context_settings=SETTINGS)
@click.option("--bundle", required=True, type=DIRECTORY, metavar="BUNDLE", help="That the devices have too.")
@click.option("--state", required=True, type=DIRECTORY, metavar="DIR", help="Where the fleet's sums are kept.")
@click.option("--tls", nargs=3, type=FILE, metavar="CERT KEY CA",
              help="The server's certificate and key, and the certificate of whoever signed it, all PEM. Only devices "
              "whose keys are allowed can join then.")  # fmt: skip
@click.option("--insecure", is_flag=True,
              help="No TLS and no keys: whoever reaches the address can join. It is 127.0.0.1 unless --address says "
              "otherwise.")  # fmt: skip
@click.option("--address", metavar="HOST:PORT",
              help=f"Where devices reach the server.  [default: 0.0.0.0:{PORT}; 127.0.0.1:{PORT} with --insecure]",
              )  # fmt: skip
@click.option("--recipe", type=RecipeName(), help="deco+, slda or paper.  [default: the bundle's]")
@click.option("--every", type=click.FloatRange(1), default=600.0, show_default=True, metavar="SECONDS",
              help="From one round to the next. One waits so long for devices, or a minute.")  # fmt: skip
@click.option("--how", type=click.Choice(HOW), default=HOW[0], show_default=True,
              help="Numbers that devices send; what smaller ones lose is sent later.")  # fmt: skip
@click.option("--least", type=click.FloatRange(1), default=LEAST, show_default=True, metavar="N",
              help="Frames that a device's difference must be of. A device may ask for more itself.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(0), default=0, metavar="N", help="After which it ends.  [default: never]")
def serve(
    bundle: Path, state: Path, tls: tuple[Path, Path, Path] | None, insecure: bool, address: str | None,
    recipe: str | None, every: float, how: str, least: float, rounds: int,
) -> int:  # fmt: skip
    """Add up what the devices of a fleet have learned, for ever.

    What is in --state is as safe as a device's: the server may be killed at any moment and goes on where it was. Ctrl-C
    or SIGTERM stops it.
    """
    from deco_runtime.fleet import flower
    from deco_runtime.page.access import is_loopback

    flower.needed()
    if insecure == bool(tls):
        raise UsageError("expected either --tls CERT KEY CA or --insecure, but found both or none; give one of them")
    host, port = _address(address or f"{'127.0.0.1' if insecure else '0.0.0.0'}:{PORT}")
    from deco_runtime.fleet.serving import Served, open_pool
    from deco_runtime.fleet.serving import serve as run
    from deco_runtime.storage.bundle import open_bundle

    opened = open_bundle(bundle)
    pool, _ = open_pool(opened, recipe or "", least, state)
    if "guard.npz" not in opened.files:
        say("warning: the bundle holds no labelled images for the guard, so what devices send is not scored; export it "
            "again with more labels")  # fmt: skip
    if insecure and not is_loopback(host):
        say(f"warning: whoever reaches {host}:{port} can join this fleet, and read what is sent")
    say(f"serves {bundle} at {host}:{port}; {len(pool.places)} devices are in it, of {pool.frames:.0f} {pool.UNIT}")
    del pool
    wanted = Served(
        bundle, state, recipe or "", host, port, every, how, least, rounds, flower.Tls(*tls) if tls else None
    )
    return _until_stopped(lambda stopped: run(wanted, stopped, say))


@fleet.command(context_settings=SETTINGS)
@click.option("--state", required=True, type=DIRECTORY, metavar="DIR", help="Of the device's run, BUNDLE-state.")
@click.option("--server", required=True, metavar="HOST:PORT", help="The address of deco-fleet serve.")
@click.option("--bundle", type=DIRECTORY, metavar="BUNDLE",
              help="What the state is of, where no run is on.  [default: DIR without '-state']")  # fmt: skip
@click.option("--root-certificates", type=FILE, metavar="CA",
              help="Certificate of whoever signed the server's, PEM.  [default: those that the system trusts]",
              )  # fmt: skip
@click.option("--key", type=FILE, metavar="FILE", help="The device's private key, whose other half is allowed.")
@click.option("--insecure", is_flag=True, help="No TLS and no key, as the server.")
@click.option("--least", type=click.FloatRange(1), default=LEAST, show_default=True, metavar="N",
              help="Frames that leave the device together, whatever the server asks for.")  # fmt: skip
@click.option("--noise", type=float, metavar="EPSILON",
              help="Put noise on what leaves the device: (EPSILON, 1e-6)-differential privacy of any one frame. Costs "
              "accuracy; what was learned before stays on the device.")  # fmt: skip
def join(
    state: Path, server: str, bundle: Path | None, root_certificates: Path | None, key: Path | None, insecure: bool,
    least: float, noise: float | None,
) -> int:  # fmt: skip
    """Have a device learn with its fleet, beside its run or without one.

    Goes on until Ctrl-C or SIGTERM, also while the server is away. Of the device leave sums over frames alone; the
    server's sums go through the device's own guard.
    """
    from deco_runtime.fleet import flower

    flower.needed()
    _address(server)
    if insecure and (key or root_certificates):
        raise UsageError("expected --insecure alone, but found a key or a certificate beside it; leave one of them out")
    if not insecure and key is None:
        raise UsageError("expected --key FILE, the device's private key, but found none; give one, or --insecure")
    if noise is not None:
        check_epsilon(noise)
    from deco_runtime.fleet.joining import Joined
    from deco_runtime.fleet.joining import join as run

    say(f"{state} learns with the fleet at {server}")
    wanted = Joined(state, server, bundle, root_certificates, key, insecure, least, noise)
    return _until_stopped(lambda stopped: run(wanted, stopped, say))


@fleet.command(context_settings=SETTINGS)
@click.argument("key", type=FILE)
@click.option("--state", required=True, type=DIRECTORY, metavar="DIR", help="Of deco-fleet serve, which goes on.")
def allow(key: Path, state: Path) -> int:
    """Let a device join whose public key this is, as ssh-keygen writes it. On the server's own machine."""
    from deco_runtime.fleet import flower
    from deco_runtime.fleet.keeper import last_words

    flower.needed()
    folder = state / flower.FOLDER
    if not (folder / "config.toml").exists():
        raise StateError(f"expected a fleet's server in {state}, but found none; start deco-fleet serve first")
    done = subprocess.run(
        [flower.program("flwr"), "supernode", "register", str(key), flower.LINK, "--format", "json"],
        env=flower.environment(folder), capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = _json(done.stdout)
    if done.returncode or not answer.get("success"):
        why = answer.get("error-message") or last_words(done.stdout + done.stderr)
        raise StateError(f"expected the server to allow {key}, but it says: {last_words(str(why))}; mend that")
    say(f"node {answer['node-id']} may join")
    return 0


@fleet.command(context_settings=SETTINGS)
@click.option("--state", required=True, type=DIRECTORY, metavar="DIR", help="Of deco-fleet serve.")
def status(state: Path) -> int:
    """Show a fleet: its devices, the last round, what was refused and why, and what the fleet is worth."""
    from deco_runtime.fleet.status import lines

    for line in lines(state):
        tell(line)
    return 0


def _until_stopped(run: Callable[[Callable[[], bool]], None]) -> int:
    """Until a signal asks for the end, which is none of an error."""
    signals: list[int] = []
    on_signals(lambda number, _: signals.append(number))
    run(lambda: bool(signals) or interrupted())
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"expected HOST:PORT, but found {text!r:.60}; give both, as in 127.0.0.1:{PORT}")
    return host, int(port)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    sys.exit(exit_with(fleet))
