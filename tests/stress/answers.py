"""Whether two machines answer and learn alike; scripts/test-aarch64 asks both.

    python tests/stress/answers.py give BUNDLE STATES OUT.npz
    python tests/stress/answers.py compare EXPECTED.npz FOUND.npz

`give` writes what every graph of the bundle makes of the same random inputs, and of each state directory
STATES/N-MADE/RECIPE what was learned in it, and its answers. N segments, with an update after each, were learned there;
MADE says where.

`compare` prints three differences, relative to the largest value: of what the graphs give on both machines; of their
answers from one state; of what was learned of the same N segments, wherever that was. It fails if one of them is above
1e-4, or if a state was not taken up: then fewer than N segments, or the first one again, were learned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import numpy as np
from deco_runtime.engine import TRUNK
from deco_runtime.engines.golden import INPUTS, OUTPUTS, call_of, relative_error
from deco_runtime.engines.registry import open_engine
from deco_runtime.learning import registry
from deco_runtime.running.assemble import open_guard
from deco_runtime.storage import state as states
from deco_runtime.storage.bundle import Bundle, open_bundle

TOLERANCE = 1e-4
IMAGES = 3
"""In a batch; each more makes it likelier that a unit sits on a ReLU's kink, where either side is right."""

Arrays = Mapping[str, np.ndarray]
Pairs = Iterator[tuple[str, np.ndarray, np.ndarray]]


@click.group()
def main() -> None:
    """Whether two machines answer and learn alike."""


@main.command()
@click.argument("bundle_path", type=click.Path(path_type=Path))
@click.argument("place", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def give(bundle_path: Path, place: Path, out: Path) -> None:
    """Write what this machine answers."""
    bundle = open_bundle(bundle_path)
    engine = open_engine(bundle, "portable")
    inputs = random_inputs(bundle)
    found: dict[str, np.ndarray] = {}
    for graph in INPUTS:
        if graph == TRUNK and not bundle.trunk:
            continue
        values = call_of(engine, graph, bundle.weights())(*(inputs[name] for name in INPUTS[graph]))
        for name, value in zip(OUTPUTS[graph], values if isinstance(values, tuple) else (values,), strict=True):
            found[f"graph/{graph}/{name}"] = np.asarray(value)
    for directory in sorted(place.glob("*/*")):
        kind = registry.learner(directory.name)
        learner = kind.open(bundle, engine, kind.RECIPE, np.random.default_rng(0))
        guarded, _ = open_guard(bundle, learner)
        state, note = states.load(directory, bundle, guarded)
        if state is None or note:
            instead = note or "found none"
            raise click.ClickException(f"expected whole state in {directory}, but {instead}; run deco-run again")
        key = f"state/{directory.relative_to(place)}"
        found[f"{key}/place"] = np.array([learner.segments, state.position])
        found[f"{key}/answers"] = learner.predict(inputs["x"])
        found.update({f"{key}/learned/{name}": np.asarray(array) for name, array in learner.arrays().items()})
    np.savez(out, **found)  # type: ignore[arg-type]


def random_inputs(bundle: Bundle) -> Arrays:
    """The same on every machine, by the names that `engines.golden.INPUTS` has."""
    rng = np.random.default_rng(0)
    shapes = {"images": bundle.image_shape, "x": bundle.latent, "u": (bundle.features,)}
    inputs = {name: rng.standard_normal((IMAGES, *shape), np.float32) for name, shape in shapes.items()}
    inputs["t"] = np.eye(bundle.outputs, dtype=np.float32)[:IMAGES] * rng.random((IMAGES, 1), np.float32)
    inputs["v"] = rng.standard_normal(bundle.weight_count, np.float32)
    return inputs


@main.command()
@click.argument("expected", type=click.Path(path_type=Path))
@click.argument("found", type=click.Path(path_type=Path))
def compare(expected: Path, found: Path) -> None:
    """Print three differences; fail if one is too large."""
    here, there = dict(np.load(expected)), dict(np.load(found))
    if here.keys() != there.keys():
        differ = ", ".join(sorted(here.keys() ^ there.keys()))
        raise click.ClickException(
            f"expected the same graphs and states in both files, but found only one with {differ}"
        )
    check_taken_up(here)
    graphs = ((key, here[key], there[key]) for key in here if key.startswith("graph/"))
    answers = ((key, here[key], there[key]) for key in here if key.endswith("/answers"))
    errors = [worst(pairs) for pairs in (graphs, answers, same_segments(here))]
    print(*(f"{error:.1e}" for _, error in errors))
    if too_large := [f"{key} by {error:.1e}" for key, error in errors if not error <= TOLERANCE]:
        raise click.ClickException(f"expected differences up to {TOLERANCE:g}, but found {', '.join(too_large)}")


def check_taken_up(given: Arrays) -> None:
    """Whether each state is of as many segments as its directory says, and as far in the stream."""
    places = {key: array.tolist() for key, array in given.items() if key.endswith("/place")}
    segment = min(position for _, position in places.values())
    for key, (segments, position) in places.items():
        count = int(key.split("/")[1].split("-")[0])
        if (segments, position) != (count, count * segment):
            raise click.ClickException(
                f"expected {key} to be behind {count} segments and {count * segment} frames, but found {segments} and "
                f"{position}: the state that it began with was not taken up"
            )


def same_segments(given: Arrays) -> Pairs:
    """What was learned of the same number of segments, by name, each beside the first of its kind."""
    first: dict[tuple[str, str], np.ndarray] = {}
    for key, array in given.items():
        if "/learned/" in key:
            _, made, what = key.split("/", 2)
            yield key, first.setdefault((made.split("-")[0], what), array), array


def worst(pairs: Pairs) -> tuple[str, float]:
    """The name and the difference of the two arrays that differ most; NaN and other shapes are the worst."""
    errors = {key: relative_error(np.atleast_1d(found), np.atleast_1d(expected)) for key, expected, found in pairs}
    return max(errors.items(), key=lambda item: np.nan_to_num(item[1], nan=np.inf))


if __name__ == "__main__":
    main()
