"""Figures as people read them, and pieces of HTML in which nothing of a file is taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

BLANK = "\u202f"
"""Between thousands: narrow, and never the end of a line."""


def safe(value: object) -> str:
    """A text as HTML shows it; characters that no page may hold, or that change the order of others, show as ?."""
    return escape("".join(c if c.isprintable() or c == BLANK else "?" for c in str(value)))


def moment(time: str) -> str:
    """A time of an event, which is UTC, to the second."""
    return time[:19].replace("T", " ") if time else "?"


def stamp(time: str) -> str:
    """The same as HTML, in one line."""
    return f"<time>{safe(moment(time))}</time>"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}".replace("%", " %")


def whole(number: float) -> str:
    """With blanks between thousands."""
    return f"{number:,.0f}".replace(",", BLANK)


def size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def duration(seconds: float) -> str:
    """The two largest of days, hours, minutes and seconds."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{whole(hours // 24)} d {hours % 24} h"


def several(count: int, one: str, many: str = "") -> str:
    """ "1 update", "3 updates"."""
    return f"{whole(count)} {one if count == 1 else many or one + 's'}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """head: texts. rows: HTML. numbers: columns that are aligned to the right."""
    kind = [' class="n"' if i in numbers else "" for i in range(len(head))]
    top = "".join(f"<th{k}>{safe(each)}</th>" for k, each in zip(kind, head, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{each}</td>" for k, each in zip(kind, row, strict=True)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def paragraph(words: str, soft: bool = False) -> str:
    """words: HTML."""
    return f"<p{' class=soft' if soft else ''}>{words}</p>"


def section(title: str, *parts: str, warn: bool = False) -> str:
    """parts: HTML."""
    return f"<section{' class=warn' if warn else ''}><h2>{safe(title)}</h2>{''.join(parts)}</section>"


def folded(title: str, inside: str) -> str:
    """What is shown when it is asked for."""
    return f"<details><summary>{safe(title)}</summary>{inside}</details>"
