"""Coverage-guided fuzzing of what reads files that nobody vouches for: state, bundle, one-file bundle.

    python -m venv fuzz && fuzz/bin/pip install atheris 'numpy<3' opencv-python-headless    CPython 3.11 to 3.13, Linux
    PYTHONPATH=runtime fuzz/bin/python tests/fuzz/readers.py BUNDLE state -max_total_time=600 -rss_limit_mb=1024
    PYTHONPATH=runtime fuzz/bin/python tests/fuzz/readers.py BUNDLE state-plus -max_total_time=600 -rss_limit_mb=1024
    PYTHONPATH=runtime fuzz/bin/python tests/fuzz/readers.py BUNDLE bundle -max_total_time=600 -rss_limit_mb=1024

BUNDLE: of deco-export --ipc 1, the smaller the better. state is that of the paper's recipe, state-plus that of deco+.
Everything after the target's name goes to libFuzzer. A finding is any exception but the reader's own error, a crash, a
hang, or memory above the limit; libFuzzer leaves the input in a file.

Checksums, hashes and CRCs are made right before the readers see the input, because no fuzzer would ever get past them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deco_runtime", "json", "numpy.lib", "zipfile"]):
    import json
    import zipfile

    import numpy as np
    from deco_runtime.errors import BundleError, StateError
    from deco_runtime.learning import registry
    from deco_runtime.learning.guard import Guarded
    from deco_runtime.storage.bundle import open_bundle
    from deco_runtime.storage.bundle_files import MANIFEST, pack
    from deco_runtime.storage.state import CURRENT, LearnedState, load, save

SOURCE = Path(sys.argv[1])
PLACE = Path(tempfile.mkdtemp())
BUNDLE = open_bundle(SOURCE)
PLUS = sys.argv[2:3] == ["state-plus"]
LEARNER, FRESH = (
    Guarded(registry.started(registry.learner("deco+" if PLUS else "paper"), BUNDLE), None) for _ in range(2)
)
LEARNER.kept = replace(LEARNER.kept, memory=replace(LEARNER.learner.memory))  # so that it is in the file too
STATE = ("meta", *LEARNER.arrays())
"""Arrays of a state file."""
ARRAYS = [name for name in BUNDLE.files if name.endswith((".npy", ".npz"))]
MEMBERS = [(n, m) for n in ARRAYS if n.endswith(".npz") for m in zipfile.ZipFile(SOURCE / n).namelist()]
PARTS = [(MANIFEST, ""), *((name, "") for name in ARRAYS), *MEMBERS]
"""What is fuzzed of a bundle: a file, or a member of an .npz file, whose CRC no fuzzer would get past either."""


def with_member(archive: bytes, name: str, data: bytes) -> bytes:
    """The .npz archive with these bytes for this member; for "" they are the archive."""
    if not name:
        return data
    memory = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(memory, "w") as new:
        for other in old.namelist():
            new.writestr(other, data if other == name else old.read(other))
    return memory.getvalue()


def state(data: bytes) -> None:
    """A state file with a right checksum; what is taken for state is what the learner has become."""
    names = ("", *(f"{name}.npy" for name in STATE))
    payload = with_member(GOOD_STATE, names[data[0] % len(names)] if data else "", data[1:])
    (PLACE / CURRENT).write_bytes(hashlib.sha256(payload).digest() + payload)
    try:
        loaded, _ = load(PLACE, BUNDLE, FRESH)
    except StateError:
        return
    assert loaded is not None
    assert FRESH.learner.model.tobytes() == loaded.arrays["model"].tobytes()
    FRESH.learner.rng.random(3)


def bundle(data: bytes) -> None:
    """A bundle directory with one part fuzzed, its hash in the manifest made right; or a whole .deco file."""
    number, data = (data[0] % (len(PARTS) + 1) if data else 0), data[1:]
    if number == len(PARTS):
        path = PLACE / "b.deco"
        path.write_bytes(data)
        read(path)
        return
    path, (name, member) = PLACE / "b", PARTS[number]
    good = {file: (SOURCE / file).read_bytes() for file in (name, MANIFEST)}
    bad = with_member(good[name], member, data)
    (path / name).write_bytes(bad)
    if name != MANIFEST:
        content = json.loads(good[MANIFEST])
        content["files"][name] = hashlib.sha256(bad).hexdigest()
        (path / MANIFEST).write_text(json.dumps(content), "utf-8")
    try:
        read(path)
    finally:
        for file, old in good.items():
            (path / file).write_bytes(old)


def read(path: Path) -> None:
    """Everything a run may read."""
    try:
        found = open_bundle(path)
    except BundleError:
        return
    calls = [found.weights, found.trained_on, found.golden, found.guard_takes]
    calls += [partial(registry.started, kind, found) for kind in registry.learners().values()]
    calls += [partial(found.labelled_pixels, name) for name in ("guard.npz", "demo/test.npz")]
    calls += [partial(found.array, "demo/labels.npy", None, np.int64, (None,))]
    for call in calls:
        with contextlib.suppress(BundleError):
            call()


def seeds(target: str) -> Path:
    """Good inputs to begin with."""
    corpus = PLACE / "corpus"
    corpus.mkdir()
    arrays = [npy(array) for array in (np.zeros(3, np.float32), np.arange(4), np.float64(1))]
    if target != "bundle":
        with zipfile.ZipFile(io.BytesIO(GOOD_STATE)) as archive:
            inputs = [GOOD_STATE, *(archive.read(f"{n}.npy") for n in STATE)]
        inputs += arrays
    else:
        shutil.copytree(SOURCE, PLACE / "b")
        inputs = []
        for name, member in PARTS:
            data = (SOURCE / name).read_bytes()
            inputs.append(zipfile.ZipFile(io.BytesIO(data)).read(member) if member else data)
        pack(SOURCE, PLACE / "b.deco")
        inputs += [(PLACE / "b.deco").read_bytes(), *arrays]
    for number, data in enumerate(inputs):
        (corpus / str(number)).write_bytes(bytes([number]) + data)
    return corpus


def npy(array: np.ndarray) -> bytes:
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


def good_state() -> bytes:
    save(PLACE, LearnedState.of(LEARNER, BUNDLE, "a", 1))
    return (PLACE / CURRENT).read_bytes()[32:]


GOOD_STATE = good_state()


def main() -> None:
    target, *options = sys.argv[2:]
    warnings.simplefilter("ignore")  # zipfile warns of names given twice
    try:
        call = {"state": state, "state-plus": state, "bundle": bundle}[target]
        atheris.Setup([sys.argv[0], *options, "-max_len=400000", str(seeds(target))], call)
        atheris.Fuzz()
    finally:
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
