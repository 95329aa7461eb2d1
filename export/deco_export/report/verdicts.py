"""The report's findings in sentences, for people who have never trained a classifier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from deco_runtime.pictures.layout import some

from deco_export.report.accuracy import Share
from deco_export.report.findings import Findings

FEW_TAKES = 5
"""Takes of a class, below which it is named: with 4 none or one is held out."""
JUDGED = 3
"""Held-out takes of a class, from which its accuracy is worth naming."""
WEAK = 0.7
"""Accuracy below which a class is named."""
SLOW = 0.02
"""Power of the learning curve below which more labels of the same kind bring next to nothing."""


def percent(value: float) -> str:
    """Of a share 0 … 1; with a decimal near 1, where it matters."""
    shown = f"{min(100 * value, 99.9):.1f}" if 0.99 < value < 1 else f"{100 * value:.0f}"
    return f"{shown}\N{NO-BREAK SPACE}%"


def between(share: Share) -> str:
    """A share with its interval and what it stands on."""
    stands = counted(share.takes, "take") if share.takes != share.images else counted(share.images, "picture")
    return f"{percent(share.value)} ({percent(share.low)} to {percent(share.high)}, by {stands})"


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def verdicts(f: Findings) -> list[str]:
    """What to know first, a sentence or two each."""
    return [*filter(None, (_known(f), _weak(f), _few(f), _hurt(f), _across(f), _leaks(f), more(f)))]


def _known(f: Findings) -> str:
    if f.start.balanced is None:
        return (
            "Nothing was held out, so nobody can say how well the classes are known. Raise --val, or label pictures of "
            "more takes."
        )
    started = f"Before the stream, {between(f.start.balanced)} of the held-out pictures are answered right, all classes"
    none = sum(each is None for each in f.start.of_class)
    return f"{started} counting alike" + (f"; of {none} of {len(f.classes)} nothing is held out." if none else ".")


def _weak(f: Findings) -> str | None:
    found = [
        (each.value, name)
        for each, name in zip(f.start.of_class, f.classes, strict=True)
        if each is not None and each.takes >= JUDGED and each.value < WEAK
    ]
    return f"Least known: {_names([f'{n} ({percent(v)})' for v, n in sorted(found)])}." if found else None


def _few(f: Findings) -> str | None:
    found = [f"{f.classes[c]} ({f.all_takes[c]})" for c in np.flatnonzero(f.all_takes < FEW_TAKES)]
    if not found:
        return None
    return (
        f"Too few takes to judge: {_names(found)}. A take is what was recorded in one go, and looks alike; record "
        "these again at other times and places."
    )


def _hurt(f: Findings) -> str:
    clear = sum(d.clearly for _, _, d in f.disputed)
    if clear:
        return (
            f"{counted(clear, 'label')} {'is' if clear == 1 else 'are'} doubted clearly by the other pictures: look at "
            f"{'it' if clear == 1 else 'them'} first."
        )
    return "No label is doubted clearly by the other pictures."


def _across(f: Findings) -> str | None:
    if not f.across:
        return None
    n = len(f.across)
    return f"{counted(n, 'pair')} of nearly the same picture {'has' if n == 1 else 'have'} two classes: one is wrong."


def _leaks(f: Findings) -> str | None:
    if not f.between:
        return None
    n = len(f.between)
    return (
        f"{counted(n, 'pair')} of nearly the same picture {'is' if n == 1 else 'are'} on both sides of training and "
        "testing, which makes figures better than they are."
    )


def more(f: Findings) -> str:
    """What more labels would bring."""
    if f.curve is None or f.forecast is None or f.start.balanced is None:
        return "There are too few takes to say what more labels would bring."
    now, cast = f.start.balanced.value, f.forecast
    low, high = (1 - (1 - now) * factor for factor in (cast.high, cast.low))
    most = f" Those of {_names([f.classes[c] for c in cast.most])} would help most." if cast.most else ""
    if now == 1:
        return "All held-out pictures are answered right: record more takes to find what is not known yet."
    if cast.power < SLOW:
        return f"More labels of the same kind would hardly help: with the last ones nothing has become better.{most}"
    least, best = percent(low), percent(high)
    expected = f"about {least}" if least == best else f"about {least} to {best}"
    own = " from the last layer alone, and more as the whole network learns from them" if f.from_scratch else ""
    return f"With twice the labels expect {expected} in place of {percent(now)}{own}.{most}"


def _names(names: Sequence[str]) -> str:
    return some(names, 5)
