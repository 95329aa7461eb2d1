"""What other installed packages bring: learners, engines and sources, by entry points.

A package names them in its pyproject.toml, for example

    [project.entry-points."deco_edge.sources"]
    gige = "our_package.gige"

docs/development/extending.md has what each of them has to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any, TypeVar

from deco_runtime.errors import RuntimeMissingError, first_line

T = TypeVar("T")


def brought(what: str, checked: Callable[[Any], T]) -> Iterator[T]:
    """Every learner, engine or source, `what`, of another package, as `checked` gives it.

    checked: raises whatever it likes where the object is none. Raises RuntimeMissingError for that, and for one that
    fails to load.
    """
    for entry in _entries(f"deco_edge.{what}s"):
        try:
            found = checked(entry.load())
        except Exception as error:  # foreign code raises anything
            raise RuntimeMissingError(
                f"expected {'an' if what[0] in 'aeiou' else 'a'} {what} from the installed package's entry point "
                f"{entry.name!r} = {entry.value!r}, but it fails with: {first_line(error)}; mend or uninstall that "
                "package"
            ) from error
        yield found


@cache
def _entries(group: str) -> tuple[metadata.EntryPoint, ...]:
    """Read once: a look at every installed package, and engines are asked for again and again."""
    return tuple(metadata.entry_points(group=group))


def module_with(*names: str) -> Callable[[Any], ModuleType]:
    """A check that it is a module which defines all these names."""

    def checked(found: Any) -> ModuleType:
        if not isinstance(found, ModuleType):
            raise TypeError("it is no module")
        if lacking := [name for name in names if not hasattr(found, name)]:
            raise TypeError(f"it lacks {', '.join(lacking)}")
        return found

    return checked
