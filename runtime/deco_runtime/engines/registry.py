"""The engines there are, which of them can run a bundle here, and the one to take."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deco_runtime import engines as package
from deco_runtime.engine import Engine
from deco_runtime.engines import providers
from deco_runtime.engines.packages import check_runtime
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.plugins import brought, module_with

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle
    from deco_runtime.storage.bundle_files import Root


class EngineModule(Protocol):
    """What a file in `engines/`, or the module of another package, defines; adding an engine is adding such a file."""

    NAME: str
    PRECISION: str
    PACKAGE: str
    """What computes, by its module; another release of it is what to try when it computes wrongly."""
    PREFERENCE: int
    """"auto" takes the usable engine with the highest, where `autoselect` has not timed them."""
    unusable: Callable[[Bundle | None], str | None]
    """Why this engine cannot run the bundle here, or any bundle for None, as a sentence; None when it can."""
    load: Callable[[Root], Engine]
    """Opens the graphs of the bundle whose files are there."""


def engines() -> dict[str, EngineModule]:
    """Every engine of the package `engines`, and of other packages, by name. Raises RuntimeMissingError for one of
    these that fails to load."""
    modules = [
        import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.startswith("_")
    ]
    modules += brought("engine", module_with("NAME", "PRECISION", "PACKAGE", "PREFERENCE", "unusable", "load"))
    return {module.NAME: module for module in modules if hasattr(module, "NAME")}


def by_preference(bundle: Bundle, precision: str = "fp32") -> dict[str, str | None]:
    """Names of all engines of this precision, the one that "auto" prefers first, with why it cannot run the bundle
    here, or None."""
    modules = sorted(engines().values(), key=lambda module: -module.PREFERENCE)
    return {module.NAME: module.unusable(bundle) for module in modules if precision == module.PRECISION}


def open_engine(bundle: Bundle, name: str = "auto", precision: str = "fp32", directory: Path | None = None) -> Engine:
    """The engine `name`, or for "auto" the preferred one of this precision that is usable here; "portable/NAME" is
    portable on a provider, and precision then what its predictions may be computed in. directory: see
    `providers.load`.

    Raises RuntimeMissingError when the runtime it needs is absent, doubled or unfit, UsageError for an unknown name.
    """
    check_runtime()
    known = engines()
    if name == "auto":
        reasons = by_preference(bundle, precision)
        name = next((each for each, reason in reasons.items() if reason is None), "")
        if not name:
            raise RuntimeMissingError("; ".join(reason for reason in reasons.values() if reason))
    name, _, provider = name.partition("/")
    if name not in known or (provider and name != providers.PORTABLE):
        raise UsageError(f"expected --engine auto or one of {', '.join(sorted(known))}, but found {name!r}")
    reason = known[name].unusable(bundle)
    if reason is not None:
        raise RuntimeMissingError(reason)
    return providers.load(bundle, provider, precision, directory) if provider else known[name].load(bundle.root)
