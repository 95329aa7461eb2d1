"""Which installed packages provide onnxruntime, and whether they can be used."""

from __future__ import annotations

import contextlib
from importlib import metadata, util

from deco_runtime.errors import RuntimeMissingError, first_line

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
