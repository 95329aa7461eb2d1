"""What happens in a run: one frozen record for each kind, which `bus` hands to whoever hears that kind.

Records carry names and figures; how they are told is for each listener to say. `words` are there where only the place
that it happens at can say why. Shares and accuracies are fractions 0 … 1, times are seconds; None is "not known".
`stream` is the name of the stream that something is about where the source is made of several, and None where it is
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deco_runtime.learning.reports import RetrainReport, SegmentReport, Verdict
from deco_runtime.types import Frame, Notice, Observed


@dataclass(frozen=True)
class Said:
    """A line for people and for nobody else."""

    words: str
    kind: Literal["", "note", "warning"] = ""


@dataclass(frozen=True)
class Doing:
    """What the run does from now on. step: which of so many `steps` of it, 0 for work without steps. pause: segments
    left for which the guard lets nothing be learned."""

    what: str
    step: int = 0
    steps: int = 0
    pause: int = 0

    @property
    def words(self) -> str:
        """In one line."""
        step = f" {self.step} of {self.steps}" if self.steps else ""
        return f"{self.what}{step}" + (f"; learning pauses for {self.pause} segments" if self.pause else "")


@dataclass(frozen=True)
class Stepped:
    """Long work (learning, scoring, a wait for its resources) did a step, in the thread that says so."""


@dataclass(frozen=True)
class RunEnding:
    """No further frame will be predicted; told once."""


# --- the source


@dataclass(frozen=True)
class PlaceFound:
    """A replayed source goes on behind so many frames, which an earlier run has learned from."""

    name: str
    frames: int


@dataclass(frozen=True)
class SourceOpened:
    """Frames are about to come. skipped: frames that lie behind. figures: what the source says of what it delivers."""

    name: str
    live: bool
    skipped: int
    figures: dict[str, Any]


@dataclass(frozen=True)
class SourceBegunAnew:
    """A replayed source is read from its beginning, because it is not the one that so many frames were read of."""

    name: str
    frames: int
    reason: str


@dataclass(frozen=True)
class SourceNotice:
    """A live source says something of itself; while it waits for a frame, several times a second."""

    name: str
    notice: Notice
    stream: str | None = None


@dataclass(frozen=True)
class FramesLeftOver:
    """The last frames make no whole segment of so many, and this recipe does not learn from them. least: frames that it
    would learn from at the end of this stream."""

    frames: int
    segment: int
    recipe: str
    least: int


@dataclass(frozen=True)
class SourceEnded:
    """The source is closed. frames: predicted. dropped: frames that were not waited for. note: what the source has to
    say at its end. figures: as of SourceOpened."""

    name: str
    frames: int
    dropped: int
    unlearned_frames: int
    note: str | None
    figures: dict[str, Any]


@dataclass(frozen=True)
class FramePredicted:
    """label: the answer, None for "none of the classes". confidence: how likely it is so. frame: the picture, and when
    it was taken. observed: what the learner saw in it, name → (1, …)."""

    label: str | None
    confidence: float
    frame: Frame
    observed: Observed
    stream: str | None = None


# --- what is learned


@dataclass(frozen=True)
class SegmentLearned:
    """A segment was gathered and, with a report, learned. The counts are those of the run so far.

    frame_age_ms: `median` and `max` from grabbing to predicting, of a live source. votes: frames by class name.
    active: names of the report's active classes.
    """

    number: int
    live: bool
    frames: int
    dropped_frames: int
    dropped_segments: int
    frame_age_ms: dict[str, float] | None
    unknown_frames: int
    votes: dict[str, int]
    stream_accuracy: float | None
    active: list[str]
    report: SegmentReport | None
    stream: str | None = None


@dataclass(frozen=True)
class SegmentGivenUp:
    """A segment was not learned for want of memory; the number of those in this run."""

    number: int


@dataclass(frozen=True)
class ModelRetrained:
    """Update `number` of the model was made after this segment."""

    number: int
    segment: int
    report: RetrainReport


@dataclass(frozen=True)
class UpdateJudged:
    """What the guard says to update `number`. rejections: in a row. pause: segments for which nothing is learned now.
    solved: the model was solved for, as after each segment, and not trained."""

    number: int
    segment: int
    verdict: Verdict
    rejections: int
    pause: int
    solved: bool


@dataclass(frozen=True)
class StateJudged:
    """What the guard says to state that was learned without one: if it is rejected, the bundle's model takes its place.
    update: the last one that it holds."""

    update: int
    verdict: Verdict


@dataclass(frozen=True)
class PauseOver:
    """A pause of the guard ended with this segment."""

    segment: int


@dataclass(frozen=True)
class ModelScored:
    """Accuracy of the deployed model and of the never-updated one on so many test images.

    when: "before", "during" or "after" the stream.
    """

    when: str
    segment: int
    deployed: float
    frozen: float
    images: int


# --- what people said


@dataclass(frozen=True)
class Page:
    """The page is open at this address, which has its token."""

    address: str


@dataclass(frozen=True)
class ClassTaught:
    """People said that so many frames show a class. new: the bundle lacks it. refused: why the guard did not take it, a
    clause; None when it is learned. classes: all there are now. teachings: that are not undone."""

    name: str
    frames: int
    new: bool
    refused: str | None
    classes: tuple[str, ...]
    teachings: int

    @property
    def what(self) -> str:
        """The frames, for people."""
        return f"{self.frames} frame{'s' * (self.frames > 1)} of {'the new class ' * self.new}{self.name!r}"

    @property
    def words(self) -> str:
        """What came of it, in one line."""
        return f"not taught {self.what}: that {self.refused}" if self.refused else f"taught {self.what}"


@dataclass(frozen=True)
class TeachingUndone:
    """The last teaching was taken back. classes, teachings: as of ClassTaught."""

    classes: tuple[str, ...]
    teachings: int


@dataclass(frozen=True)
class LearningHeld:
    """People had learning wait, or go on."""

    held: bool


@dataclass(frozen=True)
class WentBack:
    """People had what was learned go back, to: "saved", "previous" or "start"; there it has so many segments."""

    to: str
    segments: int


@dataclass(frozen=True)
class AnswersJudged:
    """People said of so many frames, answered as `answer` (None for none of the classes), whether that is right."""

    answer: str | None
    right: bool
    frames: int


@dataclass(frozen=True)
class FleetMerged:
    """The fleet's sums, of so many frames in all and labelled images, came to this device; or its images under `paper`,
    of 0 frames, since nobody knows. refused: why its guard did not take them, a clause; None when it goes by them."""

    frames: int
    refused: str | None

    @property
    def words(self) -> str:
        """What came of it, in one line."""
        took = f"not taken up: that {self.refused}" if self.refused else "taken up"
        return f"the fleet's {f'sums of {self.frames} frames' if self.frames else 'images'} were {took}"


# --- what is kept


@dataclass(frozen=True)
class StateFound:
    """At the start of a run that learns: whether there was learned state, and how much was learned.

    passed_over: what is damaged, unwritable: why nothing can be saved, as sentences.
    """

    directory: Path
    found: bool
    segments: int
    retrains: int
    passed_over: str | None
    unwritable: str | None


@dataclass(frozen=True)
class StateSaved:
    """bytes: of this save. written: bytes in this run, per_day: bytes at its pace."""

    bytes: int
    seconds: float
    segment: int
    written: int
    per_day: float | None


@dataclass(frozen=True)
class SaveRefused:
    """again: the save before was refused too."""

    reason: str
    again: bool


@dataclass(frozen=True)
class SavePossible:
    """After saves that were refused one has worked."""

    directory: Path


# --- what learning may take


@dataclass(frozen=True)
class ResourcesPaused:
    """Learning waits. reason: one of `limits.REASONS`. measured, limit: °C, or MiB of memory. sensor: of a temperature.
    words: why, and until when, as a clause."""

    reason: str
    measured: float | None
    limit: int | None
    words: str
    sensor: str | None = None


@dataclass(frozen=True)
class ResourcesResumed:
    """Learning goes on. measured, limit: °C, where it had waited for the temperature; else None."""

    reason: str
    measured: float | None = None
    limit: int | None = None
