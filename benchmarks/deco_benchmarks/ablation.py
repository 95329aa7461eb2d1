"""What each part of `deco+` is worth: one left out, or put in, at a time.

    python -m deco_benchmarks.ablation --data cifar10 --stream stc=500 --seeds 3 --out FILE.json

Frames are represented once and learned by every variant, with the device's own votes and statistics; the variant named
"deco+" is the row DECO+ of deco-eval.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import click
import numpy as np
from deco_export.export import tool_versions
from deco_export.images import Images
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.engines.registry import engines, open_engine
from deco_runtime.errors import DataError
from deco_runtime.learning import voter
from deco_runtime.learning.chain import LEAST_ALIKE, STARTS, Decoded, alike, decode, in_common
from deco_runtime.learning.deco_plus import DecoPlus
from deco_runtime.learning.guard import Unguarded
from deco_runtime.learning.recipe import MOST
from deco_runtime.learning.regression import PENALTY, Start, Statistics, mixed, penalty, ridge, share, solve, square
from deco_runtime.learning.vote import log_softmax, one_hot, softmax
from deco_runtime.preprocess import normalise
from deco_runtime.running.control import observed_in
from deco_runtime.running.stream import Stream
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.types import Floats, Ints, Observed, Segment

from deco_benchmarks import datasets, streams
from deco_benchmarks.config import PRESETS, Config
from deco_benchmarks.trial import as_at_the_end, base_bundle, order_of, recipe_of, scored, seen, split


@dataclass(frozen=True)
class Votes:
    """A segment's frames: what the bundle starts with says of them, (n, K) calibrated logits, and so the
    pre-trained model alone; how alike neighbours are, as `chain.alike` has it; true labels (n,), −1 for things of no
    class; and the scene before them, as in `decode`."""

    said: Floats
    network: Floats
    alike: float
    y: Ints
    carried: Floats | None


Voted = tuple[Floats, Floats | None]
"""t (n, K), and the scene to carry to the next segment."""


def by_chain(
    starts: Sequence[float] = STARTS, softer: float | None = None, network: bool = False, carry: bool = True
) -> Callable[[Votes], Voted]:
    """Votes by the chain, from these starts of ρ, probabilities softened so many times; None: by `Votes.alike`."""

    def label(votes: Votes) -> Voted:
        logits = votes.network if network else votes.said
        p = softmax(logits / np.float32(softer or votes.alike))
        decoded = decode(p, votes.carried if carry else None, starts=starts)
        return decoded.posterior, decoded.last

    return label


def as_they_come(statistics: Statistics, strength: float = PENALTY) -> Floats:
    """The plain regression, which follows the classes' shares."""
    return ridge(square(statistics), statistics.b.astype(np.float64), strength)


Share = Callable[[Statistics, Start], Floats]


def share_of_all(now: Statistics, start: Start) -> Floats:
    """The share by frames of whichever class, the same for all classes."""
    first = start.statistics
    even, begun = (Statistics(s.a, np.full_like(s.b, s.b[-1].sum())) for s in (now, first))
    return share(even, replace(start, statistics=begun))


def fixed(s: float) -> Share:
    """The same share for all classes and at all times."""
    return lambda now, start: np.full(now.b.shape[1], s, np.float32)


CHAIN = by_chain()


@dataclass(frozen=True)
class Variant:
    """label: a segment's votes. solve: statistics and their penalty → W. share: statistics now, and what it started
    from → shares (K,) of the regression in an answer."""

    label: Callable[[Votes], Voted] = CHAIN
    solve: Callable[[Statistics, float], Floats] = solve
    share: Share = share


VARIANTS = {
    "deco+": Variant(),
    "votes: argmax of each frame": Variant(lambda v: (one_hot(v.said.argmax(axis=1), v.said.shape[1]), None)),
    "votes: by the segment's shares, without order": Variant(by_chain(starts=(0.0,), carry=False)),
    "votes: the chain from a stay of 0.95 alone": Variant(by_chain(starts=(0.95,))),
    "votes: nothing carried from segment to segment": Variant(by_chain(carry=False)),
    "votes: frames taken as independent": Variant(by_chain(softer=1)),
    "votes: frames taken for photographs": Variant(by_chain(softer=LEAST_ALIKE)),
    "votes: of the pre-trained model alone": Variant(by_chain(network=True)),
    "votes: true labels": Variant(lambda v: (one_hot(v.y, v.said.shape[1]), None)),
    "solution: classes as they come": Variant(solve=as_they_come),
    "answer: one share for all classes": Variant(share=share_of_all),
    "answer: equal shares of both models": Variant(share=fixed(0.5)),
    "answer: the regression alone": Variant(share=fixed(1)),
    "answer: the pre-trained model alone": Variant(share=fixed(0)),
}


class Labelling(DecoPlus):
    """`deco+` with votes of another kind; right: frames whose vote was."""

    kind: ClassVar[Callable[[Votes], Voted]]
    right = 0

    def vote(self, segment: Segment) -> Decoded:
        """As `kind` has it."""
        phi, logits, it = segment.observed["phi"], segment.observed["logits"], self.voter
        said = mixed(it.w, it.s, phi, logits, it.start) / np.float32(it.start.mixed_temperature)
        network = log_softmax(logits / np.float32(it.start.network_temperature))
        softer = alike(in_common(phi, it.apart))
        t, scene = type(self).kind(Votes(said, network, softer, segment.labels, self.scene))
        self.right += int(np.count_nonzero(t.argmax(axis=1) == segment.labels))
        return Decoded(t, 0.0, cast(Floats, scene), 0.0)


def labelling(label: Callable[[Votes], Voted]) -> type[Labelling]:
    """`deco+` with votes of this kind."""
    return type("Labelling", (Labelling,), {"kind": staticmethod(label)})


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--data", required=True, metavar="DIR|digits", help="As for deco-eval run.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE", help="Result, JSON.")
@click.option(
    "--bases", type=click.Path(path_type=Path), metavar="DIR", help="Of a sweep's --out, to share its bundles."
)
@click.option("--stream", default="stc=500", metavar="KEY=N,…|recorded", help="As for deco-eval run.")
@click.option("--labelled", default=0.1, type=click.FloatRange(0, 1, min_open=True), help="Share of labels used.")
@click.option("--preset", default="paper", type=click.Choice(sorted(PRESETS)), help="Size of a trial.")
@click.option("--pretraining", default="augmented", type=click.Choice(["plain", "augmented"]), help="Of the bundle.")
@click.option("--engine", default="auto", type=click.Choice(["auto", *sorted(engines())]), help="Numeric engine.")
@click.option("--seeds", default=3, type=click.IntRange(1), help="Seeds 0, 1, …")
def main(data: str, out: Path, bases: Path | None, seeds: int, **rest: Any) -> None:
    """What each part of deco+ is worth: accuracy after a stream with one part changed at a time."""
    if streams.parse(rest["stream"]).recorded and (note := datasets.check_recorded(data)):
        click.echo(f"note: {note}", err=True)
    configs = [Config(row="DECO+", dataset=datasets.name(data), ipc=0, seed=seed, **rest) for seed in range(seeds)]
    results: list[dict[str, Any]] = []
    with progress_bars() as progress:
        for config in configs:
            dataset = datasets.load(data, PRESETS[config.preset].image_size, config.seed)
            bundle = base_bundle(dataset, config, (bases or out.parent) / ".bases", progress)
            _, stream, held_out = split(dataset, config)
            results += ablate(config, bundle, stream, held_out, progress)
            out.parent.mkdir(parents=True, exist_ok=True)
            settings = {name: value for name, value in asdict(config).items() if name != "seed"}
            content = {"config": settings, "seeds": seeds, "versions": tool_versions(), "results": results}
            out.write_text(json.dumps(content, indent=1) + "\n")
    click.echo(table(results))


def ablate(
    config: Config, bundle_path: Path, stream: Images, held_out: Images, progress: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """Every variant on one stream from one bundle: its accuracy under the stream's last corruption, before the stream
    and after it; after it also of the classes that came alone, and on clean images; and the share of its labels that
    were right."""
    bundle = open_bundle(bundle_path)
    engine, preprocessing, start = open_engine(bundle, config.engine), bundle.preprocessing, voter.start(bundle)
    # Solved once, by each variant at the end.
    recipe = replace(DecoPlus.RECIPE, segment=recipe_of(config).segment, retrain_interval=MOST)
    spec, segment, corruption_rng = (
        streams.parse(config.stream),
        recipe_of(config).segment,
        np.random.default_rng(config.seed),
    )
    order = order_of(stream, config)
    count = len(order) // segment
    if count == 0:
        raise DataError(
            f"expected a stream of at least one segment, {segment} frames, but found {len(order)}; give more images, "
            "or let more classes come"
        )
    clean = scored(held_out, config)
    tests = {"accuracy": (last := as_at_the_end(clean, spec, config.seed))}
    if spec.drift:
        tests["accuracy_clean"] = clean
    if spec.classes:
        tests["accuracy_seen"] = last[streams.coming(last.labels, spec)]
    kinds = {label: labelling(label) for label in {variant.label for variant in VARIANTS.values()}}
    learners = {label: kind.open(bundle, engine, recipe, np.random.default_rng(0)) for label, kind in kinds.items()}
    any_of_them = next(iter(learners.values()))
    observed = partial(observed_in, any_of_them, bundle=bundle)
    represented = {name: (observed(images.pixels), images.labels) for name, images in tests.items()}

    class Before(Stream):
        """The product's loop before frames that were observed once for all variants."""

        def look(self, x: Floats) -> tuple[Observed, Floats]:
            return shown, shown["logits"]

    loops = [Before(Unguarded(learner)) for learner in learners.values()]
    for number in range(count):
        begin = number * segment
        y = stream.labels[order[begin : begin + segment]]
        x = normalise(seen(stream, order, begin, segment, spec, corruption_rng), preprocessing)
        shown = any_of_them.observe(x)
        for loop in loops:
            loop.see(x, y)
        progress(f"seed {config.seed}, segments", number + 1, count)
    found = []

    def accuracies(variant: Variant, known: Statistics, tests: Iterable[str]) -> dict[str, float]:
        w, s, found = variant.solve(known, penalty(known, start)), variant.share(known, start), {}
        for test in tests:
            shown, y = represented[test]
            found[test] = float(np.mean(mixed(w, s, shown["phi"], shown["logits"], start).argmax(axis=1) == y))
        return found

    for name, variant in VARIANTS.items():
        result: dict[str, Any] = {"variant": name, "seed": config.seed}
        result["labels_right"] = learners[variant.label].right / (count * segment)
        result["before"] = accuracies(variant, start.statistics, ["accuracy"])["accuracy"]
        result |= accuracies(variant, learners[variant.label].memory, represented)
        for test in ("accuracy_clean", "accuracy_seen"):
            result.setdefault(test, result["accuracy"])
        found.append(result)
    return found


def table(results: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds, and the difference to deco+ with its standard deviation over them."""
    lines = [
        "| variant | before the stream % | accuracy % | against deco+ | of the classes that came % | "
        "on clean images % | labels right % |",
        "|---|---|---|---|---|---|---|",
    ]
    of = {name: [r for r in results if r["variant"] == name] for name in VARIANTS}
    whole = np.array([r["accuracy"] for r in of["deco+"]])
    for name, trials in of.items():
        before, accuracy, seen_only, clean, right = (
            100 * np.array([r[key] for r in trials])
            for key in ("before", "accuracy", "accuracy_seen", "accuracy_clean", "labels_right")
        )
        gain = accuracy - 100 * whole
        lines.append(
            f"| {name} | {before.mean():.2f} | {accuracy.mean():.2f} | "
            f"{gain.mean():+.2f} ± {gain.std(ddof=len(gain) > 1):.2f} | "
            f"{seen_only.mean():.2f} | {clean.mean():.2f} | {right.mean():.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(exit_with(main))
