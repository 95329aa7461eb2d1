"""What Flower needs of a fleet's machine: its programs, its folder, the app that it starts.

Its folder is `flower` in the state directory: database, log, and settings, so that nothing of it is in a home.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from deco_runtime.errors import RuntimeMissingError, StateError
from deco_runtime.host.job import PYTHON
from deco_runtime.storage.lock import lock

FOLDER = "flower"
LINK = "fleet"
"""The name of the server in Flower's settings."""
VERSION = "1.42."
"""Of Flower: its programs and what is guarded of them change from one to the next."""

_SETTINGS = """[superlink]
default = "{link}"

[superlink.{link}]
address = {address}
{safety}
"""
_APP = """[project]
name = "deco-fleet"
version = "1.0.0"
description = "A fleet of DECO-edge"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "deco-edge"

[tool.flwr.app.components]
serverapp = "deco_fleet_app:server"
clientapp = "deco_fleet_app:client"

[tool.flwr.app.config]
{config}
"""
# Flower looks for the two names in the text before it imports it.
_MODULE = """from deco_runtime.fleet import _client_app, _server_app

client = _client_app.client
server = _server_app.server
"""


@dataclass(frozen=True)
class Tls:
    """Files of the server: its certificate and key, and the certificate of whoever signed that."""

    certificate: Path
    key: Path
    authority: Path


def needed() -> None:
    """Raises RuntimeMissingError unless Flower is there, in the version that this is made for."""
    if util.find_spec("flwr") is None:
        raise RuntimeMissingError(
            "expected Flower for a fleet, but found no module flwr; install 'deco-edge[fleet]' (Python 3.11 or newer)"
        )
    if not (found := metadata.version("flwr")).startswith(VERSION):
        raise RuntimeMissingError(
            f"expected Flower {VERSION}x for a fleet, but found {found}; install 'deco-edge[fleet]' again"
        )


def program(name: str) -> str:
    """Path of one of Flower's commands. Raises RuntimeMissingError where it is not."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise RuntimeMissingError(f"expected the command {name}, but found none; install 'deco-edge[fleet]' again")
    return found


def ours(module: str, *arguments: str) -> list[str]:
    """A command that runs a module of this package."""
    return [*PYTHON, "-m", f"deco_runtime.fleet.{module}", *arguments]


def home(directory: Path) -> Path:
    """Flower's folder, made for its owner alone, and held until this process ends. Raises StateError where it cannot
    be made, or another process has it."""
    folder = directory / FOLDER
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        lock(folder)
    except BlockingIOError:
        raise StateError(
            f"expected to be the only deco-fleet with {directory}, but found another one; stop that one"
        ) from None
    except OSError as error:
        raise StateError(
            f"expected to make {folder}, but the system says: {error.strerror}; choose another --state"
        ) from error
    return folder


def environment(folder: Path, **more: str) -> dict[str, str]:
    """In which Flower's programs find each other and their folder, and tell nobody else that they run."""
    return (
        os.environ
        | {
            "PATH": _path(),
            "FLWR_HOME": str(folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOG_LEVEL": "WARNING",
        }
        | more
    )


def write_settings(folder: Path, address: str, tls: Tls | None) -> None:
    """Where `flwr` finds the server, for this machine."""
    safety = "insecure = true" if tls is None else f"root-certificates = {_text(tls.authority.resolve())}"
    text = _SETTINGS.format(link=LINK, address=_text(address), safety=safety)
    (folder / "config.toml").write_text(text, "utf-8")


def write_app(folder: Path, config: Mapping[str, str | int | float]) -> Path:
    """The folder that `flwr run` takes; config: what the server's half is told."""
    app = folder / "app"
    app.mkdir(exist_ok=True)
    lines = "\n".join(f"{key} = {_text(value) if isinstance(value, str) else value}" for key, value in config.items())
    (app / "pyproject.toml").write_text(_APP.format(config=lines), "utf-8")
    (app / "deco_fleet_app.py").write_text(_MODULE, "utf-8")
    return app


def _path() -> str:
    own = dict.fromkeys((str(Path(sys.executable).parent), sysconfig.get_path("scripts")))
    return os.pathsep.join([*own, os.environ.get("PATH", os.defpath)])


def _text(value: str | Path) -> str:
    """As TOML has it."""
    return json.dumps(str(value), ensure_ascii=False)
