"""Jobs of people: done by the owner of what is learned between two segments, and refused when it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import StateError, UsageError
from deco_runtime.running.learner_thread import Cancelled, Worker
from deco_runtime.running.requests import Requests
from deco_runtime.types import Segment
from sentences import one_sentence


def segment(stream: int = 0) -> Segment:
    return Segment({}, np.zeros(1, np.int64), np.ones(1, np.float32), np.full(1, -1), stream=stream)


@contextmanager
def people(count: int = 1) -> Iterator[Callable[..., Future[Any]]]:
    """Threads that ask: submit(f, …)."""
    with ThreadPoolExecutor(count) as pool:
        yield pool.submit


def waits(requests: Requests, count: int = 1) -> None:
    """Until so many wait for their turn."""
    limit = time.monotonic() + 10
    while requests._waiting.qsize() < count:
        assert time.monotonic() < limit
        time.sleep(0.002)


def refusal(future: Future[Any]) -> str:
    error = future.exception(10)
    assert isinstance(error, StateError)
    return one_sentence(str(error))


def test_a_job_waits_for_its_turn_and_runs_in_the_owners_thread() -> None:
    requests = Requests()
    with people(3) as submit:
        asked = []
        for number in range(3):
            asked.append(submit(requests.ask, lambda number=number: (number, threading.get_ident())))
            waits(requests, number + 1)
        assert not any(future.done() for future in asked)
        requests.serve()
        assert [future.result(10) for future in asked] == [(i, threading.get_ident()) for i in range(3)]
        requests.serve()
    assert not requests._open


@pytest.mark.parametrize("error", [UsageError("expected x, but found y; do z"), ValueError("no"), KeyboardInterrupt()])
def test_what_a_job_raises_reaches_who_asked_and_nobody_else(error: BaseException) -> None:
    requests = Requests()

    def job() -> None:
        raise error

    with people() as submit:
        asked = submit(requests.ask, job)
        waits(requests)
        requests.serve()
        assert asked.exception(10) is error


def test_a_job_that_is_given_up_because_the_run_stops_is_refused() -> None:
    requests = Requests()

    def job() -> None:
        raise Cancelled

    with people() as submit:
        asked = submit(requests.ask, job)
        waits(requests)
        requests.serve()
        assert "ending; start it again" in refusal(asked)


def test_the_end_refuses_who_waits_and_who_comes_later() -> None:
    requests, done = Requests(), list[int]()
    with people(8) as submit:
        asked = [submit(requests.ask, lambda: done.append(1)) for _ in range(4)]
        waits(requests, 4)
        requests.end()
        late = [submit(requests.ask, lambda: done.append(1)) for _ in range(4)]
        assert {refusal(future) for future in asked + late} == {
            "expected a run that goes on, but found this one ending; start it again"
        }
        requests.end()  # once more does no harm
        requests.serve()
    assert done == []
    assert not requests._open


def test_the_end_beside_many_who_ask() -> None:
    """Each is answered or refused, whenever it comes."""
    for _ in range(20):
        requests = Requests()
        with people(16) as submit:
            asked = [submit(requests.ask, lambda: 1) for _ in range(16)]
            requests.serve()
            requests.end()
            assert all(future.exception(10) is not None or future.result() == 1 for future in asked)
            assert all(isinstance(future.exception(), StateError | None) for future in asked)


def test_who_waits_too_long_is_told_so_and_nothing_is_done_later() -> None:
    requests, done = Requests(), list[int]()
    with people() as submit:
        asked = submit(requests.ask, lambda: done.append(1), 0.05)
        assert "within 0.05 s, but found it still learning; try again later" in refusal(asked)
        requests.serve()
    assert done == []


def test_who_waits_too_long_for_work_that_has_begun_is_told_that() -> None:
    requests, begun, go_on, done = Requests(), threading.Event(), threading.Event(), list[int]()

    def job() -> None:
        begun.set()
        assert go_on.wait(10)
        done.append(1)

    with people() as submit:
        asked = submit(requests.ask, job, 0.2)
        waits(requests)
        owner = threading.Thread(target=requests.serve)
        owner.start()
        assert begun.wait(10)
        assert "at work on it; look later whether it was done" in refusal(asked)
        go_on.set()
        owner.join()
    assert done == [1]


def test_a_timeout_that_the_job_itself_raises_is_its_own() -> None:
    requests = Requests()

    def job() -> None:
        raise TimeoutError("of the disk")

    with people() as submit:
        asked = submit(requests.ask, job)
        waits(requests)
        requests.serve()
        error = asked.exception(10)
    assert type(error) is TimeoutError
    assert str(error) == "of the disk"


# --- beside the learner's thread


def test_jobs_are_done_between_segments_in_the_learners_thread() -> None:
    order, at_work, go_on = list[str](), threading.Event(), threading.Event()

    def work(given: Segment) -> None:
        order.append(f"begin {given.stream}")
        at_work.set()
        assert go_on.wait(10)
        order.append(f"end {given.stream}")

    worker, requests = Worker(work), Requests()
    requests.hand_over = worker.do
    with people() as submit:
        assert worker.offer(segment(0))
        assert at_work.wait(10)
        asked = submit(requests.ask, lambda: (order.append("job"), threading.current_thread().name)[1])
        while worker._waiting.unfinished_tasks < 2:
            time.sleep(0.002)
        assert worker.offer(segment(1))
        assert not worker.offer(segment(1))  # a job in front of it takes no place
        assert not asked.done()
        go_on.set()
        assert asked.result(10) == "learner"
        worker.drain()
    assert order == ["begin 0", "end 0", "job", "begin 1", "end 1"]
    worker.end()


def test_what_a_job_raises_does_not_end_the_learner() -> None:
    seen = list[int]()
    worker, requests = Worker(lambda given: seen.append(given.stream)), Requests()
    requests.hand_over = worker.do

    def job() -> None:
        raise UsageError("expected x, but found y; do z")

    with people() as submit:
        assert isinstance(submit(requests.ask, job).exception(10), UsageError)
    assert worker.offer(segment(3))
    worker.drain()
    assert seen == [3]
    worker.end()


def test_who_waits_for_a_learner_that_has_died_or_ended_is_refused() -> None:
    def work(given: Segment) -> None:
        raise ValueError("broken")

    worker, requests = Worker(work), Requests()
    requests.hand_over = worker.do
    worker.offer(segment())
    worker._thread.join(10)
    with people(2) as submit:
        asked = submit(requests.ask, lambda: 1)
        while not worker._waiting.qsize():
            time.sleep(0.002)
        with pytest.raises(ValueError, match="broken"):
            worker.offer(segment())
        worker.end()
        requests.end()
        assert "ending" in refusal(asked)
        assert "ending" in refusal(submit(requests.ask, lambda: 1))
