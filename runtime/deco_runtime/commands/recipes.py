"""The type of --recipe, for every command that has it."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from deco_runtime.learning import registry


class RecipeName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A choice of the recipes that learn. They are looked up when a command runs, which says it in a sentence where the
    learner of another package fails to load, and not when the command is made."""

    name = "recipe"

    def get_metavar(self, *arguments: Any, **named: Any) -> str | None:  # others before click 8.2
        return click.Choice(registry.names()).get_metavar(*arguments, **named)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return click.Choice(registry.names()).convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return click.Choice(registry.names()).shell_complete(ctx, param, incomplete)
