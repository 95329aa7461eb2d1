"""A real MQTT broker on loopback, in a process that can be killed, and somebody who listens to all it has to say."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import started

PROGRAM = """
import asyncio, json, sys
from amqtt.broker import Broker
async def main():
    await Broker(json.loads(sys.argv[1])).start()
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def broker(port: int, login: tuple[str, str] | None = None, files: Path | None = None) -> Iterator[subprocess.Popen]:
    """Listens at the port, for everybody, or for one user and password; files: a directory for what that needs, which
    makes it speak TLS if it holds cert.pem and key.pem."""
    import json

    plugins: dict = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    listener: dict = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
    if login is not None:
        from pwdlib import PasswordHash
        from pwdlib.hashers.argon2 import Argon2Hasher

        assert files is not None
        (files / "passwords").write_text(f"{login[0]}:{PasswordHash((Argon2Hasher(),)).hash(login[1])}\n")
        plugins = {"amqtt.plugins.authentication.FileAuthPlugin": {"password_file": str(files / "passwords")}}
    if files is not None and (files / "cert.pem").exists():
        listener |= {"ssl": True, "certfile": str(files / "cert.pem"), "keyfile": str(files / "key.pem")}
    config = json.dumps({"listeners": {"default": listener}, "plugins": plugins})
    with started([sys.executable, "-c", PROGRAM, config]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
        yield process


class Subscriber:
    """Hears every topic, also what was said before it came, if that was retained."""

    def __init__(self, port: int) -> None:
        from paho.mqtt.client import CallbackAPIVersion, Client

        self.heard: list[tuple[str, str]] = []
        self._changed = threading.Condition()
        self._client = Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._on_message
        self._client.on_connect = lambda client, *_: client.subscribe("#", 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_message(self, _: object, __: object, message: object) -> None:
        with self._changed:
            self.heard.append((message.topic, message.payload.decode()))  # type: ignore[attr-defined]
            self._changed.notify_all()

    def hear(self, topic: str, containing: str = "", seconds: float = 30) -> str:
        """The newest payload of a topic with this in it, once there is one."""

        def found() -> list[str]:
            return [payload for t, payload in self.heard if t == topic and containing in payload]

        with self._changed:
            assert self._changed.wait_for(found, seconds), f"no {containing!r} of {topic} in {self.heard}"
            return found()[-1]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@contextmanager
def listening(port: int) -> Iterator[Subscriber]:
    subscriber = Subscriber(port)
    time.sleep(0.1)
    try:
        yield subscriber
    finally:
        subscriber.close()
