"""The experiments on a fleet, on the digits of the small bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from deco_benchmarks.fleet import footage, scale, secure, shared
from deco_benchmarks.fleet.__main__ import main
from deco_benchmarks.fleet.shared import Home
from deco_runtime.fleet.sums import HOW, unpacked
from deco_runtime.storage.bundle import open_bundle

SMALL = ["--segment", "8", "--least", "8"]


@pytest.fixture(scope="module")
def seen(bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `observe` keeps of images of train/ and test/."""
    root = tmp_path_factory.mktemp("fleet")
    pixels, labels = open_bundle(bundle_path).labelled_pixels("demo/test.npz")
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        place = root / "data" / ("test" if number % 3 == 0 else "train") / str(label)
        place.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(place / f"{number // 10}_{number % 10}.png"), image)
    run("observe", "--bundle", bundle_path, "--data", root / "data", "--out", root / "seen.npz")
    return root / "seen.npz"


@pytest.fixture(scope="module")
def home(bundle_path: Path, seen: Path) -> Home:
    return Home.open(bundle_path, seen, 8, 8)


def run(*arguments: object) -> None:
    main.main([str(each) for each in arguments], standalone_mode=False)


def result(bundle_path: Path, seen: Path, out: Path, command: str, *more: object) -> dict[str, Any]:
    run(command, "--bundle", bundle_path, "--seen", seen, *SMALL, "--out", out, *more)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_frames_are_observed_once_in_recorded_order(home: Home) -> None:
    assert len(home.stream) + len(home.test) == 359
    assert home.stream.observed["phi"].shape[1] == home.bundle.represented
    assert (np.diff(home.stream.takes) >= 0).mean() > 0.5
    assert home.start() > 0.5


def test_merged_devices_are_the_one_that_saw_all(bundle_path: Path, seen: Path, tmp_path: Path) -> None:
    report = result(bundle_path, seen, tmp_path / "merge.json", "merge", "--rounds", 1)
    assert report["devices"] == 10
    assert [each["guard"] for each in report["trials"]] == [False, True]
    exact = [each for each in report["trials"] if not each["refused"] and set(each["rounds_judged"]) == {"accepted"}]
    assert exact
    for each in exact:
        if not each["guard"]:
            assert each["w_apart"] < 1e-4  # so few frames have few axes
            assert each["a_apart"] < 1e-5
            assert each["merged"] == each["pooled"]


def test_takes_are_split_over_devices(bundle_path: Path, seen: Path, tmp_path: Path, home: Home) -> None:
    parts = footage.parts_of_takes(home.stream, 8, 3, 0)
    takes = [set(home.stream.takes[part].tolist()) for part in parts]
    assert not takes[0] & takes[1]
    assert not takes[1] & takes[2]
    assert all(len(part) % 8 == 0 for part in parts)


def test_harm_is_refused_by_the_checks_alone(bundle_path: Path, seen: Path, tmp_path: Path) -> None:
    report = result(bundle_path, seen, tmp_path / "hostile.json", "hostile")
    rows = {row["attack"]: row for row in report["rows"]}
    assert rows["values not finite"]["checked"]["refused"] == {"attacker is not finite": 10}
    assert rows["of another bundle"]["checked"]["refused"] == {"attacker is of another bundle": 10}
    assert not rows["values not finite"]["unchecked"]["refused"]
    assert rows["values not finite"]["unchecked"]["accuracy"][-1] < 0.3
    assert rows["values not finite"]["checked"]["accuracy"][-1] > 0.5


def test_numbers_cost_bytes(bundle_path: Path, seen: Path, tmp_path: Path) -> None:
    report = result(bundle_path, seen, tmp_path / "numbers.json", "numbers", "--rounds", 1)
    once = {row["how"]: row for row in report["rows"]}
    assert list(once) == list(HOW)
    assert once["fp32"]["bytes"] > 1.8 * once["fp16"]["bytes"] > 3 * once["int8"]["bytes"]
    assert once["fp32"]["w_apart"] == 0 < once["fp16"]["w_apart"]


def test_noise_costs_accuracy(bundle_path: Path, seen: Path, tmp_path: Path) -> None:
    report = result(bundle_path, seen, tmp_path / "noise.json", "noise", "--draws", 1)
    means = {row["epsilon"]: row for row in report["rows"] if row["form"] == "means, a frame"}
    assert set(means) == {1.0, 3.0, 10.0, "inf"}
    assert means["inf"]["devices_that_sent"] == [10]
    assert means[1.0]["devices_that_sent"] == [0]  # eight frames are mostly noise


def test_a_pool_takes_many_differences(bundle_path: Path, seen: Path, tmp_path: Path) -> None:
    report = result(bundle_path, seen, tmp_path / "push.json", "push", "--count", 100, "--segment", 32)
    assert report["refused"] == 0
    assert report["rows"][-1]["differences"] == 100
    assert report["memory_mb"]["most"] >= report["memory_mb"]["before"] > 10
    assert all(seconds > 0 for seconds in report["cpu_seconds"].values())


def test_a_simulated_device_sends_what_it_saw(bundle_path: Path, seen: Path, home: Home) -> None:
    arrays, of = scale.difference(str(bundle_path), str(seen), 8, 2, 5, "fp32")
    again, _ = scale.difference(str(bundle_path), str(seen), 8, 2, 5, "fp32")
    assert of == home.bundle.hash
    np.testing.assert_array_equal(arrays["a"], again["a"])
    sums = unpacked(arrays, "fp32", *home.known.b.shape)
    assert 0 < sums.b[-1].sum() <= 16 + 1e-3
    parts = secure.parts(sums, home.known, 16)
    assert np.abs(parts).max() <= 1.01
    back = secure.from_parts(parts, home.known, 16)
    assert shared.apart(back.a, sums.a) < 1e-5
    assert shared.apart(back.b, sums.b) < 1e-5
