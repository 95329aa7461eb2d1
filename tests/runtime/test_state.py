"""Learned state on the disk: kept bit for bit, never lost to damage, never mixed up between bundles."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import StateError
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.guard import Guarded, Kept, Unguarded
from deco_runtime.learning.harm import Labelled
from deco_runtime.learning.learner import COUNTS
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle
from deco_runtime.storage.state import CURRENT, PREVIOUS, SCHEMA, LearnedState, hold, save
from deco_runtime.storage.state import load as load_like
from fake_engine import fresh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

every_recipe = pytest.mark.parametrize("recipe", registry.names())
on_one_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def guarded(bundle: Bundle, recipe: str = "paper") -> Guarded:
    """A learner that starts from the bundle, and its guard with the bundle's images, which nobody looks at here."""
    count = bundle.guard_images
    labels = np.zeros(count, np.int64)
    return Guarded(fresh(bundle, recipe).learner, Labelled(lambda model, check: labels, labels, labels, bundle.classes))


def load(directory: Path, bundle: Bundle, recipe: str = "paper") -> tuple[LearnedState | None, str | None]:
    """As the module's, into a learner of which is known that it has become just what was loaded."""
    learner = guarded(bundle, recipe)
    start = LearnedState.of(learner, bundle, "", 0)
    try:
        state, note = load_like(directory, bundle, learner)
    except StateError:
        assert same(LearnedState.of(learner, bundle, "", 0), start)
        raise
    of_it = LearnedState.of(learner, bundle, *((state.source, state.position, state.digest) if state else ("", 0)))
    assert same(of_it, state or start)
    return state, note


def make_learner(bundle: Bundle, seed: int, recipe: str = "paper") -> Guarded:
    """One whose every array, count and draw is a matter of the seed."""
    rng = np.random.default_rng(seed)
    it = guarded(bundle, recipe)
    learner = it.learner

    def other(array: np.ndarray) -> np.ndarray:
        return rng.standard_normal(array.shape).astype(np.float32) if array.dtype == np.float32 else array

    def other_memory() -> Any:
        return replace(learner.memory, **{name: other(array) for name, array in arrays_of(learner.memory).items()})

    learner.model, learner.memory, learner.rng = other(learner.model), other_memory(), rng
    if learner.states:
        learner.scene = rng.random(learner.states, np.float32)
    for number, name in enumerate(COUNTS):
        setattr(learner, name, seed + number)
    it.kept = Kept(other_memory(), rng.random(bundle.guard_images) < 0.5, rejections=seed, pause=10 * seed)
    return it


def make_state(bundle: Bundle, seed: int, recipe: str = "paper") -> LearnedState:
    return LearnedState.of(make_learner(bundle, seed, recipe), bundle, f"source {seed}", 128 * seed, f"digest {seed}")


def same(a: LearnedState, b: LearnedState) -> bool:
    bits = [{name: (x.dtype, x.shape, x.tobytes()) for name, x in s.arrays.items()} for s in (a, b)]
    rest = [(s.bundle, s.recipe, s.values, s.source, s.position, s.digest) for s in (a, b)]
    return bits[0] == bits[1] and rest[0] == rest[1]


@pytest.fixture
def saved(tmp_path: Path, bundle: Bundle) -> Path:
    """A directory where seed 1 was saved, then seed 2."""
    save(tmp_path, make_state(bundle, 1))
    save(tmp_path, make_state(bundle, 2))
    return tmp_path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, bundle: Bundle) -> Path:
    """As `saved`, for tests that put back what they change."""
    directory = tmp_path_factory.mktemp("two")
    save(directory, make_state(bundle, 1))
    save(directory, make_state(bundle, 2))
    return directory


@every_recipe
def test_round_trip_bit_for_bit(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    it = make_learner(bundle, 5, recipe)
    learner = it.learner
    learner.model[:4] = [-0.0, 1e-45, np.float32(3.4e38), np.float32(0.1)]
    learner.rng.random(3, np.float32)  # leaves half a draw in the generator
    state = LearnedState.of(it, bundle, "images in /data/Äpfel\udce9", 640, "ab12")
    written = save(tmp_path / "a" / "b", state)
    assert (tmp_path / "a" / "b" / CURRENT).stat().st_size == written
    other = make_learner(bundle, 9, recipe)
    loaded, note = load_like(tmp_path / "a" / "b", bundle, other)
    assert note is None
    assert loaded is not None
    assert same(loaded, state)

    again = other.learner
    assert same(LearnedState.of(other, bundle, state.source, state.position, state.digest), state)
    assert again.model.tobytes() == learner.model.tobytes()
    for one, two in ((again.memory, learner.memory), (other.kept.memory, it.kept.memory)):
        assert type(one) is type(two)
        assert [array.tobytes() for array in arrays_of(one).values()] == [a.tobytes() for a in arrays_of(two).values()]
    assert other.kept.best.tolist() == it.kept.best.tolist()
    assert (other.kept.rejections, other.kept.pause) == (5, 50)
    assert (
        [getattr(again, name) for name in COUNTS] == [getattr(learner, name) for name in COUNTS] == [5, 6, 7, 8, 9, 10]
    )
    assert again.rng.random(5, np.float32).tobytes() == learner.rng.random(5, np.float32).tobytes()
    assert again.rng.permutation(50).tolist() == learner.rng.permutation(50).tolist()
    assert again.rng.standard_normal(9).tobytes() == learner.rng.standard_normal(9).tobytes()


@pytest.mark.parametrize("known", [True, False])
def test_what_the_stream_showed_last_is_kept(known: bool, tmp_path: Path, bundle: Bundle) -> None:
    """Or that nothing is known of it, after an interruption."""
    it = make_learner(bundle, 5, "deco+")
    scene = it.learner.scene
    assert scene is not None
    if not known:
        it.learner.interrupted()
    save(tmp_path, LearnedState.of(it, bundle, "", 0))
    other = make_learner(bundle, 9, "deco+")
    load_like(tmp_path, bundle, other)
    assert other.learner.scene is None or known
    assert other.learner.scene is not None or not known
    if known:
        assert other.learner.scene.tobytes() == scene.tobytes()


@every_recipe
def test_a_memory_that_the_guard_accepted_last_is_kept_once(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    """It is the learner's own until that goes on, and then again after the state was loaded."""
    it = make_learner(bundle, 5, recipe)
    twice = LearnedState.of(it, bundle, "", 0)
    it.kept = replace(it.kept, memory=it.learner.memory)
    once = LearnedState.of(it, bundle, "", 0)
    names = {f"guard_{name}" for name in arrays_of(it.learner.memory)}
    assert names
    assert twice.arrays.keys() - once.arrays.keys() == names
    assert save(tmp_path, once) < save(tmp_path, twice)
    save(tmp_path, once)
    other = make_learner(bundle, 9, recipe)
    load_like(tmp_path, bundle, other)
    assert other.kept.memory is other.learner.memory
    assert same(LearnedState.of(other, bundle, "", 0), once)


@every_recipe
def test_state_without_a_guard_is_taken_up_as_such(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    """What --no-guard wrote: a guard keeps what it has, and one that is not there is no loss."""
    it = make_learner(bundle, 5, recipe)
    with_guard, plain = (LearnedState.of(each, bundle, "", 0) for each in (it, Unguarded(it.learner)))
    save(tmp_path, plain)
    other = make_learner(bundle, 9, recipe)
    kept = other.kept
    loaded, _ = load_like(tmp_path, bundle, other)
    assert loaded is not None
    assert "guard" not in loaded.values
    assert not any(name.startswith("guard_") for name in loaded.arrays)
    assert same(loaded, plain)
    assert not same(loaded, with_guard)
    assert other.kept is kept
    assert same(LearnedState.of(Unguarded(other.learner), bundle, "", 0), plain)
    save(tmp_path, with_guard)
    unguarded = fresh(bundle, recipe)
    loaded, _ = load_like(tmp_path, bundle, unguarded)
    assert loaded is not None
    assert same(loaded, with_guard)
    assert same(LearnedState.of(unguarded, bundle, "", 0), plain)


@every_recipe
def test_a_snapshot_does_not_move_with_the_learner(recipe: str, bundle: Bundle) -> None:
    it = make_learner(bundle, 5, recipe)
    state = LearnedState.of(it, bundle, "", 0)
    generator = json.dumps(state.values["generator"])
    it.learner.rng.random(100)
    it.learner.segments += 1
    it.kept = replace(it.kept, pause=7)
    assert json.dumps(state.values["generator"]) == generator
    assert state.values["counts"]["segments"] == 5
    assert state.values["guard"] == {"rejections": 5, "pause": 50}


def test_nothing_saved_is_no_state(tmp_path: Path, bundle: Bundle) -> None:
    assert load(tmp_path, bundle) == (None, None)
    assert load(tmp_path / "not" / "yet", bundle) == (None, None)


def test_the_newest_is_used_and_the_one_before_kept(saved: Path, bundle: Bundle) -> None:
    assert sorted(p.name for p in saved.iterdir()) == sorted([CURRENT, PREVIOUS])
    loaded, note = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 2))
    assert note is None
    (saved / CURRENT).rename(saved / "elsewhere")
    loaded, note = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))


@pytest.mark.parametrize("content", [b"", b"half a file", b"\0" * 4096])
def test_leftovers_of_an_interrupted_save_do_not_matter(saved: Path, bundle: Bundle, content: bytes) -> None:
    (saved / f"{CURRENT}.tmp").write_bytes(content)
    assert load(saved, bundle)[0] is not None
    save(saved, make_state(bundle, 3))
    loaded, note = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 3))
    assert note is None
    assert sorted(p.name for p in saved.iterdir()) == sorted([CURRENT, PREVIOUS])


def truncate(good: bytes, at: int, other: bytes) -> bytes:
    return good[:at]


def zero_from(good: bytes, at: int, other: bytes) -> bytes:
    return good[:at] + bytes(len(good) - at)


def half_written_over(good: bytes, at: int, other: bytes) -> bytes:
    return other[:at] + good[at:]


def flip_one_bit(good: bytes, at: int, other: bytes) -> bytes:
    return good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]


def append(good: bytes, at: int, other: bytes) -> bytes:
    return good + other[: at + 1]


@given(
    where=st.sampled_from(range(40)) | st.integers(0, 10**7),
    damage=st.sampled_from([truncate, zero_from, half_written_over, flip_one_bit, append]),
)
@on_one_directory
def test_damage_anywhere_falls_back_to_the_one_before(
    two: Path, bundle: Bundle, where: int, damage: Callable[[bytes, int, bytes], bytes]
) -> None:
    current = two / CURRENT
    good, other = current.read_bytes(), (two / PREVIOUS).read_bytes()
    damaged = damage(good, where % len(good), other)
    try:
        current.write_bytes(damaged)
        loaded, note = load(two, bundle)
    finally:
        current.write_bytes(good)
    assert loaded is not None
    if damaged in (good, other):  # zeros behind a zero; nothing is lost
        return
    assert same(loaded, make_state(bundle, 1))
    assert note is not None
    assert str(current) in note
    assert "\n" not in note


@pytest.mark.parametrize("damaged", [[CURRENT, PREVIOUS], [CURRENT], [PREVIOUS]])
def test_nothing_but_damage_is_refused_and_left_alone(saved: Path, bundle: Bundle, damaged: list[str]) -> None:
    for name in (CURRENT, PREVIOUS):
        if name in damaged:
            (saved / name).write_bytes((saved / name).read_bytes()[:-1])
        else:
            (saved / name).unlink()
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    with pytest.raises(StateError, match=r"^expected learned state in .*damaged.*; move the directory away") as caught:
        load(saved, bundle)
    assert all(name in str(caught.value) for name in damaged)
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before


def test_a_directory_in_place_of_the_file(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / CURRENT).mkdir()
    (tmp_path / CURRENT / "something").touch()
    with pytest.raises(StateError, match=CURRENT):
        load(tmp_path, bundle)
    with pytest.raises(StateError, match="expected to write learned state"):
        save(tmp_path, make_state(bundle, 1))
    assert (tmp_path / CURRENT / "something").exists()


def test_saving_over_a_damaged_file_keeps_the_good_one_before(saved: Path, bundle: Bundle) -> None:
    """Else a power cut between the two renames would leave nothing but the damaged file."""
    (saved / CURRENT).write_bytes(b"damaged")
    save(saved, make_state(bundle, 3))
    (saved / CURRENT).unlink()
    loaded, _ = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))


def repacked(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change arrays and meta of a state file, its checksum made right again."""
    with np.load(io.BytesIO(path.read_bytes()[32:])) as archive:
        arrays = dict(archive)
    meta = json.loads(arrays["meta"].tobytes())
    change(arrays, meta)
    if isinstance(arrays.get("meta"), np.ndarray):
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    memory = io.BytesIO()
    np.savez(memory, **arrays)
    with_checksum(path, memory.getvalue())


def with_checksum(path: Path, payload: bytes) -> None:
    path.write_bytes(hashlib.sha256(payload).digest() + payload)


def test_state_of_another_bundle(saved: Path, bundle: Bundle) -> None:
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    with pytest.raises(StateError, match="belongs to another one; give that bundle, or another --state"):
        load(saved, replace(bundle, hash="0" * 64))
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before


def test_state_of_another_much_larger_bundle(saved: Path, bundle: Bundle) -> None:
    """Must not be called damaged: that advice would throw it away."""

    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        arrays["model"] = np.zeros(1 << 20, np.float32)
        meta["bundle"] = "0" * 64

    repacked(saved / CURRENT, change)
    with pytest.raises(StateError, match="belongs to another one; give that bundle, or another --state"):
        load(saved, bundle)


@pytest.mark.parametrize("schema", [3, 6, 7, 99, "8", None, [8]])
def test_state_of_another_version(saved: Path, bundle: Bundle, schema: Any) -> None:
    repacked(saved / CURRENT, lambda arrays, meta: meta.update(schema=schema))
    with pytest.raises(StateError) as caught:
        load(saved, bundle)
    assert str(caught.value) == (
        f"expected learned state of schema 8, but {saved / CURRENT} is of schema {schema!r}; "
        "use the deco-edge version that wrote it, or another --state"
    )


@every_recipe
def test_what_the_last_version_wrote_is_refused_in_one_sentence(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    """A file of schema 7, in its own form: nothing of it is taken, none of it is called damaged, and it stays."""
    save(tmp_path, make_state(bundle, 1, recipe))

    def older(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        assert meta["schema"] == SCHEMA == 8
        del meta["values"]["counts"]["offers"]  # which were not counted
        meta["schema"] = 7

    repacked(tmp_path / CURRENT, older)
    before = (tmp_path / CURRENT).read_bytes()
    with pytest.raises(StateError) as caught:
        load(tmp_path, bundle, recipe)
    assert str(caught.value) == (
        f"expected learned state of schema 8, but {tmp_path / CURRENT} is of schema 7; "
        "use the deco-edge version that wrote it, or another --state"
    )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {CURRENT: before}


def set_meta(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta.update(values)


def set_values(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta["values"].update(values)


def set_count(value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta["values"]["counts"].update(retrains=value)


def set_generator(**values: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta["values"]["generator"].update(values)


def drop_meta(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta.pop(name)


def drop_value(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: meta["values"].pop(name)


def drop(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: arrays.pop(name)


def remake(name: str, make: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda arrays, meta: arrays.update({name: make(arrays[name])})


WRONG_INSIDE = {
    "counts a string": set_count("3"),
    "counts negative": set_count(-1),
    "counts fractional": set_count(1.5),
    "counts infinite": set_count(float("inf")),
    "counts huge": set_count(10**400),
    "counts true": set_count(True),
    "counts null": set_count(None),
    "no counts": set_values(counts={}),
    "counts no object": set_values(counts=[1, 2, 3, 4]),
    "position negative": set_meta(position=-1),
    "position a string": set_meta(position="128"),
    "position null": set_meta(position=None),
    "no position": drop_meta("position"),
    "no bundle": drop_meta("bundle"),
    "no schema": drop_meta("schema"),
    "no source": drop_meta("source"),
    "no recipe": drop_meta("recipe"),
    "no digest": drop_meta("digest"),
    "no values": drop_meta("values"),
    "values null": set_meta(values=None),
    "values a number": set_meta(values=6),
    "values empty": set_meta(values={}),
    "values a list": set_meta(values=[]),
    "counts missing": drop_value("counts"),
    "no generator": drop_value("generator"),
    "generator null": set_values(generator=None),
    "generator empty": set_values(generator={}),
    "generator a list": set_values(generator=[1]),
    "generator of another kind": set_generator(bit_generator="MT19937"),
    "generator state null": set_generator(state=None),
    "generator state empty": set_generator(state={}),
    "generator state negative": set_generator(state={"state": -1, "inc": 1}),
    "generator state text": set_generator(state={"state": "1", "inc": "1"}),
    "generator half a draw": set_generator(has_uint32="yes"),
    "model missing": drop("model"),
    "model shorter": remake("model", lambda a: a[:-1]),
    "model float64": remake("model", lambda a: a.astype(np.float64)),
    "model big-endian": remake("model", lambda a: a.astype(">f4")),
    "model not a number": remake("model", lambda a: np.r_[np.float32(np.nan), a[1:]]),
    "velocity infinite": remake("velocity", lambda a: a + np.float32(np.inf)),
    "model scalar": remake("model", lambda a: a[0]),
    "x_syn missing": drop("x_syn"),
    "x_syn of another ipc": remake("x_syn", lambda a: a[:10]),
    "y_syn of other classes": remake("y_syn", lambda a: a[::-1]),
    "y_syn out of range": remake("y_syn", lambda a: a + 100),
    "velocity missing": drop("velocity"),
    "velocity flat": remake("velocity", lambda a: a.reshape(-1)),
    "guard null": set_values(guard=None),
    "guard empty": set_values(guard={}),
    "rejections negative": set_values(guard={"rejections": -1, "pause": 0}),
    "pause a string": set_values(guard={"rejections": 0, "pause": "0"}),
    "guard_x_syn missing": drop("guard_x_syn"),
    "guard_velocity float64": remake("guard_velocity", lambda a: a.astype(np.float64)),
    "guard_best missing": drop("guard_best"),
    "guard_best longer": remake("guard_best", lambda a: np.append(a, a[:1])),
    "guard_best of floats": remake("guard_best", lambda a: a.astype(np.float32)),
    "meta missing": drop("meta"),
    "model pickled": remake("model", lambda a: np.array([object], dtype=object)),
    "everything pickled": remake("x_syn", lambda a: np.array(list(a), dtype=object)),
}


@pytest.mark.parametrize("change", WRONG_INSIDE.values(), ids=WRONG_INSIDE.keys())
def test_wrong_inside_a_right_checksum(
    saved: Path, bundle: Bundle, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    repacked(saved / CURRENT, change)
    loaded, note = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))
    assert note is not None
    assert "damaged" in note


WRONG_STATISTICS = {
    "model shorter": remake("model", lambda a: a[:-10]),
    "a missing": drop("a"),
    "a of another size": remake("a", lambda a: a[:-1]),
    "a float64": remake("a", lambda a: a.astype(np.float64)),
    "a not a number": remake("a", lambda a: a * np.float32(np.nan)),
    "b flat": remake("b", lambda a: a.reshape(-1)),
    "b infinite": remake("b", lambda a: a + np.float32(np.inf)),
    "guard_a missing": drop("guard_a"),
    "guard_b of other classes": remake("guard_b", lambda a: a[:, :-1]),
    "scene of fewer classes": remake("scene", lambda a: a[:-1]),
    "scene float64": remake("scene", lambda a: a.astype(np.float64)),
    "scene not a number": remake("scene", lambda a: a * np.float32(np.nan)),
}


@pytest.mark.parametrize("change", WRONG_STATISTICS.values(), ids=WRONG_STATISTICS.keys())
def test_wrong_inside_a_state_of_deco_plus(
    tmp_path: Path, bundle: Bundle, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    for seed in (1, 2):
        save(tmp_path, make_state(bundle, seed, "deco+"))
    repacked(tmp_path / CURRENT, change)
    loaded, note = load(tmp_path, bundle, "deco+")
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1, "deco+"))
    assert note is not None
    assert "damaged" in note


@every_recipe
def test_a_state_takes_what_was_foretold(recipe: str, tmp_path: Path, bundle: Bundle) -> None:
    """With the memory of the last accepted update beside it, but for the names and numbers around the arrays."""
    foretold = registry.state_bytes(registry.learner(recipe), bundle)
    assert foretold < save(tmp_path, make_state(bundle, 1, recipe)) < foretold + 6000


@pytest.mark.parametrize(("learned", "asked"), list(itertools.permutations(registry.names(), 2)))
def test_state_of_another_recipe(
    learned: str, asked: str, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor called damaged where images are so large that the paper's is far larger."""
    monkeypatch.setattr(states, "ALWAYS_FINE", 0)
    for seed in (1, 2):
        save(tmp_path, make_state(bundle, seed, learned))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(StateError) as caught:
        load(tmp_path, bundle, asked)
    assert str(caught.value) == (
        f"expected learned state of --recipe {asked}, but {tmp_path / CURRENT} was learned with {learned!r}; "
        "give that recipe, or another --state"
    )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def npy(array: Any) -> bytes:
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


PAYLOADS = {
    "nothing": b"",
    "text": b"hello",
    "no zip": b"PK\x03\x04" + bytes(100),
    "an end of zip": b"PK\x05\x06" + bytes(18),
    "one array": npy(np.zeros(3, np.float32)),
    "a pickle": b"\x80\x04]\x94.",
    "a pickled array": npy(np.array([object], dtype=object)),
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_other_files_with_a_right_checksum(tmp_path: Path, bundle: Bundle, payload: bytes) -> None:
    with_checksum(tmp_path / CURRENT, payload)
    with pytest.raises(StateError, match="damaged"):
        load(tmp_path, bundle)


class Marker:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_never_run(saved: Path, bundle: Bundle) -> None:
    marker = saved / "ran"
    repacked(saved / CURRENT, remake("model", lambda a: np.array([Marker(marker)], dtype=object)))
    assert b"mkdir" in (saved / CURRENT).read_bytes()
    _, note = load(saved, bundle)
    assert note is not None
    assert not marker.exists()


@pytest.mark.parametrize("depth", [100, 995, 100_000])
def test_deeply_nested_meta(tmp_path: Path, bundle: Bundle, depth: int) -> None:
    memory = io.BytesIO()
    np.savez(memory, meta=np.frombuffer(b'{"schema":2,"bundle":' + b"[" * depth + b"]" * depth + b"}", np.uint8))
    with_checksum(tmp_path / CURRENT, memory.getvalue())
    with pytest.raises(StateError):
        load(tmp_path, bundle)


def test_a_key_given_twice(saved: Path, bundle: Bundle) -> None:
    """Which of the two counts would depend on the reader."""

    def twice(meta: np.ndarray) -> np.ndarray:
        return np.frombuffer(meta.tobytes().replace(b'"schema"', b'"position": 7, "schema"', 1), np.uint8)

    with np.load(io.BytesIO((saved / CURRENT).read_bytes()[32:])) as archive:
        arrays = dict(archive)
    memory = io.BytesIO()
    np.savez(memory, **{**arrays, "meta": twice(arrays["meta"])})
    with_checksum(saved / CURRENT, memory.getvalue())
    _, note = load(saved, bundle)
    assert note is not None
    assert "damaged (it gives a key twice)" in note


@given(
    where=st.floats(0, 1), junk=st.binary(max_size=12), length=st.integers(0, 12), end=st.floats(0, 1) | st.just(1.0)
)
@on_one_directory
def test_any_bytes_behind_a_right_checksum_are_state_or_damage(
    two: Path, bundle: Bundle, where: float, junk: bytes, length: int, end: float
) -> None:
    """And what is taken for state fits the bundle and can be restored."""
    current = two / CURRENT
    good = current.read_bytes()
    payload = good[32:]
    start = int(where * len(payload))
    try:
        with_checksum(current, (payload[:start] + junk + payload[start + length :])[: int(end * len(payload)) + 1])
        loaded, _ = load_like(two, bundle, learner := make_learner(bundle, 3))
    finally:
        current.write_bytes(good)
    assert loaded is not None
    assert loaded.arrays["model"].shape == (bundle.weight_count,)
    assert learner.learner.model.tobytes() == loaded.arrays["model"].tobytes()
    learner.learner.rng.random(3)


json_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=3)


@given(
    value=json_leaves,
    where=st.sampled_from(["values", "counts", "generator", "guard", "state", "meta"]),
    data=st.data(),
)
@on_one_directory
def test_any_meta_is_state_or_damage(two: Path, bundle: Bundle, value: Any, where: str, data: st.DataObject) -> None:
    """And what is taken for state can be restored."""
    current = two / CURRENT
    good = current.read_bytes()

    def change(arrays: dict[str, Any], meta: dict[str, Any]) -> None:
        values = meta["values"]
        inner = {"meta": meta, "values": values, "state": values["generator"]["state"]}
        place = inner.get(where) or values[where]
        place[data.draw(st.sampled_from(sorted(place)))] = value

    try:
        repacked(current, change)
        loaded, _ = load_like(two, bundle, learner := make_learner(bundle, 3))
    except StateError:
        return
    finally:
        current.write_bytes(good)
    assert loaded is not None
    learner.learner.rng.random(3)
    LearnedState.of(learner, bundle, loaded.source, loaded.position, loaded.digest)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_in_place_of_the_file_is_not_waited_for(saved: Path, bundle: Bundle) -> None:
    (saved / CURRENT).unlink()
    os.mkfifo(saved / CURRENT)
    loaded, note = load(saved, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))
    assert note is not None
    assert "it is no file" in note


def test_a_file_in_the_way(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "file").write_text("precious")
    for directory in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(StateError, match=r"^expected to write learned state to .*; free space or choose another"):
            save(directory, make_state(bundle, 1))
        with pytest.raises(StateError, match=r"^expected a place for learned state at .*; choose another --state"):
            hold(directory)  # before anything is learned that could not be kept
    assert (tmp_path / "file").read_text() == "precious"


def test_a_name_that_no_directory_can_have(tmp_path: Path, bundle: Bundle) -> None:
    with pytest.raises(StateError):
        hold(tmp_path / ("a" * 5000))
    with pytest.raises(StateError):
        save(tmp_path / ("a" * 5000), make_state(bundle, 1))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_that_cannot_flush_folders(
    code: int, tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_folders(code, monkeypatch)
    assert save(tmp_path, make_state(bundle, 1)) == (tmp_path / CURRENT).stat().st_size
    loaded, note = load(tmp_path, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))
    assert note is None


def test_a_disk_that_fails_to_flush_a_folder(tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_folders(errno.EIO, monkeypatch)
    with pytest.raises(StateError, match="Input/output error"):
        save(tmp_path, make_state(bundle, 1))


def refuse_folders(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(code, os.strerror(code))
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full stands for a full disk")
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, bundle: Bundle) -> None:
    save(tmp_path, make_state(bundle, 1))
    (tmp_path / f"{CURRENT}.tmp").symlink_to("/dev/full")
    with pytest.raises(StateError, match="No space left on device; free space"):
        save(tmp_path, make_state(bundle, 2))
    loaded, note = load(tmp_path, bundle)
    assert loaded is not None
    assert same(loaded, make_state(bundle, 1))
    assert note is None
