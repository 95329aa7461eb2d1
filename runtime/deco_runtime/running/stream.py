"""The loop over a stream, the same for every learner, on a device and in experiments.

    for images in the stream:  predict them, and gather them into segments
    for each segment I_t:      learn it
    if t % β = 0:              update the deployed model

Whoever runs it overrides what it wants to hear, or to do otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable

from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.reports import RetrainReport, SegmentReport
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.running.segmenter import Segmenter
from deco_runtime.types import Floats, Ints, Observed, Segment


class Stream:
    """A learner before a stream: it answers, and learns through what guards it."""

    def __init__(self, guarded: Unguarded) -> None:
        self.guarded, self.learner = guarded, guarded.learner
        self.segmenters = {0: Segmenter(self.learner.recipe.segment)}

    @property
    def segmenter(self) -> Segmenter:
        """Of the only stream, or of the first."""
        return self.segmenters[0]

    def segmenter_of(self, stream: int) -> Segmenter:
        """Of one of several streams, each of which has segments of its own."""
        if stream not in self.segmenters:
            self.segmenters[stream] = Segmenter(self.learner.recipe.segment, stream)
        return self.segmenters[stream]

    def follow(self, images: Iterable[tuple[Floats, Ints]]) -> None:
        """See all images, part by part: x (n, C, H, W) and true labels (n,) for scoring, −1 where unknown.

        A part that goes on behind the end of a segment is seen up to there first, so that the rest of it is predicted
        by the model of then.
        """
        for x, labels in images:
            while len(x):
                room = self.segmenter.room
                self.see(x[:room], labels[:room])
                x, labels = x[room:], labels[room:]

    def see(self, x: Floats, labels: Ints, fault: bool = False, stream: int = 0) -> None:
        """Predict images of a stream, no more than its segment lacks, and gather them unless something is wrong with
        them; learn the segment once it is complete.

        Each goes through the network once: what was observed of it is all that is learned from.
        """
        observed, logits = self.look(x)
        pseudo, confidence = self.label(logits)
        self.predicted(observed, pseudo, confidence, labels)
        segmenter = self.segmenter_of(stream)
        if fault:
            segmenter.cut()
            return
        segmenter.add(observed, pseudo, confidence, labels)
        if not segmenter.room:
            self.gathered(segmenter.take())

    def look(self, x: Floats) -> tuple[Observed, Floats]:
        """What the learner observes in images x (n, C, H, W), and the logits (n, K) it answers with."""
        observed = self.learner.observe(x)
        return observed, self.learner.answer(self.learner.model, observed)

    def label(self, logits: Floats) -> tuple[Ints, Floats]:
        """ŷ (n,) and p(x)_ŷ (n,) for logits (n, K)."""
        return pseudo_label(logits)

    def gathered(self, segment: Segment) -> None:
        """A segment is complete."""
        self.learn(segment)

    def learn(self, segment: Segment) -> None:
        """Learn a segment, and update the model if that is due."""
        self.learned(segment, self.guarded.learn(segment, self.check))
        self.retrain_if_due()

    def retrain_if_due(self) -> None:
        """Update the model after every β segments."""
        if self.learner.retrain_due:
            self.retrained(self.guarded.retrain(self.check))

    def check(self) -> None:
        """Called between the steps of learning. It may raise, and then the segment or update is given up."""

    def predicted(self, observed: Observed, pseudo: Ints, confidence: Floats, labels: Ints) -> None:
        """Told of images that were predicted: ŷ, p(x)_ŷ and the true labels, all (n,)."""

    def learned(self, segment: Segment, report: SegmentReport) -> None:
        """Told of a segment that was learned."""

    def retrained(self, report: RetrainReport) -> None:
        """Told of an update."""
