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
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deco_runtime", "json", "numpy.lib", "zipfile"]):
    import json
    import zipfile

    import numpy as np
    from deco_runtime.errors import BundleError, StateError
    from deco_runtime.learning.deco import Learner
    from deco_runtime.learning.deco_plus import DecoPlus
    from deco_runtime.learning.recipe import named
    from deco_runtime.storage.bundle import open_bundle
    from deco_runtime.storage.bundle_files import MANIFEST, pack
    from deco_runtime.storage.manifest import FILES
    from deco_runtime.storage.state import CURRENT, LearnedState, load, save

SOURCE = Path(sys.argv[1])
PLACE = Path(tempfile.mkdtemp())
BUNDLE = open_bundle(SOURCE)
PLUS = sys.argv[2:3] == ["state-plus"]
LEARNER, FRESH = (
    (DecoPlus if PLUS else Learner).start(
        BUNDLE,
        None,  # type: ignore[arg-type]  # nothing is learned here
        named("deco+" if PLUS else "paper"),
        seed=0,
    )
    for _ in range(2)
)
STATE = ("meta", "model", *vars(LEARNER.memory))
"""Arrays of a state file."""
ARRAYS = [n for n in (*FILES, "regression.npz", "demo/labels.npy", "demo/test.npz") if n.endswith((".npy", ".npz"))]
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
    """A state file with a right checksum; what is taken for state can be restored."""
    names = ("", *(f"{name}.npy" for name in STATE))
    payload = with_member(GOOD_STATE, names[data[0] % len(names)] if data else "", data[1:])
    (PLACE / CURRENT).write_bytes(hashlib.sha256(payload).digest() + payload)
    try:
        loaded, _ = load(PLACE, BUNDLE, FRESH)
    except StateError:
        return
    assert loaded is not None
    loaded.restore(LEARNER)
    LEARNER.rng.random(3)


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
    calls = [found.weights, found.buffer, found.regression, found.trained_on, found.golden]
    calls += [found.demo_labels, *(lambda n=n: found.labelled_pixels(n) for n in ("guard.npz", "demo/test.npz"))]
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
