"""`--output mqtt://…`: answers to an MQTT broker, and a sensor of Home Assistant without any set-up there."""

from __future__ import annotations

import ssl
from contextlib import suppress
from importlib import util
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from deco_runtime.errors import RuntimeMissingError, UsageError, first_line
from deco_runtime.telemetry.output import TIMEOUT_S, NotSentError, Way
from deco_runtime.telemetry.output.address import Address, parse
from deco_runtime.telemetry.output.home_assistant import OFFLINE, ONLINE, sensor
from deco_runtime.telemetry.output.message import Message

if TYPE_CHECKING:
    from paho.mqtt.client import Client

SCHEMES = ("mqtt", "mqtts")
NETWORK = True
EXAMPLE = "mqtt://HOST/TOPIC"

KEEP_ALIVE_S = 30
"""After which a broker that hears nothing says what the last will is."""
PREFIX = "homeassistant"
"""Where Home Assistant looks for configurations, unless it is told otherwise."""


class Mqtt:
    """See `Way`. All messages are retained and acknowledged (QoS 1): who comes later sees what is now.

    TOPIC has the JSON of stream 0, TOPIC/N of stream N; TOPIC/program and TOPIC[/N]/camera say online or offline.
    """

    def __init__(self, address: Address, topic: str, prefix: str = PREFIX, timeout_s: float = TIMEOUT_S) -> None:
        """prefix: "" for no configuration of Home Assistant."""
        self.name = f"{address.place}/{topic}"
        self._address, self._topic, self._prefix, self._timeout_s = address, topic, prefix, timeout_s
        self._client: Client | None = None
        self._program = f"{topic}/program"
        self._known: dict[str, bytes] = {}  # what each topic says last, for a broker that has forgotten it
        self._streams: set[int] = set()

    def send(self, message: Message) -> None:
        if message.stream not in self._streams:
            self._introduce(message.stream)
        if message.kind in ("lost", "back"):
            topic, payload = f"{self._of(message.stream)}/camera", OFFLINE if message.kind == "lost" else ONLINE
        else:
            topic, payload = self._of(message.stream), message.json()
        self._known[topic] = payload
        if self._connected() is None:  # else it was among what was said on connecting
            self._publish(topic, payload)

    def tend(self) -> bool:
        if not self._streams:
            self._introduce(0)
        self._connected()
        return True

    def close(self) -> None:
        if self._client is not None and self._client.is_connected():
            self._publish(self._program, OFFLINE)
        self._leave()

    def _of(self, stream: int) -> str:
        return f"{self._topic}/{stream}" if stream else self._topic

    def _introduce(self, stream: int) -> None:
        """What is to be known of a stream before its first answer."""
        self._streams.add(stream)
        state = self._of(stream)
        said = {f"{state}/camera": ONLINE}
        if self._prefix:
            path, config = sensor(self._address.place, self._topic, self._program, f"{state}/camera", state, stream)
            said[f"{self._prefix}/{path}"] = config
        self._known |= said
        if self._client is not None and self._client.is_connected():
            for topic, payload in said.items():
                self._publish(topic, payload)

    def _connected(self) -> bool | None:
        """Connect unless it is, and say all that is known. None where it was connected already."""
        if self._client is not None and self._client.is_connected():
            return None
        self._leave()
        try:
            self._client = self._connect()
        except (OSError, ValueError) as error:
            raise NotSentError(_words(error)) from error
        for topic, payload in {**self._known, self._program: ONLINE}.items():
            self._publish(topic, payload)
        return True

    def _connect(self) -> Client:
        from paho.mqtt.client import CallbackAPIVersion, Client

        answers: SimpleQueue[str] = SimpleQueue()  # "" for welcome

        def answered(_: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            answers.put(f"the broker says: {reason}" if reason.is_failure else "")

        address = self._address
        client = Client(CallbackAPIVersion.VERSION2, reconnect_on_failure=False)  # here, so that all is said anew
        client.connect_timeout = self._timeout_s
        client.on_connect = answered
        client.on_disconnect = lambda *_: answers.put("the broker hangs up")
        if address.user is not None:
            client.username_pw_set(address.user, address.password)
        secure = address.scheme == "mqtts"
        if secure:
            client.tls_set_context(ssl.create_default_context())
        client.will_set(self._program, OFFLINE, qos=1, retain=True)
        client.connect(address.host, address.port or (8883 if secure else 1883), KEEP_ALIVE_S)
        client.loop_start()
        try:
            words = answers.get(timeout=self._timeout_s)
        except Empty:
            words = "the broker does not answer in time"
        if words:
            self._client = client
            self._leave()
            raise NotSentError(words)
        return client

    def _publish(self, topic: str, payload: bytes) -> None:
        assert self._client is not None
        try:
            sent = self._client.publish(topic, payload, qos=1, retain=True)
            sent.wait_for_publish(self._timeout_s)
            arrived = sent.is_published()
        except (ValueError, RuntimeError):
            arrived = False
        if not arrived:
            self._leave()
            raise NotSentError("the broker does not take it in time")

    def _leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(OSError, ValueError):
                client.disconnect()
            client.loop_stop()


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it cannot be reached in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; SSL_CERT_FILE names a file of your own"
    if isinstance(error, OSError) and error.strerror:
        return f"the system says: {error.strerror}"
    return first_line(error)


def open_way(address: str) -> Way:
    """See the package."""
    found = parse(address, EXAMPLE)
    topic, prefix = unquote(found.path.strip("/")), PREFIX
    asked = dict(parse_qsl(found.query, keep_blank_values=True))
    prefix = asked.pop("discovery", PREFIX).strip("/")
    if not topic or len(topic) > 1000 or set(topic + prefix) & {"+", "#", "\0"} or not topic.isprintable() or asked:
        raise UsageError(
            f"expected --output {found.place} to be followed by a topic without + and #, and at most "
            f"?discovery=PREFIX, as in {EXAMPLE}; change it"
        )
    if not _usable():
        raise RuntimeMissingError(
            "expected the package paho-mqtt 2 for --output mqtt://…, but found none; install 'deco-edge[mqtt]'"
        )
    return Mqtt(found, topic, prefix)


def _usable() -> bool:
    """Whether there is a paho-mqtt of version 2; the one before has another interface."""
    if util.find_spec("paho") is None or util.find_spec("paho.mqtt") is None:
        return False
    from paho.mqtt import client

    return hasattr(client, "CallbackAPIVersion")
