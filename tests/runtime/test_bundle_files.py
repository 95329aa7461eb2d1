"""A bundle as one .deco file: the same bundle, read where it lies; a file that is no such thing is refused."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import deco_runtime
import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.errors import BundleError
from deco_runtime.learning import voter
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.learner import COUNTS
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.bundle_files import pack
from deco_runtime.storage.state import LearnedState, load
from fake_engine import fresh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, bundle_path: Path) -> Path:
    """The small bundle as one file; tests must not change it."""
    path = tmp_path_factory.mktemp("packed") / "digits.deco"
    pack(bundle_path, path)
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def test_it_is_the_same_bundle(packed: Path, bundle_path: Path) -> None:
    whole, folder = open_bundle(packed), open_bundle(bundle_path)
    assert whole.hash == folder.hash
    assert whole.files == folder.files
    assert whole.weights().tobytes() == folder.weights().tobytes()
    assert initial(whole).x_syn.tobytes() == initial(folder).x_syn.tobytes()
    assert voter.start(whole).statistics.a.tobytes() == voter.start(folder).statistics.a.tobytes()
    assert whole.trained_on() == folder.trained_on()
    for read in (Bundle.golden, lambda bundle: {"": bundle.array("demo/labels.npy", None, np.int64, (None,))}):
        a, b = read(whole), read(folder)
        assert {name: array.tobytes() for name, array in a.items()} == {name: x.tobytes() for name, x in b.items()}
    x = np.random.default_rng(0).random((3, *folder.image_shape), np.float32)
    answers = [open_engine(bundle, "portable").predict(bundle.weights(), x)[0] for bundle in (whole, folder)]
    assert answers[0].tobytes() == answers[1].tobytes()


def test_what_zip_itself_makes_is_taken(tmp_path: Path, packed: Path) -> None:
    """`zip -r` puts folders in as well, and stores what does not shrink."""
    with zipfile.ZipFile(tmp_path / "b.deco", "w") as archive:
        for name, data in members(packed).items():
            if "/" in name and f"{name.partition('/')[0]}/" not in archive.namelist():
                archive.writestr(f"{name.partition('/')[0]}/", b"")
            archive.writestr(name, data)
    assert open_bundle(tmp_path / "b.deco").hash == open_bundle(packed).hash


def test_a_device_learns_from_it_what_it_learns_from_the_directory(
    packed: Path, bundle_path: Path, tmp_path: Path
) -> None:
    """And goes on from the same state, and unpacks nothing that stays."""
    (tmp_path / "tmp").mkdir()
    paths = [str(Path(deco_runtime.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    states: dict[str, LearnedState] = {}
    for name, turns in {"folder": [(bundle_path, 3)], "both": [(packed, 1), (bundle_path, 1), (packed, 1)]}.items():
        for bundle, segments in turns:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "deco_runtime.commands.run", "--bundle", bundle),
                    *("--demo", "--engine", "portable"),
                    *("--state", tmp_path / name, "--max-segments", str(segments), "--set", "segment=16"),
                    *("--set", "retrain_interval=1", "--set", "retrain_epochs=2", "--set", "iterations=1"),
                ],
                env={**environment, "TMPDIR": str(tmp_path / "tmp")},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["frozen"] > 0.5
        found, _ = load(tmp_path / name, opened := open_bundle(packed), fresh(opened))
        assert found is not None
        states[name] = found
    both, folder = ({name: a.tobytes() for name, a in states[way].arrays.items()} for way in ("both", "folder"))
    assert both == folder
    assert both["model"] != open_bundle(packed).weights().tobytes()
    assert states["both"].values == states["folder"].values
    assert states["both"].values["counts"] == dict(zip(COUNTS, (3, 0, 3, 0, 0, 0), strict=True))
    assert not list((tmp_path / "tmp").rglob("*.avi"))  # of the stream, which OpenCV can read from files only
    assert os.listdir(packed.parent) == [packed.name]


def test_a_changed_or_missing_file(packed: Path, tmp_path: Path) -> None:
    files = members(packed)
    weights = bytearray(files["weights.npy"])
    weights[-1] ^= 1
    with pytest.raises(BundleError, match=r"expected .*b\.deco/weights.npy as it was exported, but its hash differs"):
        open_bundle(write(tmp_path / "b.deco", {**files, "weights.npy": bytes(weights)}))
    del files["graphs/predict.onnx"]
    with pytest.raises(BundleError, match=r"expected the bundle's file .*graphs/predict.onnx, but it is missing"):
        open_bundle(write(tmp_path / "c.deco", files))
    del files["manifest.json"]
    with pytest.raises(BundleError, match=r"expected a bundle at .*d\.deco, but found no manifest.json in it"):
        open_bundle(write(tmp_path / "d.deco", files))
    inside = {f"bundle/{name}": data for name, data in members(packed).items()}
    with pytest.raises(BundleError, match=r"found no manifest.json in it"):
        open_bundle(write(tmp_path / "e.deco", inside))


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "graphs/../../evil", "..\\evil"])
def test_a_name_that_leads_elsewhere(packed: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError, match=r"found a file that is no plain zip \(it has a member with the name"):
        open_bundle(write(tmp_path / "b.deco", {**members(packed), name: b"evil"}))
    assert os.listdir(tmp_path) == ["b.deco"]


@given(
    where=st.floats(0, 1),
    junk=st.binary(max_size=6),
    length=st.integers(0, 6),
    end=st.floats(0, 1) | st.just(1.0),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_any_damage_is_met(packed: Path, where: float, junk: bytes, length: int, end: float) -> None:
    """Refused, or without consequence: then every file in it is the one that was exported."""
    data, good = packed.read_bytes(), open_bundle(packed)
    start = int(where * len(data))
    damaged = (data[:start] + junk + data[start + length :])[: int(end * len(data)) + 1]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "b.deco"
        path.write_bytes(damaged)
        try:
            found = open_bundle(path)
        except BundleError:
            return
        assert (found.hash, found.files) == (good.hash, good.files)
        assert found.weights().tobytes() == good.weights().tobytes()


def test_a_file_replaced_under_a_run_is_not_mixed_up(packed: Path, tmp_path: Path) -> None:
    """A new bundle is renamed over the old one; who has the old one open goes on with it."""
    path = tmp_path / "b.deco"
    path.write_bytes(packed.read_bytes())
    bundle = open_bundle(path)
    before = bundle.weights().tobytes()
    other = io.BytesIO()
    zipfile.ZipFile(other, "w").close()
    (tmp_path / "new").write_bytes(other.getvalue())
    (tmp_path / "new").rename(path)
    assert bundle.weights().tobytes() == before
    with pytest.raises(BundleError, match=r"no manifest.json in it"):
        open_bundle(path)
