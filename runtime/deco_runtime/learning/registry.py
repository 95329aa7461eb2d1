"""The learners there are: those of this package, and those that other installed packages bring.

A file here with a LEARNER is one. A package outside the project adds its own by an entry point, see `plugins`, whose
object is a class derived from `Learner`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, cast

import numpy as np

from deco_runtime import learning as package
from deco_runtime.engine import Engine
from deco_runtime.errors import BundleError, UsageError
from deco_runtime.learning import recipe as recipes
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.origin import Bundle
from deco_runtime.learning.recipe import Recipe
from deco_runtime.plugins import brought

DECLARED = ("NAME", "TITLE", "ABOUT", "RECIPE", "GRAPH")
"""What a learner must say of itself."""


@cache
def learners() -> dict[str, type[Learner]]:
    """Every learner by its NAME, sorted. Raises RuntimeMissingError for one of another package that fails to load."""
    modules = [import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)]
    found: dict[str, type[Learner]] = {
        module.LEARNER.NAME: module.LEARNER for module in modules if hasattr(module, "LEARNER")
    }

    def new(brought_one: Any) -> type[Learner]:
        kind = _checked(brought_one)
        if found.get(kind.NAME, kind) is not kind:
            raise ValueError(f"its NAME {kind.NAME!r} is that of another learner")
        return kind

    for kind in brought("learner", new):
        found[kind.NAME] = kind
    return dict(sorted(found.items()))


def _checked(kind: Any) -> type[Learner]:
    """What a package brings; TypeError or ValueError unless it is a learner with all that one needs."""
    if not (isinstance(kind, type) and issubclass(kind, Learner)):
        raise TypeError("it is no class derived from Learner")
    lacking = [name for name in DECLARED if not hasattr(kind, name)] + sorted(getattr(kind, "__abstractmethods__", ()))
    if lacking:
        raise TypeError(f"{kind.__name__} lacks {', '.join(lacking)}")
    if kind.RECIPE.name != kind.NAME:
        raise ValueError(f"its RECIPE is named {kind.RECIPE.name!r}, and its NAME is {kind.NAME!r}")
    return kind


def learner(name: str) -> type[Learner]:
    """The learner of that name; UsageError lists those there are."""
    if name not in learners():
        raise UsageError(
            f"expected --recipe to be one of {', '.join(learners())}, but found {name!r}; correct it, or install the "
            "package that brings it"
        )
    return learners()[name]


def started(kind: type[Learner], bundle: Bundle) -> Learner:
    """A learner without an engine, to see what it starts from. Raises BundleError where the bundle has not that."""
    return kind.open(bundle, cast("Engine", None), kind.RECIPE, np.random.default_rng(0))


def state_bytes(kind: type[Learner], bundle: Bundle) -> int:
    """What the learned state of such a learner takes, its memory twice: once as it is, once for the guard to go back
    to. 0 where the bundle has not what it starts from."""
    try:
        it = started(kind, bundle)
    except BundleError:
        return 0
    return int(it.model.nbytes) + 2 * sum(int(array.nbytes) for array in arrays_of(it.memory).values())


def names() -> list[str]:
    """Of the recipes that learn, sorted: the choices of --recipe."""
    return [name for name, each in learners().items() if each.LEARNS]


def named(name: str) -> Recipe:
    """The recipe of that name; UsageError lists those there are."""
    return learner(name).RECIPE


def from_json(values: Mapping[str, Any]) -> Recipe:
    """A recipe from what `to_json` gave. Raises UsageError for an unknown name or key, or a wrong type or value."""
    return recipes.from_json(named(str(values["name"])), values)
