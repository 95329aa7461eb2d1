"""A device's half of a fleet through the socket of a real run, and what a server may send."""

from __future__ import annotations

import time
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import client
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import of_sums
from deco_runtime.fleet.noise import COUNT, DELTA, Noise, multiple
from deco_runtime.fleet.sums import digest, frames, minus
from deco_runtime.learning.regression import Statistics, add, together
from deco_runtime.learning.voter import start
from deco_runtime.page.board import Board
from deco_runtime.running.assemble import open_fresh
from deco_runtime.running.control import Control, observed_in
from deco_runtime.running.loop import Run
from deco_runtime.running.recent import Recent
from deco_runtime.running.scoring import normalised
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.telemetry import happenings as happened
from deco_runtime.telemetry.bus import Hears, Listener
from deco_runtime.types import Segment
from sentences import one_sentence
from test_door import going

LEAST = 10.0


class Heard(Listener):
    """What a run tells of its fleet."""

    def __init__(self) -> None:
        self.merges: list[happened.FleetMerged] = []

    def hears(self) -> Hears:
        return {happened.FleetMerged: self.merges.append}


def learn(run: Run, count: int) -> None:
    """So many segments of 20 labelled frames, one class after the other, by the run's owner."""
    pixels, labels = run.bundle.labelled_pixels("demo/test.npz")
    order = np.argsort(labels, kind="stable")[: 20 * count]

    def job() -> None:
        for first in range(0, len(order), 20):
            chosen = order[first : first + 20]
            seen = [run.learner.observe(x) for x in normalised(pixels[chosen], run.bundle.preprocessing, lambda: None)]
            observed = {name: np.concatenate([each[name] for each in seen]) for name in seen[0]}
            run.guarded.learn(Segment(observed, labels[chosen], np.ones(20, np.float32), labels[chosen]))
        run.guarded.retrain()

    run.requests.ask(job)


def offered(offer: client.Offer) -> Statistics:
    return Statistics(offer.arrays["a"], offer.arrays["b"])


def test_a_run_gives_and_takes_through_its_socket(bundle: Bundle, place: Path) -> None:
    begun = start(bundle).statistics
    with going(bundle, place) as run:
        heard, board = Heard(), Board(Control(run, place, Recent()), "a run")
        run.bus.add(heard)
        run.bus.add(board)
        nothing = client.give(place, None, "fp32", LEAST)
        assert (nothing.number, dict(nothing.arrays)) == (0, {})
        learn(run, 3)
        offer = client.give(place, None, "fp32", LEAST)
        assert (offer.name, offer.number, offer.bundle) == (nothing.name, 1, bundle.hash)
        assert frames(offered(offer)) == pytest.approx(60, abs=1)
        learn(run, 1)
        again = client.give(place, None, "int8", LEAST)  # the same one until it is confirmed
        assert again.how == "fp32"
        np.testing.assert_array_equal(again.arrays["a"], offer.arrays["a"])
        fleet = together(begun, offered(offer))
        told = client.take(place, None, fleet, 1)
        assert told == {"frames": round(frames(fleet)), "refused": None}
        shown = board.told()["fleet"]
        assert shown == {**told, "merged": pytest.approx(time.time(), abs=60)}
        assert client.give(place, None, "fp32", 1000).number == 1
        following = client.give(place, None, "fp32", LEAST)
        assert following.number == 2
        np.testing.assert_allclose(
            together(fleet, offered(following)).a, run.guarded.accepted.a, rtol=0, atol=1e-5 * np.abs(fleet.a).max()
        )
    board._fleet(happened.FleetMerged(999, "loses 9 images"))
    assert board.told()["fleet"] == {"frames": 999, "refused": "loses 9 images", "merged": shown["merged"]}
    assert [(each.frames, each.refused) for each in heard.merges] == [(round(frames(fleet)), None)]


def test_a_run_whose_fleet_is_under_noise(bundle: Bundle, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it learned before stays; then frames are short, a difference has its noise once and is sent as it is until
    it is confirmed, and the run goes on with what it saw itself. A refused one is not sent again."""
    monkeypatch.setattr("deco_runtime.fleet.noise.CLIP", 0.9)  # with more no frame of this bundle is longer
    begun, epsilon, least = start(bundle).statistics, 50.0, 40.0
    noise = Noise(epsilon, begun)
    with going(bundle, place) as run:
        learner = of_sums(run.learner)
        learn(run, 3)
        for wrong in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(UsageError, match="finite number above 0"):
                client.give(place, None, "fp32", least, wrong)
        assert learner.longest == inf
        before = run.guarded.accepted
        first = client.give(place, None, "fp32", LEAST, epsilon)
        assert not first.arrays
        assert learner.longest == noise.most < norm(seen(run)).max()
        learn(run, 10)
        own = minus(run.guarded.accepted, before)
        offer = client.give(place, None, "fp32", least, epsilon)
        assert (offer.number, offer.name) == (1, first.name)
        again = client.give(place, None, "fp32", least, epsilon)
        assert all(offer.arrays[name].tobytes() == again.arrays[name].tobytes() for name in offer.arrays)
        member = members.kept(place, begun, bundle.hash)
        assert member is not None
        np.testing.assert_array_equal(member.true.b, own.b)
        found = offered(offer)
        sent = found.b.any(axis=0)
        apart = (found.b - own.b)[:-1, sent]
        sigma = multiple(epsilon, DELTA) * noise.most * sqrt(1 + COUNT**2)
        assert apart.std() == pytest.approx(sigma, rel=0.2)
        assert np.abs(own.a - short_sums(run, 10).a).max() <= 1e-3 * np.abs(own.a).max()

        fleet = together(begun, found)
        assert client.take(place, None, fleet, 1)["refused"] is None
        expected = together(before, own)
        np.testing.assert_allclose(run.guarded.accepted.b, expected.b, rtol=0, atol=1e-4 * np.abs(expected.b).max())
        assert not client.give(place, None, "fp32", 1.0, epsilon).arrays

        learn(run, 10)
        second = client.give(place, None, "fp32", least, epsilon)
        assert second.number == 2
        client.take(place, None, fleet, 1, digest(second.arrays))
        assert not client.give(place, None, "fp32", 1.0, epsilon).arrays
        assert not client.give(place, None, "fp32", 1.0).arrays
        run.requests.ask(run.save_now)
    fresh = open_fresh(bundle, "deco+")
    states.load(place, bundle, fresh)
    assert of_sums(fresh.learner).longest == noise.most
    for wrong in (0.0, -1.0, "2", float("nan")):
        with pytest.raises(ValueError, match="bound"):
            fresh.learner.restore(fresh.learner.arrays(), fresh.learner.values() | {"longest": wrong})


def norm(phi: Any) -> Any:
    return np.linalg.norm(phi, axis=1)


def seen(run: Run) -> Any:
    """φ of all frames that `learn` has."""
    pixels, _ = run.bundle.labelled_pixels("demo/test.npz")
    return observed_in(run.learner, pixels, run.bundle)["phi"]


def short_sums(run: Run, count: int) -> Statistics:
    """Of the frames that so many segments of `learn` have, as noise needs them, whatever they show."""
    _, labels = run.bundle.labelled_pixels("demo/test.npz")
    phi = seen(run)[np.argsort(labels, kind="stable")[: 20 * count]]
    phi = phi * np.minimum(1, Noise(1.0, start(run.bundle).statistics).most / norm(phi))[:, None]
    t = np.zeros((len(phi), run.learner.classes), np.float32)
    t[:, 0] = 1
    return add(Statistics.zero(phi.shape[1], run.learner.classes), phi.astype(np.float32), t)


def garbage(good: Statistics) -> list[Any]:
    hole = good.a.copy()
    hole[3] = np.nan
    return [
        Statistics(good.a[:-1], good.b),
        Statistics(good.a, good.b[:, :-1]),
        Statistics(good.a.astype(np.float64), good.b),
        Statistics(good.b, good.a),
        Statistics(np.zeros(0, np.float32), np.zeros((0, 0), np.float32)),
        Statistics(hole, good.b),
        Statistics(good.a, good.b * np.float32(np.inf)),
        Statistics(np.array(["x"]), good.b),
    ]


def test_whatever_a_server_sends_a_device_goes_on(bundle: Bundle, place: Path) -> None:
    with going(bundle, place) as run:
        learn(run, 3)
        assert not client.give(place, None, "fp32", float("nan")).arrays
        offer = client.give(place, None, "fp32", LEAST)
        kept, model = members.kept(place, run.guarded.accepted, bundle.hash), run.learner.model
        assert kept is not None
        fleet = together(start(bundle).statistics, offered(offer))
        for sums in garbage(fleet):
            try:
                told = client.take(place, None, sums, 1)
            except StateError as error:
                one_sentence(str(error))
            else:
                assert told["refused"] is not None, sums
        for number in (2, -1):
            with pytest.raises(StateError, match="to join anew"):
                client.take(place, None, fleet, number)
        for how in ("fp8", "", "int8\n"):
            with pytest.raises(UsageError, match="expected numbers of fp32, fp16, int8"):
                client.give(place, None, how, LEAST)
        assert run.learner.model is model
        assert client.give(place, None, "fp32", LEAST).number in (1, 2)
        assert client.take(place, None, fleet, 1)["refused"] is None
