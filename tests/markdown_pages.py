"""A Markdown page in the parts that tests look at, and the deco-… commands in a line of shell."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

FENCE = re.compile(r"\s*(```|~~~)")
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)")
STANDS_BEFORE = ("sudo", "taskset")
"""Programs that start the command behind their own words."""


class Page:
    """prose: lines outside fences. blocks: (language, lines) of each fence. spans: `code` in the prose. links: where
    those of the prose lead. anchors: what a link may have behind #, as GitHub makes them."""

    def __init__(self, text: str) -> None:
        self.prose: list[str] = []
        self.blocks: list[tuple[str, list[str]]] = []
        inside = False
        for line in text.splitlines():
            if FENCE.match(line):
                inside = not inside
                if inside:
                    self.blocks.append((line.strip("`~ "), []))
            elif inside:
                self.blocks[-1][1].append(line)
            else:
                self.prose.append(line)
        prose = "\n".join(self.prose)
        self.spans = [found[1] for found in CODE.findall(prose)]
        self.links = LINK.findall(CODE.sub("", prose))
        self.anchors = set(_slugs(line.lstrip("#") for line in self.prose if re.match("#{1,6} ", line)))


def _slugs(headings: Iterable[str]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for heading in headings:
        words = re.sub(r"\]\([^)]*\)", "", heading).strip().lower()
        slug = re.sub(r"[^\w -]", "", words).replace(" ", "-")
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
        seen[slug] += 1


def whole_lines(lines: Iterable[str]) -> list[str]:
    """Those of a shell, without what is said behind them: after ` # `, or after three spaces."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [found for line in joined.splitlines() if (found := re.split(r"(?:^|\s)#\s| {3}", line.strip())[0].strip())]


def calls(line: str, commands: Iterable[str]) -> Iterator[list[str]]:
    """The words of each call of one of these commands in a line of shell, from the command's name on."""
    lexer = shlex.shlex(re.sub(r"\$\(which ([\w-]+)\)", r"\1", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    one: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("|&;<>"):
            one.append(word)
            continue
        begin = next((at for at, each in enumerate(one) if Path(each).name in commands), None)
        if begin is not None and (begin == 0 or one[0] in STANDS_BEFORE):
            yield [Path(one[begin]).name, *one[begin + 1 :]]
        one = []
