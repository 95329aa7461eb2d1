"""docs/reference is what the code says: the generated pages as `scripts/reference` writes them, the others by what runs
write."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reference
from deco_runtime.telemetry import event_log
from mjpeg_server import mjpeg_server, numbered
from processes import events

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
BY_OTHER_NAMES = {"votes", "paused_seconds"}
"""Figures by class, and by a reason that the row of `resources` has."""
REFERS = {"source": ["The summary\n"], "summary": ["The summary\n", "`segment`\n"]}
"""Sections that say something of figures which others have too."""
QUICK = ["--set", "segment=16", "--set", "retrain_interval=2", "--max-segments", "4", "--save-every", "0"]
PAPER = [*QUICK, "--set", "iterations=2", "--set", "retrain_epochs=3"]


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    written = (reference.DOCS / name).read_text("utf-8")
    assert reference.PAGES[name]() == written, f"docs/reference/{name} is old: run scripts/reference"


def test_every_command_is_in_it() -> None:
    installed = re.findall(r'^(deco-\w+) = "deco_runtime\.start:', PROJECT.read_text("utf-8"), re.MULTILINE)
    assert sorted(installed) == sorted({"deco-run", *reference.GROUPS})


def test_every_happening_is_in_it() -> None:
    there = {name for name, kind in vars(reference.happenings).items() if hasattr(kind, "__dataclass_fields__")}
    brought = {"Frame", "Notice", "RetrainReport", "SegmentReport", "Verdict"}
    assert {kind.__name__ for _, kind in reference.records()} == there - brought


@cache
def told_of(event: str) -> frozenset[str]:
    """What docs/reference/events.md names, in `…`, of an event: of every line, in its row, in its section and in one
    that this refers to."""
    text = (reference.DOCS / "events.md").read_text("utf-8").partition(reference.MARK)[0]
    first, *sections = text.split("\n### ")
    lead, *rows = first.split("\n| ")
    about = [lead, *(row for row in rows if row.startswith(f"`{event}` |"))]
    about += [each for each in sections if each.startswith((f"`{event}`\n", *REFERS.get(event, ())))]
    return frozenset(re.findall(r"`([^`]+)`", " ".join(about)))


def keys(figures: dict[str, Any]) -> Iterator[str]:
    """Names of figures, also of those inside others."""
    for key, value in figures.items():
        yield key
        inner = [] if key in BY_OTHER_NAMES else value if isinstance(value, list) else [value]
        for each in inner:
            yield from keys(each) if isinstance(each, dict) else ()


def run(bundle: Path, folder: Path, *more: str) -> list[dict[str, Any]]:
    """Events of a real run, and its summary as the last one."""
    command = [sys.executable, "-m", "deco_runtime.commands.run", "--bundle", str(bundle), "--engine", "portable"]
    command += ["--state", str(folder / "state"), "--events", str(folder / "events.jsonl"), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "summary").write_text(f'{{"event": "summary", {done.stdout.splitlines()[-1].lstrip("{")}\n', "utf-8")
    return [*events(folder / "events.jsonl"), *events(folder / "summary")]


@pytest.mark.usefixtures("no_torch_in_processes")
@pytest.mark.parametrize(
    "more", [["--recipe", "paper", *PAPER], ["--recipe", "deco+", *QUICK], ["--recipe", "slda", *QUICK]]
)
def test_what_a_run_writes_is_told(more: list[str], bundle_path: Path, tmp_path: Path) -> None:
    lines = run(bundle_path, tmp_path, "--demo", *more)
    assert {"state", "source", "segment", "guard", "score", "save", "summary"} <= {line["event"] for line in lines}
    assert unknown(lines) == {}


@pytest.mark.usefixtures("no_torch_in_processes")
def test_what_a_run_with_a_camera_writes_is_told(bundle_path: Path, tmp_path: Path) -> None:
    with mjpeg_server(numbered) as url:
        lines = run(bundle_path, tmp_path, "--video", url, *QUICK)
    assert unknown(lines) == {}


def unknown(lines: list[dict[str, Any]]) -> dict[str, set[str]]:
    """By event, what its lines have and the page does not name."""
    found = {line["event"]: {*keys(line)} - told_of(line["event"]) for line in lines}
    return {event: left for event, left in found.items() if left}


def test_what_the_code_can_write_is_told() -> None:
    """Of events that take a person or a hot board: what stands in the calls that write them."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(event_log))) if isinstance(node, ast.Call)]
    written = [
        {"event": call.args[0].value, **{word.arg: None for word in call.keywords if word.arg}}
        for call in calls
        if ast.unparse(call.func) == "self.write" and isinstance(call.args[0], ast.Constant)
    ]
    assert {"teach", "hold", "back", "judged", "fleet", "resources"} <= {line["event"] for line in written}
    assert unknown(written) == {}
