"""Where bundles are made: two exports to one place, one that was killed, names that are taken meanwhile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import deco_export
import deco_runtime
import pytest
from deco_export.place import bundle_at
from deco_runtime.errors import ExportError, UsageError
from deco_runtime.storage.bundle import open_bundle

ROOTS = (Path(deco_export.__file__).parents[1], Path(deco_runtime.__file__).parents[1])
MAKING = """
import sys, time
from pathlib import Path
from deco_export.place import bundle_at
with bundle_at(Path(sys.argv[1])) as folder:
    (folder / "half").mkdir()
    (folder / "half" / "a graph").write_text("half")
    (folder / "weights.npy").write_text("half")
    print("making", flush=True)
    time.sleep(60)
"""


def make(out: Path, bundle: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    with bundle_at(out) as folder:
        assert list(folder.iterdir()) == []
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        meanwhile()


@pytest.mark.parametrize("name", ["bundle", "bundle.deco"])
def test_two_exports_to_one_place(name: str, tmp_path: Path, bundle_path: Path) -> None:
    out = tmp_path / name
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ROOTS))}
    process = subprocess.Popen([sys.executable, "-c", MAKING, str(out)], env=environment, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"making\n"
        with pytest.raises(UsageError, match=r"^expected to be the only export to --out .*; wait until that ends, or"):
            make(out, bundle_path)
        assert (tmp_path / f".{name}.partial" / "weights.npy").read_text() == "half"  # nothing of the first is touched
        make(tmp_path / "other", bundle_path)
    finally:
        process.kill()
        process.communicate()
    make(out, bundle_path)  # what the killed one left is taken over
    assert open_bundle(out).hash == open_bundle(bundle_path).hash
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((name, "other"))


def test_one_after_another_in_one_process(tmp_path: Path, bundle_path: Path) -> None:
    make(tmp_path / "a", bundle_path)
    with pytest.raises(UsageError, match="expected nothing at --out"):
        make(tmp_path / "a", bundle_path)
    shutil.rmtree(tmp_path / "a")
    make(tmp_path / "a", bundle_path)
    assert open_bundle(tmp_path / "a").hash == open_bundle(bundle_path).hash


def test_a_place_that_is_taken_meanwhile_is_left_alone(tmp_path: Path, bundle_path: Path) -> None:
    out = tmp_path / "bundle.deco"
    with pytest.raises(UsageError, match="expected nothing at --out"):
        make(out, bundle_path, lambda: out.write_text("precious"))  # a rename would replace it without a word
    assert out.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_a_link_to_nowhere_is_met_before_the_training(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="expected nothing at --out"), bundle_at(out):
        pytest.fail("it would be trained for nothing")


def test_a_name_that_the_disk_does_not_take(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the system says: File name too long"), bundle_at(tmp_path / ("a" * 300)):
        pytest.fail("it would be trained for nothing")
