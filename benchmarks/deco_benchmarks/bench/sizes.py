"""What is on the disk: the bundle, and the packages that the device side needs, as they are installed here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from deco_benchmarks.bench.timing import MIB

DISTRIBUTION = "deco-edge"


def bundle_mib(bundle: Path) -> float:
    """Size of a bundle: of its one file, or of all files in its directory."""
    return sum(file.stat().st_size for file in (bundle, *bundle.rglob("*")) if file.is_file()) / MIB


def owners(modules: Iterable[str]) -> list[str]:
    """Packages that these modules belong to, sorted; none for what a board has without one, such as its own OpenCV."""
    known = metadata.packages_distributions()
    return sorted({package for module in modules for package in known.get(module, ())})


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def installed(names: Iterable[str]) -> dict[str, float]:
    """MiB by name of these packages and, on and on, of what they require; those not installed are left out."""
    sizes: dict[str, float] = {}
    waiting = list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in sizes:
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # required on another system, or the board's own
            continue
        files = [Path(str(package.locate_file(file))) for file in package.files or ()]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file()) / MIB
        waiting += requirements(package.requires or ())
    return sizes


def requirements(lines: Iterable[str]) -> list[str]:
    """Names in requirement lines such as "numpy<3,>=1.24", without those of an extra."""
    names = (re.match(r"[A-Za-z0-9._-]+", line.strip()) for line in lines if not re.search(r";.*\bextra\b", line))
    return [name.group() for name in names if name]
