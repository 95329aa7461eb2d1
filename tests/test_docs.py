"""What the pages say is there: files and headings that they link to, paths that they name, commands that they show."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

import click
import pytest
import reference
from deco_runtime.commands.recipes import RecipeName
from markdown_pages import Page, calls, whole_lines

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "examples", "benchmarks", "tests", "runtime", "export", "models", ".github")
PAGES = sorted(chain(ROOT.glob("*.md"), *((ROOT / name).rglob("*.md") for name in FOLDERS)))
PRINTED = ROOT / "benchmarks/results"
"""Tables of deco-eval, each sentence of which is one line."""
SHELL = ("", "sh", "bash", "console")
NAMED = re.compile(r"(?<![\w/.-])(?:\./)?((?:scripts|examples|tests|benchmarks)/[\w*+-][\w.*/+-]*)")
MOST = 120
LEFT_OUT = "…"
COMMANDS = reference.commands()

of_each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def read(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


@of_each_page
def test_links_lead_somewhere(path: Path) -> None:
    lost = []
    for link in read(path).links:
        name, _, anchor = link.partition("#")
        to = path.parent / name if name else path
        if re.match("[a-z]+:", link):
            continue  # another site, which is not asked here
        if not to.exists() or (anchor and anchor not in read(to).anchors):
            lost.append(link)
    assert lost == []


@of_each_page
def test_lines_are_short(path: Path) -> None:
    if path.is_relative_to(PRINTED):
        pytest.skip("printed by deco-eval")
    assert [line for line in read(path).prose if len(line) > MOST and not line.startswith(("|", "#"))] == []


@of_each_page
def test_paths_that_are_named_are_there(path: Path) -> None:
    named = {each.rstrip("./") for each in NAMED.findall(path.read_text("utf-8"))}
    assert [each for each in sorted(named) if not any(ROOT.glob(each))] == []


@of_each_page
def test_commands_are_as_the_program_has_them(path: Path) -> None:
    page = read(path)
    blocks = [whole_lines(lines) for language, lines in page.blocks if language in SHELL]
    # Text breaks off where it likes: behind an option that takes a value, too.
    lines = chain(*blocks, (f"{' '.join(span.split())} {LEFT_OUT}" for span in page.spans if span.startswith("deco-")))
    assert mistakes(lines) == []


def test_examples_in_the_help_are_as_the_program_has_them() -> None:
    helps = [(context.command.help or "").partition("\b\n")[2] for context in COMMANDS.values()]
    examples = [line for each in helps for line in whole_lines(each.splitlines()) if "deco-" in line]
    assert len(examples) > 20
    assert mistakes(examples) == []


def mistakes(lines: Iterable[str]) -> list[str]:
    """Of lines of shell, each with what is wrong with it; those without a command of ours are not looked at."""
    found = ((line, words) for line in lines if "deco-" in line for words in calls(line, COMMANDS))
    return [f"{line}: {why}" for line, words in found if (why := mistake(words))]


def mistake(words: list[str]) -> str:
    """What is wrong with a call, "" if nothing: an option or subcommand that is not there, a choice that is none. What
    is required may be missing, as where a page speaks of one option."""
    name = next(" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS)
    context = COMMANDS[name]
    parser = context.command.make_parser(context)
    try:
        values, rest, _ = parser.parse_args(words[len(name.split()) :])
        for param in context.command.params:
            given = values.get(param.name)
            if isinstance(param.type, (click.Choice, RecipeName)) and isinstance(given, (str, list)):
                for each in {*([given] if isinstance(given, str) else given)} - {LEFT_OUT}:
                    param.type.convert(each, param, context)
    except click.ClickException as error:
        return error.format_message()
    return f"what is {' '.join(rest)}?" if {*rest} - {LEFT_OUT} else ""
