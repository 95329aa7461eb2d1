"""What must survive a power cut: the model, its memory, the generator and the counts, bound to bundle and recipe.

A state directory holds `learned.deco` and `learned.previous.deco`. A file is 32 bytes of SHA-256 over the rest, then a
numpy .npz without pickles. It is written to a temporary file, flushed to the disk, and renamed over; the one before
is kept, so at every instant one good file is there. One run at a time holds the directory, by a lock that ends with its
process, however that ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.errors import StateError, first_line
from deco_runtime.learning.guard import Kept, Memory
from deco_runtime.learning.learner import BaseLearner
from deco_runtime.storage.bundle import BUFFER, Bundle
from deco_runtime.storage.lock import lock
from deco_runtime.storage.untrusted import ALWAYS_FINE, Array, parse_json, read_bytes, read_npz
from deco_runtime.types import Floats

SCHEMA = 5
CURRENT, PREVIOUS = "learned.deco", "learned.previous.deco"
NOT_OF_FOLDERS = {errno.EINVAL, errno.EBADF, errno.ENOSYS, getattr(errno, "ENOTSUP", errno.ENOSYS)}
"""What some disks say that cannot flush a folder, such as those of the network; the file itself is on the disk then."""
COUNTS = ("segments", "since_retrain", "retrains", "dropped")


@dataclass(frozen=True)
class LearnedState:
    """Everything learned, at one segment boundary.

    recipe: the name of the one it was learned by. model, memory: as in BaseLearner. generator: state of the numpy bit
    generator. counts: those of COUNTS, as in BaseLearner. source, position: the replayable stream and how many of its
    frames lie behind this state, so that an interrupted run goes on where it was; position 0 when the stream was
    finished. guard: None when updates were not guarded, so that nothing is known about the model. scene: as in
    BaseLearner; it means something only where the stream goes on at `position`. digest: of these frames, as in
    `resume.Place`; "" for none.
    """

    bundle: str
    recipe: str
    model: Floats
    memory: Memory
    generator: dict[str, Any]
    counts: dict[str, int]
    source: str
    position: int
    guard: Kept | None = None
    scene: Floats | None = None
    digest: str = ""

    @classmethod
    def of(cls, learner: BaseLearner, bundle: Bundle, source: str, position: int, digest: str = "") -> LearnedState:
        """A snapshot of the learner."""
        counts = {name: getattr(learner, name) for name in COUNTS}
        generator = dict(learner.rng.bit_generator.state)
        guard = learner.guard.kept if learner.guard is not None else None
        recipe, model, memory = learner.recipe.name, learner.model, learner.memory
        place = source, position, guard, learner.scene, digest
        return cls(bundle.hash, recipe, model, memory, generator, counts, *place)

    def restore(self, learner: BaseLearner) -> None:
        """Put the learner back to where the snapshot was taken."""
        learner.model, learner.memory, learner.scene = self.model, self.memory, self.scene
        learner.rng.bit_generator.state = self.generator
        for name in COUNTS:
            setattr(learner, name, self.counts[name])
        if learner.guard is not None and self.guard is not None:
            learner.guard.kept = self.guard


def hold(directory: Path) -> tuple[str | None, str | None]:
    """Make the directory if there is none, and keep other runs out of it until this process ends.

    Returns why nothing can be saved there, None when it can: a disk that is read-only now may be mended later, and
    meanwhile predicting is worth more than nothing; and why other runs are not kept out, None when they are. A place
    that is none, a mistyped one, raises StateError, and so does one that another run holds.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _, missing = lock(directory)  # the handle stays open, and with it the lock
    except BlockingIOError:
        raise StateError(
            f"expected to be the only run with the learned state in {directory}, but another one has it; "
            "stop that one, or choose another --state"
        ) from None
    except OSError as error:
        raise StateError(
            f"expected a place for learned state at {directory}, but: {error.strerror}; choose another --state"
        ) from error
    unwritable = unlocked = None
    if not os.access(directory, os.W_OK):
        unwritable = (
            f"expected to save in {directory}, but it may not be written: the disk is read-only, or permissions forbid "
            "it; learns in memory until that is mended, and loses it when the run ends"
        )
    if missing is not None:
        unlocked = (
            f"expected to lock {directory}, but the system says: {missing}; goes on without, so see that no other run "
            "has this --state"
        )
    return unwritable, unlocked


def save(directory: Path, state: LearnedState) -> int:
    """Replace the state in the directory; returns the bytes written.

    Raises StateError when the disk refuses; what was there before is still there then.
    """
    memory = io.BytesIO()
    meta = {
        "schema": SCHEMA,
        "bundle": state.bundle,
        "recipe": state.recipe,
        "generator": state.generator,
        "counts": state.counts,
        "source": state.source,
        "position": state.position,
        "digest": state.digest,
    }
    arrays: dict[str, npt.NDArray[Any]] = {"model": state.model, **vars(state.memory)}
    if state.scene is not None:
        arrays["scene"] = state.scene
    if (guard := state.guard) is not None:
        meta["guard"] = {"rejections": guard.rejections, "pause": guard.pause}
        arrays["guard_best"] = guard.best.astype(np.uint8)
        if guard.memory is not state.memory:  # as it is right after an accepted update
            arrays |= {f"guard_{name}": array for name, array in vars(guard.memory).items()}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(memory, **arrays)  # type: ignore[arg-type]
    payload = memory.getvalue()
    temporary = directory / f"{CURRENT}.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(hashlib.sha256(payload).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # A damaged one must not take the place of the good one before it.
        if _intact(directory / CURRENT, len(payload)):
            os.replace(directory / CURRENT, directory / PREVIOUS)
        os.replace(temporary, directory / CURRENT)
        _sync_directory(directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()  # half a file on a full disk would keep it full
        raise StateError(
            f"expected to write learned state to {directory}, but the system says: {error.strerror}; "
            "free space or choose another --state"
        ) from error
    return len(payload) + 32


def _payload(path: Path, size: int) -> bytes:
    """What a state file holds behind its checksum, about `size` bytes.

    Raises ValueError when they do not fit, and OSError.
    """
    data = read_bytes(path, 2 * size + ALWAYS_FINE)  # so that state of another bundle is still told from damage
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError("its checksum is wrong")
    return data[32:]


def _intact(path: Path, size: int) -> bool:
    try:
        _payload(path, size)
    except (OSError, ValueError):
        return False
    return True


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NOT_OF_FOLDERS:
            raise
    finally:
        os.close(handle)


def load(directory: Path, bundle: Bundle, fresh: BaseLearner) -> tuple[LearnedState | None, str | None]:
    """The newest good state in the directory (None when there is none), and a sentence when one had to be passed over.

    fresh: a learner that starts from the bundle, whose arrays the state's must be like. Raises StateError when the
    state belongs to another bundle or recipe or a newer version, or when files are there but none of
    them can be used: learned state is never silently thrown away.
    """
    complaints = []
    for name in (CURRENT, PREVIOUS):
        path = directory / name
        if not os.path.lexists(path):
            continue
        try:
            state = _read(path, bundle, fresh)
        except (StateError, MemoryError):
            raise
        except Exception as error:  # numpy, zipfile and json raise a dozen kinds
            complaints.append(f"{path} is damaged ({first_line(error)})")
            continue
        note = f"{complaints[0]}; went on from the one before" if complaints else None
        return state, note
    if complaints:
        raise StateError(
            f"expected learned state in {directory}, but {' and '.join(complaints)}; "
            "move the directory away to start anew"
        )
    return None, None


def _read(path: Path, bundle: Bundle, fresh: BaseLearner) -> LearnedState:
    like = {"model": fresh.model, **vars(fresh.memory)}
    size = 2 * sum(array.nbytes for array in like.values())
    if path.stat().st_size > 2 * size + ALWAYS_FINE:  # the paper's may be as large, and must be told from damage
        size += bundle.weights().nbytes + (4 * bundle.buffer().x_syn.nbytes if BUFFER in bundle.files else 0)
    arrays = read_npz(io.BytesIO(_payload(path, size)))
    meta = parse_json(arrays["meta"].tobytes())
    if meta["schema"] != SCHEMA:
        raise StateError(
            f"expected learned state of schema {SCHEMA}, but {path} is of schema {meta['schema']!r:.40}; "
            "use the deco-edge version that wrote it, or another --state"
        )
    if meta["bundle"] != bundle.hash:
        raise StateError(
            f"expected learned state of the bundle {bundle.path}, but {path} belongs to another one; "
            "give that bundle, or another --state"
        )
    if meta["recipe"] != fresh.recipe.name:
        raise StateError(
            f"expected learned state of --recipe {fresh.recipe.name}, but {path} was learned with "
            f"{meta['recipe']!r:.40}; give that recipe, or another --state"
        )
    model, memory = _like(arrays["model"], fresh.model), _memory(arrays, fresh.memory)
    guard = None
    if "guard" in meta:  # not when the updates were not
        images = np.zeros(bundle.guard_images, np.uint8)
        apart = any(name.startswith("guard_") and name != "guard_best" for name in arrays)
        guard = Kept(
            _memory(arrays, fresh.memory, "guard_") if apart else memory,
            _like(arrays["guard_best"], images) > 0,
            *(meta["guard"][name] for name in ("rejections", "pause")),
        )
    np.random.default_rng(0).bit_generator.state = meta["generator"]  # raises unless it is one
    counts, position = {name: meta["counts"][name] for name in COUNTS}, meta["position"]
    rejected = (guard.rejections, guard.pause) if guard else ()
    if not all(type(n) is int and 0 <= n < 2**63 for n in (*counts.values(), position, *rejected)):
        raise ValueError("its counts are not whole numbers")
    # States of earlier versions have no digest: their stream is begun anew.
    source, recipe, digest = str(meta["source"]), fresh.recipe.name, str(meta.get("digest", ""))
    scene = _like(arrays["scene"], np.zeros(fresh.states, np.float32)) if "scene" in arrays else None
    place = source, position, guard, scene, digest
    return LearnedState(bundle.hash, recipe, model, memory, meta["generator"], counts, *place)


def _memory(arrays: dict[str, Array], like: Memory, prefix: str = "") -> Memory:
    found = {name: _like(arrays[prefix + name], array) for name, array in vars(like).items()}
    made: Memory = type(like)(**found)
    return made


def _like(array: Array, like: Array) -> Array:
    """The array; ValueError unless its shape and type are like those of the other, and its numbers finite."""
    if array.shape != like.shape or array.dtype != like.dtype:
        raise ValueError("its arrays do not fit the bundle")
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise ValueError("its arrays are not finite")
    if array.dtype == np.int64 and not np.array_equal(array, like):
        raise ValueError("its classes are not the bundle's")
    return array
