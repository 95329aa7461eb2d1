"""The one seam to a numeric runtime: five calls on flat weights, and the choice of who answers them.

θ is one float32 vector of P weights, so θ± = θ ± εv is one line wherever it is needed. Gradients are sums over the
batch, so an engine may cut a batch into micro-batches and add up.
"""

from __future__ import annotations

import contextlib
import os
import pkgutil
from collections.abc import Callable
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING, Protocol

from deco_runtime.errors import BundleError, RuntimeMissingError, UsageError, first_line
from deco_runtime.types import Floats

if TYPE_CHECKING:
    from deco_runtime.bundle import Bundle
    from deco_runtime.bundle_files import Root
    from deco_runtime.recipe import Recipe


class Engine(Protocol):
    """What the learner needs of a runtime. All arrays float32; N ≥ 1 is free in every call.

    precision: what the gradients are computed in, one of PRECISIONS.
    """

    name: str
    precision: str

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        """θ (P,), x (N, C, H, W) → logits (N, K), features (N, F): the deployed model and its encoder f_θ."""
        ...

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        """θ, x, weighted one-hot targets t (N, K) → L = −Σ t·log p_θ(x) and ∇_θ L (P,)."""
        ...

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        """θ, x, t → ∇_x L (N, C, H, W)."""
        ...

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        """θ, x, cotangent u (N, F) → ∇_x Σ f_θ(x)·u (N, C, H, W)."""
        ...

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        """θ, x, t, direction v (P,) → d/dε ∇_x L at θ + εv for ε = 0, (N, C, H, W)."""
        ...

    def represent(self, x: Floats) -> tuple[Floats, Floats]:
        """x (N, C, H, W) → φ (N, D), logits (N, K) of the pre-trained model, which the graph holds: for `deco+`, what
        it regresses on and what it votes with."""
        ...


EXACT = "input_gradient_tangent"
"""The graph of `gradient=exact`, which a bundle may lack."""
REPRESENTATION = "representation"
"""The graph of `deco+`, which a bundle of an earlier version lacks."""


PRECISIONS = ("fp32", "bf16", "fp16")


def check_recipe(bundle: Bundle, engine: Engine, recipe: Recipe) -> None:
    """Raise BundleError where the recipe needs a graph that the bundle lacks, UsageError where the engine is not
    precise enough for it."""
    if recipe.method == "regression":
        _check_regression(bundle, engine)
        return
    if engine.precision != "fp32" and recipe.matching == "gradient" and recipe.gradient == "finite-difference":
        raise UsageError(
            f"expected gradients in fp32 for gradient=finite-difference, which divides their rounding by 2ε, but "
            f"--engine {engine.name} computes in {engine.precision}; add --set gradient=exact"
        )
    exact = recipe.matching == "gradient" and recipe.gradient == "exact"
    if exact and f"graphs/{EXACT}.onnx" not in bundle.files:
        raise BundleError(
            f"expected a bundle with the graph {EXACT} for gradient=exact, but {bundle.path} was exported without it; "
            "export it again with this version, or use gradient=finite-difference"
        )


def _check_regression(bundle: Bundle, engine: Engine) -> None:
    if engine.precision != "fp32":
        raise UsageError(
            f"expected --precision fp32 with --recipe deco+, which computes no gradients, but found "
            f"{engine.precision}; leave the option out"
        )
    if f"graphs/{REPRESENTATION}.onnx" not in bundle.files or "regression.npz" not in bundle.files:
        raise BundleError(
            f"expected a bundle with the graph {REPRESENTATION} and regression.npz for --recipe deco+, but "
            f"{bundle.path} was exported without; export it again with this version, or use --recipe paper"
        )


class EngineModule(Protocol):
    """What a file in `engines/` defines; adding an engine is adding such a file."""

    NAME: str
    PRECISION: str
    PREFERENCE: int
    """"auto" takes the usable engine with the highest, where `choose` has not timed them."""
    unusable: Callable[[Bundle | None], str | None]
    """Why this engine cannot run the bundle here, or any bundle for None, as a sentence; None when it can."""
    load: Callable[[Root], Engine]
    """Opens the graphs of the bundle whose files are there."""


def engines() -> dict[str, EngineModule]:
    """Every engine of the package `engines`, by name."""
    from deco_runtime import engines as package

    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            module: EngineModule = import_module(f"{package.__name__}.{info.name}")
            found[module.NAME] = module
    return found


def by_preference(bundle: Bundle, precision: str = "fp32") -> dict[str, str | None]:
    """Names of all engines of this precision, the one that "auto" prefers first, with why it cannot run the bundle
    here, or None."""
    modules = sorted(engines().values(), key=lambda module: -module.PREFERENCE)
    return {module.NAME: module.unusable(bundle) for module in modules if precision == module.PRECISION}


def open_engine(bundle: Bundle, name: str = "auto", precision: str = "fp32") -> Engine:
    """The engine `name`, or for "auto" the preferred one of this precision that is usable here.

    Raises RuntimeMissingError when the runtime it needs is absent, doubled or unfit, UsageError for an unknown name.
    """
    check_runtime()
    known = engines()
    if name == "auto":
        reasons = by_preference(bundle, precision)
        name = next((each for each, reason in reasons.items() if reason is None), "")
        if not name:
            raise RuntimeMissingError("; ".join(reason for reason in reasons.values() if reason))
    if name not in known:
        raise UsageError(f"expected --engine auto or one of {', '.join(sorted(known))}, but found {name!r}")
    reason = known[name].unusable(bundle)
    if reason is not None:
        raise RuntimeMissingError(reason)
    return known[name].load(bundle.root)


_limit: int | None = None


def limit_threads(count: int) -> None:
    """Have every engine that is opened from now on use so many threads at most."""
    global _limit
    _limit = count


def threads() -> int:
    """How many threads the engine may use: `limit_threads`, else the CPUs this process is allowed to run on."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, _limit or allowed)


OLDEST_RUNTIME = (1, 18)


def check_runtime() -> None:
    """Raise RuntimeMissingError unless exactly one onnxruntime of a sufficient version can be imported."""
    if util.find_spec("onnxruntime") is None:
        raise RuntimeMissingError(
            "expected one onnxruntime package, but found none; install it with pip install 'deco-edge[device]', or "
            "'deco-edge[ort-training]' on x86-64, or use the board maker's own wheel"
        )
    owners = runtime_packages()
    if len(owners) > 1:
        raise RuntimeMissingError(
            f"expected one package that provides onnxruntime, but found {len(owners)}: {', '.join(owners)}; they "
            "overwrite each other's files, so uninstall all of them and install the one you want again"
        )
    try:
        import onnxruntime

        found = onnxruntime.__version__  # absent when an uninstall left an empty directory
        version = tuple(int(part) for part in found.split(".")[:2])
    except Exception as error:  # a broken or half-removed package raises anything
        raise RuntimeMissingError(
            f"expected an onnxruntime that can be imported, but it fails with: {first_line(error)}; "
            "reinstall it for this machine"
        ) from error
    if version < OLDEST_RUNTIME:
        raise RuntimeMissingError(
            f"expected onnxruntime {OLDEST_RUNTIME[0]}.{OLDEST_RUNTIME[1]} or newer, but found {found}; upgrade it"
        )


def runtime_packages() -> list[str]:
    """Names of the installed distributions that put files into the module `onnxruntime`, sorted."""
    owners = set()
    for package in metadata.distributions():
        claimed = (package.read_text("top_level.txt") or "").split()
        files = package.read_text("RECORD") or ""
        if "onnxruntime" in claimed or files.startswith("onnxruntime/") or "\nonnxruntime/" in files:
            with contextlib.suppress(KeyError, OSError):  # no METADATA: what an upgrade left behind, not a package
                owners.add(package.metadata["Name"])
    return sorted(owners - {None})
