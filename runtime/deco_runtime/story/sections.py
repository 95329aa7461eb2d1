"""The sections of the page, each a piece of HTML made of a story; "" where there is nothing to tell."""

from __future__ import annotations

from collections import Counter
from math import ceil, floor

from deco_runtime.story.charts import SERIES, Line, bars, lines
from deco_runtime.story.story import Story
from deco_runtime.story.timeline import Bucket
from deco_runtime.story.words import (
    duration,
    folded,
    moment,
    paragraph,
    percent,
    safe,
    section,
    several,
    size,
    stamp,
    table,
    whole,
)

_LISTED = 100
"""Classes in the table; the rest are summed up."""


def seen(story: Story) -> str:
    """Votes per class over time."""
    votes, unknown = story.timeline.votes(), story.total.unknown
    total = sum(votes.values())
    if not total:
        return section("What was seen", paragraph("No segment was gathered yet.", soft=True)) if story.events else ""
    shown = [name for name, _ in votes.most_common(SERIES if len(votes) <= SERIES else SERIES - 1)]
    names = shown + ["all others"] * (len(votes) > len(shown))

    def column(bucket: Bucket) -> tuple[str, list[float]]:
        values = [float(bucket.votes[name]) for name in shown]
        top = ", ".join(f"{name} {frames}" for name, frames in bucket.votes.most_common(5))
        rest = [float(sum(bucket.votes.values()) - sum(values))] if len(names) > len(shown) else []
        return f"{moment(bucket.begin)} UTC: {top}", values + rest

    buckets = story.timeline.buckets
    chart = bars(f"Votes of {len(votes)} classes over time", [column(b) for b in buckets], names, ends(story))
    rows = [(safe(name), whole(frames), percent(frames / total)) for name, frames in votes.most_common(_LISTED)]
    if left := votes.most_common()[_LISTED:]:
        rest = sum(frames for _, frames in left)
        rows.append((several(len(left), "other class", "other classes"), whole(rest), percent(rest / total)))
    said = f"{several(total, 'frame')} in {several(story.total.segments, 'segment')}, by the vote on each frame."
    if unknown:
        said += f" {several(unknown, 'frame')} showed none of the classes, whatever was voted for."
    cameras = [(safe(name), whole(segments)) for name, segments in story.streams.most_common()]
    each = f"A bar is {several(story.timeline.width, 'segment')}."
    return section(
        "What was seen",
        *(paragraph(said), chart, paragraph(each, soft=True)),
        folded("Every class", table(("class", "frames", "share"), rows, (1, 2))),
        folded("By camera", table(("camera", "segments"), cameras, (1,))) if cameras else "",
    )


def ends(story: Story) -> tuple[str, str]:
    """Below a chart of the timeline: from when to when."""
    buckets = story.timeline.buckets
    begin = moment(buckets[0].begin) if buckets else ""
    return begin, moment(story.runs[-1].ended) if story.runs else ""


def accuracy(story: Story) -> str:
    """Where labels existed."""
    if not story.events:
        return ""
    parts = []
    if scored := story.scores:
        before = next((score for score in scored if score.when == "before"), None)
        last = scored[-1]
        rows = [
            ("before the first segment here", percent(before.deployed) if before else "–"),
            ("at the end" if last.when == "after" else "when it was scored last", percent(last.deployed)),
            ("never updated", percent(last.frozen)),
        ]
        parts.append(paragraph(f"On {several(last.images, 'test image')}:"))
        parts.append(table(("", "accuracy"), [(safe(a), b) for a, b in rows], (1,)))
        drawn = [Line("deployed model", [(s.at, s.deployed) for s in scored], 0)]
        frozen = [(float(s.at), s.frozen) for s in scored if s.frozen is not None]
        drawn += [Line("never updated", frozen, 7, dashed=True)] if frozen else []
        last_at = f"{whole(last.at)} segments"
        parts.append(_accuracies("Accuracy on test images", drawn, (f"{scored[0].at}", last_at)))
    buckets = story.timeline.buckets
    stream = [(float(i), b.stream) for i, b in enumerate(buckets) if b.stream is not None]
    pseudo = [(float(i), b.pseudo) for i, b in enumerate(buckets) if b.pseudo is not None]
    drawn = [Line("answers, of a run so far", stream, 0)] if stream else []
    drawn += [Line("pseudo-labels learned from", pseudo, 1)] if pseudo else []
    if drawn:
        parts.append(paragraph("On the labelled frames of the stream:"))
        parts.append(_accuracies("Accuracy on the stream", drawn, ends(story)))
    if not parts:
        parts.append(paragraph("Nothing had labels, so how often it was right is not known.", soft=True))
    return section("How often it was right", *parts)


def _accuracies(about: str, drawn: list[Line], below: tuple[str, str]) -> str:
    """Between the tenths around them, so that what an update changes can be seen."""
    found = [y for line in drawn for _, y in line.points]
    top = min(1.0, ceil(max(found) * 10 + 0.1) / 10)
    bottom = min(top - 0.1, max(0.0, floor(min(found) * 10 - 0.1) / 10))
    return lines(about, drawn, (top, bottom), (f"{top:.0%}", f"{bottom:.0%}"), below)


def guard(story: Story) -> str:
    """What was accepted, what was rejected, and why."""
    decisions = story.decisions
    if not story.updates and not decisions:
        return ""
    said = f"{several(story.updates, 'update')} of the model in {duration(story.learning_seconds)} of learning"
    if decisions:
        said += f"; the guard accepted {whole(decisions['accepted'])} and rejected {whole(decisions['rejected'])}"
        if decisions["pause"]:
            said += f", after which learning paused {several(decisions['pause'], 'time')}"
    else:
        said += "; there was no guard"
    told = ""
    if story.verdicts:
        reasons = [(safe(why), whole(times)) for why, times in story.reasons.most_common()]
        rows = [(stamp(time), safe(what), safe(why)) for time, what, why in reversed(story.verdicts)]
        told = table(("why, with N for numbers", "times"), reasons, (1,)) if reasons else ""
        told += folded("One by one, the newest", table(("time (UTC)", "", "why"), rows))
    return section("What the guard said", paragraph(f"{said}."), told)


def rests(story: Story) -> str:
    """When learning waited for its resources."""
    if not story.pauses:
        return ""
    rows = [
        (safe(reason or "?"), whole(times), duration(story.pause_seconds.get(reason, 0.0)))
        for reason, times in story.pauses.most_common()
    ]
    return section("When learning rested", table(("for want of", "times", "in all"), rows, (1, 2)))


def camera(story: Story) -> str:
    """Lost and back, frozen and black."""
    kinds: Counter[str] = story.camera_kinds
    if not kinds:
        return ""
    said = f"The camera was lost {several(kinds['lost'], 'time')} and came back {whole(kinds['reconnected'])} of these"
    said += f", away for {duration(story.away_seconds)} in all." if kinds["reconnected"] else "."
    if kinds["frozen"] or kinds["black"]:
        said += f" Its picture was frozen {several(kinds['frozen'], 'time')}, black {whole(kinds['black'])}."
    rows = [(stamp(time), safe(name), safe(what), safe(why)) for time, name, what, why in reversed(story.camera)]
    return section("The camera", paragraph(said), folded("The newest", table(("time (UTC)", "", "", ""), rows)))


def people(story: Story) -> str:
    """What people taught and judged."""
    told = story.people
    judged, taught = told.right + told.wrong, told.did["taught"]
    if not judged and not told.told:
        return ""
    said = f"{several(taught, 'teaching was', 'teachings were')} taken"
    said += f", {whole(told.did['refused'])} refused, {whole(told.did['undone'])} taken back."
    if judged:
        said += f" Of {several(judged, 'frame')} that were judged {percent(told.right / judged)} were answered right."
    rows = [(stamp(time), safe(words)) for time, words in reversed(told.told)]
    return section("What people said", paragraph(said), table(("time (UTC)", ""), rows) if rows else "")


def fleet(story: Story) -> str:
    """What came of its fleet's sums."""
    merges = story.merges
    if not merges:
        return ""
    what, of = "images", ""  # under `paper`
    if story.fleet_frames:
        what, of = "sums", f"; the last were of {several(story.fleet_frames, 'frame')}"
    times = f"taken up {several(merges['merged'], 'time')} and refused {whole(merges['refused'])}"
    return section("The fleet", paragraph(f"The fleet's {what} were {times}{of}."))


def ages(story: Story) -> str:
    """How old frames of a camera were when they were answered, and how many nobody waited for."""
    total, buckets = story.total, story.timeline.buckets
    median = [(float(i), b.age_ms / b.ages) for i, b in enumerate(buckets) if b.ages]
    oldest = [(float(i), b.oldest_ms) for i, b in enumerate(buckets) if b.oldest_ms is not None]
    parts = []
    if median:
        top = max(y for _, y in [*median, *oldest]) or 1.0
        drawn = [Line("median", median, 0)] + ([Line("highest", oldest, 1)] if oldest else [])
        parts.append(paragraph("From the moment a frame was taken to its answer, of the last 1000 frames each time:"))
        parts.append(lines("Age of frames", drawn, (top, 0.0), (f"{top:.0f} ms", "0"), ends(story)))
    if total.dropped or story.dropped_segments:
        parts.append(
            paragraph(
                f"{several(total.dropped, 'frame')} came while the one before was worked on, and "
                f"{several(story.dropped_segments, 'segment')} while the learner was busy."
            )
        )
    return section("How fast it was", *parts) if parts else ""


def saves(story: Story) -> str:
    """What went to the disk."""
    if not story.saves and not story.refused_saves:
        return ""
    said = f"{several(story.saves, 'save')}, {size(story.saved_bytes)} in all."
    if story.total.seconds >= 600:
        said += f" That is {size(story.saved_bytes / story.total.seconds * 86400)} a day."
    told = ""
    if story.refused_saves:
        said += f" {several(story.refused_saves, 'save was', 'saves were')} refused:"
        told = table(("time (UTC)", "why"), [(stamp(t), safe(why)) for t, why in reversed(story.refusals)])
    return section("What was saved", paragraph(said), told)


def runs(story: Story) -> str:
    """Every start, the newest first."""
    if not story.runs:
        return ""
    rows = [
        (
            stamp(run.began),
            duration(run.seconds),
            safe(", ".join(run.sources) or "–"),
            whole(run.frames),
            whole(run.segments),
            f"{whole(run.accepted)} / {whole(run.rejected)}",
            f"{percent(run.before)} → {percent(run.after)}" if run.before is not None else "–",
            "yes" if run.finished else "not told",
        )
        for run in reversed(story.runs)
    ]
    head = ("began (UTC)", "for", "source", "frames", "segments", "updates", "accuracy", "ended")
    older = story.run_count - len(story.runs)
    left = paragraph(f"{several(older, 'run')} before these.", soft=True) if older else ""
    return section("Runs", table(head, rows, (1, 3, 4, 5, 6)), left)
