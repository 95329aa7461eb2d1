"""What the representation is made of: which layers of a frozen network, chosen on held-out takes.

The features of a classifier of a thousand things are averaged over the picture, and know what ImageNet asks for. Where
other things matter, such as what is on a sign or how a hand is held, earlier maps tell more. Which do is found by
regressing the labels of some takes from layers on others, in their dual form: a layer is its matrix of inner products
between images, layers together are the sum of theirs, and so each candidate costs one solution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import onnx
from deco_runtime.learning.prior import answered, folds, share_of_takes
from deco_runtime.learning.regression import PENALTY
from deco_runtime.types import Floats, Ints

from deco_export.backbone.anatomy import Anatomy
from deco_export.backbone.head import Head
from deco_export.backbone.probe import Seen, model_of, pooled, vector
from deco_export.backbone.split import HEAD_B, HEAD_W
from deco_export.images import batches
from deco_export.representation import SIZE, Projection, Representation, projected

MOST = 2000
"""Images that layers are chosen with, and axes found of."""
WORSE = 0.5
"""Standard errors by which layers may be worse than the best and are taken, if they are fewer."""


def layers(
    raw: dict[str, Floats], y: Ints, takes: Ints, otherwise: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, float]]:
    """Which of some layers, name → (n, R), deepest first, tell classes y (n,) of takes (n,) apart best: a row of
    neighbours; and the share of right answers of each such row that was tried, each take counting alike. Where no take
    can be held out it is those given as `otherwise`, and nothing was tried."""
    names, fold = list(raw), folds(y, takes)
    if (fold < 0).all():
        return tuple(otherwise), {}
    grams: dict[str, Floats] = {}
    for name, values in raw.items():
        centred = values - values.mean(axis=0)
        centred /= np.float32(max(float(np.sqrt(np.mean(centred**2) * centred.shape[1])), 1e-12))
        grams[name] = centred @ centred.T
    rows = [names[first:last] for first, last in combinations(range(len(names) + 1), 2)]
    judged, found = fold >= 0, dict[tuple[str, ...], tuple[float, float]]()
    for row in rows:
        right = answered(np.sum([grams[name] for name in row], axis=0), y, fold, PENALTY)
        found[tuple(row)] = share_of_takes(right[judged], takes[judged])
    scores = {row: share for row, (share, _) in found.items()}
    best, error = max(found.values())
    good = [row for row in scores if scores[row] >= best - WORSE * error]
    chosen = min(good, key=lambda row: (len(row), -scores[row]))
    return chosen, {" + ".join(row): round(score, 4) for row, score in scores.items()}


def projection(raw: Floats, y: Ints, sizes: Sequence[int], rng: np.random.Generator) -> Projection:
    """`Projection.fit`, with directions drawn at random behind its axes up to SIZE of them: those along which none of
    few labelled images varies, and perhaps the stream does."""
    known = Projection.fit(raw, y, tuple(sizes))
    length, found = known.axes.shape
    more = min(SIZE, length) - found
    if more <= 0:
        return known
    spread = [float(part.std()) + 1e-12 for part in np.split(raw - known.mean, np.cumsum(sizes)[:-1], axis=1)]
    scale = np.repeat(spread, sizes)[:, None].astype(np.float32)
    basis = known.axes * scale  # orthogonal columns of one length
    size = np.linalg.norm(basis, axis=0)
    basis /= size
    drawn = rng.standard_normal((length, more)).astype(np.float32)
    drawn -= basis @ (basis.T @ drawn)
    drawn *= size.mean() / np.linalg.norm(drawn, axis=0) / scale  # in so many dimensions they are nearly orthogonal
    return Projection(known.mean, np.concatenate([known.axes, drawn], axis=1).astype(np.float32))


def represent(
    anatomy: Anatomy,
    at: str,
    top: Head,
    layers: Sequence[str],
    seen: Seen,
    y: Ints,
    some: Ints,
    rng: np.random.Generator,
) -> Representation:
    """The graph x → φ, votes from these layers of what was seen, and φ and votes of all images of that.

    y: their classes. some: indices of those that the axes are found of.
    """
    raw = np.concatenate([seen.maps[name] for name in layers], axis=1)
    sizes = [seen.maps[name].shape[1] for name in layers]
    axes = projection(raw[some], y[some], sizes, rng)
    nodes, constants, _ = vector(anatomy, at, "features")
    parts = []
    for number, name in enumerate(layers):
        parts.append(f"layer{number}")
        if name == at:
            nodes.append(onnx.helper.make_node("Identity", ["features"], [parts[-1]]))
            continue
        more, values, _ = pooled(anatomy, name, parts[-1])
        nodes += more
        constants |= values
    nodes.append(onnx.helper.make_node("Concat", parts, ["raw"], axis=1))
    nodes.append(onnx.helper.make_node("Gemm", ["features", HEAD_W, HEAD_B], ["votes"]))
    weights = {**constants, HEAD_W: top.w, HEAD_B: top.b}
    model = model_of(anatomy, nodes, weights, {"raw": (raw.shape[1],), "votes": (len(top.b),)})

    def shown() -> Iterator[tuple[Floats, Floats]]:
        for part in batches(len(raw), 512):
            centred = raw[part] - axes.mean
            yield (centred @ axes.axes).astype(np.float32), top.logits(seen.features[part])

    return Representation(projected(model, axes, len(top.b)), axes.axes.shape[1], shown)
