"""All of deco-bench run: each measurement in its own process, and one result of them."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import FILE as BUFFER
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.deco import Deco
from deco_runtime.storage.bundle import Bundle, open_bundle

from deco_benchmarks.bench import board, sizes
from deco_benchmarks.bench.jobs import Progress, measure_in_process
from deco_benchmarks.bench.result import KIND, SCHEMA, Json
from deco_benchmarks.bench.timing import Quantity, effort, quantity

TORCH = "torch"


@dataclass(frozen=True)
class Options:
    """What the user asked for; see `deco-bench run --help`. engine: a name, "auto" or "all". recipe: None for the
    bundle's."""

    bundle: Path
    engine: str
    quick: bool
    sustained: float | None
    against_torch: bool
    recipe: str | None = None


class Bench:
    """One run; `measure` does it."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self.options, self._progress = options, progress
        self._how = effort(options.quick)
        self._starts: dict[str, list[float]] = {}
        self._peaks: dict[str, list[float | None]] = {}
        self._packages: dict[str, list[str]] = {}

    def measure(self, keep: Callable[[Json], None]) -> Json:
        """The result. keep: called with what there is before the minutes of --sustained begin, and at the end.

        Raises the errors of `open_bundle` and `open_engine`.
        """
        options = self.options
        bundle = open_bundle(options.bundle)
        self._recipe = options.recipe or bundle.recipe.name
        kind = registry.learner(self._recipe)
        condenses = kind is Deco
        if options.against_torch and not condenses:
            raise UsageError(
                f"expected --recipe paper beside --against torch, which has no other, but found {self._recipe}; "
                "give that, or leave --against out"
            )
        registry.started(kind, bundle)  # raises where it cannot start, before the minutes of measuring
        names, unusable = self._engines()
        with tempfile.TemporaryDirectory(dir=_scratch(options.bundle), prefix=".deco-bench-") as scratch:
            content = self._describe(bundle)
            self._measure_starts([*names, TORCH] if options.against_torch else names)
            packages = sorted({sizes.DISTRIBUTION}.union(*self._packages.values()))
            content["versions"] = {"python": platform.python_version(), **sizes.versions(packages)}
            content["engines"] = {name: self._engine(name, scratch) for name in names}
            learns = "iteration" if condenses else f"{self._recipe.replace('+', '_plus')}_learn"
            medians = {n: found["quantities"][learns]["median"] for n, found in content["engines"].items()}
            best = min(medians, key=medians.__getitem__)
            content |= {"best_engine": best, "unusable": unusable}
            if options.against_torch:
                content |= self._against(content["engines"])
        keep(content)
        if options.sustained is not None:
            found = self._run(
                "sustained", engine=content["best_engine"], recipe=self._recipe, minutes=options.sustained
            )
            content["sustained"] = {name: found[name] for name in ("engine", "minutes", "samples")}
            keep(content)
        return content

    def _run(self, job: str, **arguments: Any) -> Json:
        return measure_in_process(job, self.options.bundle, self._progress, **arguments)

    def _engines(self) -> tuple[list[str], dict[str, str]]:
        """Names of the engines to measure, and why others cannot be."""
        found = self._run("engines")
        usable, unusable, wanted = found["usable"], found["unusable"], self.options.engine
        if wanted in unusable:
            raise RuntimeMissingError(unusable[wanted])
        if wanted in ("auto", "all"):
            return usable[:1] if wanted == "auto" else usable, unusable
        return [wanted], unusable

    def _describe(self, bundle: Bundle) -> Json:
        made = bundle.made_with
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "quick": self.options.quick,
            "board": board.identify(),
            "bundle": {
                "name": self.options.bundle.resolve().name,
                "hash": bundle.hash,
                "model": made.get("model"),
                "width": made.get("width"),
                "depth": made.get("depth"),
                "pixels": bundle.preprocessing.size,
                "classes": len(bundle.classes),
                "ipc": initial(bundle).ipc if BUFFER in bundle.files else 0,
                "weights": bundle.weight_count,
                "size_mib": sizes.bundle_mib(self.options.bundle),
            },
            "recipe": registry.named(self._recipe).to_json(),
        }

    def _measure_starts(self, names: Sequence[str]) -> None:
        """Fresh processes up to their first prediction, turn by turn; the first of each fills the disk's cache."""
        for turn in range(self._how.starts + 1):
            self._progress("start-up", turn, self._how.starts + 1)
            for name in names:
                found = (
                    self._run("torch-start") if name == TORCH else self._run("start", engine=name, recipe=self._recipe)
                )
                if turn > 0:
                    self._starts.setdefault(name, []).append(found["predicted"] - found["started"])
                    self._peaks.setdefault(name, []).append(found["peak_mib"])
                else:
                    self._packages[name] = sizes.owners(found["modules"])
        self._progress("start-up", self._how.starts + 1, self._how.starts + 1)

    def _engine(self, name: str, scratch: str) -> Json:
        how = {"engine": name, "recipe": self._recipe}
        stages = self._run("stages", **how, quick=self.options.quick, scratch=scratch)
        live = self._run("live", **how, quick=self.options.quick)
        learning = [self._run("memory", **how, scratch=scratch)["peak_mib"]]
        packages = sizes.installed([sizes.DISTRIBUTION, *self._packages[name]])
        whole = {
            "start_up": quantity(self._starts[name], "s"),
            **_peak("peak_memory_predicting", self._peaks[name]),
            **_peak("peak_memory_learning", learning),
            "install_size": quantity([sum(packages.values())], "MiB"),
        }
        found = {**stages["quantities"], **live["quantities"], **{k: q.to_json() for k, q in whole.items()}}
        return {"quantities": found, "scaled": stages["scaled"], "packages_mib": packages}

    def _against(self, engines: Json) -> Json:
        """Everything against torch: `ratios` of the best engine, those `missing`, and what they come from."""
        found = self._run("against-torch", names=list(engines), quick=self.options.quick)
        best = found["best_engine"]
        peak, packages = self._run("torch-memory")["peak_mib"], sizes.installed([TORCH, *sizes.owners(["cv2"])])
        ours = {name: value["median"] for name, value in engines[best]["quantities"].items()}
        ratios = {name: value["median"] for name, value in found["ratios"].items()}
        missing = dict(found["missing"])
        pairs = {
            "peak_memory_vs_torch": (ours.get("peak_memory_learning"), peak),
            "cold_start_vs_torch": (ours["start_up"], statistics.median(self._starts[TORCH])),
            "install_size_vs_torch": (ours["install_size"], sum(packages.values())),
            "predict_p99_learning_vs_idle": (ours["predict_p99_learning"], ours["predict_p99_idle"]),
        }
        for name, (a, b) in pairs.items():
            if a and b:
                ratios[name] = a / b
            else:
                missing[name] = "not measured: this system does not say"
        apart = ("ratios", "missing", "started", "modules")
        details = {name: value for name, value in found.items() if name not in apart}
        torch = {
            "ratios": found["ratios"],
            **details,
            "start_up": quantity(self._starts[TORCH], "s").to_json(),
            "peak_memory_learning_mib": peak,
            "packages_mib": packages,
        }
        return {"best_engine": best, "ratios": ratios, "missing": missing, "against_torch": torch}


def _peak(name: str, values: Sequence[float | None]) -> dict[str, Quantity]:
    known = [value for value in values if value is not None]
    return {name: quantity(known, "MiB")} if known else {}


def _scratch(bundle: Path) -> Path | None:
    """A folder on the disk that deco-run saves its state to: beside the bundle, if that may be written."""
    beside = bundle.resolve().parent
    return beside if os.access(beside, os.W_OK) else None
