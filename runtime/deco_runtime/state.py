"""What must survive a power cut: θ, the buffer, the generator and the counts, bound to one bundle.

A state directory holds `learned.deco` and `learned.previous.deco`. A file is 32 bytes of SHA-256 over the rest, then a
numpy .npz without pickles. It is written to a temporary file, flushed to the disk, and renamed over; the one before
is kept, so at every instant one good file is there. One run at a time holds the directory, by a lock that ends with its
process, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.buffer import CondensedBuffer
from deco_runtime.bundle import Bundle
from deco_runtime.errors import StateError, first_line
from deco_runtime.guard import Kept
from deco_runtime.learner import Learner
from deco_runtime.reading import ALWAYS_FINE, parse_json, read_bytes, read_npz
from deco_runtime.types import Floats

SCHEMA = 1
CURRENT, PREVIOUS = "learned.deco", "learned.previous.deco"
COUNTS = ("segments", "since_retrain", "retrains", "dropped")


@dataclass(frozen=True)
class LearnedState:
    """Everything learned, at one segment boundary.

    theta: (P,). buffer: S with its velocity. generator: state of the numpy bit generator. counts: those of
    COUNTS, as in Learner. source, position: the replayable stream and how many of its frames lie behind this state, so
    that an interrupted run goes on where it was; position 0 when the stream was finished. guard: None when updates were
    not guarded, so that nothing is known about θ.
    """

    bundle: str
    theta: Floats
    buffer: CondensedBuffer
    generator: dict[str, Any]
    counts: dict[str, int]
    source: str
    position: int
    guard: Kept | None = None

    @classmethod
    def of(cls, learner: Learner, bundle: Bundle, source: str, position: int) -> LearnedState:
        """A snapshot of the learner."""
        counts = {name: getattr(learner, name) for name in COUNTS}
        generator = dict(learner.rng.bit_generator.state)
        guard = learner.guard.kept if learner.guard is not None else None
        return cls(bundle.hash, learner.theta, learner.buffer, generator, counts, source, position, guard)

    def restore(self, learner: Learner) -> None:
        """Put the learner back to where the snapshot was taken."""
        learner.theta, learner.buffer = self.theta, self.buffer
        learner.rng.bit_generator.state = self.generator
        for name in COUNTS:
            setattr(learner, name, self.counts[name])
        if learner.guard is not None and self.guard is not None:
            learner.guard.kept = self.guard


def hold(directory: Path) -> str | None:
    """Make the directory if there is none, and keep other runs out of it until this process ends.

    Returns why nothing can be saved there, None when it can: a disk that is read-only now may be mended later, and
    meanwhile predicting is worth more than nothing. A place that is none, a mistyped one, raises StateError, and so
    does one that another run holds.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.name == "posix":
            _lock(directory)
    except BlockingIOError:
        raise StateError(
            f"expected to be the only run with the learned state in {directory}, but another one has it; "
            "stop that one, or choose another --state"
        ) from None
    except OSError as error:
        raise StateError(
            f"expected a place for learned state at {directory}, but: {error.strerror}; choose another --state"
        ) from error
    if os.access(directory, os.W_OK):
        return None
    return (
        f"expected to save in {directory}, but it may not be written: the disk is read-only, or permissions forbid it; "
        "learns in memory until that is mended, and loses it when the run ends"
    )


def _lock(directory: Path) -> None:
    """Raises BlockingIOError when another process has the lock. The system takes it back when this one ends."""
    import fcntl  # posix only

    handle = os.open(directory, os.O_RDONLY)  # the directory itself, so that a read-only disk can be locked too
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise
    except OSError:  # some file systems of the network have no such lock
        os.close(handle)


def save(directory: Path, state: LearnedState) -> int:
    """Replace the state in the directory; returns the bytes written.

    Raises StateError when the disk refuses; what was there before is still there then.
    """
    memory = io.BytesIO()
    meta = {
        "schema": SCHEMA,
        "bundle": state.bundle,
        "generator": state.generator,
        "counts": state.counts,
        "source": state.source,
        "position": state.position,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "theta": state.theta,
        "x_syn": state.buffer.x_syn,
        "velocity": state.buffer.velocity,
    }
    if (guard := state.guard) is not None:
        meta["guard"] = {"rejections": guard.rejections, "pause": guard.pause}
        arrays |= {
            "guard_x_syn": guard.buffer.x_syn,
            "guard_velocity": guard.buffer.velocity,
            "guard_best": guard.best.astype(np.uint8),
        }
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
    finally:
        os.close(handle)


def load(directory: Path, bundle: Bundle) -> tuple[LearnedState | None, str | None]:
    """The newest good state in the directory (None when there is none), and a sentence when one had to be passed over.

    Raises StateError when the state belongs to another bundle or a newer version, or when files are there but none of
    them can be used: learned state is never silently thrown away.
    """
    complaints = []
    for name in (CURRENT, PREVIOUS):
        path = directory / name
        if not os.path.lexists(path):
            continue
        try:
            state = _read(path, bundle)
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


def _read(path: Path, bundle: Bundle) -> LearnedState:
    initial = bundle.buffer()
    size = 4 * bundle.weight_count + 4 * initial.x_syn.nbytes
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
    theta, images = arrays["theta"], [arrays["x_syn"], arrays["velocity"]]
    guarded = "guard" in meta  # not when the updates were not, or by an earlier version
    if guarded:
        images += [arrays["guard_x_syn"], arrays["guard_velocity"]]
    best = arrays["guard_best"] if guarded else np.zeros(0, np.uint8)
    if theta.shape != (bundle.weight_count,) or any(a.shape != initial.x_syn.shape for a in images):
        raise ValueError("its arrays do not fit the bundle")
    if not all(a.dtype == np.float32 and np.isfinite(a).all() for a in (theta, *images)):
        raise ValueError("its arrays are not finite float32")
    if guarded and (best.dtype != np.uint8 or best.shape != (bundle.guard_images,)):
        raise ValueError("its guard's answers do not fit the bundle")
    np.random.default_rng(0).bit_generator.state = meta["generator"]  # raises unless it is one
    counts, position = {name: meta["counts"][name] for name in COUNTS}, meta["position"]
    rejected = [meta["guard"][name] for name in ("rejections", "pause")] if guarded else []
    if not all(type(n) is int and 0 <= n < 2**63 for n in (*counts.values(), position, *rejected)):
        raise ValueError("its counts are not whole numbers")
    buffer, *accepted = (CondensedBuffer(x, initial.y_syn, v) for x, v in zip(images[::2], images[1::2], strict=True))
    guard = Kept(accepted[0], best > 0, *rejected) if guarded else None
    return LearnedState(bundle.hash, theta, buffer, meta["generator"], counts, str(meta["source"]), position, guard)
