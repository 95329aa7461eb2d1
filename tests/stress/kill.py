"""Hundreds of SIGKILLs of a real learning deco-run, at random moments and in the middle of saves.

    python tests/stress/kill.py BUNDLE --recipe paper --kills 500 --out kills.json

BUNDLE: of deco-export --data digits --ipc 10.

One run after the other goes on from the state of the one before until a replayed stream is learned to its end, and is
killed on the way: half of them at any moment, half at a save. After each kill every file's checksum is right, the
state loads or none was ever saved, nothing that an event calls saved is gone, and no count is lower than before. At the
end of the stream model, memory, generator, counts and what the guard keeps are those of a run that nobody disturbed,
bit for bit.

Takes some seconds per kill, fewer where onnxruntime is not the training build. Not a part of the tests that always run.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Guarded
from deco_runtime.running.assemble import open_guard
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle
from figures import publish

SEGMENTS = 60
RECIPES = {
    "paper": ("segment=16", "retrain_interval=3", "retrain_epochs=3", "iterations=2"),
    "deco+": ("segment=16", "retrain_interval=3"),
    "slda": ("segment=16", "retrain_interval=3"),
}
TEMPORARY = f"{states.CURRENT}.tmp"


def start(bundle: Path, recipe: str, state: Path, events: Path, segments: int) -> subprocess.Popen[bytes]:
    settings = [word for setting in RECIPES[recipe] for word in ("--set", setting)]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "deco_runtime.commands.run", "--bundle", str(bundle), "--engine", "portable"),
            *("--video", str(bundle / "demo" / "stream.avi")),  # as --demo, but scored on nothing
            *("--state", str(state), "--events", str(events), "--save-every", "0"),
            *("--max-segments", str(segments), "--recipe", recipe, *settings),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes]) -> int:
    _, said = process.communicate(timeout=300)
    if process.returncode not in (0, -9):
        raise AssertionError(f"a run ended with {process.returncode}: {said.decode(errors='replace')}")
    return process.returncode


def reported(events: Path, kind: str, key: str) -> int:
    """The highest segment that events of this kind name; a line that a kill cut short is none."""
    best = 0
    for line in events.read_text("utf-8").splitlines() if events.exists() else []:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == kind and event.get("ok", True):
            best = max(best, event[key])
    return best


def same(a: states.LearnedState, b: states.LearnedState) -> bool:
    arrays = [{name: array.tobytes() for name, array in s.arrays.items()} for s in (a, b)]
    return arrays[0] == arrays[1] and (a.values, a.position, a.digest) == (b.values, b.position, b.digest)


def wait_for_a_save(process: subprocess.Popen[bytes], state: Path, saves: int) -> None:
    """Until the temporary file has appeared so many times, or the process has ended."""
    while saves and process.poll() is None:
        if (state / TEMPORARY).exists():
            saves -= 1
            while saves and (state / TEMPORARY).exists() and process.poll() is None:
                time.sleep(0.0002)
        time.sleep(0.0002)


def check(bundle: Bundle, fresh: Guarded, state: Path, events: Path, before: int, tally: dict[str, Any]) -> int:
    """Everything that has to hold after a kill; the segments that the state has."""
    for name in (states.CURRENT, states.PREVIOUS):
        if (state / name).exists():
            data = (state / name).read_bytes()
            assert hashlib.sha256(data[32:]).digest() == data[:32], f"{name} has a wrong checksum"
    loaded, note = states.load(state, bundle, fresh)
    assert note is None, note
    segments = loaded.values["counts"]["segments"] if loaded else 0
    learned, saved = reported(events, "segment", "number"), reported(events, "save", "segment")
    assert segments >= max(before, saved), f"{segments} segments, but {saved} were reported as saved, {before} before"
    assert segments <= max(before, learned), f"{segments} segments, but {learned} were learned"
    tally["state_absent"] += loaded is None
    tally["in_the_middle_of_a_save"] += (state / TEMPORARY).exists()
    tally["between_the_two_renames"] += loaded is not None and not (state / states.CURRENT).exists()
    tally["most_segments_lost"] = max(tally["most_segments_lost"], learned - segments)
    return segments


@click.command(context_settings={"show_default": True})
@click.argument("bundle_path", metavar="BUNDLE", type=click.Path(path_type=Path, exists=True))
@click.option("--recipe", default="paper", type=click.Choice(sorted(RECIPES)), help="What the runs learn by.")
@click.option("--kills", default=500, type=click.IntRange(1))
@click.option("--seed", default=0)
@click.option("--out", type=click.Path(path_type=Path), help="Where the figures go, as JSON.")
def main(bundle_path: Path, recipe: str, kills: int, seed: int, out: Path | None) -> None:
    """Kill deco-run again and again, and check what it leaves behind."""
    bundle, chance, begun = open_bundle(bundle_path), random.Random(seed), time.monotonic()
    kind = registry.learner(recipe)
    learner = kind.open(bundle, open_engine(bundle, "portable"), kind.RECIPE, np.random.default_rng(0))
    fresh, _ = open_guard(bundle, learner)
    tally: dict[str, Any] = dict.fromkeys(
        ("kills", "before_the_first_frame", "in_the_middle_of_a_save", "between_the_two_renames", "state_absent"), 0
    )
    tally |= {"most_segments_lost": 0, "streams_finished": 0, "streams_equal_to_undisturbed": 0}
    with tempfile.TemporaryDirectory() as place:
        whole, state, events = Path(place) / "whole", Path(place) / "state", Path(place) / "events"
        assert ended(start(bundle_path, recipe, whole, events, SEGMENTS)) == 0
        alone = time.monotonic() - begun
        target, _ = states.load(whole, bundle, fresh)
        assert target is not None
        segments = 0
        while tally["kills"] < kills or segments:
            events.unlink(missing_ok=True)
            process = start(bundle_path, recipe, state, events, SEGMENTS - segments)
            if tally["kills"] < kills:
                if chance.random() < 0.5:
                    wait_for_a_save(process, state, chance.randint(1, 12))
                    time.sleep(chance.uniform(0, 0.004))
                else:
                    time.sleep(chance.uniform(0, alone))
                process.kill()
            killed = ended(process) == -9
            tally["kills"] += killed
            tally["before_the_first_frame"] += killed and reported(events, "segment", "number") == 0
            segments = check(bundle, fresh, state, events, segments, tally)
            assert killed or segments == SEGMENTS
            if segments == SEGMENTS:
                found, _ = states.load(state, bundle, fresh)
                assert found is not None
                tally["streams_finished"] += 1
                tally["streams_equal_to_undisturbed"] += same(found, target)
                shutil.rmtree(state)
                segments = 0
            if tally["kills"] % 20 == 0:
                click.echo(f"{time.monotonic() - begun:.0f} s: {tally}", err=True)
    assert tally["streams_equal_to_undisturbed"] == tally["streams_finished"]
    figures = {
        **tally,
        "segments_of_a_stream": SEGMENTS,
        "recipe": (recipe, *RECIPES[recipe]),
        "weights": bundle.weight_count,
        "seed": seed,
        "seconds": round(time.monotonic() - begun),
    }
    publish(figures, out)


if __name__ == "__main__":
    main()
