"""A frame goes through the network once: what was observed of it then is all that is learned from, and all that waits.

Counted on an engine, in runs over a replayed stream as deco-run makes them.
"""

from __future__ import annotations

import gc
import itertools
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.recipe import override
from deco_runtime.preprocess import normalise, preprocess
from deco_runtime.running import assemble
from deco_runtime.running.assemble import Options, prepare
from deco_runtime.running.stream import Stream
from deco_runtime.sources import _playback
from deco_runtime.storage.bundle import Bundle
from deco_runtime.types import Floats, Frame, Segment

SEGMENTS, SIZE = 4, 16
represented_ones = pytest.mark.parametrize("recipe", ["deco+", "slda"])


class Counting:
    """An engine that keeps every image it is given, by the name of the call."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.name, self.precision = engine.name, engine.precision
        self.given: dict[str, list[Floats]] = {}

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._engine, name)

        def counted(*arguments: Any) -> Any:
            images = arguments[0 if name in ("represent", "encode") else 1]
            self.given.setdefault(name, []).append(images.copy())
            return call(*arguments)

        return counted


def run(bundle: Bundle, state: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Counting, dict]:
    """What the engine was given in a run over the first segments of the demo stream, as a video without test images;
    and the summary."""
    engine = Counting(open_engine(bundle, "portable"))
    monkeypatch.setattr(assemble, "open_engine", lambda *arguments: engine)
    usual = {"recipe": "deco+", "settings": (f"segment={SIZE}",), "guard": True, **options}
    asked = Options(
        bundle=bundle.path, state=state, engine="portable", precision="fp32", max_segments=SEGMENTS, test=None, stc=1,
        seed=0, events=None, save_every=0, **usual,
    )  # fmt: skip
    ready, behind = prepare(asked, [("video", str(bundle.path / "demo" / "stream.avi"))], time.monotonic())
    engine.given.clear()  # the golden values were checked
    with ready.bus:
        summary = ready.go(behind)
    return engine, summary


def frames(bundle: Bundle, count: int = SEGMENTS * SIZE) -> Iterator[Floats]:
    """The first images of the demo stream, as the network sees them."""
    with closing(_playback.open_file(bundle.path / "demo" / "stream.avi")) as source:
        for frame in itertools.islice(source.frames(), count):
            assert isinstance(frame, Frame)
            yield preprocess(frame.pixels, bundle.preprocessing)


def counted(images: list[Floats]) -> Counter[bytes]:
    return Counter(image.tobytes() for image in images)


@represented_ones
def test_each_frame_is_represented_once_and_nothing_else_is_called(
    recipe: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, summary = run(bundle, tmp_path, monkeypatch, recipe=recipe, guard=False)
    assert (summary["segments"], summary["retrains"], summary["frames"]) == (SEGMENTS, SEGMENTS, SEGMENTS * SIZE)
    assert engine.given.keys() == {"represent"}
    assert len(engine.given["represent"]) == SEGMENTS * SIZE
    for found, expected in zip(engine.given["represent"], frames(bundle), strict=True):
        assert found.tobytes() == expected[None].tobytes()


@represented_ones
def test_the_guard_represents_each_of_its_images_once_whatever_it_judges(
    recipe: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, summary = run(bundle, tmp_path, monkeypatch, recipe=recipe)
    assert summary["retrains"] == SEGMENTS  # and so many verdicts
    assert engine.given.keys() == {"represent"}
    pixels, _ = bundle.labelled_pixels("guard.npz")
    of_the_guard = [normalise(image, bundle.preprocessing) for image in pixels]
    given = [image for x in engine.given["represent"] for image in x]
    assert counted(given) == counted([*frames(bundle), *of_the_guard])
    assert len(given) == SEGMENTS * SIZE + bundle.guard_images


def test_plain_inference_predicts_each_frame_once_and_calls_nothing_else(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, summary = run(bundle, tmp_path / "none", monkeypatch, no_learn=True)
    assert (summary["segments"], summary["retrains"]) == (SEGMENTS, 0)
    assert engine.given.keys() == {"encode", "predict"}
    for found, expected in zip(engine.given["predict"], frames(bundle), strict=True):
        assert found.tobytes() == expected[None].tobytes()
    assert not (tmp_path / "none").exists()


class Busy(Stream):
    """A learner that is busy: segments wait for it."""

    def __init__(self, guarded: Unguarded) -> None:
        super().__init__(guarded)
        self.waiting: list[Segment] = []

    def gathered(self, segment: Segment) -> None:
        self.waiting.append(segment)


@pytest.mark.parametrize("recipe", registry.names())
def test_what_waits_to_be_learned_holds_no_pixels_unless_they_are_learned_from(recipe: str, bundle: Bundle) -> None:
    """But for the paper's: φ and the network's logits, to the byte; a frame is gone once it was predicted, whoever
    learns."""
    kind = registry.learner(recipe)
    chosen = override(kind.RECIPE, (f"segment={SIZE}",))
    learner = kind.open(bundle, open_engine(bundle, "portable"), chosen, np.random.default_rng(0))
    stream, seen = Busy(Unguarded(learner)), []
    for x in frames(bundle, SIZE + SIZE // 2):
        seen.append(weakref.ref(x))
        stream.see(x[None], np.array([-1]))
    del x
    gc.collect()
    assert len(seen) == SIZE + SIZE // 2
    assert not any(frame() is not None for frame in seen)
    (waiting,) = stream.waiting
    assert (len(waiting), stream.segmenter.count) == (SIZE, SIZE // 2)
    represented = {"phi": (bundle.represented,), "logits": (len(bundle.classes),)}
    shapes = {"paper": {"x": bundle.image_shape}, "deco+": represented, "slda": represented}[recipe]
    for segment in (waiting, stream.segmenter.take()):
        assert {name: array.shape for name, array in segment.observed.items()} == {
            name: (len(segment), *shape) for name, shape in shapes.items()
        }
        assert {array.dtype for array in segment.observed.values()} == {np.dtype(np.float32)}
    held = [array if array.base is None else array.base for array in waiting.observed.values()]
    assert sum(array.nbytes for array in held) == 4 * SIZE * sum(int(np.prod(shape)) for shape in shapes.values())
