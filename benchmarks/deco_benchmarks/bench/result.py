"""The result file of deco-bench: JSON, written at once and refused when it is something else."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deco_runtime.errors import DataError

from deco_benchmarks.bench.timing import Quantity

KIND, SCHEMA = "deco-bench", 1
Json = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """What the tables need of a file; `content` is all of it.

    engines: quantities by engine and name. ratios: against torch, by name.
    """

    name: str
    engines: dict[str, dict[str, Quantity]]
    ratios: dict[str, float]
    content: Json

    @property
    def board(self) -> str:
        """Its name, and the processor where that is not the name."""
        board = self.content["board"]
        processor = board.get("processor", board["name"])
        return str(board["name"] if processor == board["name"] else f"{board['name']} ({processor})")

    @property
    def recipe(self) -> str:
        """What was learned by."""
        return str(self.content["recipe"]["name"])

    @property
    def bundle(self) -> str:
        """Model and sizes, such as "convnet, 25k weights, 32 pixels, 10 classes, ipc 10"."""
        b = self.content["bundle"]
        model = f"{b['model']}, {b['weights'] / 1000:.0f}k weights"
        return f"{model}, {b['pixels']} pixels, {b['classes']} classes, ipc {b['ipc']}"


def parse(name: str, content: Json) -> Result:
    """Raises KeyError, TypeError, ValueError or AttributeError when the content is no result of this schema."""
    if content["kind"] != KIND or content["schema"] != SCHEMA:
        raise ValueError("kind or schema")
    engines = {
        str(engine): {str(key): _quantity(value) for key, value in found["quantities"].items()}
        for engine, found in content["engines"].items()
    }
    if content["best_engine"] not in engines:
        raise ValueError("best_engine")
    ratios = {str(key): float(value) for key, value in content.get("ratios", {}).items()}
    result = Result(name, engines, ratios, content)
    for needed in (
        result.board,
        result.bundle,
        result.recipe,
        content["board"]["threads"],
        content["quick"],
        content["time"],
    ):
        str(needed)
    return result


def _quantity(value: Json) -> Quantity:
    median, q1, q3 = (float(value[key]) for key in ("median", "q1", "q3"))
    return Quantity(median, q1, q3, int(value["runs"]), str(value["unit"]))


def read(path: Path) -> Result:
    """The result in a file. Raises DataError when it is none."""
    try:
        return parse(path.name, json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise DataError(
            f"expected a result of deco-bench run at {path}, but the system says: {error.strerror}; check the name"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else "it is another or a damaged file"
        raise DataError(
            f"expected {path} to be a result of deco-bench run, but {reason}; give a file that it wrote with --out"
        ) from error


def read_all(folder: Path) -> list[Result]:
    """All results in a folder, sorted by file name. Raises DataError for a file that is none, or an empty folder."""
    results = [read(path) for path in sorted(folder.glob("*.json"))]
    if not results:
        raise DataError(f"expected result files in {folder}, but found none; make one with deco-bench run --out")
    return results


def write(path: Path, content: Json) -> None:
    """Replace the file at once. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8", "backslashreplace")
    os.replace(partial, path)
