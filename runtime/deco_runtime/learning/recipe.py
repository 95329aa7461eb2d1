"""Recipes: the hyper-parameters of a learner, checked once when they are made. Each learner declares its own."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from deco_runtime.errors import UsageError

MOST = 2**31 - 1
"""Largest whole number that a recipe may hold."""
LARGEST = sys.float_info.max
"""Largest finite number; JSON knows larger whole ones."""

R = TypeVar("R", bound="Recipe")


@dataclass(frozen=True)
class Recipe:
    """What every learner goes by. Raises UsageError for a value outside its range."""

    name: str
    """The learner's."""
    segment: int = 128
    """|I_t|, frames per segment."""
    retrain_interval: int = 1
    """β, segments between two updates of the deployed model."""

    def __post_init__(self) -> None:
        self.check_whole("segment", "retrain_interval")

    def check_whole(self, *names: str, least: int = 1) -> None:
        """Raise UsageError unless these are whole numbers from `least` on."""
        for name in names:
            self.check(name, least <= getattr(self, name) <= MOST, f"from {least} to {MOST}")

    def check_positive(self, *names: str) -> None:
        """Raise UsageError unless these are finite and above 0."""
        for name in names:
            self.check(name, 0 < getattr(self, name) <= LARGEST, "a finite number above 0")

    def check_among(self, name: str, allowed: Collection[str]) -> None:
        """Raise UsageError unless this is one of the words allowed."""
        self.check(name, getattr(self, name) in allowed, " or ".join(allowed))

    def check(self, name: str, holds: bool, expected: str) -> None:
        """Raise UsageError about this value unless it `holds`."""
        if not holds:
            raise UsageError(
                f"expected recipe value {name} to be {expected}, but found {getattr(self, name)!r}; change it"
            )

    def to_json(self) -> dict[str, Any]:
        """As written to the manifest and to results."""
        return asdict(self)


def from_json(default: R, values: Mapping[str, Any]) -> R:
    """A recipe like `default` with the values that `to_json` gave.

    Raises UsageError for an unknown key, a wrong type or a wrong value.
    """
    types = {f.name: type(getattr(default, f.name)) for f in fields(default)}
    for key, value in values.items():
        fits = key in types and (type(value) is types[key] or (types[key] is float and type(value) is int))
        if not fits:
            raise UsageError(f"expected recipe values by name and type, but found {key} = {value!r}; correct it")
    return replace(default, **values)


def settable(recipe: Recipe) -> tuple[str, ...]:
    """Names of the values that `--set` may change."""
    return tuple(f.name for f in fields(recipe) if f.name != "name")


def override(recipe: R, settings: Iterable[str]) -> R:
    """Change values by "KEY=VALUE" texts, as given to `--set`; UsageError names an unknown key or a wrong value."""
    types = {name: type(getattr(recipe, name)) for name in settable(recipe)}
    changes: dict[str, Any] = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in types:
            raise UsageError(
                f"expected --set KEY=VALUE with KEY one of {', '.join(types)} for --recipe {recipe.name}, but found "
                f"{text!r}; correct it"
            )
        try:
            changes[key] = types[key](value)
        except ValueError as error:
            raise UsageError(
                f"expected --set {key} to be of type {types[key].__name__}, but found {value!r}; correct it"
            ) from error
    return replace(recipe, **changes)
