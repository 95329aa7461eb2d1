"""The bundle: everything a device needs, made once by deco-export and never changed afterwards.

    manifest.json     what is described below, and the SHA-256 of every other file
    inference.onnx    x → logits, features, weights inside, for any runtime
    graphs/           predict, weight_gradient, input_gradient, feature_gradient .onnx (standard operators)
    ort_training/     the same gradients and ONNX Runtime's training artifacts (if exported with that package)
    weights.npy       θ_0 (P,) float32
    buffer.npz        x_syn (n, C, H, W) float32, y_syn (n,) int64
    guard.npz         pixels (g, size, size, 3) uint8 B, G, R and labels (g,) int64: labelled images that the model was
                      not trained on, for the guard of updates (if there were any)
    golden.npz        inputs and torch's outputs of every graph
    trained_on.txt    fingerprints of the images used in training, one per line
    demo/             only in a bundle that carries its own stream: stream.avi, labels.npy, test.npz

One implementation for both sides: deco-export writes with `write_manifest`, everyone reads with `open_bundle`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.buffer import CondensedBuffer
from deco_runtime.errors import BundleError, DecoError
from deco_runtime.initialise import KINDS, Parameter
from deco_runtime.preprocess import Preprocessing
from deco_runtime.recipe import Recipe
from deco_runtime.regression import Statistics
from deco_runtime.types import Floats, Ints, Pixels

SCHEMA = 1
MANIFEST = "manifest.json"
FILES = (
    "inference.onnx",
    *(f"graphs/{g}.onnx" for g in ("predict", "weight_gradient", "input_gradient", "feature_gradient")),
    "weights.npy",
    "buffer.npz",
    "golden.npz",
    "trained_on.txt",
)
"""Files every bundle has; the manifest lists these and whatever else there is."""


@dataclass(frozen=True)
class Bundle:
    """An opened and verified bundle. `hash` is the SHA-256 of its manifest, which names every file's own."""

    path: Path
    hash: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    parameters: tuple[Parameter, ...]
    features: int
    engines: tuple[str, ...]
    recipe: Recipe
    made_with: Mapping[str, Any]
    """How it came about: tool versions, model, data, seed, validation accuracy."""
    files: Mapping[str, str]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """C, H, W of the network's input."""
        return 3, self.preprocessing.size, self.preprocessing.size

    @property
    def weight_count(self) -> int:
        """P, the length of θ."""
        return sum(p.size for p in self.parameters)

    def weights(self) -> Floats:
        """θ_0 (P,) float32, the pre-trained model."""
        theta: Floats = self._array("weights.npy", None, np.float32, (self.weight_count,))
        return theta

    def buffer(self) -> CondensedBuffer:
        """The initial buffer, condensed from the labelled images."""
        x = self._array("buffer.npz", "x_syn", np.float32, (None, *self.image_shape))
        y = self._array("buffer.npz", "y_syn", np.int64, (len(x),))
        count = np.bincount(y[(y >= 0) & (y < len(self.classes))], minlength=len(self.classes))
        if count.sum() != len(y) or count.min() != count.max() or len(y) == 0:
            raise self._broken("buffer.npz", "the same number of images of every class")
        return CondensedBuffer.start(x, y)

    def statistics(self) -> Statistics:
        """The regression's statistics of the labelled images, for `deco+`."""
        b = self._array("regression.npz", "b", np.float32, (None, len(self.classes)))
        return Statistics(self._array("regression.npz", "a", np.float32, (len(b) * (len(b) + 1) // 2,)), b)

    def temperature(self) -> float:
        """T: softmax(logits / T) of the pre-trained model is as sure as it is right, on held-out images."""
        value = float(self._array("regression.npz", "temperature", np.float32, ()))
        if not 0 < value < np.inf:
            raise self._broken("regression.npz", "a temperature above 0")
        return value

    def labelled_pixels(self, name: str) -> tuple[Pixels, Ints]:
        """`guard.npz` or `demo/test.npz`: pixels (g, size, size, 3) uint8 and labels (g,) int64."""
        size = self.preprocessing.size
        pixels = self._array(name, "pixels", np.uint8, (None, size, size, 3))
        if not len(pixels):
            raise self._broken(name, "at least one image")
        labels = self._array(name, "labels", np.int64, (len(pixels),))
        if labels.min() < 0 or labels.max() >= len(self.classes):
            raise self._broken(name, "labels of the bundle's classes")
        return pixels, labels

    @property
    def guard_images(self) -> int:
        """g, 0 without guard.npz."""
        return len(self._array("guard.npz", "labels", np.int64, (None,))) if "guard.npz" in self.files else 0

    def demo_labels(self) -> Ints:
        """True classes of the frames of demo/stream.avi, for scoring only."""
        labels: Ints = self._array("demo/labels.npy", None, np.int64, (None,))
        return labels

    def trained_on(self) -> frozenset[str]:
        """Fingerprints of the images the model was trained on."""
        return frozenset((self.path / "trained_on.txt").read_text("ascii", "replace").split())

    def golden(self) -> dict[str, Floats]:
        """Inputs and expected outputs of the graphs, by the names given in docs/bundle.md."""
        try:
            with np.load(self.path / "golden.npz", allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except Exception as error:  # as in _array
            raise self._broken("golden.npz", "a numpy archive") from error

    def _array(self, name: str, key: str | None, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> Any:
        try:
            loaded = np.load(self.path / name, allow_pickle=False)
            array = loaded if key is None else loaded[key]
        except Exception as error:  # numpy, zipfile and zlib raise a dozen kinds, and have no common one
            raise self._broken(name, f"an array {key}" if key else "an array") from error
        fits = (
            isinstance(array, np.ndarray)
            and array.ndim == len(shape)
            and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
        )
        if not fits or array.dtype != dtype:
            raise self._broken(name, f"{key or 'an array'} of {np.dtype(dtype)} and shape {shape}")
        return array

    def _broken(self, name: str, expected: str) -> BundleError:
        return BundleError(f"expected {self.path / name} to hold {expected}, but it does not; export the bundle again")


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_manifest(
    directory: Path,
    classes: tuple[str, ...],
    preprocessing: Preprocessing,
    parameters: tuple[Parameter, ...],
    features: int,
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
            "resize": "largest centred square, area when shrinking, linear when enlarging",
        },
        "parameters": [asdict(p) for p in parameters],
        "features": features,
        "engines": list(engines),
        "recipe": recipe.to_json(),
        "made_with": dict(made_with),
        "files": {p.relative_to(directory).as_posix(): sha256(p) for p in files},
    }
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    # File names, and so classes, need not be text; what is not becomes \\udcXX, as JSON writes it.
    (directory / MANIFEST).write_text(text, "utf-8", "backslashreplace")


def open_bundle(path: Path) -> Bundle:
    """Read and verify a bundle: schema, completeness, the hash of every file.

    Raises BundleError naming what is missing, altered, malformed or from a newer version.
    """
    manifest = path / MANIFEST
    if not os.path.isfile(manifest):  # unlike Path.is_file, False also for what may not be looked at
        found = "no manifest.json in it" if os.path.isdir(path) else "a file" if os.path.exists(path) else "nothing"
        raise BundleError(f"expected a bundle directory at {path}, but found {found}; make one with deco-export")
    try:
        data = manifest.read_bytes()
        content = json.loads(data)
        schema = content["schema"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(
            f"expected {manifest} to be a bundle's manifest, but it cannot be read; export again"
        ) from error
    if schema != SCHEMA:
        raise BundleError(
            f"expected a bundle of schema {SCHEMA}, but {manifest} is of schema {schema!r}; "
            "use the deco-edge version it was exported with, or export it again"
        )
    try:
        bundle = _parse(path, hashlib.sha256(data).hexdigest(), content)
    except DecoError as error:
        raise BundleError(f"expected {manifest} to describe a bundle, but: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BundleError(
            f"expected {manifest} to describe a bundle, but it is malformed ({type(error).__name__}: {error}); "
            "export again"
        ) from error
    for name, expected in bundle.files.items():
        file = path / name
        if not os.path.isfile(file):
            raise BundleError(f"expected the bundle's file {file}, but it is missing; copy the bundle again")
        try:
            actual = sha256(file)
        except OSError as error:
            raise BundleError(
                f"expected to read {file}, but the system says: {error.strerror}; copy it anew"
            ) from error
        if actual != expected:
            raise BundleError(f"expected {file} as it was exported, but its hash differs; copy the bundle again")
    return bundle


def _parse(path: Path, digest: str, content: dict[str, Any]) -> Bundle:
    how = content["preprocessing"]
    preprocessing = Preprocessing(_size(how["size"]), _triple(how["mean"]), _triple(how["std"]))
    if min(preprocessing.std) <= 0:
        raise ValueError("std must be above 0")
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
    for name in files:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\\" in name:
            raise ValueError(f"file name {name!r}")
    missing = [name for name in FILES if name not in files]
    if missing:
        raise ValueError(f"no hash of {missing[0]}")
    recipe = Recipe.from_json(content["recipe"])
    return Bundle(
        path,
        digest,
        classes,
        preprocessing,
        tuple(parameters),
        _size(content["features"]),
        tuple(str(e) for e in content["engines"]),
        recipe,
        dict(content["made_with"]),
        files,
    )


def _size(value: Any) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"size {value!r}")
    return value


def _triple(value: Any) -> tuple[float, float, float]:
    a, b, c = (float(v) for v in value)
    if not all(math.isfinite(v) for v in (a, b, c)):
        raise ValueError(f"numbers {value!r}")
    return a, b, c
