"""The packages that a run needs: each imported and tried in a process of its own, for it may die of it."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, util
from platform import machine
from typing import Any

from deco_runtime.commands.terminal import HEADLESS
from deco_runtime.doctor.findings import Finding, Level
from deco_runtime.host.job import Report, run_job
from deco_runtime.host.job_child import Answer

IMPORT_S = 60.0
"""Seconds an import may take: minutes would be a hang even from a slow card."""


@dataclass(frozen=True)
class Package:
    """A package: its module, how to install it, the versions [oldest, below) that pyproject.toml allows."""

    module: str
    install: str
    oldest: tuple[int, ...]
    below: tuple[int, ...]


PACKAGES = (
    Package("numpy", "numpy", (1, 24), (3,)),
    Package("cv2", "opencv-python-headless", (4, 8), (6,)),
    Package("onnxruntime", "onnxruntime", (1, 18), (2,)),
    Package("openvino", "openvino", (2024, 4), (2027,)),
)
OPTIONAL = "openvino"
"""Only looked at where it is installed, and no failure where it is broken: portable does the same work."""


def findings() -> Iterator[Finding]:
    """One finding per package; without numpy the others cannot be tried."""
    for package in PACKAGES:
        if package.module == OPTIONAL and util.find_spec(OPTIONAL) is None:
            continue
        found = _finding(package, run_job(f"{__name__}:import_package", IMPORT_S, module=package.module))
        yield found
        if package.module == "numpy" and not found.figures["imported"]:
            yield Finding("WARN", "cv2, onnxruntime", "not tried, because both need numpy; mend that first")
            return


def _finding(package: Package, report: Report) -> Finding:
    module = package.module
    broken: Level = "WARN" if module == OPTIONAL else "FAIL"
    until = "" if broken == "FAIL" else ", and use --engine portable until then"
    if report.end == "refused":
        return Finding(broken, module, report.words, {"imported": False})
    if report.end != "done":
        words = f"expected to import {module}, but that {report.words}; {advice(package, report)}{until}"
        return Finding(broken, module, words, {"imported": False})
    version, seconds = str(report.told["version"]), float(report.told["seconds"])
    figures = {"imported": True, "version": version, "import_seconds": round(seconds, 3)}
    figures |= report.told.get("figures", {})
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    allowed = f"{module} from {_dotted(package.oldest)} to below {_dotted(package.below)}"
    if numbers < package.oldest:
        words = f"expected {allowed}, but found {version}; upgrade {package.install}{until}"
        return Finding(broken, module, words, figures)
    if numbers >= package.below:
        words = f"expected {allowed}, but found {version}, which nobody has tried; if a run fails, install an older one"
        return Finding("WARN", module, words, figures)
    if sys.platform.startswith("linux") and "V4L2" not in report.told.get("cameras", ["V4L2"]):
        words = "expected an OpenCV with V4L2 for --camera, but this one has none; install opencv-python-headless"
        return Finding("WARN", module, words, figures)
    offers = ", ".join(report.told.get("offers", ()))
    aside = f"; offers --provider {offers}" if offers else ""
    return Finding("OK", module, f"{version}, imported in {seconds:.2g} s{aside}", figures)


def advice(package: Package, report: Report) -> str:
    """What to do about a package that cannot be imported."""
    module, install, words = package.module, package.install, report.words
    if "No module named" in words and f"'{module}'" in words:
        return (
            f"install it with pip install {install}, or the board maker's own, into the environment of {sys.executable}"
        )
    if "libGL" in words:
        return HEADLESS
    library = re.search(r"(lib[\w.+-]+\.so[\d.]*): cannot open shared object", words)
    if library:
        return f"install the system package that holds {library[1]}, which apt-file search {library[1]} names"
    crowded = re.search(r"(/\S+\.so[\d.]*): cannot allocate memory in static TLS block", words)
    if crowded:
        return f"it has to be loaded before the others: put LD_PRELOAD={crowded[1]} before the command"
    if report.died_of == signal.SIGILL:
        first = ""
        if module == "numpy" and machine() == "aarch64":  # OpenBLAS takes some boards' cores for newer ones
            first = "try OPENBLAS_CORETYPE=ARMV8 before the command, and if that does not help, "
        return (
            f"its build is for a newer processor than this {machine()} one: {first}install an older release of "
            f"{install}, the board maker's own, or build it on this board"
        )
    if report.died_of == getattr(signal, "SIGKILL", None):
        return "memory has run out, so stop other programs and try again"
    if report.end == "silent":
        return f"look with top and dmesg for what holds the machine or its disk up, then reinstall {install}"
    if report.end == "died":
        return (
            f"run pip install --force-reinstall {install} numpy, and if it goes on, take another release of {install}"
        )
    return f"run pip install --force-reinstall {install} for this Python and numpy"


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def import_package(answer: Answer, module: str) -> None:
    """Job: import the module and make it compute a little, since some die only then. Answers version and seconds.

    Raises what the import raises, RuntimeMissingError for an onnxruntime that deco-run would refuse.
    """
    started = time.monotonic()
    if module == "onnxruntime":
        from deco_runtime.engines.packages import check_runtime

        check_runtime()  # its sentences are those of deco-run
    found = import_module(module)
    answer(version=found.__version__, seconds=time.monotonic() - started)
    _TRIALS[module](answer, found)


def _try_numpy(answer: Answer, numpy: Any) -> None:
    square = numpy.ones((64, 64), numpy.float32)  # large enough for the processor's own kernel
    if float((square @ square).sum()) != 64.0**3:
        raise ArithmeticError("a wrong product of matrices")


def _try_cv2(answer: Answer, cv2: Any) -> None:
    import numpy as np

    picture = np.zeros((64, 64, 3), np.uint8)
    cv2.imdecode(cv2.imencode(".jpg", cv2.resize(picture, (32, 32), interpolation=cv2.INTER_AREA))[1], 1)
    registry = cv2.videoio_registry
    names = {
        kind: [registry.getBackendName(backend) for backend in backends()]
        for kind, backends in (("cameras", registry.getCameraBackends), ("streams", registry.getStreamBackends))
    }
    answer(**names, figures=names)


def _try_onnxruntime(answer: Answer, onnxruntime: Any) -> None:
    from deco_runtime.engines.packages import runtime_packages
    from deco_runtime.engines.providers import offered

    answer(offers=list(offered()))
    answer(figures={"packages": runtime_packages(), "providers": onnxruntime.get_available_providers()})


def _try_openvino(answer: Answer, openvino: Any) -> None:
    devices = openvino.Core().available_devices
    if "CPU" not in devices:
        raise RuntimeError(f"no CPU among OpenVINO's devices {devices}")
    answer(figures={"devices": devices})


_TRIALS = {"numpy": _try_numpy, "cv2": _try_cv2, "onnxruntime": _try_onnxruntime, "openvino": _try_openvino}
