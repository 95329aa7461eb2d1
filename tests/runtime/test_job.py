"""A job in a process of its own: what it tells, and every way in which it can end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from deco_runtime.errors import BundleError, DecoError, SourceError
from deco_runtime.host.job import run_job

JOBS = """
import os, signal, subprocess, sys, time
from deco_runtime.errors import BundleError, DecoError

class MissingPartError(BundleError):
    pass

def tell(answer, values):
    print("a runtime that prints")
    for value in values:
        answer(value=value, **{value: len(value)})

def refuse(answer, kind):
    answer(value="before")
    raise {"deco": DecoError, "bundle": BundleError, "part": MissingPartError}[kind]("expected more, but found less")

def fail(answer):
    raise RuntimeError("no kernel\\nfor this")

def die(answer, number):
    answer(value="before")
    os.kill(os.getpid(), number)

def leave(answer, words):
    print("a warning", words, sep="\\n", file=sys.stderr)
    sys.exit(3)

def leave_without_a_word(answer):
    os._exit(4)

def sleep(answer, file):
    with open(file, "w") as place:
        place.write(str(os.getpid()))
    answer(value="before")
    time.sleep(600)

def survive_an_interrupt(answer):
    os.kill(os.getpid(), signal.SIGINT)
    answer(value="after")
"""


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of jobs that the processes find, since they have this one's sys.path."""
    (tmp_path / "made_jobs.py").write_text(JOBS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_answers_in_order_and_as_one() -> None:
    report = run_job("made_jobs:tell", 60, values=["first", "then"])
    assert (report.end, report.words, report.code, report.died_of, report.error) == ("done", "", 0, 0, None)
    assert report.answers == [{"value": "first", "first": 5}, {"value": "then", "then": 4}]
    assert report.told == {"value": "then", "first": 5, "then": 4}


def test_answers_heard_one_by_one_are_not_kept() -> None:
    heard: list[dict[str, Any]] = []
    report = run_job("made_jobs:tell", None, heard.append, values=["first", "then"])
    assert report.end == "done"
    assert report.answers == []
    assert [answer["value"] for answer in heard] == ["first", "then"]


@pytest.mark.parametrize(("kind", "error"), [("deco", DecoError), ("bundle", BundleError), ("part", BundleError)])
def test_an_error_comes_back_as_its_own_class(kind: str, error: type[DecoError]) -> None:
    """One of a class that only the job knows comes back as the class whose exit code it has."""
    report = run_job("made_jobs:refuse", 60, kind=kind)
    assert report.end == "refused"
    assert type(report.error) is error
    assert str(report.error) == report.words == "expected more, but found less"
    assert report.answers == [{"value": "before"}]


def test_other_errors_are_words() -> None:
    report = run_job("made_jobs:fail", 60)
    assert (report.end, report.words) == ("failed", "fails with RuntimeError: no kernel")
    assert report.complaint == "for this"  # as Python ends its traceback
    assert report.error is None


def test_a_function_that_is_not_there_fails() -> None:
    report = run_job("made_jobs:nothing", 60)
    assert report.end == "failed"
    assert "has no attribute 'nothing'" in report.words


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no such signals")
def test_a_signal_is_named() -> None:
    report = run_job("made_jobs:die", 60, number=signal.SIGILL)
    assert (report.end, report.code, report.died_of) == ("died", -4, 4)
    assert report.words == "dies of signal 4 (Illegal instruction)"
    assert report.answers == [{"value": "before"}]


def test_an_exit_is_told_with_the_last_words() -> None:
    report = run_job("made_jobs:leave", 60, words="Out of paper")
    assert (report.end, report.code, report.died_of, report.complaint) == ("died", 3, 0, "Out of paper")
    assert report.words == "ends the program with code 3 and the words Out of paper"
    report = run_job("made_jobs:leave_without_a_word", 60)
    assert (report.end, report.code, report.complaint) == ("died", 4, "")
    assert report.words == "ends the program with code 4"


def test_silence_ends_a_job(tmp_path: Path) -> None:
    report = run_job("made_jobs:sleep", 3, file=str(tmp_path / "id"))
    assert (report.end, report.words) == ("silent", "does not come back within 3 s")
    assert report.answers == [{"value": "before"}]
    assert _gone(tmp_path / "id")


def test_an_error_of_whoever_hears_ends_the_job(tmp_path: Path) -> None:
    def hear(answer: dict[str, Any]) -> None:
        raise SourceError(answer["value"])

    began = time.monotonic()
    with pytest.raises(SourceError, match="before"):
        run_job("made_jobs:sleep", None, hear, file=str(tmp_path / "id"))
    assert time.monotonic() - began < 60
    assert _gone(tmp_path / "id")


def test_ctrl_c_is_for_the_program_that_waits() -> None:
    assert run_job("made_jobs:survive_an_interrupt", 60).told == {"value": "after"}


def _gone(file: Path) -> bool:
    """Whether the process whose number is in the file has ended and was waited for."""
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_a_check_that_raises_ends_the_job_and_its_process(tmp_path: Path) -> None:
    """One that raises nothing leaves it to its limit."""
    file = tmp_path / "pid"

    def check() -> None:
        if file.exists() and file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job("made_jobs:sleep", 600, check=check, file=str(file))
    assert _gone(file)
    report = run_job("made_jobs:sleep", 4, check=lambda: None, file=str(file))
    assert (report.end, report.answers) == ("silent", [{"value": "before"}])
    assert run_job("made_jobs:tell", 60, check=lambda: None, values=["a"]).told == {"value": "a", "a": 1}
