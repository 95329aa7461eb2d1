"""manifest.json: what a bundle says of itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deco_runtime.engine import TRUNK
from deco_runtime.learning import registry
from deco_runtime.learning.random_model import KINDS, Parameter, spares
from deco_runtime.learning.recipe import Recipe
from deco_runtime.preprocess import METHODS, Preprocessing
from deco_runtime.storage.bundle_files import MANIFEST, sha256

SCHEMA = 4
LARGEST_SIDE = 1024
"""Pixels; what deco-export allows too. It decides how much memory a segment takes."""

FILES = (
    "inference.onnx",
    *(f"graphs/{g}.onnx" for g in ("predict", "weight_gradient", "input_gradient", "feature_gradient")),
    "weights.npy",
    "golden.npz",
    "trained_on.txt",
)
"""Files every bundle has; the manifest lists these and whatever else there is."""


@dataclass(frozen=True)
class Manifest:
    """What a bundle says of itself, checked.

    latent: shape of what the learning graphs take of one image: what the frozen trunk makes of it, or the image itself.
    features, represented: F and D, the lengths of its features and of its representation φ. made_with: how it came
    about: tool versions, model, data, seed, validation accuracy. files: SHA-256 of each.
    """

    classes: tuple[str, ...]
    preprocessing: Preprocessing
    parameters: tuple[Parameter, ...]
    latent: tuple[int, ...]
    features: int
    represented: int
    engines: tuple[str, ...]
    recipe: Recipe
    made_with: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """C, H, W of the network's input."""
        return 3, self.preprocessing.size, self.preprocessing.size

    @property
    def trunk(self) -> bool:
        """Whether a frozen trunk makes latents of the images."""
        return f"graphs/{TRUNK}.onnx" in self.files

    @property
    def quantized(self) -> bool:
        """Whether the frozen trunk is in 8 bits, which engines round differently."""
        return bool(self.made_with.get("quantize", "none") != "none")

    @property
    def weight_count(self) -> int:
        """P, the length of θ."""
        return sum(p.size for p in self.parameters)

    @property
    def outputs(self) -> int:
        """Logits of the learning graphs: one for each class, and the spare ones."""
        return len(self.classes) + spares(self.parameters)


def write_manifest(
    directory: Path,
    classes: tuple[str, ...],
    preprocessing: Preprocessing,
    parameters: tuple[Parameter, ...],
    latent: tuple[int, ...],
    features: int,
    represented: int,
    engines: tuple[str, ...],
    recipe: Recipe,
    made_with: Mapping[str, Any],
) -> None:
    """Write manifest.json over all files now in the directory; the last step of an export."""
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p.name != MANIFEST)
    content = {
        "schema": SCHEMA,
        "classes": list(classes),
        "preprocessing": {
            **asdict(preprocessing),
            "colour": "RGB",
        },
        "parameters": [asdict(p) for p in parameters],
        "latent": list(latent),
        "features": features,
        "represented": represented,
        "engines": list(engines),
        "recipe": recipe.to_json(),
        "made_with": dict(made_with),
        "files": {p.relative_to(directory).as_posix(): sha256(p) for p in files},
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    # File names, and so classes, need not be text; what is not becomes \\udcXX, as JSON writes it.
    (directory / MANIFEST).write_text(text, "utf-8", "backslashreplace")


def parse(content: dict[str, Any]) -> Manifest:
    """What a manifest's JSON object says.

    Raises DecoError for a wrong recipe, and for anything else KeyError, TypeError, ValueError, AttributeError,
    OverflowError or RecursionError.
    """
    preprocessing = _preprocessing(content["preprocessing"])
    parameters = []
    offset = 0
    for p in content["parameters"]:
        kind, a, b = str(p["kind"]), float(p["a"]), float(p["b"])
        parameter = Parameter(str(p["name"]), tuple(_size(d) for d in p["shape"]), int(p["offset"]), kind, a, b)
        if parameter.offset != offset or kind not in KINDS or not (math.isfinite(a) and math.isfinite(b)):
            raise ValueError(f"parameter {parameter.name!r}")
        offset += parameter.size
        parameters.append(parameter)
    classes = tuple(str(c) for c in content["classes"])
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ValueError("classes")
    files = {str(k): str(v) for k, v in content["files"].items()}
    latent = tuple(_size(side) for side in content["latent"])
    if f"graphs/{TRUNK}.onnx" not in files and latent != (3, preprocessing.size, preprocessing.size):
        raise ValueError("latents without a trunk")
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
            raise ValueError(f"file name {name!r}")
    missing = [name for name in FILES if name not in files]
    if missing:
        raise ValueError(f"no hash of {missing[0]}")
    recipe = registry.from_json(content["recipe"])
    return Manifest(
        classes,
        preprocessing,
        tuple(parameters),
        latent,
        _size(content["features"]),
        _size(content["represented"]),
        tuple(str(e) for e in content["engines"]),
        recipe,
        dict(content["made_with"]),
        files,
    )


def _preprocessing(given: dict[str, Any]) -> Preprocessing:
    size, shorter, method = _size(given["size"], LARGEST_SIDE), given["shorter"], str(given["method"])
    if shorter is not None and _size(shorter, 2 * LARGEST_SIDE) < size:
        raise ValueError("shorter side below the size")
    if method not in METHODS:
        raise ValueError(f"method {method!r}")
    found = Preprocessing(size, _triple(given["mean"]), _triple(given["std"]), shorter, method)
    if min(found.std) <= 0:
        raise ValueError("std must be above 0")
    return found


def _size(value: Any, most: int = 2**31 - 1) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"size {value!r}")
    return value


def _triple(value: Any) -> tuple[float, float, float]:
    a, b, c = (float(v) for v in value)
    if not all(math.isfinite(v) for v in (a, b, c)):
        raise ValueError(f"numbers {value!r}")
    return a, b, c
