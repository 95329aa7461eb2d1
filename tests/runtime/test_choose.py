"""Which engine auto takes: timed in real processes where there are two, which the device environment has not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deco_runtime.engines import autoselect
from deco_runtime.engines.autoselect import FILE, fastest
from deco_runtime.engines.registry import by_preference
from deco_runtime.learning import registry
from deco_runtime.learning.deco import Deco
from deco_runtime.storage.bundle import open_bundle

GRAPH = Deco.GRAPH


@pytest.fixture(scope="module")
def usable(bundle_path: Path) -> list[str]:
    return [name for name, reason in by_preference(open_bundle(bundle_path)).items() if reason is None]


@pytest.fixture(scope="module")
def timed(bundle_path: Path, usable: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory where the engines were timed."""
    if len(usable) < 2:
        pytest.skip(f"only {usable[0]} runs here, so there is nothing to choose")
    directory = tmp_path_factory.mktemp("timed") / "state"
    name, words = fastest(open_bundle(bundle_path), directory, GRAPH)
    seconds = json.loads((directory / FILE).read_text("utf-8"))["seconds"]
    assert sorted(seconds) == sorted(usable)
    assert seconds[name] == min(s for s in seconds.values() if s is not None) > 0
    assert words is not None
    assert words.startswith(f"--engine auto takes {name}; the weight gradient of 16 images takes ")
    return directory


def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an engine would be timed."""
    monkeypatch.setattr(autoselect, "run_job", lambda *_, **__: pytest.fail("timed again"))


def test_one_engine_needs_no_timing(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usable: list[str]
) -> None:
    untimed(monkeypatch)
    monkeypatch.setattr(
        autoselect, "by_preference", lambda bundle, precision: {usable[0]: None, "other": "not installed"}
    )
    assert fastest(open_bundle(bundle_path), tmp_path, GRAPH) == ("auto", None)
    assert list(tmp_path.iterdir()) == []


def test_times_are_kept(bundle_path: Path, timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    untimed(monkeypatch)
    kept = json.loads((timed / FILE).read_text("utf-8"))
    slowest = max(kept["seconds"], key=lambda name: kept["seconds"][name] or 0)
    kept["seconds"] = {name: 1.5 if name == slowest else None for name in kept["seconds"]}
    other = timed.with_name("other")
    other.mkdir()
    (other / FILE).write_text(json.dumps(kept), "utf-8")
    name, words = fastest(open_bundle(bundle_path), other, GRAPH)
    assert name == slowest
    assert f"{slowest} 1.5e+03 ms" in words
    assert words.count(" fails") == len(kept["seconds"]) - 1


@pytest.mark.parametrize("graph", sorted({kind.GRAPH for kind in registry.learners().values()} - {GRAPH}))
def test_each_learner_is_timed_by_the_graph_that_it_needs_most(
    graph: str, bundle_path: Path, timed: Path, tmp_path: Path
) -> None:
    before = json.loads((timed / FILE).read_text("utf-8"))
    (tmp_path / FILE).write_text(json.dumps(before), "utf-8")  # of another graph
    name, words = fastest(open_bundle(bundle_path), tmp_path, graph)
    assert words is not None
    assert words.startswith(f"--engine auto takes {name}; the {graph} of 16 images takes ")
    again = json.loads((tmp_path / FILE).read_text("utf-8"))
    assert again["machine"] == {**before["machine"], "graph": graph}
    assert again["seconds"] != before["seconds"]
    assert before["machine"]["graph"] == GRAPH == "weight_gradient"


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: json.dumps({**kept, "machine": {**kept["machine"], "threads": 99}}),
        lambda kept: json.dumps({**kept, "seconds": {"portable": 1.0}}),
        lambda kept: json.dumps({**kept, "seconds": dict.fromkeys(kept["seconds"], "soon")}),
        lambda kept: json.dumps([kept]),
        lambda kept: "{",
        lambda kept: "[" * 100_000,
        lambda kept: "",
    ],
    ids=["other-machine", "other-engines", "no-numbers", "list", "cut", "deep", "empty"],
)
def test_what_does_not_fit_is_timed_again(
    change, bundle_path: Path, timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = (timed / FILE).read_text("utf-8")
    (tmp_path / FILE).write_text(change(json.loads(good)), "utf-8")
    monkeypatch.setattr(autoselect, "_seconds", lambda *_: 2.0)  # the real one ran for `timed`
    fastest(open_bundle(bundle_path), tmp_path, GRAPH)
    again = json.loads((tmp_path / FILE).read_text("utf-8"))
    assert again["machine"] == json.loads(good)["machine"]
    assert set(again["seconds"].values()) == {2.0}


def test_engines_that_all_hang_leave_the_choice_to_preference(
    bundle_path: Path, timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoselect, "LIMIT_S", 0.01)
    assert fastest(open_bundle(bundle_path), tmp_path, GRAPH) == ("auto", None)


def test_a_place_that_cannot_be_written_does_not_matter(
    bundle_path: Path, timed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoselect, "_seconds", lambda *_: 2.0)
    (tmp_path / "file").touch()
    assert fastest(open_bundle(bundle_path), tmp_path / "file" / "state", GRAPH)[1] is not None


def run(bundle_path: Path, state: Path, *more: str) -> subprocess.CompletedProcess[str]:
    program = "from deco_runtime.commands.run import main; main()"
    command = [sys.executable, "-c", program, "--bundle", str(bundle_path), "--state", str(state), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_first_frame_does_not_wait_for_the_times(bundle_path: Path, usable: list[str], tmp_path: Path) -> None:
    """They are taken when there is a segment to learn: not before the source is opened, nor for predictions alone."""
    if len(usable) < 2:
        pytest.skip(f"only {usable[0]} runs here, so there is nothing to choose")
    state = tmp_path / "state"
    done = run(bundle_path, state, "--video", "rtsp://127.0.0.1:1/mistyped")
    assert done.returncode == 6
    done = run(bundle_path, state, "--demo", "--set", "segment=4096")
    assert json.loads(done.stdout.splitlines()[-1])["engine"] == usable[0]
    assert not (state / FILE).exists()
    done = run(bundle_path, state, "--demo", "--set", "segment=16", "--set", "iterations=1", "--max-segments", "1")
    kept = json.loads((state / FILE).read_text("utf-8"))["seconds"]
    best = min((name for name in kept if kept[name] is not None), key=lambda name: kept[name])
    assert f"--engine auto takes {best};" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["engine"] == best


def test_deco_run_takes_it_and_says_so(bundle_path: Path, timed: Path) -> None:
    kept = json.loads((timed / FILE).read_text("utf-8"))["seconds"]
    best = min((name for name in kept if kept[name] is not None), key=lambda name: kept[name])
    done = run(bundle_path, timed, "--demo", "--set", "segment=16", "--set", "iterations=1", "--max-segments", "1")
    assert f"--engine auto takes {best};" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["engine"] == best
