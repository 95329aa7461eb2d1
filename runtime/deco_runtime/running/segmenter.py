"""Frames become segments: `I_t`, the unit that is voted on and learned from."""

from __future__ import annotations

import numpy as np

from deco_runtime.types import Floats, Ints, Observed, Segment


class Segmenter:
    """The segment of a stream in the making, in arrays allocated once per segment."""

    def __init__(self, size: int, stream: int = 0) -> None:
        """size: frames per segment, |I_t|. stream: the number of the stream."""
        self._size, self._stream, self._interrupted = size, stream, False
        self._start()

    def _start(self) -> None:
        self._n = 0
        self._observed: Observed = {}
        self._pseudo, self._labels = np.empty(self._size, np.int64), np.empty(self._size, np.int64)
        self._confidence, self._cut = np.empty(self._size, np.float32), np.zeros(self._size, bool)

    def add(self, observed: Observed, pseudo: Ints, confidence: Floats, labels: Ints) -> None:
        """Predicted frames, no more than there is room for: what was observed of them, name → (n, …), and, all (n,),
        their ŷ, p(x)_ŷ, and true classes for scoring, −1 where unknown."""
        if not self._observed:
            self._observed = {k: np.empty((self._size, *v.shape[1:]), np.float32) for k, v in observed.items()}
        place = slice(self._n, self._n + len(pseudo))
        for name, array in observed.items():
            self._observed[name][place] = array
        self._cut[self._n], self._interrupted = self._interrupted, False
        self._pseudo[place], self._confidence[place], self._labels[place] = pseudo, confidence, labels
        self._n += len(pseudo)

    def cut(self) -> None:
        """The stream was interrupted: the next frame need not show what the last one did."""
        self._interrupted = True

    @property
    def room(self) -> int:
        """Frames that the segment lacks; at 0 it must be taken before the next frame."""
        return self._size - self._n

    @property
    def count(self) -> int:
        """Frames of the segment so far."""
        return self._n

    def take(self) -> Segment:
        """The segment as far as it is; the next one starts."""
        n = self._n
        observed = {name: array[:n] for name, array in self._observed.items()}
        said = self._pseudo[:n], self._confidence[:n], self._labels[:n], self._cut[:n]
        segment = Segment(observed, *said, stream=self._stream)
        self._start()
        return segment
