"""A fleet of real learners in one process: merged is what one device would have that saw everything."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import device
from deco_runtime.fleet import member as members
from deco_runtime.fleet.member import FILE, Member
from deco_runtime.fleet.pool import Pool
from deco_runtime.fleet.roll import MOST_MEMBERS, Place
from deco_runtime.fleet.sums import HOW, minus
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.regression import Statistics
from deco_runtime.learning.taught import MOST_BYTES
from deco_runtime.running.control import observed_in, taught
from deco_runtime.running.scoring import normalised
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import LearnedState
from deco_runtime.storage.untrusted import ALWAYS_FINE
from deco_runtime.types import Segment
from drawn import boxes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LEAST = 10.0


@pytest.fixture(scope="module")
def frames(bundle: Bundle, runs_on: Engine) -> tuple[dict[str, Any], Any]:
    """What a learner sees in all frames of the demo, and their labels."""
    learner = registry.learner("deco+").open(bundle, runs_on, registry.learner("deco+").RECIPE, None)
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    parts = [learner.observe(x) for x in normalised(pixels, bundle.preprocessing, lambda: None)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, labels


def guarded(bundle: Bundle, engine: Engine, frames: Any, recipe: str = "deco+") -> Guarded:
    """With a guard of a third of the test images: the bundle's own few would see nothing. slda's updates would not pass
    it with so few frames."""
    kind = registry.learner(recipe)
    learner = kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))
    observed, labels = some(frames, slice(2, None, 3))
    labelled = Labelled(
        lambda model, check: learner.answer(model, observed), labels, np.arange(len(labels)), bundle.classes
    )
    return Guarded(learner, labelled if recipe == "deco+" else None)


def some(frames: Any, which: Any) -> tuple[dict[str, Any], Any]:
    return {name: array[which] for name, array in frames[0].items()}, frames[1][which]


def stream(frames: Any, part: int, of: int) -> list[Segment]:
    """A device's segments of 20 frames: one class after the other, of every third frame but the guard's."""
    chosen = np.flatnonzero(np.arange(len(frames[1])) % 3 != 2)[part::of]
    chosen = chosen[np.argsort(frames[1][chosen], kind="stable")]
    parts = [some(frames, chosen[first : first + 20]) for first in range(0, len(chosen), 20)]
    return [Segment(seen, labels, np.ones(len(labels), np.float32), labels) for seen, labels in parts]


class Device:
    """A learner in a fleet, driven as a run drives it, with its state directory."""

    def __init__(self, path: Path, bundle: Bundle, make: Callable[[], Guarded]) -> None:
        self.path, self.bundle, self.make = path, bundle, make
        self.start()

    def start(self) -> None:
        """As after a power cut: with what is on the disk."""
        self.guarded = self.make()
        states.load(self.path, self.bundle, self.guarded)

    def save(self) -> None:
        states.save(self.path, LearnedState.of(self.guarded, self.bundle, "stream", 0))

    @property
    def now(self) -> Statistics:
        return self.guarded.accepted

    @property
    def member(self) -> Member:
        found = members.kept(self.path, self.now, self.bundle.hash)
        assert found is not None
        return found

    def see(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.guarded.learn(segment)
            self.guarded.retrain()

    def offer(self, how: str = "fp32") -> Member:
        return device.offer(self.path, self.guarded, self.bundle, how, LEAST, self.save)

    def send(self, pool: Pool, how: str = "fp32") -> str | None:
        place = self.offer(how)
        if place.sent is None:
            return "nothing"
        return pool.offer(place.name, place.number + 1, place.how, members.payload(place), self.bundle.hash)

    def take_up(self, pool: Pool) -> bool:
        name = self.offer().name
        place, refused = pool.places.get(name), pool.turned_down(name)
        device.hand_over(self.path, pool.sums, place.number if place else 0, refused)
        _, verdict = device.take_up(self.path, self.guarded, self.bundle, self.save)
        return verdict is None or verdict.accepted


@pytest.fixture
def new(bundle: Bundle, runs_on: Engine, frames: Any, tmp_path: Path) -> Callable[..., Device]:
    """Makes one device more."""
    count = itertools.count()
    return lambda recipe="deco+": Device(
        tmp_path / f"device-{next(count)}", bundle, partial(guarded, bundle, runs_on, frames, recipe)
    )


def open_pool(bundle: Bundle, engine: Engine, frames: Any, recipe: str = "deco+") -> Pool:
    return Pool(bundle, guarded(bundle, engine, frames, recipe), LEAST)


def same(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Models, to a part of the largest weight."""
    np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())


@pytest.mark.parametrize("recipe", ["deco+", "slda"])
def test_merged_is_one_device_that_saw_all_streams(
    recipe: str, bundle: Bundle, runs_on: Engine, frames: Any, new: Any
) -> None:
    """Whoever saw what, over several rounds, with a device that is away in some and a message that is lost."""
    pool = open_pool(bundle, runs_on, frames, recipe)
    fleet = [new(recipe) for _ in range(3)]
    pooled = guarded(bundle, runs_on, frames, recipe).learner
    for number, each in enumerate(fleet):
        segments = stream(frames, number, 3)
        half = len(segments) // 2
        each.see(segments[:half])
        if number != 1:
            assert each.send(pool) is None
    verdict = pool.settle()
    assert verdict is not None
    assert verdict.accepted
    fleet[0].take_up(pool)  # the answer to fleet[2] is lost
    for number, each in enumerate(fleet):
        segments = stream(frames, number, 3)
        each.see(segments[len(segments) // 2 :])
    for each in (fleet[2], fleet[0], fleet[1]):
        assert each.send(pool) is None
    assert pool.settle() is not None
    for each in fleet:
        each.take_up(pool)
    assert fleet[2].send(pool) is None  # what it saw while its first difference was under way
    pool.settle()
    for each in fleet:
        each.take_up(pool)

    # The same votes, since they are made of what the bundle starts with, in one learner.
    for number in range(3):
        pooled.interrupted()
        for segment in stream(frames, number, 3):
            pooled.learn(segment)
    for found, own in ((pool.sums.a, pooled.memory.a), (pool.sums.b, pooled.memory.b)):
        same(found, own, 2e-6)
    expected, _ = pooled.solve(lambda: None)
    for each in fleet:
        assert each.member.sent is None
        if recipe == "deco+":  # slda divides by the variance along axes that so few frames have none along
            same(each.guarded.learner.model, expected)
    assert pool.refused == 0
    assert all(each.guarded.learner.dropped == 0 for each in fleet)


def test_what_is_sent_twice_is_added_once(
    bundle: Bundle, runs_on: Engine, frames: Any, new: Any, tmp_path: Path
) -> None:
    """In the same round, in a later one, and to a server that was killed before or after it had saved."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3))
    assert it.send(pool) is None
    assert it.send(pool) is None
    killed = open_pool(bundle, runs_on, frames)
    killed.load(tmp_path)
    assert killed.places == {}
    pool.settle()
    pool.save(tmp_path)
    sums = pool.sums
    assert it.send(pool) is None
    assert pool.settle() is None
    assert pool.sums is sums
    killed = open_pool(bundle, runs_on, frames)
    killed.load(tmp_path)
    assert killed.places == pool.places
    np.testing.assert_array_equal(killed.sums.a, sums.a)
    assert it.send(killed) is None
    assert killed.settle() is None
    it.take_up(killed)
    same(it.guarded.learner.model, pool.guarded.learner.model)


def test_the_most_devices_that_a_pool_takes_fit_into_its_file(
    bundle: Bundle, runs_on: Engine, frames: Any, tmp_path: Path
) -> None:
    """With the longest names and numbers; a file that was larger would be taken for a damaged one."""
    pool, count = open_pool(bundle, runs_on, frames), 10_000
    pool.save(tmp_path)
    empty = (tmp_path / states.CURRENT).stat().st_size
    pool.places = {f"{i:016}": Place(10**6 + i, "0123456789abcdef", 1e9 + i / 10, 1796011282) for i in range(count)}
    pool.save(tmp_path)
    each = ((tmp_path / states.CURRENT).stat().st_size - empty) / count
    assert each * MOST_MEMBERS < MOST_BYTES + ALWAYS_FINE
    found = open_pool(bundle, runs_on, frames)
    found.load(tmp_path)
    assert found.places == pool.places


def test_a_devices_state_is_no_servers(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    it = new()
    it.save()
    with pytest.raises(StateError, match="expected a fleet's state"):
        open_pool(bundle, runs_on, frames).load(it.path)


def test_a_replayed_difference_is_refused(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3)[:3])
    it.send(pool)
    arrays, name = members.payload(it.member), it.member.name
    assert "a second one" in str(pool.offer(name, 2, "fp32", arrays, bundle.hash))
    pool.settle()
    it.take_up(pool)
    assert "has been sent before" in str(pool.offer(name, 2, "fp32", arrays, bundle.hash))
    it.see(stream(frames, 0, 3)[3:])
    assert it.send(pool) is None
    pool.settle()
    assert "where 3 comes next" in str(pool.offer(name, 1, "fp32", arrays, bundle.hash))
    assert pool.refused == 3


def poisoned(sums: Statistics, seed: int = 0) -> Statistics:
    """The same frames with their labels permuted."""
    shift = np.random.default_rng(seed).permutation(sums.b.shape[1] - 1) + 1
    order = np.arange(sums.b.shape[1])
    order[np.r_[0, shift]] = np.roll(np.r_[0, shift], 1)
    return Statistics(sums.a, sums.b[:, order])


def test_what_is_hostile_is_refused_and_changes_nothing(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3))
    place = it.offer()
    fine = place.sent
    assert fine is not None
    sums = pool.sums

    def offered(of: Statistics, **more: Any) -> str:
        arrays = members.payload(replace(place, sent=of))
        given = {"name": "x", "number": 1, "how": "fp32", "arrays": arrays, "bundle": bundle.hash} | more
        return str(pool.offer(**given))

    assert "another bundle" in offered(fine, bundle="0" * 64)
    assert "without a name" in offered(fine, name="")
    assert "without a name" in offered(fine, name="a\n")
    assert "without a name" in offered(fine, name="a" * 17)
    assert "without a name" in offered(fine, name="é")
    assert "not known" in offered(fine, how="fp8")
    assert "does not fit" in offered(fine, arrays={"a": fine.a})
    assert "does not fit" in offered(fine, how="int8")
    assert "not finite" in offered(Statistics(fine.a * np.float32(np.nan), fine.b))
    assert "of no class" in offered(Statistics(fine.a * 100, fine.b))
    assert "larger than its frames" in offered(Statistics(fine.a, fine.b * 100))
    assert "contradict the labelled images" in offered(poisoned(fine))
    assert "guard" in offered(Statistics(fine.a * 2000, fine.b * 2000))
    assert pool.settle() is None
    assert pool.sums is sums
    assert offered(fine) == "None"


@pytest.mark.parametrize("how", HOW)
def test_smaller_numbers_lose_nothing_over_time(
    how: str, bundle: Bundle, runs_on: Engine, frames: Any, new: Any
) -> None:
    """What was rounded away is sent with the next difference."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    segments = stream(frames, 0, 1)
    for first in range(0, len(segments), 4):
        it.see(segments[first : first + 4])
        assert it.send(pool, how) is None
        assert pool.settle() is not None
        assert it.take_up(pool)
    assert pool.refused == 0
    left = minus(it.now, pool.sums)
    tolerance = {"fp32": 1e-6, "fp16": 5e-4, "int8": 4e-3}[how]  # of the last difference alone
    assert np.abs(left.a).max() < tolerance * np.abs(it.now.a).max()
    assert np.abs(left.b).max() < tolerance * np.abs(it.now.b).max()


def test_one_harmful_round_does_not_stop_the_fleet(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    """Differences that each pass, and do harm together: none is confirmed, and next time the good ones are."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3)[:6])
    assert it.send(pool) is None
    bad = poisoned(minus(it.now, pool.guarded.learner.start.statistics))
    pool._a, pool._b = pool._a + 50 * bad.a, pool._b + 50 * bad.b  # as if many had been let through
    verdict = pool.settle()
    assert verdict is not None
    assert not verdict.accepted
    assert pool.places == {}
    assert it.send(pool) is None
    verdict = pool.settle()
    assert verdict is not None
    assert verdict.accepted
    assert pool.guarded.pause == 0


def test_after_a_refused_round_the_next_is_not(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    """A round is refused for losing against the best model so far, which no difference alone is compared with: in the
    next one whoever would have it refused is left out, and the others are taken in."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3)[:6])
    best, lucky = pool.guarded.kept.best, np.ones_like(pool.guarded.kept.best)
    pool.guarded.kept = replace(pool.guarded.kept, best=lucky)
    assert it.send(pool) is None
    verdict = pool.settle()
    assert verdict is not None
    assert "against the best model so far" in str(verdict.reason)
    assert "against the best model so far" in str(it.send(pool))
    assert pool.settle() is None
    pool.guarded.kept = replace(pool.guarded.kept, best=best)
    assert it.send(pool) is None
    verdict = pool.settle()
    assert verdict is not None
    assert verdict.accepted


STEPS = ("see", "send", "send unheard", "take up", "take up, power cut", "power cut", "server restarts")


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_no_frame_counts_twice_whatever_happens(
    bundle: Bundle, runs_on: Engine, frames: Any, tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    """Two devices, of which one loses power at any time, and messages get lost, and the server is killed: in the end
    the fleet's sums are those of the bundle and of what the devices had on their disks when they sent it."""
    path = tmp_path_factory.mktemp("fleet")
    pool = open_pool(bundle, runs_on, frames)
    it, other = (Device(path / name, bundle, partial(guarded, bundle, runs_on, frames)) for name in ("it", "other"))
    segments, rest, counted = stream(frames, 0, 2), 0, float(pool.sums.b[-1].sum())
    other.see(stream(frames, 1, 2))
    counted += sum(len(segment) for segment in stream(frames, 1, 2))
    assert other.send(pool) is None
    pool.settle()
    pool.save(path / "server")
    on_disk = in_memory = 0  # segments
    for step in [*steps, "see", "send", "take up", "send", "take up"]:
        if step == "see" and rest < len(segments):
            it.see(segments[rest : rest + 1])
            rest, in_memory = rest + 1, in_memory + 1
        elif step == "send unheard":
            it.offer()
            on_disk = in_memory
        elif step == "send":
            assert it.send(pool) in (None, "nothing")
            on_disk = in_memory
            pool.settle()
            pool.save(path / "server")
        elif step == "take up":
            it.take_up(pool)
            on_disk = in_memory
        elif step == "take up, power cut":
            place = pool.places.get(it.offer().name)
            on_disk = in_memory
            device.hand_over(it.path, pool.sums, place.number if place else 0)
            with pytest.raises(KeyboardInterrupt):
                device.take_up(it.path, it.guarded, bundle, interrupt)
            it.start()
        elif step == "power cut":
            it.start()
            in_memory = on_disk
            rest = max(rest, in_memory)
        elif step == "server restarts":
            pool = open_pool(bundle, runs_on, frames)
            pool.load(path / "server")
    seen = float(it.now.b[-1].sum())
    same(pool.sums.a, it.now.a, 2e-5)
    same(pool.sums.b, it.now.b, 2e-5)
    assert seen <= counted + 20 * in_memory + 1e-2
    assert seen == pytest.approx(counted + 20 * in_memory, abs=20)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_device_that_went_back_sends_nothing_twice(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    """To a state from before it had sent anything, and from before it had taken up the fleet's sums."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    segments = stream(frames, 0, 1)
    it.see(segments[:3])
    saved = it.guarded.arrays(), it.guarded.values()
    it.see(segments[3:8])
    assert it.send(pool) is None
    pool.settle()
    assert it.take_up(pool)
    first = pool.sums
    it.guarded.restore(*saved)
    assert it.send(pool) == "nothing"
    it.see(segments[8:10])
    assert it.send(pool) is None
    pool.settle()
    new_frames = sum(len(segment) for segment in segments[8:10])
    assert pool.sums.b[-1].sum() - first.b[-1].sum() == pytest.approx(new_frames, abs=0.1)
    assert it.take_up(pool)
    same(it.now.a, pool.sums.a, 1e-6)


def test_a_device_that_went_back_and_learned_more_is_seen_through(
    bundle: Bundle, runs_on: Engine, frames: Any, new: Any
) -> None:
    """By what it has offered since, not by how much it has learned: what it forgot is neither sent nor taken away."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    segments = stream(frames, 0, 1)
    saved = it.guarded.arrays(), it.guarded.values()
    it.see(segments[:3])
    assert it.send(pool) is None
    pool.settle()
    first = pool.sums
    it.guarded.restore(*saved)
    it.see(segments[3:9])
    assert it.send(pool) is None  # the first one again
    assert pool.settle() is None
    np.testing.assert_array_equal(pool.sums.b, first.b)
    it.see(segments[9:11])
    assert it.take_up(pool)
    assert it.send(pool) is None
    pool.settle()
    new_frames = sum(len(segment) for segment in segments[9:11])
    assert pool.sums.b[-1].sum() - first.b[-1].sum() == pytest.approx(new_frames, abs=0.1)


def test_frames_of_a_refused_difference_are_sent_with_others(
    bundle: Bundle, runs_on: Engine, frames: Any, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is refused by chance; the device is not locked out, and no frame is lost or counts twice."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    start, segments = pool.frames, stream(frames, 0, 1)
    it.see(segments[:4])
    with monkeypatch.context() as patch:
        patch.setattr(pool.guarded, "harm", lambda *_: "is unlucky")
        assert it.send(pool) == "is unlucky"
        assert pool.settle() is None
    first = it.offer()
    assert pool.turned_down(first.name)
    it.see(segments[4:8])
    assert members.payload(it.offer())["a"].tobytes() == members.payload(first)["a"].tobytes()
    assert it.take_up(pool)
    assert it.member.sent is None
    assert it.send(pool) is None
    assert it.send(pool) is None
    assert pool.settle() is not None
    assert pool.turned_down(first.name) == ""
    assert it.take_up(pool)
    assert pool.frames - start == pytest.approx(sum(len(each) for each in segments[:8]), abs=0.5)
    same(it.now.a, pool.sums.a, 1e-6)
    other = members.offered(members.joins(start_of(pool)), it.now, "fp32", LEAST)
    assert members.withdrawn(other, "0" * 16) is other


def start_of(pool: Pool) -> Statistics:
    return pool.guarded.learner.start.statistics


def test_classes_that_people_added_stay_with_the_device(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    pool, it, other = open_pool(bundle, runs_on, frames), new(), new()
    shown = it.guarded.learner
    seen = observed_in(shown, boxes(bundle, 0, 10), bundle)
    assert taught(it.guarded, bundle.classes, "box", seen, np.arange(10)).refused is None
    it.see(stream(frames, 0, 2))
    other.see(stream(frames, 1, 2))
    for each in (it, other):
        assert each.send(pool) is None
    assert pool.settle() is not None
    assert it.take_up(pool)
    assert it.now.b.shape[1] == 11
    same(it.now.b[:, :10], pool.sums.b, 1e-5)
    others = observed_in(shown, boxes(bundle, 100, 20), bundle)
    assert (shown.answer(shown.model, others).argmax(axis=1) == 10).mean() > 0.5
    assert it.send(pool) == "nothing"


def test_a_device_refuses_what_its_own_guard_refuses(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    """A server that hands out harm: nothing changes, and what was confirmed is not sent again."""
    pool, it = open_pool(bundle, runs_on, frames), new()
    it.see(stream(frames, 0, 3)[:3])
    assert it.send(pool) is None
    pool.settle()
    before, model = it.now, it.guarded.learner.model
    harm = poisoned(minus(it.now, pool.guarded.learner.start.statistics))
    device.hand_over(it.path, Statistics(pool.sums.a + 50 * harm.a, pool.sums.b + 50 * harm.b), 1)
    _, verdict = device.take_up(it.path, it.guarded, bundle, it.save)
    assert verdict is not None
    assert not verdict.accepted
    assert it.guarded.learner.model is model
    np.testing.assert_array_equal(it.now.a, before.a)
    assert it.guarded.kept.rejections == 0
    assert it.send(pool) == "nothing"
    assert it.member.number == 1


def test_only_what_was_sent_is_confirmed(bundle: Bundle, runs_on: Engine, frames: Any, new: Any) -> None:
    """A server that says it has what was never sent, or lacks what it had: its sums are not taken up, and nothing of
    what the device has learned is taken for sent."""
    pool, it = open_pool(bundle, runs_on, frames), new()

    def refused(number: int) -> None:
        before, now = it.member, it.now
        device.hand_over(it.path, pool.sums, number)
        with pytest.raises(StateError, match="to join anew"):
            device.take_up(it.path, it.guarded, bundle, it.save)
        after = it.member
        assert (after.number, after.merges) == (before.number, before.merges)
        for one, two in ((after.base, before.base), (after.sent, before.sent)):
            assert (one and one.a.tobytes()) == (two and two.a.tobytes())
        assert it.now is now

    it.see(stream(frames, 0, 3)[:2])
    it.offer()
    for number in (2, 3, 10**9, -1):
        refused(number)
    assert it.send(pool) is None
    pool.settle()
    it.take_up(pool)
    for number in (0, 2):
        refused(number)
    it.see(stream(frames, 0, 3)[2:4])
    it.offer()
    for number in (0, 3):
        refused(number)
    assert it.send(pool) is None
    pool.settle()
    assert it.take_up(pool)
    same(it.now.a, pool.sums.a, 1e-6)
    assert it.member.number == 2


def test_its_place_is_on_the_disk(bundle: Bundle, runs_on: Engine, frames: Any, new: Any, tmp_path: Path) -> None:
    it = new()
    like = it.now
    assert members.kept(tmp_path, like, bundle.hash) is None
    it.see(stream(frames, 0, 3)[:4])
    for how in HOW:
        made = members.took(members.offered(members.joins(like), it.now, how, LEAST), it.now)
        members.keep(tmp_path, made, bundle.hash)
        found = members.kept(tmp_path, like, bundle.hash)
        assert found is not None
        for name in ("base", "next", "sent"):
            one, two = getattr(found, name), getattr(made, name)
            assert one.a.tobytes() + one.b.tobytes() == two.a.tobytes() + two.b.tobytes()
        assert replace(found, base=like, next=None, sent=None) == replace(made, base=like, next=None, sent=None)
        sent = members.payload(made)
        assert all(a.tobytes() == sent[name].tobytes() for name, a in members.payload(found).items())
    with pytest.raises(StateError, match="is of another one; give that bundle"):
        members.kept(tmp_path, like, "0" * 64)
    data = (tmp_path / FILE).read_bytes()
    for broken in (b"", data[:-1], data[:40] + b"x" + data[41:]):
        (tmp_path / FILE).write_bytes(broken)
        with pytest.raises(StateError, match="but it is damaged"):
            members.kept(tmp_path, like, bundle.hash)


def test_without_the_fleets_sums_there_is_nothing_to_take_up(bundle: Bundle, new: Any) -> None:
    it = new()
    for content in (None, b"", b"x" * 100):
        if content is not None:
            (it.path / device.MERGED).write_bytes(content)
        with pytest.raises(StateError, match="expected a fleet's sums in"):
            device.take_up(it.path, it.guarded, bundle, it.save)
        it.path.mkdir(exist_ok=True)


def test_a_recipe_that_is_not_made_of_sums_has_no_pool(bundle: Bundle, runs_on: Engine) -> None:
    kind = registry.learner("paper")
    with pytest.raises(UsageError, match="deco\\+ or slda"):
        Pool(bundle, Guarded(kind.open(bundle, runs_on, kind.RECIPE, np.random.default_rng(0)), None))
