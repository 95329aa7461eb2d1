"""Recipes: named sets of hyper-parameters, checked once when they are made."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from deco_runtime.errors import UsageError

CHOICES = {
    "method": ("condensation", "regression"),
    "vote": ("filter", "relabel"),
    "matching": ("gradient", "distribution"),
    "distance": ("cosine", "layerwise"),
    "scope": ("joint", "per-class"),
    "gradient": ("finite-difference", "exact"),
}
MOST = 2**31 - 1
"""Largest whole number that a recipe may hold."""
LARGEST = sys.float_info.max
"""Largest finite number; JSON knows larger whole ones."""


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of Algorithm 1; the defaults are the paper's (docs/algorithm.md says where it is silent).

    Raises UsageError for a value outside its range.
    """

    name: str = "paper"
    method: str = "condensation"
    """"condensation" is Algorithm 1; "regression", that of `deco+`, needs of all that follows SHARED only."""
    segment: int = 128
    """|I_t|, frames per segment."""
    vote: str = "filter"
    """Which label an active frame gets: "filter" its own, "relabel" the only active class of its segment."""
    threshold: float = 0.4
    """M of eq:filter, as a fraction of the segment: a class is active when more frames than this vote for it."""
    iterations: int = 10
    """L, matching iterations per segment, each with a fresh random model."""
    matching: str = "gradient"
    """What the condensed images match: the paper's "gradient", or the mean features of each class, "distribution",
    which distance, scope, gradient and epsilon have no part in."""
    distance: str = "cosine"
    """D: "cosine" over the whole gradient, "layerwise" summed over the tensors of the model."""
    scope: str = "joint"
    """Active classes matched "joint"-ly or "per-class"."""
    gradient: str = "finite-difference"
    """∇_{X'} D by the five passes of eq:opt4, or "exact", by automatic differentiation."""
    epsilon: float = 0.01
    """ε = epsilon / ‖∇_g D‖ of eq:opt4."""
    alpha: float = 0.1
    """α of eq:final, the weight of the contrastive term; 0 leaves it out."""
    temperature: float = 0.07
    """τ of eq:contrast."""
    synthetic_rate: float = 1.0
    """Learning rate of opt_S, the SGD on the condensed images."""
    synthetic_momentum: float = 0.5
    """Momentum of opt_S."""
    retrain_interval: int = 10
    """β, segments between two updates of the deployed model."""
    retrain_epochs: int = 200
    """Passes of opt_θ over the condensed buffer per update."""
    retrain_batch: int = 128
    """Batch size of opt_θ."""
    retrain_rate: float = 1e-3
    """Learning rate of opt_θ."""
    retrain_momentum: float = 0.9
    """Momentum of opt_θ."""
    weight_decay: float = 5e-4
    """Weight decay of opt_θ."""

    def __post_init__(self) -> None:
        for name in ("segment", "iterations", "retrain_interval", "retrain_batch"):
            self._check(name, 1 <= getattr(self, name) <= MOST, f"from 1 to {MOST}")
        self._check("retrain_epochs", 0 <= self.retrain_epochs <= MOST, f"from 0 to {MOST}")
        self._check("threshold", 0 <= self.threshold < 1, "at least 0 and below 1")
        for name in ("epsilon", "temperature", "synthetic_rate", "retrain_rate"):
            self._check(name, 0 < getattr(self, name) <= LARGEST, "a finite number above 0")
        for name in ("alpha", "weight_decay"):
            self._check(name, 0 <= getattr(self, name) <= LARGEST, "a finite number of at least 0")
        for name in ("synthetic_momentum", "retrain_momentum"):
            self._check(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        for name, allowed in CHOICES.items():
            self._check(name, getattr(self, name) in allowed, " or ".join(allowed))

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise UsageError(
                f"expected recipe value {name} to be {expected}, but found {getattr(self, name)!r}; change it"
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Recipe:
        """A recipe from what `to_json` gave. Raises UsageError for an unknown key, a wrong type or a wrong value."""
        types = {f.name: type(f.default) for f in fields(cls)}
        for key, value in values.items():
            fits = key in types and (type(value) is types[key] or (types[key] is float and type(value) is int))
            if not fits:
                raise UsageError(f"expected recipe values by name and type, but found {key} = {value!r}; correct it")
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """As written to the manifest and to results."""
        return asdict(self)


RECIPES = {"paper": Recipe(), "deco+": Recipe(name="deco+", method="regression", retrain_interval=1)}
SHARED = ("segment", "retrain_interval")
"""What a recipe of method "regression" goes by."""


def named(name: str) -> Recipe:
    """The recipe of that name; UsageError lists those there are."""
    if name not in RECIPES:
        raise UsageError(f"expected --recipe to be one of {', '.join(sorted(RECIPES))}, but found {name!r}")
    return RECIPES[name]


def settable(recipe: Recipe) -> tuple[str, ...]:
    """Names of the values that `--set` may change."""
    if recipe.method == "regression":
        return SHARED
    return tuple(f.name for f in fields(recipe) if f.name not in ("name", "method"))


def override(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """Change values by "KEY=VALUE" texts, as given to `--set`; UsageError names an unknown key or a wrong value."""
    types = {name: type(getattr(recipe, name)) for name in settable(recipe)}
    changes: dict[str, Any] = {}
    for text in settings:
        key, _, value = text.partition("=")
        if key not in types:
            other = "; the recipe paper has more" if recipe.method == "regression" else ""
            raise UsageError(f"expected --set KEY=VALUE with KEY one of {', '.join(types)}, but found {text!r}{other}")
        try:
            changes[key] = types[key](value)
        except ValueError as error:
            raise UsageError(
                f"expected --set {key} to be of type {types[key].__name__}, but found {value!r}"
            ) from error
    return replace(recipe, **changes)
