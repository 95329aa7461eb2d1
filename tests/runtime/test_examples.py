"""The examples as they are, with the test's bundle in place of the demo's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib import util
from pathlib import Path

import pytest
from mqtt_broker import broker, free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def ended(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Its script with these arguments, after it ended."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(EXAMPLES / name / "run.sh"), *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def run(name: str, *arguments: str | Path) -> str:
    """What it says on standard output."""
    done = ended(name, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.everywhere
@pytest.mark.skipif(
    util.find_spec("paho") is None or util.find_spec("amqtt") is None, reason="needs paho-mqtt and amqtt, see [dev]"
)
def test_the_gate_counts_what_was_told(bundle_path: Path, tmp_path: Path) -> None:
    port = free_port()
    with broker(port):
        said = run("gate", f"127.0.0.1:{port}", bundle_path, tmp_path)
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text("utf-8").splitlines()[:-1]]
    expected = Counter(change["class"] for change in told if change["class"] is not None)
    assert expected.total() > 5
    assert json.loads((tmp_path / "counts.json").read_text("utf-8")) == expected
    assert {name: int(count) for name, count in map(str.split, said.splitlines())} == expected


@pytest.mark.everywhere
@pytest.mark.skipif(util.find_spec("paho") is None, reason="needs paho-mqtt, see [dev]")
def test_the_gate_without_a_broker_is_a_sentence(bundle_path: Path, tmp_path: Path) -> None:
    done = ended("gate", f"127.0.0.1:{free_port()}", bundle_path, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: expected an MQTT broker at 127.0.0.1:")
    assert done.stderr.count("\n") == 1


def test_the_sorter_knows_what_it_was_taught_until_that_is_undone(bundle_path: Path, tmp_path: Path) -> None:
    said = run("sorter", bundle_path, tmp_path / "sorter")
    before, taught, undone = (part.splitlines()[1:] for part in said.strip().split("\n\n"))
    assert "square-nut" not in "".join(before)
    count, name = taught[0].split()
    assert name == '"square-nut"'
    assert int(count) > 15  # of 30 frames
    assert undone == before
