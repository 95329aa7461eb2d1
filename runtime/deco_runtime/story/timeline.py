"""Segments over time in a bounded number of buckets, however many segments there were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST = 240
"""Buckets; a screen has no room for more."""
MOST_NAMES = 2000
"""Classes that are told apart in all; the votes of others count as OTHERS, so that no file can fill the memory."""
OTHERS = "(others)"


@dataclass
class Bucket:
    """Consecutive segments.

    begin: the time of the first. votes: frames by class. unknown: frames of none of the classes. age_ms, ages: sum of
    the medians of the frames' ages, and how many; oldest_ms: the highest. stream, pseudo: accuracies, of the last
    segment that had one.
    """

    begin: str = ""
    segments: int = 0
    votes: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    age_ms: float = 0.0
    ages: int = 0
    oldest_ms: float | None = None
    stream: float | None = None
    pseudo: float | None = None

    def take(self, later: Bucket) -> None:
        """Have the segments of the bucket behind this one too."""
        self.begin = self.begin or later.begin
        self.segments += later.segments
        self.votes.update(later.votes)
        self.unknown += later.unknown
        self.age_ms += later.age_ms
        self.ages += later.ages
        oldest = [each for each in (self.oldest_ms, later.oldest_ms) if each is not None]
        self.oldest_ms = max(oldest, default=None)
        self.stream = later.stream if later.stream is not None else self.stream
        self.pseudo = later.pseudo if later.pseudo is not None else self.pseudo


class Timeline:
    """Buckets of the same number of segments each, of which the last may have fewer; that number doubles as needed."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self.width = 1
        self.buckets: list[Bucket] = []
        self._names: set[str] = set()

    @property
    def segments(self) -> int:
        """How many there are in all."""
        return sum(bucket.segments for bucket in self.buckets)

    def add(self, segment: Bucket) -> None:
        """One segment more."""
        if not segment.votes.keys() <= self._names:
            segment.votes = self._known(segment.votes)
        if self.buckets and self.buckets[-1].segments < self.width:
            self.buckets[-1].take(segment)
            return
        if len(self.buckets) >= self._most:
            self.width *= 2
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=True)  # each is full, and they are even
            self.buckets = [_joined(a, b) for a, b in pairs]
        self.buckets.append(segment)

    def votes(self) -> Counter[str]:
        """Frames by class over all of it."""
        total: Counter[str] = Counter()
        for bucket in self.buckets:
            total.update(bucket.votes)
        return total

    def _known(self, votes: Counter[str]) -> Counter[str]:
        found: Counter[str] = Counter()
        for name, frames in votes.items():
            if name not in self._names and len(self._names) < MOST_NAMES:
                self._names.add(name)
            found[name if name in self._names else OTHERS] += frames
        return found


def _joined(a: Bucket, b: Bucket) -> Bucket:
    a.take(b)
    return a
