"""Disks and places that lack what a usual one has: locks, folders that can be flushed, dates, a temporary directory."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import deco_runtime
import pytest
from deco_runtime.errors import SourceError, StateError, UsageError
from deco_runtime.host.job import PYTHON, run_job
from deco_runtime.host.scratch import check_temporary
from deco_runtime.pictures.overhear import overhear
from deco_runtime.sources import SourceRequest, demo
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.storage.bundle_files import pack
from deco_runtime.storage.lock import lock, unlock
from deco_runtime.storage.state import CURRENT, hold
from processes import started

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "COLUMNS": "400"}
RUN = "import sys; sys.modules['torch'] = None; from deco_runtime.commands.run import main; main()"
HOLD = """
import sys, time
from pathlib import Path
from deco_runtime.storage.lock import lock
lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""
LACKING = f"""
import errno, fcntl, os, stat
sync = os.fsync

def fsync(handle):
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    sync(handle)

def flock(handle, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

os.fsync, fcntl.flock = fsync, flock
{RUN}
"""
"""deco-run on a disk of the network that neither locks nor flushes folders."""


def python(program: str, *arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # As the installed commands start, without the current directory in the path of modules.
    command = [*PYTHON, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)
    assert "Traceback" not in done.stderr
    return done


def test_a_disk_that_cannot_lock_or_flush_folders_keeps_what_is_learned(bundle_path: Path, tmp_path: Path) -> None:
    state, few = tmp_path / "state", ("--set", "segment=32", "--set", "iterations=1", "--max-segments", "1")
    arguments = ("--bundle", bundle_path, "--engine", "portable", "--state", state, "--demo", *few)
    first, second = python(LACKING, *arguments), python(LACKING, *arguments)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert first.stderr.count("warning: ") == 1  # of the lock; what was saved is saved
    assert f"warning: expected to lock {state}, but the system says: No locks available; goes on" in first.stderr
    assert f"goes on from {state}: 1 segments" in second.stderr


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EBADF, errno.EIO, errno.EOPNOTSUPP])
def test_what_a_lock_fails_with_is_said(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    assert hold(tmp_path / "fine") == (None, None)
    monkeypatch.setattr(fcntl, "flock", flock)
    unwritable, unlocked = hold(tmp_path)
    assert unwritable is None
    assert unlocked is not None
    assert os.strerror(code) in unlocked


def test_the_lock_is_one_process_s_and_ends_with_it(tmp_path: Path) -> None:
    with started([sys.executable, "-c", HOLD, str(tmp_path)], ENVIRONMENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            lock(tmp_path)
        with pytest.raises(StateError, match="another one has it"):
            hold(tmp_path)
    handle, missing = lock(tmp_path)
    assert missing is None
    with pytest.raises(BlockingIOError):
        lock(tmp_path)
    unlock(handle)
    unlock(lock(tmp_path)[0])


@pytest.mark.parametrize("seconds", [0, 4_354_819_200], ids=["1970", "2108"])
def test_files_of_years_that_a_zip_does_not_know(seconds: int, bundle_path: Path, tmp_path: Path) -> None:
    """A board without a battery for its clock dates what it writes, or copies, by 1970."""
    folder = tmp_path / "folder"
    for file in (path for path in bundle_path.rglob("*") if path.is_file()):
        copy = folder / file.relative_to(bundle_path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        os.utime(copy, (seconds, seconds))
    pack(folder, tmp_path / "packed.deco")
    assert open_bundle(tmp_path / "packed.deco").hash == open_bundle(bundle_path).hash
    with zipfile.ZipFile(tmp_path / "packed.deco") as archive:
        assert {member.date_time[0] for member in archive.infolist()} == {1980 if seconds == 0 else 2107}


@pytest.fixture
def without_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory for temporary files can be written."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)


@pytest.mark.usefixtures("without_temporary")
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no files in memory")
def test_jobs_and_what_libraries_say_need_no_temporary_directory(tmp_path: Path) -> None:
    report = run_job("deco_runtime.doctor.disk:write", 60, directory=str(tmp_path))
    assert report.end == "done"
    assert report.told["free"] > 0
    report = run_job("no_such:job", 60)
    assert report.complaint == "ModuleNotFoundError: No module named 'no_such'"  # what the process said on stderr
    assert overhear(lambda: os.write(2, b"Premature end of JPEG file\n")) == (27, "Premature end of JPEG file\n")


@pytest.mark.usefixtures("without_temporary")
def test_what_needs_torch_says_that_it_needs_one() -> None:
    with pytest.raises(UsageError, match=r"^expected a directory for temporary files, .*; set TMPDIR to one that can"):
        check_temporary()


@pytest.mark.usefixtures("without_temporary")
def test_the_stream_in_one_file_needs_one_and_says_so(bundle_path: Path, tmp_path: Path) -> None:
    pack(bundle_path, tmp_path / "packed.deco")
    bundle = open_bundle(tmp_path / "packed.deco")
    request = SourceRequest(bundle.classes, 16, 500, 0, bundle.trained_on(), bundle.root)
    with pytest.raises(SourceError, match=r"^expected a temporary directory .*; free space, set TMPDIR to a directory"):
        demo.open_source(True, request)


def test_no_home_and_no_place_for_temporary_files(bundle_path: Path, tmp_path: Path) -> None:
    gone, few = tmp_path / "gone", ("--set", "segment=32", "--set", "iterations=1", "--max-segments", "1")
    program = f"import os; os.environ.update(HOME={str(gone)!r}, TMPDIR={str(gone)!r})\n{RUN}"
    arguments = ("--bundle", bundle_path, "--engine", "portable", "--state", tmp_path / "state", "--demo", *few)
    done = python(program, *arguments)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert (tmp_path / "state" / CURRENT).is_file()
    assert not gone.exists()  # nor has onnxruntime written there, as it does where its telemetry is on


def test_a_directory_that_was_removed_under_the_command(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    done = python(f"import os; os.rmdir({str(place)!r})\n{RUN}", "--bundle", "bundle", "--demo", cwd=place)
    assert done.returncode == 4
    assert done.stderr == "error: expected a bundle at bundle, but found nothing; make one with deco-export\n"
    place.mkdir()
    more = ("--camera", "0", "--print")
    done = python(f"import os; os.rmdir({str(place)!r})\n{RUN}", "install-service", "--bundle", "b", *more, cwd=place)
    assert done.returncode == 1
    assert done.stderr == (
        "error: expected to start in a directory that is there, but the current one was removed; cd to another\n"
    )


def test_a_job_started_in_a_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    report = run_job("deco_runtime.doctor.packages:import_package", 60, module="numpy")
    assert (report.end, report.words) == ("done", "")
