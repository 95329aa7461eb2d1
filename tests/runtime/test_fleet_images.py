"""A fleet under `paper`: devices send their condensed images, and take the server's in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.engine import Engine
from deco_runtime.errors import StateError, UsageError
from deco_runtime.fleet import client, device, image_pool, images
from deco_runtime.fleet.device import Offer
from deco_runtime.fleet.image_pool import MOST_AT_ONCE, ImagePool
from deco_runtime.fleet.images import Images
from deco_runtime.fleet.member import FILE
from deco_runtime.fleet.pool import Pool
from deco_runtime.fleet.sums import digest
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import CondensedBuffer, initial
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.guard import Guarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.hyperparameters import Hyperparameters
from deco_runtime.learning.reports import Verdict
from deco_runtime.running.control import observed_in, taught
from deco_runtime.running.scoring import normalised
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Segment
from drawn import boxes
from test_door import going

QUICK = Hyperparameters(segment=20, retrain_interval=1, iterations=2, retrain_epochs=2)
"""With so few epochs no update does harm that the guard can see; with those of the paper all do on this bundle."""
LEAST = 20.0


def guarded(bundle: Bundle, engine: Engine, recipe: Hyperparameters = QUICK) -> Guarded:
    """With a guard of a third of the test images."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    learner = Deco.open(bundle, engine, recipe, np.random.default_rng(0))
    answers = learner.answers_on(lambda check: normalised(pixels[2::3], bundle.preprocessing, check))
    return Guarded(learner, Labelled(answers, labels[2::3], np.arange(len(labels[2::3])), bundle.classes))


def segment(bundle: Bundle, learner: Any, first: int) -> Segment:
    """20 frames of one class, the first-th."""
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    chosen = np.flatnonzero(labels == first % 10)[:20]
    observed = observed_in(learner, pixels[chosen], bundle)
    return Segment(observed, labels[chosen], np.ones(len(chosen), np.float32), labels[chosen])


class Device:
    """A learner under `paper` in a fleet, with its state directory."""

    def __init__(self, path: Path, bundle: Bundle, engine: Engine) -> None:
        self.path, self.bundle, self.guarded = path, bundle, guarded(bundle, engine)
        self.saves = 0

    def save(self) -> None:
        self.saves += 1
        states.save(self.path, states.LearnedState.of(self.guarded, self.bundle, "stream", 0))

    def see(self, *classes: int) -> None:
        for c in classes:
            self.guarded.learn(segment(self.bundle, self.guarded.learner, c))
            assert self.guarded.retrain().accepted

    def offer(self, least: float = LEAST) -> Offer:
        images.offer(self.path, self.guarded, self.bundle, "int8", least, self.save)
        return images.offered(self.path, self.bundle)

    def send(self, pool: ImagePool) -> str | None:
        return sent(pool, self.offer())

    def take_up(self, pool: ImagePool) -> Verdict | None:
        name = self.offer().name
        device.hand_over(self.path, pool.handed, pool.number(name), pool.turned_down(name))
        return images.take_up(self.path, self.guarded, self.bundle, self.save)[1]

    @property
    def x(self) -> Any:
        return self.guarded.learner.memory.x_syn


def sent(pool: ImagePool, offer: Offer, **more: Any) -> str | None:
    given = {"name": offer.name, "number": offer.number, "how": offer.how, "arrays": offer.arrays} | more
    return pool.offer(bundle=offer.bundle, **given) if "bundle" not in more else pool.offer(**given)


@pytest.fixture
def new(bundle: Bundle, runs_on: Engine, tmp_path: Path) -> Callable[[str], Device]:
    return lambda name: Device(tmp_path / name, bundle, runs_on)


def test_two_devices_images_are_condensed_into_the_servers(
    bundle: Bundle, runs_on: Engine, new: Any, tmp_path: Path
) -> None:
    """And those into each device's own; the same twice changes nothing twice, also across a server's restart."""
    pool, one, two = ImagePool(bundle, guarded(bundle, runs_on)), new("one"), new("two")
    first = pool.handed.x
    assert not one.offer().arrays  # nothing is news before anything was learned
    one.see(3)
    assert not one.offer(21).arrays  # a segment is of 20
    two.see(7, 8)
    assert (one.send(pool), two.send(pool)) == (None, None)
    offer = one.offer()
    assert (offer.number, offer.how, set(offer.arrays)) == (1, "fp32", {"x"})
    assert sent(pool, offer) is None
    assert pool.waiting == 2
    verdict = pool.settle()
    assert verdict is not None
    assert verdict.accepted
    assert (pool.taken, pool.left_out, pool.frames) == (2, [], 60)
    moved = np.abs(pool.handed.x - first).reshape(len(first), -1).max(axis=1)
    assert moved.min() > 0

    pool.save(tmp_path / "server")
    pool = ImagePool(bundle, guarded(bundle, runs_on))
    pool.load(tmp_path / "server")
    handed = pool.handed.x
    assert (one.send(pool), two.send(pool)) == (None, None)
    assert pool.settle() is None
    np.testing.assert_array_equal(pool.handed.x, handed)
    for each in (one, two):
        own = each.x
        verdict = each.take_up(pool)
        assert verdict is not None
        assert verdict.accepted
        assert np.abs(each.x - own).max() > 0
        own, saves = each.x, each.saves
        assert each.take_up(pool) is None
        assert each.x is own
        assert each.saves == saves + 1  # of the offer alone
        assert each.send(pool) == "is number 1, where 2 comes next"  # which is that it has nothing to send
        assert not each.offer().arrays
    one.see(4)
    offer = one.offer()
    assert offer.number == 2
    assert sent(pool, offer) is None
    assert pool.settle() is not None
    assert pool.places[offer.name].frames == 40


def test_a_new_servers_images_are_no_news(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    it = new("it")
    it.see(3)
    own = it.x
    assert it.take_up(ImagePool(bundle, guarded(bundle, runs_on))) is None
    assert it.x is own


def test_what_is_hostile_is_refused(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    pool, it = ImagePool(bundle, guarded(bundle, runs_on)), new("it")
    it.see(3)
    offer, handed = it.offer(), pool.handed.x
    x = offer.arrays["x"]

    def refused(x: Any, **more: Any) -> str:
        return str(sent(pool, offer, **{"arrays": {"x": x}} | more))

    assert refused(x, bundle="0" * 64) == "is of another bundle"
    assert refused(x, name="é") == "is of a device without a name"
    assert refused(x, arrays={"a": x}) == "does not fit the bundle"
    for wrong in (x[1:], np.concatenate([x, x]), x.astype(np.float64), x[:, :, :-1], x.reshape(-1)):
        assert refused(wrong) == "does not fit the bundle"
    assert refused(x * np.float32(np.nan)) == "is not finite"
    assert refused(x * np.float32(1e6)).startswith("has values 1")
    assert "contradict the bundle's model" in refused(np.roll(x, 2, axis=0))
    assert "contradict the bundle's model" in refused(np.random.default_rng(0).normal(0, 1, x.shape).astype(np.float32))
    assert refused(x, number=2) == "is number 2, where 1 comes next"
    assert pool.settle() is None
    assert pool.turned_down(offer.name)
    assert pool.handed.x is handed
    assert refused(x) == "None"
    assert refused(x, number=2) == "is a second one in this round"
    pool.settle()
    assert refused(x, number=2) == "has been sent before"


def test_there_are_only_so_many_in_a_round(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    pool, it = ImagePool(bundle, guarded(bundle, runs_on)), new("it")
    it.see(3)
    offer = it.offer()
    for i in range(MOST_AT_ONCE):
        assert sent(pool, offer, name=f"{i:x}") is None
    assert sent(pool, offer) == "is one too many for this round"
    assert pool.settle() is not None
    assert pool.turned_down(offer.name) == ""
    assert sent(pool, offer) is None


def test_one_whose_images_do_harm_does_not_stop_the_others(
    bundle: Bundle, runs_on: Engine, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is turned down, and sends its next images once it has learned more."""
    pool, one, bad = ImagePool(bundle, guarded(bundle, runs_on)), new("one"), new("bad")
    one.see(3)
    bad.see(7)
    harm, real = bad.offer().arrays["x"], image_pool.condense

    def judged(it: Guarded, given: Any) -> Verdict | None:
        if any(each.x_syn.tobytes() == harm.tobytes() for each in given):
            return Verdict("does harm", {}, np.zeros(0, bool))
        return real(it, given)

    monkeypatch.setattr(image_pool, "condense", judged)
    assert (one.send(pool), bad.send(pool)) == (None, None)
    verdict = pool.settle()
    assert verdict is not None
    assert verdict.accepted
    name = bad.offer().name
    assert pool.taken == 1
    assert pool.left_out == [(name, "gives a model that does harm")]
    assert set(pool.places) == {one.offer().name}
    assert bad.take_up(pool) is not None
    assert not bad.offer().arrays
    bad.see(8)
    assert bad.send(pool) is None
    assert pool.settle() is not None
    assert set(pool.places) == {one.offer().name, name}


def test_what_the_guard_refuses_changes_nothing(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    """At the paper's own retraining, which loses too many of this bundle's guard images, on both sides."""
    slow = Hyperparameters()
    pool, devices = ImagePool(bundle, guarded(bundle, runs_on, slow)), [new(name) for name in "ab"]
    handed, model = pool.handed.x, pool.guarded.learner.model
    for c, each in enumerate(devices):
        each.see(c)
        assert each.send(pool) is None
    verdict = pool.settle()
    assert verdict is not None
    assert not verdict.accepted
    assert (pool.taken, len(pool.left_out), pool.places) == (0, 2, {})
    assert pool.handed.x is handed
    assert pool.guarded.learner.model is model
    it = devices[0]
    it.guarded = guarded(bundle, runs_on, slow)
    own, model = it.x, it.guarded.learner.model
    device.hand_over(it.path, Images(devices[1].x), 0)
    _, verdict = images.take_up(it.path, it.guarded, bundle, it.save)
    assert verdict is not None
    assert not verdict.accepted
    assert it.x is own
    assert it.guarded.learner.model is model
    assert it.guarded.kept.rejections == 0


def test_what_a_server_may_not_hand_over(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    it = new("it")
    it.see(3)
    offer, own = it.offer(), it.x
    far = Images(it.x * np.float32(1e4))
    device.hand_over(it.path, far, 1)
    _, verdict = images.take_up(it.path, it.guarded, bundle, it.save)
    assert verdict is not None
    assert "times as large" in str(verdict.reason)
    assert it.offer().arrays == {}  # but it has been told that its own has come
    for wrong in (Images(own[1:]), Images(own * np.float32(np.nan)), Images(own.astype(np.float64))):
        device.hand_over(it.path, wrong, 1)
        with pytest.raises(StateError, match="expected a fleet's sums in"):
            images.take_up(it.path, it.guarded, bundle, it.save)
    for number in (-1, 0, 2):
        device.hand_over(it.path, far, number)
        with pytest.raises(StateError, match="to join anew"):
            images.take_up(it.path, it.guarded, bundle, it.save)
    assert it.x is own
    assert offer.number == 1


def test_its_place_is_on_the_disk_and_its_own(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    it = new("it")
    it.see(3)
    offer = it.offer()
    it.see(4)
    again = it.offer()  # the same one until it is confirmed
    assert digest(again.arrays) == digest(offer.arrays)
    data = (it.path / FILE).read_bytes()
    for broken in (b"", data[:-1], data[:40] + b"x" + data[41:]):
        (it.path / FILE).write_bytes(broken)
        with pytest.raises(StateError, match="but it is damaged"):
            it.offer()
    with pytest.raises(UsageError, match="expected no --noise for the recipe paper"):
        images.offer(it.path, it.guarded, bundle, "fp32", LEAST, it.save, 3.0)


def test_what_people_added_stays_on_the_device(bundle: Bundle, runs_on: Engine, new: Any) -> None:
    pool, it, other = ImagePool(bundle, guarded(bundle, runs_on)), new("it"), new("other")
    spare = it.guarded.learner.spare
    if spare:
        seen = observed_in(it.guarded.learner, boxes(bundle, 0, 10), bundle)
        assert taught(it.guarded, bundle.classes, "box", seen, np.arange(10)).refused is None
    it.see(3)
    other.see(7)
    assert it.offer().arrays["x"].shape == initial(bundle).x_syn.shape
    assert (it.send(pool), other.send(pool)) == (None, None)
    assert pool.settle() is not None
    assert it.take_up(pool) is not None
    assert it.guarded.learner.classes == 10 + bool(spare)


def test_the_wrong_pool_says_so(bundle: Bundle, runs_on: Engine) -> None:
    kind = registry.learner("deco+")
    sums = Guarded(kind.open(bundle, runs_on, kind.RECIPE, np.random.default_rng(0)), None)
    with pytest.raises(UsageError, match="merge its sums"):
        ImagePool(bundle, sums)
    kind = registry.learner("frozen")
    still = Guarded(kind.open(bundle, runs_on, kind.RECIPE, np.random.default_rng(0)), None)
    with pytest.raises(UsageError, match="their images condensed, paper"):
        Pool(bundle, still)


def test_a_run_under_paper_gives_and_takes_through_its_socket(bundle: Bundle, place: Path) -> None:
    """Its own images, moved by what it takes in, are judged by the bundle's own guard."""
    with going(bundle, place, "paper") as run:
        assert not client.give(place, None, "fp32", LEAST).arrays
        for c in (3, 4):
            run.requests.ask(lambda c=c: run.guarded.learn(segment(bundle, run.learner, c)))  # type: ignore[misc]
        run.requests.ask(run.guarded.retrain)
        offer = client.give(place, None, "fp16", LEAST)
        assert isinstance(run.learner.memory, CondensedBuffer)
        assert offer.number == 1
        np.testing.assert_array_equal(offer.arrays["x"], run.guarded.accepted.x_syn)
        with pytest.raises(UsageError, match="expected no --noise"):
            client.give(place, None, "fp32", LEAST, 3.0)
        fleet = Images((offer.arrays["x"] * np.float32(0.9)).astype(np.float32))
        told = client.take(place, None, fleet, 1)
        assert told["frames"] == 0
        moved = np.abs(run.guarded.accepted.x_syn - offer.arrays["x"]).max() > 0
        assert moved == (told["refused"] is None)
        assert client.take(place, None, fleet, 1) == {"frames": 0, "refused": None}  # nothing new
