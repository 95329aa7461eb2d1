"""Recipes: the paper's values, what is refused and in which words, the round trip through JSON and `--set`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
from deco_runtime.errors import UsageError
from deco_runtime.learning import recipe as any_recipe
from deco_runtime.learning import registry
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.hyperparameters import CHOICES, Hyperparameters
from deco_runtime.learning.recipe import LARGEST, MOST, Recipe, override, settable
from deco_runtime.learning.registry import named
from deco_runtime.learning.teachable import TaughtRecipe
from hypothesis import given
from hypothesis import strategies as st

from_json = partial(any_recipe.from_json, Hyperparameters())

INF, NAN = float("inf"), float("nan")

AT_LEAST_ONE = ("segment", "iterations", "retrain_interval", "retrain_batch")
POSITIVE = ("epsilon", "temperature", "synthetic_rate", "retrain_rate", "taught_weight")
NOT_NEGATIVE = ("alpha", "weight_decay")
BELOW_ONE = ("threshold", "synthetic_momentum", "retrain_momentum")

OUT_OF_RANGE: list[tuple[str, Any]] = [
    *((name, value) for name in AT_LEAST_ONE for value in (0, -1, MOST + 1, 10**40)),
    *(("retrain_epochs", value) for value in (-1, MOST + 1)),
    *((name, value) for name in POSITIVE for value in (0.0, -1e-9, INF, -INF, NAN, 10**400)),
    *((name, value) for name in NOT_NEGATIVE for value in (-1e-9, INF, NAN, 10**400)),
    *((name, value) for name in BELOW_ONE for value in (-1e-9, 1.0, INF, NAN)),
    *((name, value) for name in CHOICES for value in ("", "Filter", "other")),
]
AT_THE_EDGE: list[tuple[str, Any]] = [
    *((name, value) for name in AT_LEAST_ONE for value in (1, MOST)),
    ("retrain_epochs", 0),
    *((name, value) for name in POSITIVE for value in (5e-324, LARGEST)),
    *((name, value) for name in NOT_NEGATIVE for value in (0.0, LARGEST)),
    *((name, value) for name in BELOW_ONE for value in (0.0, 1 - 2**-53)),
    *((name, value) for name, allowed in CHOICES.items() for value in allowed),
]


def test_every_value_is_covered_here() -> None:
    covered = {*AT_LEAST_ONE, *POSITIVE, *NOT_NEGATIVE, *BELOW_ONE, *CHOICES, "retrain_epochs", "name"}
    assert covered == {f.name for f in fields(Hyperparameters)}


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^expected recipe value {name} to be .*, but found .*; change it$"):
        Hyperparameters(**{name: value})
    with pytest.raises(UsageError, match=name):
        from_json({name: value})


@pytest.mark.parametrize(("name", "value"), AT_THE_EDGE)
def test_at_the_edge_of_the_range(name: str, value: Any) -> None:
    assert getattr(Hyperparameters(**{name: value}), name) == value


def test_the_message_names_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="expected recipe value vote to be filter or relabel, but found 'x'"):
        Hyperparameters(vote="x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment", 128.0),
        ("segment", "128"),
        ("segment", True),
        ("segment", None),
        ("alpha", "0.1"),
        ("alpha", False),
        ("alpha", [0.1]),
        ("vote", 1),
        ("vote", {"filter": 1}),
        ("name", None),
        ("nonsense", 1),
        ("Segment", 1),
        ("", ""),
    ],
)
def test_json_of_a_wrong_type_or_name(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=r"expected recipe values by name and type, but found .*; correct it"):
        from_json({name: value})


def test_json_may_write_a_float_as_a_whole_number() -> None:
    assert from_json({"alpha": 2}).alpha == 2


whole = st.integers(1, MOST)
positive = st.floats(min_value=0, max_value=LARGEST, exclude_min=True)
below_one = st.floats(min_value=0, max_value=1, exclude_max=True)
recipes = st.builds(
    Hyperparameters,
    name=st.text(),
    **dict.fromkeys(AT_LEAST_ONE, whole),
    retrain_epochs=st.integers(0, MOST),
    **dict.fromkeys((*POSITIVE, *NOT_NEGATIVE), positive),
    **dict.fromkeys(BELOW_ONE, below_one),
    **{name: st.sampled_from(allowed) for name, allowed in CHOICES.items()},
)


@given(recipes)
def test_round_trip_through_json(recipe: Hyperparameters) -> None:
    assert from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@given(recipes)
def test_round_trip_through_set(recipe: Hyperparameters) -> None:
    names = settable(recipe)
    usual = replace(recipe, **{name: getattr(Hyperparameters(), name) for name in names})
    assert override(usual, [f"{name}={getattr(recipe, name)}" for name in names]) == recipe


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Hyperparameters)]) | st.text(), json_values, max_size=4))
def test_any_json_gives_a_recipe_or_a_usage_error(values: dict[str, Any]) -> None:
    try:
        recipe = from_json(values)
    except UsageError:
        return
    assert recipe == replace(Hyperparameters(), **values)


def test_set_changes_only_what_it_names() -> None:
    changed = override(Hyperparameters(), ["segment=64", "alpha=0", "vote=relabel"])
    assert changed == Hyperparameters(segment=64, alpha=0.0, vote="relabel")
    assert override(Hyperparameters(), []) == Hyperparameters()


def test_what_may_be_set_is_what_the_learner_goes_by() -> None:
    assert settable(named("paper")) == tuple(f.name for f in fields(Hyperparameters) if f.name != "name")
    assert settable(named("deco+")) == ("segment", "retrain_interval", "taught_weight")
    assert override(named("deco+"), ["segment=64", "retrain_interval=3"]) == TaughtRecipe(
        "deco+", segment=64, retrain_interval=3
    )
    for text in ("alpha=0", "method=condensation", "nonsense=1"):
        with pytest.raises(UsageError) as caught:
            override(named("deco+"), [text])
        assert str(caught.value) == (
            "expected --set KEY=VALUE with KEY one of segment, retrain_interval, taught_weight for --recipe deco+, but "
            f"found {text!r}; correct it"
        )
    with pytest.raises(
        UsageError, match=r"one of segment, .*, vote, .* for --recipe paper, but found 'method=regression'"
    ):
        override(named("paper"), ["method=regression"])


def test_the_last_set_holds() -> None:
    assert override(Hyperparameters(), ["segment=64", "segment=32"]).segment == 32


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "with KEY one of segment"),
        ("segmnt=3", "with KEY one of segment"),
        ("name=mine", "with KEY one of segment"),
        ("=3", "with KEY one of segment"),
        ("segment", "segment to be of type int, but found ''"),
        ("segment=", "segment to be of type int, but found ''"),
        ("segment=1.5", "segment to be of type int, but found '1.5'"),
        ("segment=" + "9" * 5000, "segment to be of type int"),
        ("alpha=much", "alpha to be of type float, but found 'much'"),
        ("segment=0", "segment to be from 1 to"),
        ("alpha=nan", "alpha to be a finite number of at least 0, but found nan"),
        ("epsilon=1e999", "epsilon to be a finite number above 0, but found inf"),
        ("vote=a=b", "vote to be filter or relabel, but found 'a=b'"),
    ],
)
def test_a_wrong_set(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="^expected .*" + words) as caught:
        override(Hyperparameters(), [text])
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_set_gives_a_recipe_or_a_usage_error(text: str) -> None:
    try:
        changed = override(Hyperparameters(), [text])
    except UsageError:
        return
    assert changed == from_json(changed.to_json())


def test_named_recipes() -> None:
    assert all(named(name) is each.RECIPE for name, each in registry.learners().items())
    assert named("paper") == Deco.RECIPE == Hyperparameters()
    assert named("deco+") == DecoPlus.RECIPE == TaughtRecipe("deco+", segment=128, retrain_interval=1)
    assert named("frozen") == Recipe("frozen")
    with pytest.raises(UsageError, match=r"expected --recipe to be one of .*paper.*, but found 'papers'"):
        named("papers")


def test_the_paper_s_values() -> None:
    """One by one; docs/algorithm.md argues those that the paper is silent about."""
    assert Hyperparameters().to_json() == {
        "name": "paper",
        "segment": 128,
        "retrain_interval": 10,
        "vote": "filter",
        "threshold": 0.4,
        "iterations": 10,
        "matching": "gradient",
        "distance": "cosine",
        "scope": "joint",
        "gradient": "finite-difference",
        "epsilon": 0.01,
        "alpha": 0.1,
        "temperature": 0.07,
        "synthetic_rate": 1.0,
        "synthetic_momentum": 0.5,
        "retrain_epochs": 200,
        "retrain_batch": 128,
        "retrain_rate": 1e-3,
        "retrain_momentum": 0.9,
        "weight_decay": 5e-4,
        "taught_weight": 3.0,
    }


def test_json_holds_a_learner_s_own_values_and_gives_its_recipe() -> None:
    for recipe in (TaughtRecipe("deco+", 64, 3), Hyperparameters(segment=64, alpha=0.0), Recipe("frozen", 5)):
        values = json.loads(json.dumps(recipe.to_json()))
        found = registry.from_json(values)
        assert found == recipe
        assert type(found) is type(recipe)
        assert set(values) == {f.name for f in fields(recipe)}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "deco+", "alpha": 0.1}, "expected recipe values by name and type, but found alpha = 0.1; correct it"),
        ({"name": "deco+", "segment": "64"}, "by name and type, but found segment = '64'"),
        ({"name": "deco+", "segment": 0}, f"value segment to be from 1 to {MOST}, but found 0; change it"),
        ({"name": "deco+", "retrain_interval": MOST + 1}, "value retrain_interval to be from 1 to"),
        ({"name": "paper", "method": "condensation"}, "by name and type, but found method = 'condensation'"),
        ({"name": "papers"}, "expected --recipe to be one of deco+, .*paper.*, but found 'papers'"),
        ({"name": None}, "expected --recipe to be one of .*, but found 'None'"),
    ],
)
def test_json_that_is_no_recipe_of_the_learner_it_names(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("+", r"\+")):
        registry.from_json(values)


@pytest.mark.parametrize("name", ["segment", "retrain_interval"])
@pytest.mark.parametrize("value", [0, -1, MOST + 1, 10**40])
def test_what_every_learner_goes_by_has_its_range(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=rf"^expected recipe value {name} to be from 1 to {MOST}, but found {value};"):
        Recipe("mine", **{name: value})


@dataclass(frozen=True)
class Own(Recipe):
    """The recipe of a learner that somebody adds."""

    name: str = "own"
    warmth: float = 0.5
    depth: int = 0
    how: str = "slow"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("warmth")
        self.check_whole("depth", least=0)
        self.check_among("how", ("slow", "fast"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"segment": 0}, f"from 1 to {MOST}, but found 0"),
        ({"warmth": NAN}, "a finite number above 0, but found nan"),
        ({"warmth": 0.0}, "a finite number above 0, but found 0.0"),
        ({"depth": -1}, f"from 0 to {MOST}, but found -1"),
        ({"how": "quick"}, "slow or fast, but found 'quick'"),
    ],
)
def test_a_learner_checks_its_own_values_and_those_of_all(values: dict[str, Any], expected: str) -> None:
    (name,) = values
    with pytest.raises(UsageError) as caught:
        Own(**values)
    assert str(caught.value) == f"expected recipe value {name} to be {expected}; change it"


def test_a_learner_s_own_recipe_is_set_and_stored_as_any() -> None:
    assert settable(Own()) == ("segment", "retrain_interval", "warmth", "depth", "how")
    changed = override(Own(), ["warmth=2", "depth=3", "how=fast", "segment=9"])
    assert changed == Own(segment=9, warmth=2.0, depth=3, how="fast")
    assert any_recipe.from_json(Own(), json.loads(json.dumps(changed.to_json()))) == changed
