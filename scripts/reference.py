"""The pages of docs/reference that are made of the code: the commands, the events for listeners, the recipes.

`scripts/reference` writes them; tests/test_docs_reference.py compares.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from deco_runtime import errors
from deco_runtime.commands import run
from deco_runtime.commands.version import version_option
from deco_runtime.learning import registry
from deco_runtime.learning.recipe import settable
from deco_runtime.telemetry import happenings

DOCS = Path(__file__).parents[1] / "docs/reference"
WIDTH = 100
"""Columns of a help text, whatever the terminal has."""
MARK = "<!-- generated: scripts/reference -->"
"""In a page that people write too: all behind it is made here."""
GROUPS = {
    "deco-export": "deco_export.cli:command",
    "deco-doctor": "deco_runtime.doctor.cli:command",
    "deco-fleet": "deco_runtime.commands.fleet:fleet",
    "deco-eval": "deco_benchmarks.eval_cli:command",
    "deco-bench": "deco_benchmarks.bench.cli:command",
}
"""Beside deco-run, which is made when it is called."""


def commands() -> dict[str, click.Context]:
    """Every command and subcommand by what to type for it, each group before its own, with `command` and `get_help`."""
    found = {"deco-run": begun(run.command(), "deco-run")}
    for name in sorted(run.SUBCOMMANDS):
        found |= subcommands(begun(run.subcommand(name), "deco-run"))
    for name, place in GROUPS.items():
        module, _, attribute = place.partition(":")
        found[name] = begun(getattr(import_module(module), attribute), name)
        found |= subcommands(found[name])
    return found


def begun(command: click.Command, name: str) -> click.Context:
    """As when the command begins, on a terminal of WIDTH columns."""
    if not any(each.name == "version" for each in command.params):
        command.params.append(version_option())
    return click.Context(command, info_name=name, terminal_width=WIDTH, **command.context_settings)


def subcommands(group: click.Context) -> dict[str, click.Context]:
    """Of a group, which hands its settings down; of another command none."""
    found = sorted(group.command.commands.items()) if isinstance(group.command, click.Group) else []
    return {
        f"{group.info_name} {name}": click.Context(each, info_name=name, parent=group, **each.context_settings)
        for name, each in found
    }


def commands_page() -> str:
    """docs/reference/commands.md."""
    codes = ["| code | error | what it is about |", "|---|---|---|", "| 0 | | done, or a run that a signal ended |"]
    kinds: list[type[errors.DecoError]] = [errors.DecoError, *errors.DecoError.__subclasses__()]
    for kind in sorted(kinds, key=lambda kind: kind.exit_code):
        about = "any other, and a check that failed" if kind is errors.DecoError else sentence(kind.__doc__)
        codes.append(f"| {kind.exit_code} | `{kind.__name__}` | {about} |")
    codes.append("| 128 + N | | signal N ended it before it was done, as 130 for Ctrl-C |")
    parts = [
        "# Commands",
        "What each command says to `--help`. The page is made of the commands themselves, by `scripts/reference`.\n"
        "Engines, recipes and sources that other packages bring are not on it; `--help` has those of your machine.",
        *(f"## {name}\n\n```text\n{context.get_help().rstrip()}\n```" for name, context in commands().items()),
        "## Exit codes",
        "An error is one sentence on standard error: what was expected, what was found, what to do. Its kind decides\n"
        "the exit code, which is the same for every command.",
        "\n".join(codes),
    ]
    return "\n\n".join(parts) + "\n"


def recipes_page() -> str:
    """docs/reference/recipes.md."""
    parts = [
        "# Recipes",
        "A recipe is a way to learn with its values: `--recipe NAME` takes one, `--set KEY=VALUE` changes a value.\n"
        "The page is made of the code by `scripts/reference`; [algorithm.md](../algorithm.md) has the formulas.",
    ]
    for name in registry.names():
        kind = registry.learner(name)
        rows = ["| value | type | default | meaning |", "|---|---|---|---|"]
        for key in settable(kind.RECIPE):
            value = getattr(kind.RECIPE, key)
            row = (f"`{key}`", type(value).__name__, f"`{value}`", meaning(type(kind.RECIPE), key))
            rows.append("| " + " | ".join(each.replace("|", "\\|") for each in row) + " |")
        parts += [f"## `{name}`", kind.ABOUT, "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def meaning(recipe: type, key: str) -> str:
    """The text below a value, in the class that declares it last."""
    for kind in recipe.__mro__[:-1]:
        (declared,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(declared, ast.ClassDef)
        for line, below in pairwise(declared.body):
            if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) == key and isinstance(below, ast.Expr):
                return sentence(str(ast.literal_eval(below.value)))
    raise ValueError(f"expected a text below {key} of {recipe.__name__}, but found none; write one")


def records() -> Iterator[tuple[str, Any]]:
    """What happens in a run, kind by kind, with the module's own heading above it."""
    section = "The run"
    for line in inspect.getsource(happenings).splitlines():
        if line.startswith("# --- "):
            section = line.removeprefix("# --- ").capitalize()
        elif line.startswith("class "):
            yield section, getattr(happenings, line[len("class ") :].partition(":")[0])


def events_page() -> str:
    """docs/reference/events.md: what people wrote, and behind MARK the records."""
    written = (DOCS / "events.md").read_text("utf-8").partition(MARK)[0]
    parts, before = [written + MARK, inspect.cleandoc(happenings.__doc__ or "").partition("\n\n")[2]], ""
    for section, kind in records():
        if section != before:
            parts.append(f"### {section}")
            before = section
        parts += [f"#### `{kind.__name__}`", inspect.cleandoc(kind.__doc__ or "")]
        listed = [f"{each.name}: {each.type}" for each in fields(kind)]
        parts += ["```\n" + "\n".join(listed) + "\n```"] if listed else []
    return "\n\n".join(parts) + "\n"


def sentence(text: str | None) -> str:
    """In one line."""
    return " ".join((text or "").split())


PAGES = {"commands.md": commands_page, "events.md": events_page, "recipes.md": recipes_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), "utf-8")
