"""The runs of an event file, and the scores on test images."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Run:
    """One start of deco-run.

    began, ended: times of its first and last event. seconds: between them. sources: names. frames, dropped, unknown:
    predicted, not waited for, of none of the classes. accepted, rejected: updates. finished: whether it came to its
    end. before, after, frozen: accuracies on the test images, of the deployed model and of the one that never learns.
    """

    began: str
    start: float | None = None
    ended: str = ""
    seconds: float = 0.0
    sources: list[str] = field(default_factory=list)
    live: bool = False
    segments: int = 0
    frames: int = 0
    dropped: int = 0
    unknown: int = 0
    accepted: int = 0
    rejected: int = 0
    lost: int = 0
    finished: bool = False
    before: float | None = None
    after: float | None = None
    frozen: float | None = None


@dataclass(frozen=True)
class Score:
    """Accuracies after so many segments of the file."""

    at: int
    when: str
    deployed: float
    frozen: float | None
    images: int
