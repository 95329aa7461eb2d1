"""The page: one HTML file that needs nothing else, neither scripts nor the network."""

from __future__ import annotations

from collections.abc import Sequence

from deco_runtime.story.figures import count, part, text
from deco_runtime.story.learned import Learned
from deco_runtime.story.lines import Reading
from deco_runtime.story.sections import accuracy, ages, camera, fleet, guard, people, rests, runs, saves, seen
from deco_runtime.story.story import Story
from deco_runtime.story.style import STYLE
from deco_runtime.story.words import (
    duration,
    moment,
    paragraph,
    percent,
    safe,
    section,
    several,
    size,
    table,
    whole,
)

HEAD = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    # Nothing is loaded from anywhere, whatever a class is called.
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def page(name: str, story: Story, reading: Reading, learned: Learned | None, notes: Sequence[str] = ()) -> bytes:
    """All that is known of it. name: of the event file. notes: what else is to be said of the files."""
    parts = [_title(name, story), _notes(story, reading, notes)]
    if story.events:
        parts.append(_tiles(story))
    parts += [
        *(tell(story) for tell in (seen, accuracy, guard, people, fleet, rests, camera, ages, saves)),
        _state(learned),
        runs(story),
    ]
    html = f"{HEAD}<title>{safe(name)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    return html.encode("utf-8", "replace")


def _title(name: str, story: Story) -> str:
    total = story.total
    if not story.events:
        when = "no event was told yet"
    else:
        began, ended = moment(total.began), moment(story.runs[-1].ended)
        ran = duration(total.seconds)
        when = f"{safe(began)} to {safe(ended)} UTC by the device's clock; {several(story.run_count, 'run')}, {ran}"
    return f"<header><h1>{safe(name)}</h1>{paragraph(when, soft=True)}</header>"


def _notes(story: Story, reading: Reading, notes: Sequence[str]) -> str:
    """What a reader should know of the files before believing the figures."""
    said = [safe(note) for note in notes]
    if reading.cut:
        said.append("The last line of the events is cut short: a power cut, or a run that goes on.")
    if broken := reading.damaged - reading.cut:
        said.append(f"{several(broken, 'damaged line was', 'damaged lines were')} left out of the events.")
    if story.lost_events:
        said.append(f"{several(story.lost_events, 'event')} could not be written at the time.")
    if kinds := story.unknown_kinds:
        listed = ", ".join(f"{safe(kind)} ({whole(number)})" for kind, number in sorted(kinds.items()))
        said.append(f"Of events that this version does not know nothing is shown: {listed}.")
    said += [f"{safe(moment(time))}: {safe(words)}" for time, words in story.warnings]
    return section("To know beforehand", *map(paragraph, said), warn=True) if said else ""


def _tiles(story: Story) -> str:
    total, decisions = story.total, story.decisions
    came = total.frames + total.dropped
    tiles = [
        (whole(total.frames), "frames answered"),
        (percent(total.unknown / total.frames) if total.frames else "–", "of them none of the classes"),
        (percent(total.dropped / came) if came else "–", "of all frames not waited for"),
        (whole(total.segments), "segments"),
        (f"{whole(decisions['accepted'])} / {whole(decisions['rejected'])}", "updates accepted / rejected"),
        (whole(story.camera_kinds["lost"]), "times the camera was lost"),
        (size(story.saved_bytes), f"written in {several(story.saves, 'save')}"),
    ]
    shown = "".join(f"<div><b>{value}</b><span>{safe(what)}</span></div>" for value, what in tiles)
    return f'<div class="tiles">{shown}</div>'


def _state(learned: Learned | None) -> str:
    if learned is None:
        return ""
    values, meta = learned.values, learned.meta
    counts, judged = part(values, "counts"), part(values, "guard")
    rows = [
        ("saved, by the date of the file", moment(learned.saved) + " UTC"),
        ("size", size(learned.bytes)),
        ("recipe", learned.recipe),
        ("segments learned, in all runs", whole(count(counts, "segments"))),
        ("updates of the model", whole(count(counts, "retrains"))),
        ("updates dropped, not finite or rejected", whole(count(counts, "dropped"))),
        ("rejected in a row, at the end", whole(count(judged, "rejections")) if judged else "no guard"),
        ("learning pauses for", several(count(judged, "pause"), "segment")),
        ("source", text(meta, "source") or "–"),
        ("goes on behind frame", whole(count(meta, "position")) if count(meta, "position") else "–"),
        ("bundle", (text(meta, "bundle") or "–")[:16]),
    ]
    note = paragraph(safe(learned.note)) if learned.note else ""
    return section("What was learned and kept", note, table(("", ""), [(safe(a), safe(b)) for a, b in rows]))
