"""Threads of learning give way: the thread itself, and those of a graph that it opens, and no others."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.host.priority import NICE, giving_way
from deco_runtime.host.threads import threads
from deco_runtime.running.learner_thread import Worker
from deco_runtime.storage.bundle import open_bundle

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")


def nice_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def threads_now() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/task")}


def test_a_job_of_the_learner_gives_way_and_the_camera_does_not() -> None:
    found: list[int] = []
    worker = Worker(lambda segment: None)
    own, done = nice_of(threading.get_native_id()), threading.Event()
    worker.do(lambda: (found.append(nice_of(threading.get_native_id())), done.set()))  # type: ignore[func-returns-value]
    assert done.wait(30)
    worker.end()
    assert found == [max(own, NICE)]
    assert nice_of(threading.get_native_id()) == own


def test_threads_of_a_graph_are_as_the_one_that_opened_it(bundle_path: Path) -> None:
    if threads() < 2:
        pytest.skip("one core: a graph has no threads of its own")
    bundle = open_bundle(bundle_path)
    engine, theta = open_engine(bundle, "portable"), bundle.weights()
    x = np.zeros((1, *bundle.latent), np.float32)
    before = threads_now()
    engine.predict(theta, x)
    of_predict = threads_now() - before
    giving_way(lambda: engine.input_gradient(theta, x, np.zeros((1, bundle.outputs), np.float32)))
    of_learning = threads_now() - before - of_predict
    assert {nice_of(each) for each in of_predict} == {nice_of(os.getpid())}
    assert {nice_of(each) for each in of_learning} == {NICE}
