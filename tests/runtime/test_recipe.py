"""Recipes: the paper's values, what is refused and in which words, the round trip through JSON and `--set`."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from deco_runtime.errors import UsageError
from deco_runtime.learning.recipe import CHOICES, LARGEST, MOST, RECIPES, SHARED, Recipe, named, override, settable
from hypothesis import given
from hypothesis import strategies as st

INF, NAN = float("inf"), float("nan")

AT_LEAST_ONE = ("segment", "iterations", "retrain_interval", "retrain_batch")
POSITIVE = ("epsilon", "temperature", "synthetic_rate", "retrain_rate")
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
    assert covered == {f.name for f in fields(Recipe)}


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^expected recipe value {name} to be .*, but found .*; change it$"):
        Recipe(**{name: value})
    with pytest.raises(UsageError, match=name):
        Recipe.from_json({name: value})


@pytest.mark.parametrize(("name", "value"), AT_THE_EDGE)
def test_at_the_edge_of_the_range(name: str, value: Any) -> None:
    assert getattr(Recipe(**{name: value}), name) == value


def test_the_message_names_what_is_allowed() -> None:
    with pytest.raises(UsageError, match="expected recipe value vote to be filter or relabel, but found 'x'"):
        Recipe(vote="x")


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
        Recipe.from_json({name: value})


def test_json_may_write_a_float_as_a_whole_number() -> None:
    assert Recipe.from_json({"alpha": 2}).alpha == 2


whole = st.integers(1, MOST)
positive = st.floats(min_value=0, max_value=LARGEST, exclude_min=True)
below_one = st.floats(min_value=0, max_value=1, exclude_max=True)
recipes = st.builds(
    Recipe,
    name=st.text(),
    **dict.fromkeys(AT_LEAST_ONE, whole),
    retrain_epochs=st.integers(0, MOST),
    **dict.fromkeys((*POSITIVE, *NOT_NEGATIVE), positive),
    **dict.fromkeys(BELOW_ONE, below_one),
    **{name: st.sampled_from(allowed) for name, allowed in CHOICES.items()},
)


@given(recipes)
def test_round_trip_through_json(recipe: Recipe) -> None:
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@given(recipes)
def test_round_trip_through_set(recipe: Recipe) -> None:
    names = settable(recipe)
    usual = replace(recipe, **{name: getattr(Recipe(), name) for name in names})
    assert override(usual, [f"{name}={getattr(recipe, name)}" for name in names]) == recipe


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([f.name for f in fields(Recipe)]) | st.text(), json_values, max_size=4))
def test_any_json_gives_a_recipe_or_a_usage_error(values: dict[str, Any]) -> None:
    try:
        recipe = Recipe.from_json(values)
    except UsageError:
        return
    assert recipe == replace(Recipe(), **values)


def test_set_changes_only_what_it_names() -> None:
    changed = override(Recipe(), ["segment=64", "alpha=0", "vote=relabel"])
    assert changed == Recipe(segment=64, alpha=0.0, vote="relabel")
    assert override(Recipe(), []) == Recipe()


def test_what_may_be_set_is_what_the_method_goes_by() -> None:
    assert settable(named("paper")) == tuple(f.name for f in fields(Recipe) if f.name not in ("name", "method"))
    assert settable(named("deco+")) == SHARED == ("segment", "retrain_interval")
    assert override(named("deco+"), ["segment=64", "retrain_interval=3"]) == Recipe(
        "deco+", "regression", segment=64, retrain_interval=3
    )
    for text in ("alpha=0", "method=condensation", "nonsense=1"):
        with pytest.raises(UsageError) as caught:
            override(named("deco+"), [text])
        assert str(caught.value) == (
            f"expected --set KEY=VALUE with KEY one of segment, retrain_interval, but found {text!r}; "
            "the recipe paper has more"
        )
    with pytest.raises(UsageError, match=r"with KEY one of segment, vote, .*, but found 'method=regression'$"):
        override(named("paper"), ["method=regression"])


def test_the_last_set_holds() -> None:
    assert override(Recipe(), ["segment=64", "segment=32"]).segment == 32


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
        override(Recipe(), [text])
    assert "\n" not in str(caught.value)


@given(st.text())
def test_any_set_gives_a_recipe_or_a_usage_error(text: str) -> None:
    try:
        changed = override(Recipe(), [text])
    except UsageError:
        return
    assert changed == Recipe.from_json(changed.to_json())


def test_named_recipes() -> None:
    assert all(named(name) is recipe for name, recipe in RECIPES.items())
    assert named("paper") == Recipe()
    assert named("deco+") == Recipe(name="deco+", method="regression", retrain_interval=1)
    with pytest.raises(UsageError, match=r"expected --recipe to be one of .*paper.*, but found 'papers'"):
        named("papers")
