"""Engines that TensorRT built, on the disk: none is taken for other weights, versions, drivers or devices.

`STATE/tensorrt/GRAPH-KEY/` holds what was built of one graph, and a list of it with the hash of each file, written when
all of it was there and had run. A folder without the list, or that differs from it, is emptied and built anew. There is
one folder per graph: the others of that graph go when a new one is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from deco_runtime.host.machine import ROOT, board_model, read_text
from deco_runtime.storage.bundle_files import sha256

FOLDER = "tensorrt"
LIST = "complete.json"
TIMING = "timing"
"""What TensorRT measured of single kernels, which makes the next build a matter of seconds; for all graphs."""
LARGEST_TIMING = 64 << 20
"""Bytes; a larger one is begun anew."""
LIBRARIES = ("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8")


def facts(root: Path = ROOT) -> dict[str, str]:
    """What an engine depends on beside its graph, as far as this machine says: TensorRT, driver, GPU. "" for what is
    not there."""
    return {"tensorrt": tensorrt_version(), "driver": driver(root), "gpu": gpu(root)}


def driver(root: Path = ROOT) -> str:
    """Version of NVIDIA's kernel module, or of Jetson's system; "" without either."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", read_text(root / "proc/driver/nvidia/version") + "\n")
    return found[1] if found else read_text(root / "etc/nv_tegra_release").partition("\n")[0].strip("# ")


def gpu(root: Path = ROOT) -> str:
    """Names of NVIDIA's devices, which stand for their compute capability; of a Jetson, that of the board."""
    names = []
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        names += re.findall(r"^Model:\s*(.+?)\s*$", read_text(file), re.MULTILINE)
    return ", ".join(names) or board_model(root)


def tensorrt_version() -> str:
    """Of the libraries that a loader finds, of which onnxruntime takes the one it was built for; "" for none."""
    found = []
    for name in LIBRARIES:
        with contextlib.suppress(OSError, AttributeError):
            found.append(str(ctypes.CDLL(name).getInferLibVersion()))
    return ", ".join(found)


def key(model: bytes, given: Mapping[str, str]) -> str:
    """SHA-256 of a graph, weights inside, and of what an engine of it depends on."""
    digest = hashlib.sha256(hashlib.sha256(model).digest())
    digest.update(json.dumps(sorted(given.items())).encode())
    return digest.hexdigest()


class EngineCache:
    """Of one graph, in the folder of all of them. given: all that an engine depends on beside the graph."""

    def __init__(self, directory: Path, graph: str, model: bytes, given: Mapping[str, str]) -> None:
        self._all, self._graph = directory, graph
        self.folder = directory / f"{graph}-{key(model, given)[:32]}"
        self.timing = directory / TIMING

    def complete(self) -> bool:
        """Whether an engine lies there as it was when it had been built and had run."""
        try:
            listed = json.loads((self.folder / LIST).read_text("utf-8"))
            return bool(listed) and listed == self._files()
        except (OSError, ValueError, RecursionError):
            return False

    def prepare(self) -> None:
        """Make the folders; one that is not complete is emptied, as are others of the graph that were never finished.
        Raises OSError where nothing can be written."""
        if not self.complete():
            shutil.rmtree(self.folder, ignore_errors=True)
        for other in self._others():
            if not (other / LIST).is_file():
                shutil.rmtree(other, ignore_errors=True)
        if sum(file.stat().st_size for file in self.timing.glob("*") if file.is_file()) > LARGEST_TIMING:
            self.forget_timing()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.timing.mkdir(exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(f"{self.folder} may not be written")

    def finish(self) -> None:
        """The engine has been built and has run: list its files, and delete older ones of the graph. Best effort."""
        with contextlib.suppress(OSError):
            if not (files := self._files()):
                return  # nothing was built, as where TensorRT took no operator
            partial = self.folder / f".{LIST}.partial"
            partial.write_text(json.dumps(files), "utf-8")
            os.replace(partial, self.folder / LIST)
            for other in self._others():
                shutil.rmtree(other, ignore_errors=True)

    def forget_timing(self) -> None:
        """One that is damaged may be why a build fails."""
        shutil.rmtree(self.timing, ignore_errors=True)

    def _others(self) -> list[Path]:
        return [folder for folder in self._all.glob(f"{self._graph}-*") if folder != self.folder]

    def _files(self) -> dict[str, str]:
        """SHA-256 of each file but the list, by name."""
        files = (file for file in self.folder.iterdir() if file.is_file() and LIST not in file.name)
        return {file.name: sha256(file) for file in files}
