"""The bundle's golden values on the machine at hand: does each graph give here what torch gave at the export?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from deco_runtime.engine import EXACT, REPRESENTATION, TRUNK, Engine
from deco_runtime.engines.providers import typed
from deco_runtime.errors import BundleError, DecoError, first_line
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle

TOLERANCE = 1e-3
"""Largest allowed ‖found − golden‖∞ / ‖golden‖∞. The export allows a tenth of it between torch and ONNX Runtime on one
machine; another processor adds up in another order. A wrong kernel is off by far more."""
KINKED = 2e-2
"""Largest allowed ‖found − expected‖₂ / ‖expected‖₂ of gradients beyond the tolerance, here and in deco-export: among
millions of units some always sit within rounding of a ReLU's kink, where either side is right, and each changes the
gradient where it looks, by up to 0.01 in all at 224 pixels."""

REDUCED = 0.2
"""Largest allowed ‖found − expected‖₂ / ‖expected‖₂ of gradients in bf16 or fp16: with 8 bits of a mantissa a tenth is
usual for a trained model of three layers, while a wrong kernel is off by the whole."""

QUANTIZED = 0.2
"""Largest allowed ‖found − expected‖₂ / ‖expected‖₂ of what a trunk in 8 bits makes: each engine rounds at places of
its own, and one step of 256 more or less shows. ONNX Runtime and OpenVINO differ by 0.07 on EfficientNet-Lite0."""

HALF = 2e-2
"""Largest allowed ‖found − expected‖₂ / ‖expected‖₂ of what float16 makes, with 11 bits of a mantissa, where an
engine's `answers` say so. Not measured: this project has run none on a GPU so far."""

FROZEN = (TRUNK, REPRESENTATION)
"""Graphs with the trunk in them."""

BLOCK = 1 << 16
"""Elements that are compared at a time."""

INPUTS = {
    "predict": ("x",),
    "weight_gradient": ("x", "t"),
    "input_gradient": ("x", "t"),
    "feature_gradient": ("x", "u"),
    EXACT: ("x", "t", "v"),
    REPRESENTATION: ("images",),
    TRUNK: ("images",),
}
"""Golden inputs of each graph, in the order of the engine's call."""
OUTPUTS = {
    "predict": ("logits", "features"),
    "weight_gradient": ("loss", "weight_gradient"),
    "input_gradient": ("input_gradient",),
    "feature_gradient": ("feature_gradient",),
    EXACT: (EXACT,),
    REPRESENTATION: (REPRESENTATION, "votes"),
    TRUNK: ("x",),
}
"""Golden values of what each call returns."""


@dataclass(frozen=True)
class Comparison:
    """One graph against its golden values.

    error, l2: ‖found − golden‖ / ‖golden‖ in the largest element and in the Euclidean norm, of the worst output;
        not finite where the graph's values are not.
    agrees: within TOLERANCE, a gradient within KINKED, or what a trunk in 8 bits makes within QUANTIZED.
    images: N of the golden batch.
    first_s, again_s: seconds of the first call, which opens the graph, and of the second.
    """

    graph: str
    error: float
    l2: float
    agrees: bool
    images: int
    first_s: float
    again_s: float


def golden_check(bundle: Bundle, engine: Engine, graph: str) -> str | None:
    """Why the engine's graphs are not to be trusted on this machine, as a sentence; None when they are.

    Runs predict and this graph, that of the learner, on the golden inputs, as far as the bundle has values for them.
    Raises BundleError when these are malformed.
    """
    theta = bundle.weights()
    trunk = (TRUNK,) if bundle.trunk else ()
    for each in dict.fromkeys((*trunk, "predict", graph)):
        golden = read_golden(bundle, each)
        if golden is None:
            continue
        try:
            found = compare(engine, each, theta, golden, bundle.quantized, again=False)
        except (DecoError, MemoryError):
            raise
        except Exception as error:  # runtimes raise classes of their own when a kernel fails
            words = f"fails with: {first_line(error)}"
        else:
            if found.agrees:
                continue
            words = f"is off by {found.error:.1e} of the largest"
        return (
            f"expected the graph {each} of {bundle.path} to give its golden values on this machine, but with --engine "
            f"{typed(engine.name)} it {words}; see deco-doctor --bundle {bundle.path}, and try another --engine or "
            "version of its runtime"
        )
    return None


def read_golden(bundle: Bundle, graph: str) -> dict[str, Floats] | None:
    """The golden inputs and outputs of one graph; None where the bundle, from an earlier version, lacks any.

    Raises BundleError for arrays of other types or shapes than the graph's.
    """
    names = {*INPUTS[graph], *OUTPUTS[graph]}
    kept = {name if bundle.trunk or name != "images" else "x" for name in names}  # without a trunk x are the images
    golden = bundle.golden(kept)  # the gradients are as large as the weights: a start reads only what it needs
    if golden.keys() != kept:
        return None
    if not bundle.trunk and "images" in names:
        golden["images"] = golden.pop("x")
    first = golden[INPUTS[graph][0]]
    n = len(first) if first.ndim else 0
    classes, weights = len(bundle.classes), bundle.weight_count
    shapes: dict[str, tuple[int, ...]] = {
        "images": (n, *bundle.image_shape),
        "x": (n, *bundle.latent),
        "t": (n, bundle.outputs),
        "u": (n, bundle.features),
        "v": (weights,),
        "logits": (n, bundle.outputs),
        "features": (n, bundle.features),
        "votes": (n, classes),
        REPRESENTATION: (n, bundle.represented),
        "loss": (),
        "weight_gradient": (weights,),
    }
    for name, array in golden.items():
        shape = shapes.get(name, (n, *bundle.latent))
        if array.dtype != np.float32 or array.shape != shape or n == 0:
            raise _broken(bundle, f"{name} of float32 and shape {shape}, N ≥ 1")
    return golden


def compare(
    engine: Engine,
    graph: str,
    theta: Floats,
    golden: dict[str, Floats],
    quantized: bool = False,
    again: bool = True,
) -> Comparison:
    """Run one graph on its golden inputs, twice when `again` is set (else again_s is first_s).

    quantized: of the bundle; its trunk and its representation, the graphs that have one in them, may be off by more.

    Raises BundleError when the graph cannot be opened, and whatever the runtime raises when it cannot be run.
    """
    call, inputs = call_of(engine, graph, theta), [golden[name] for name in INPUTS[graph]]
    started = time.monotonic()
    result = call(*inputs)
    first_s = again_s = time.monotonic() - started
    if again:
        started = time.monotonic()
        result = call(*inputs)
        again_s = time.monotonic() - started
    values = result if isinstance(result, tuple) else (result,)
    errors, agree = [], True
    for name, value in zip(OUTPUTS[graph], values, strict=True):
        error, l2 = (relative_error(np.asarray(value), golden[name], order) for order in (np.inf, 2))
        errors.append((error, l2))
        allowed = KINKED if engine.precision == "fp32" else REDUCED
        close = "gradient" in name and l2 <= allowed
        close |= quantized and graph in FROZEN and l2 <= QUANTIZED
        close |= graph in FROZEN and getattr(engine, "answers", "fp32") != "fp32" and l2 <= HALF
        agree &= error <= TOLERANCE or close
    worst = np.max(np.array(errors), axis=0)  # not max(): NaN must win
    return Comparison(graph, float(worst[0]), float(worst[1]), agree, len(inputs[0]), first_s, again_s)


def call_of(engine: Engine, graph: str, theta: Floats) -> Callable[..., Any]:
    """The engine's call that runs this graph, at θ = theta (P,); its arguments are INPUTS of the graph."""
    if graph == REPRESENTATION:
        return engine.represent
    return engine.encode if graph == TRUNK else partial(getattr(engine, graph), theta)


def relative_error(found: Floats, expected: Floats, order: float = np.inf) -> float:
    """‖found − expected‖ / ‖expected‖, of the largest element or, at order 2, of all; infinite where shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    norms = [
        (np.linalg.norm(a.astype(np.float64) - b, order), np.linalg.norm(b.astype(np.float64), order))
        for a, b in zip(_blocks(found), _blocks(expected), strict=True)
    ]
    difference, size = np.linalg.norm(norms, order, axis=0)  # of the blocks' norms: both orders allow it
    return float(difference) / max(float(size), 1e-30)


def _blocks(values: Floats) -> list[Floats]:
    """All elements, BLOCK at a time: in float64 a large gradient would be held several times over."""
    flat = values.ravel()
    return [flat[start : start + BLOCK] for start in range(0, max(1, flat.size), BLOCK)]


def _broken(bundle: Bundle, expected: str) -> BundleError:
    return BundleError(
        f"expected {bundle.path / 'golden.npz'} to hold {expected}, but it does not; export the bundle again"
    )
