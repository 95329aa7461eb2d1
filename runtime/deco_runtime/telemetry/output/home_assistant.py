"""What Home Assistant is told over MQTT to show a stream's class as a sensor: its discovery, by a retained message."""

from __future__ import annotations

import hashlib
import json
import re

ONLINE, OFFLINE = b"online", b"offline"


def sensor(broker: str, topic: str, program: str, camera: str, state: str, stream: int) -> tuple[str, bytes]:
    """Behind the discovery prefix, the topic of the configuration, and the configuration.

    broker, topic: of the output, which the sensor's identity is made of, so that it stays the same over every run.
    program, camera: topics that say online or offline. state: the topic of the answers.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", topic).strip("_") or "camera"
    identity = f"deco_{name[:40]}_{hashlib.sha256(f'{broker} {topic}'.encode()).hexdigest()[:8]}"
    number = f"_{stream}" if stream else ""
    config = {
        "name": f"class {stream}" if stream else "class",
        "unique_id": f"{identity}{number}",
        "state_topic": state,
        "value_template": "{{ value_json.class if value_json.class is not none else 'none' }}",
        "json_attributes_topic": state,
        "availability": [{"topic": program}, {"topic": camera}],
        "availability_mode": "all",
        "payload_available": ONLINE.decode(),
        "payload_not_available": OFFLINE.decode(),
        "icon": "mdi:cctv",
        "device": {"identifiers": [identity], "name": f"DECO {topic}", "manufacturer": "DECO"},
        "origin": {"name": "deco-edge"},
    }
    return f"sensor/{identity}{number}/config", json.dumps(config).encode()
