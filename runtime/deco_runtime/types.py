"""The nouns of the pipeline: Frame, Notice, Observed, Segment. Plain records of flat numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
"""float32 array; every learning quantity (θ, gradients, images after preprocessing) has this type."""

Ints = npt.NDArray[np.int64]
"""int64 array; class indices, 0 … K−1."""

Bools = npt.NDArray[np.bool_]
"""bool array."""

Pixels = npt.NDArray[np.uint8]
"""uint8 image (height, width, 3) in OpenCV's order B, G, R, values 0 … 255."""

Check = Callable[[], None]
"""Called between the steps of long work. It may raise, and then the work ends there."""

Batches = Callable[[Check], Iterator[Floats]]
"""The same images (N, C, H, W), batch by batch, at each call; given a check to call before each batch."""

Fault = Literal["frozen", "black"]
"""Why nothing can be learned from a picture; `sources/_faults.py` defines both."""


@dataclass(frozen=True)
class Frame:
    """One picture from a source.

    pixels: (height, width, 3) uint8, B, G, R.
    time: seconds when it was taken; of a live source on the monotonic clock, of a replayed one into the recording, so
        that what is counted in them does not depend on how fast it is replayed.
    label: true class index where the source knows it (a labelled folder), for scoring only; else None.
    fault: set by a live source for a picture that is predicted like any other, but not learned from.
    stream: number of the stream it is of, where a source is made of several.
    """

    pixels: Pixels
    time: float
    label: int | None = None
    fault: Fault | None = None
    stream: int = 0


@dataclass(frozen=True)
class Notice:
    """What a live source has to say between two frames.

    action: "waiting" (there is no frame, and the source goes on trying; said several times a second), "lost",
        "reconnected", "resized", "frozen", "black" (for a while now), or "cleared" (neither any more).
    words: one line for people, "" if there is nothing to read.
    figures: for the event stream.
    stream: number of the stream that says it, as in Frame.
    """

    action: Literal["waiting", "lost", "reconnected", "resized", "frozen", "black", "cleared"]
    words: str = ""
    figures: dict[str, Any] = field(default_factory=dict)
    stream: int = 0


Observed = dict[str, Floats]
"""What a learner sees in N images: all that it answers with and learns from, name → (N, …) float32. It is made once for
each image and never depends on what has been learned."""


@dataclass(frozen=True)
class Segment:
    """`I_t`: consecutive frames with the pseudo-labels the deployed model gave them (paper, section 4.2).

    observed: what the learner saw in them when they were predicted, name → (n, …) float32.
    pseudo: (n,) int64, ŷ = argmax of the deployed model.
    confidence: (n,) float32 in (0, 1], p(x)_ŷ, used as the weight w of the loss.
    labels: (n,) int64 true labels for scoring only, −1 where unknown. The learner never reads them.
    cut: (n,) bool, frames in front of which the stream was interrupted; None where it was not.
    stream: number of the stream that all of them are of, as in Frame.
    """

    observed: Observed
    pseudo: Ints
    confidence: Floats
    labels: Ints
    cut: Bools | None = None
    stream: int = 0

    def __len__(self) -> int:
        return len(self.pseudo)
