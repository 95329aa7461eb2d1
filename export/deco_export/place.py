"""Where a bundle is made: beside its place, by one export at a time, and put there complete or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from deco_runtime.errors import ExportError, UsageError
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.storage.bundle_files import ENDING, pack
from deco_runtime.storage.lock import lock, unlock


@contextlib.contextmanager
def bundle_at(out: Path) -> Iterator[Path]:
    """An empty folder to make the bundle in, which is verified and put at `out` when the block ends well.

    Raises UsageError when something is there already, or another export makes it now; ExportError when the disk
    refuses.
    """
    # Beside the target, so that the final rename stays on one file system.
    partial = out.parent / f".{out.name}.partial"
    packed = partial.with_name(f"{partial.name}.zip")
    held = None
    try:
        held = _claim(partial, out)
        yield partial
        made = partial
        if out.suffix == ENDING:
            made = packed
            pack(partial, packed)
        open_bundle(made)
        _check_free(out)
        made.rename(out)
    except OSError as error:
        raise ExportError(
            f"expected to write the bundle to {out}, but the system says: {error.strerror or error}; "
            "free space or choose another --out"
        ) from error
    finally:
        if held is not None:
            shutil.rmtree(partial, ignore_errors=True)
            with contextlib.suppress(OSError):  # where the disk fails, what it said before is what matters
                packed.unlink(missing_ok=True)
            unlock(held)


def _check_free(out: Path) -> None:
    if os.path.lexists(out):
        raise UsageError(f"expected nothing at --out {out}, but something is there; remove it or choose another name")


def _claim(partial: Path, out: Path) -> int:
    """Make the folder, empty and locked; returns what `unlock` takes."""
    while True:
        _check_free(out)
        partial.mkdir(parents=True, exist_ok=True)
        try:
            held, _ = lock(partial)
        except BlockingIOError:
            raise UsageError(
                f"expected to be the only export to --out {out}, but another one makes it now; wait until that ends, "
                "or choose another name"
            ) from None
        except FileNotFoundError:  # that of another one, which ended just now
            continue
        if held < 0 or _is_at(held, partial):
            break
        unlock(held)
    for left in partial.iterdir():  # by an export that was killed
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()
    return held


def _is_at(handle: int, path: Path) -> bool:
    """Whether the folder that is locked still has this name, and is not another one's finished bundle."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
