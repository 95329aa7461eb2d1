"""Frames become segments: `I_t`, the unit that is voted on and learned from."""

from __future__ import annotations

import numpy as np

from deco_runtime.types import Floats, Segment


class Gatherer:
    """The segment in the making, in arrays allocated once per segment."""

    def __init__(self, image_shape: tuple[int, int, int], size: int) -> None:
        """image_shape: C, H, W of the network's input. size: frames per segment, |I_t|."""
        self._image_shape, self._size, self._interrupted = image_shape, size, False
        self._start()

    def _start(self) -> None:
        self._n = 0
        self._x = np.empty((self._size, *self._image_shape), np.float32)
        self._pseudo, self._labels = np.empty(self._size, np.int64), np.empty(self._size, np.int64)
        self._confidence, self._cut = np.empty(self._size, np.float32), np.zeros(self._size, bool)

    def add(self, x: Floats, pseudo: int, confidence: float, label: int | None) -> None:
        """One predicted frame: x (C, H, W), ŷ, p(x)_ŷ, and the true class for scoring if it is known."""
        self._cut[self._n], self._interrupted = self._interrupted, False
        self._x[self._n], self._pseudo[self._n], self._confidence[self._n] = x, pseudo, confidence
        self._labels[self._n] = -1 if label is None else label
        self._n += 1

    def cut(self) -> None:
        """The stream was interrupted: the next frame need not show what the last one did."""
        self._interrupted = True

    @property
    def full(self) -> bool:
        """A segment is complete and must be taken before the next frame."""
        return self._n == self._size

    @property
    def count(self) -> int:
        """Frames of the segment so far."""
        return self._n

    def take(self) -> Segment:
        """The segment as far as it is; the next one starts."""
        n = self._n
        segment = Segment(self._x[:n], self._pseudo[:n], self._confidence[:n], self._labels[:n], self._cut[:n])
        self._start()
        return segment
