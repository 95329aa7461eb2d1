"""The report as one HTML file that needs nothing else: no script, no address, pictures inside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from deco_runtime.types import Ints

from deco_export.report import charts, verdicts
from deco_export.report.accuracy import Share
from deco_export.report.album import PARTS, SIDE, Album
from deco_export.report.duplicates import LOOKED, PAIRS, Twins
from deco_export.report.findings import Findings
from deco_export.report.hurt import Disputed
from deco_export.report.style import STYLE
from deco_export.report.verdicts import counted, percent

SHOWN = 24
"""Most pictures, and most pairs of one kind."""
ROWS = 20
"""Classes of a table that are shown at once, and of a map of confusions at most."""
CONFUSED = 12
"""Most pairs of confused classes that are listed."""


def page(f: Findings, album: Album, name: str, notes: Sequence[str]) -> str:
    """The whole file. name: the bundle's. notes: what the export has to say besides."""
    safe = escape(name)
    sections = (_classes(f), _confusions(f), _disputed(f, album), _twins(f, album), _labels(f), _notes(notes))
    said = "".join(f"<li>{escape(each)}</li>" for each in verdicts.verdicts(f))
    held = f.labelled - int(f.images.sum())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{safe}: report</title><style>{STYLE}</style></head><body>"
        f"<h1>{safe}: what your pictures teach</h1>"
        f'<p class="soft">{counted(len(f.classes), "class").replace("classs", "classes")}, '
        f"{counted(f.labelled, 'labelled picture')} of {counted(int(f.all_takes.sum()), 'take')}, "
        f"{held:,} of them held out; recipe {escape(f.recipe)}. This file holds small copies of pictures: it stays "
        "with you and is no part of the bundle.</p>"
        f'<ul class="verdicts">{said}</ul>{"".join(sections)}</body></html>\n'
    )


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>\n"


def _p(text: str) -> str:
    return f"<p>{text}</p>"


def _classes(f: Findings) -> str:
    if f.start.every is None or f.pretrained.every is None:
        return _section("How well each class is known", _p("Nothing was held out, so there is nothing to measure."))
    head = (
        "<tr><th>class</th><th>before the stream</th><th class=n>pre-trained</th><th class=n>held out</th>"
        "<th class=n>trained on</th></tr>"
    )
    order = sorted(range(len(f.classes)), key=lambda c: (_value(f.start.of_class[c]), f.classes[c]))
    rows = [_row(f, c) for c in order]
    table = f'<div class="wide"><table class="classes">{head}{"".join(rows[:ROWS])}</table></div>'
    if rows[ROWS:]:
        rest = f'<div class="wide"><table class="classes">{head}{"".join(rows[ROWS:])}</table></div>'
        table += f"<details><summary>{len(rows) - ROWS} better known or unmeasured classes</summary>{rest}</details>"
    both = (("all pictures alike", "every"), ("all classes alike", "balanced"))
    lines = [
        f"<tr><td>{what}</td><td class=n>{_told(getattr(f.pretrained, key))}</td>"
        f"<td class=n>{_told(getattr(f.start, key))}</td></tr>"
        for what, key in both
    ]
    total = (
        "<table><tr><th>right answers</th><th class=n>pre-trained</th><th class=n>before the stream</th></tr>"
        f"{''.join(lines)}</table>"
    )
    return _section(
        "How well each class is known",
        _p(
            "Measured on held-out pictures, of takes that nothing was trained on. <i>Pre-trained</i> is the network "
            "alone; <i>before the stream</i> is what the device starts with. In brackets, and as a line on each bar, "
            "is where the true share lies 19 times of 20: wide where takes are few, since pictures of one take are "
            "mostly right or wrong together. The least known classes come first."
        ),
        f'<div class="wide">{total}</div><br>',
        table,
    )


def _value(share: Share | None) -> float:
    return 2.0 if share is None else share.value


def _told(share: Share | None) -> str:
    return "" if share is None else f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)})"


def _row(f: Findings, c: int) -> str:
    before, start = f.pretrained.of_class[c], f.start.of_class[c]
    images, takes = 0 if start is None else start.images, 0 if start is None else start.takes
    bar = "" if start is None else charts.bar(start, f"{percent(start.value)} right")
    return (
        f"<tr><td>{escape(f.classes[c])}</td><td>{_told(start) or '–'}{bar}</td>"
        f"<td class=n>{percent(before.value) if before else '–'}</td><td class=n>{_of(images, takes)}</td>"
        f"<td class=n>{_of(int(f.images[c]), int(f.takes[c]))}</td></tr>"
    )


def _of(images: int, takes: int) -> str:
    return f"{images:,}" if images == takes else f"{images:,} <small>of {counted(takes, 'take')}</small>"


def _confusions(f: Findings) -> str:
    wrong: Ints = f.confused * (1 - np.eye(len(f.classes), dtype=np.int64))
    if not wrong.any():
        return _section("Which classes are confused", _p("None: no held-out picture is answered wrong."))
    most = [(int(i), int(j)) for i, j in zip(*np.nonzero(wrong), strict=True)]
    most.sort(key=lambda pair: -int(wrong[pair]))
    listed = "".join(
        f"<tr><td>{escape(f.classes[i])}</td><td>{escape(f.classes[j])}</td><td class=n>{wrong[i, j]} of "
        f"{f.confused[i].sum()}</td></tr>"
        for i, j in most[:CONFUSED]
    )
    table = f"<table><tr><th>shows</th><th>is taken for</th><th class=n>pictures</th></tr>{listed}</table>"
    shown = _heat(f) if len(f.classes) <= ROWS else ""
    return _section("Which classes are confused", f'<div class="wide">{table}</div>', shown)


def _heat(f: Findings) -> str:
    head = "".join(f'<th title="{escape(name)}">{n}</th>' for n, name in enumerate(f.classes, 1))
    rows = []
    for i, name in enumerate(f.classes):
        share = f.confused[i] / max(int(f.confused[i].sum()), 1)
        cells = "".join(
            f'<td{" class=ok" if i == j else ""} style="--s:{share[j]:.2f}">{f.confused[i, j] or ""}</td>'
            for j in range(len(f.classes))
        )
        rows.append(f"<tr><th scope=row><small>{i + 1}</small> {escape(name)}</th>{cells}</tr>")
    words = "A row is a class, a column what it was taken for, by its number; darker is a larger share of the row."
    return f'{_p(words)}<div class="wide"><table class="heat"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def _disputed(f: Findings, album: Album) -> str:
    cards = [_card(f, album, part, i, d) for part, i, d in f.disputed[:SHOWN]]
    if not cards:
        return _section("Pictures that may hurt", _p("None: the other pictures agree with every label."))
    of = f"all {f.labelled:,} labelled pictures" if f.sampled == f.labelled else f"{f.sampled:,} drawn at random"
    return _section(
        "Pictures that may hurt",
        _p(
            f"Of {of}, each was left out with its take, and the others asked what it shows. Where they say another "
            "class, the label may be wrong, the picture may show both, or nothing else looks like it. They agree with "
            f"{percent(f.agreed)} of the labels: the fewer, the less their word counts. The clearest come first, "
            f"{len(cards)} of {len(f.disputed):,}, one of each take. Mend or remove what is wrong, and keep what is "
            "right: of that the class needs more."
        ),
        f'<ul class="cards">{"".join(cards)}</ul>',
    )


def _card(f: Findings, album: Album, part: int, i: int, d: Disputed) -> str:
    wrong, size = d.take
    more = f"<br><small>{wrong} of the {size} pictures of its take</small>" if size > 1 else ""
    mark = "<span class=clear>doubted clearly</span><br>" if d.clearly else ""
    return (
        f"<li>{_img(album, part, i)}{mark}labelled <b>{escape(album.given(part, i))}</b> ({percent(d.p_given)})<br>"
        f"others say <b>{escape(f.classes[d.says])}</b> ({percent(d.p)})<br>"
        f"<small>{escape(album.name(part, i))}, {PARTS[part]}</small>{more}</li>"
    )


def _twins(f: Findings, album: Album) -> str:
    few = len(f.across) + len(f.between) == 0
    compared = f"{f.compared:,} pictures were compared with all others"
    if f.compared == LOOKED:
        compared += ", drawn at random"
    parts = [_p(f"{compared}{'; no two that should differ are nearly the same' if few else ''}.")]
    kinds = (
        (f.across, "Under two classes", "One of the labels is wrong, or the picture shows both."),
        (f.between, "On both sides", "What is nearly the same in training and testing makes figures too good."),
    )
    for pairs, title, words in kinds:
        if pairs:
            many = f" (or more, only the {PAIRS:,} nearest were looked at)" if len(pairs) >= PAIRS else ""
            cards = "".join(_pair(album, pair) for pair in pairs[:SHOWN])
            parts.append(f"<h3>{title}: {counted(len(pairs), 'pair')}{many}</h3>{_p(words)}")
            parts.append(f'<ul class="cards two">{cards}</ul>')
    return _section("The same picture twice", *parts)


def _pair(album: Album, pair: Twins) -> str:
    both = "".join(
        f"<div>{_img(album, part, i)}<b>{escape(album.given(part, i))}</b><br>"
        f"<small>{escape(album.name(part, i))}, {PARTS[part]}</small></div>"
        for part, i in (pair.a, pair.b)
    )
    return f'<li><div class="pair">{both}</div></li>'


def _img(album: Album, part: int, i: int) -> str:
    small = " class=small" if len(album.picture(part, i)) < SIDE else ""
    return f'<img{small} src="{album.uri(part, i)}" alt="{escape(album.name(part, i))}">'


def _labels(f: Findings) -> str:
    parts = [_p(escape(verdicts.more(f)))]
    if f.curve is not None and f.forecast is not None and f.start.balanced is not None:
        twice = 2 * float(f.takes.sum())
        parts.append(charts.curve_chart(f.curve, f.forecast, f.start.balanced.value, twice))
        network = (
            " The network below it was trained on all of these labels, so the curve is flatter than it would be."
            if f.from_scratch
            else ""
        )
        parts.append(
            _p(
                "The last layer was fitted to parts of the takes, drawn six times, and asked about the held-out "
                "pictures, all classes counting alike. Errors mostly fall by a power of the number of examples: that "
                f"is continued to twice the takes, with the range it takes 8 times of 10.{network}"
            )
        )
    return _section("Would more labels help?", *parts)


def _notes(notes: Iterable[str]) -> str:
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return _section("What the export said", f"<ul class=soft>{said}</ul>") if said else ""
