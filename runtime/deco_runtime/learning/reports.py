"""What a learner says of a segment, and of an update of its model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SegmentReport:
    """What one segment did. Shares and accuracies are fractions 0 … 1; None where there is nothing to say.

    active: the active classes. kept: share of frames learned from. pseudo_accuracy: share of these whose label is
    right, where the true labels are known (scoring only). dropped: updates of the memory dropped because they were not
    finite. figures: what this learner alone has to say, for programs. words: the same for people.
    """

    active: list[int] = field(default_factory=list)
    kept: float = 0.0
    pseudo_accuracy: float | None = None
    dropped: int = 0
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What the guard says of one update. reason: why it is rejected, a clause about the update; None when accepted.

    scores: what was measured, see docs/reference/events.md. best: (g,) bool, `Kept.best` once the update is published.
    """

    reason: str | None
    scores: dict[str, Any]
    best: npt.NDArray[np.bool_]

    @property
    def accepted(self) -> bool:
        """The update may be published."""
        return self.reason is None


@dataclass(frozen=True)
class RetrainReport:
    """One update of the deployed model: mean loss of the first and last epoch, None without any; accepted is False when
    the result was not finite or the guard rejected it, and then the model stayed as it was. verdict, rejections in a
    row, and segments that it pauses for now: the guard's, None and 0 without one."""

    loss: tuple[float, float] | None
    accepted: bool
    seconds: float
    verdict: Verdict | None = None
    rejections: int = 0
    pause: int = 0
