"""Count what passes: count.py HOST:PORT TOPIC FILE. Listens to what deco-run tells the broker, keeps the counts in FILE
as JSON, goes on from them when it is started again, and ends when the run does."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from paho.mqtt.client import CallbackAPIVersion, Client

where, topic, name = sys.argv[1:]
host, _, port = where.partition(":")
file = Path(name)
counts = Counter(json.loads(file.read_text("utf-8")) if file.exists() else {})
seen: set[str] = set()


def connected(client: Client, *_: Any) -> None:
    client.subscribe([(topic, 1), (f"{topic}/program", 1)])


def subscribed(*_: Any) -> None:
    file.write_text(json.dumps(counts), "utf-8")  # from here on nothing is missed


def told(client: Client, _: Any, message: Any) -> None:
    if message.retain:  # of before we came
        return
    if message.topic != topic:
        if message.payload == b"offline":
            client.disconnect()
        return
    change = json.loads(message.payload)
    # "lost" and "back" are of the camera; a class of null is none of the classes: nothing is at the gate.
    if change["event"] == "change" and change["class"] is not None and change["time"] not in seen:
        seen.add(change["time"])  # a message may arrive twice
        counts[change["class"]] += 1
        file.write_text(json.dumps(counts), "utf-8")


client = Client(CallbackAPIVersion.VERSION2)
client.on_connect, client.on_subscribe, client.on_message = connected, subscribed, told
try:
    client.connect(host, int(port or 1883))
except OSError as error:
    sys.exit(f"error: expected an MQTT broker at {where}, but the system says: {error.strerror}; start one")
client.loop_forever()
for what, count in counts.most_common():
    print(f"{what:>12} {count}")
