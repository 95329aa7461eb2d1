"""The bundle: everything a device needs, made once by deco-export and never changed afterwards.

    manifest.json     what is described below, and the SHA-256 of every other file
    inference.onnx    x → logits, features, weights inside, for any runtime
    graphs/           predict, weight_gradient, input_gradient, feature_gradient, input_gradient_tangent,
                      representation .onnx (standard operators); trunk.onnx where the learning graphs take what a
                      frozen trunk makes of images
    ort_training/     the same gradients and ONNX Runtime's training artifacts (if exported with that package)
    weights.npy       θ_0 (P,) float32
    buffer.npz        x_syn (n, …) float32, y_syn (n,) int64 (if any were condensed: only `paper` needs them)
    guard.npz         pixels (g, size, size, 3) uint8 B, G, R, labels (g,) and takes (g,) int64: labelled images that
                      the model was not trained on, for the guard of updates (if there were any)
    fitted/           NAME.npz: what the learner NAME had fitted to the labelled images, as it declares
    golden.npz        inputs and torch's outputs of every graph
    trained_on.txt    fingerprints of the images used in training, one per line
    demo/             only in a bundle that carries its own stream: stream.avi, labels.npy, test.npz

It is a directory, or one .deco file: a zip of these files, which is read where it lies and never unpacked. One
implementation for both sides: deco-export writes with `write_manifest`, everyone reads with `open_bundle`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from deco_runtime.errors import BundleError, DecoError
from deco_runtime.storage.bundle_files import MANIFEST, Root, is_file, open_root, sha256
from deco_runtime.storage.manifest import SCHEMA, Manifest, parse
from deco_runtime.storage.untrusted import Array, parse_json, read_npy, read_npz
from deco_runtime.types import Floats, Ints, Pixels

LARGEST_MANIFEST = 16 << 20
"""Bytes."""


@dataclass(frozen=True)
class Bundle(Manifest):
    """An opened and verified bundle. `hash` is the SHA-256 of its manifest, which names every file's own.

    path: of the directory or .deco file. root: `root / name` opens any of its files.
    """

    path: Path
    root: Root
    hash: str

    def weights(self) -> Floats:
        """θ_0 (P,) float32, the pre-trained model."""
        theta: Floats = self.array("weights.npy", None, np.float32, (self.weight_count,))
        return theta

    def labelled_pixels(self, name: str) -> tuple[Pixels, Ints]:
        """`guard.npz` or `demo/test.npz`: pixels (g, size, size, 3) uint8 and labels (g,) int64."""
        size = self.preprocessing.size
        pixels = self.array(name, "pixels", np.uint8, (None, size, size, 3))
        if not len(pixels):
            raise self.broken(name, "at least one image")
        labels = self.array(name, "labels", np.int64, (len(pixels),))
        if labels.min() < 0 or labels.max() >= len(self.classes):
            raise self.broken(name, "labels of the bundle's classes")
        return pixels, labels

    @property
    def guard_images(self) -> int:
        """g, 0 without guard.npz."""
        return len(self.array("guard.npz", "labels", np.int64, (None,))) if "guard.npz" in self.files else 0

    def guard_takes(self) -> Ints:
        """Which of the guard images were recorded in one go: (g,) int64, the same number for these."""
        takes: Ints = self.array("guard.npz", "takes", np.int64, (self.guard_images,))
        return takes

    def trained_on(self) -> frozenset[str]:
        """Fingerprints of the images the model was trained on."""
        try:
            text = self.root.joinpath("trained_on.txt").read_bytes()
        except Exception as error:  # as in `array`
            raise self.broken("trained_on.txt", "fingerprints") from error
        return frozenset(text.decode("ascii", "replace").split())

    def golden(self, names: Collection[str] | None = None) -> dict[str, Array]:
        """Inputs and expected outputs of the graphs, by the names in docs/reference/bundle.md: all, or those it has."""
        try:
            with self.root.joinpath("golden.npz").open("rb") as file:
                return read_npz(file, names)
        except MemoryError:
            raise
        except Exception as error:  # as in `array`
            raise self.broken("golden.npz", "a numpy archive") from error

    def array(self, name: str, key: str | None, dtype: npt.DTypeLike, shape: tuple[int | None, ...]) -> Any:
        """An array of the file `name`: the one called `key` of an .npz, or for None that of an .npy.

        Raises BundleError unless it is finite and of this type and shape, None being any number, in a file that the
        manifest lists: of another nobody knows whether it is as it was exported.
        """
        if name not in self.files:
            raise self.broken(name, "an array, and the manifest to list it")
        try:
            with self.root.joinpath(name).open("rb") as file:
                array = read_npy(file) if key is None else read_npz(file, (key,))[key]
        except MemoryError:
            raise
        except Exception as error:  # the disk, zipfile and zlib raise a dozen kinds
            raise self.broken(name, f"an array {key}" if key else "an array") from error
        fits = array.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype != dtype:
            raise self.broken(name, f"{key or 'an array'} of {np.dtype(dtype)} and shape {shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self.broken(name, f"{key or 'an array'} of finite numbers")
        return array

    def broken(self, name: str, expected: str) -> BundleError:
        """That the file `name` does not hold what was expected."""
        return BundleError(f"expected {self.path / name} to hold {expected}, but it does not; export the bundle again")


def open_bundle(path: Path) -> Bundle:
    """Read and verify a bundle: schema, completeness, the hash of every file.

    Raises BundleError naming what is missing, altered, malformed or from a newer version.
    """
    root = open_root(path)
    try:
        with root.joinpath(MANIFEST).open("rb") as stream:
            data = stream.read(LARGEST_MANIFEST)
        content = parse_json(data)
        schema = content["schema"]
    except Exception as error:  # as json, zipfile and the disk have it
        raise BundleError(
            f"expected {path / MANIFEST} to be a bundle's manifest, but it cannot be read; export again"
        ) from error
    if schema != SCHEMA:
        raise BundleError(
            f"expected a bundle of schema {SCHEMA}, but {path / MANIFEST} is of schema {schema!r:.40}; "
            "use the deco-edge version it was exported with, or export it again"
        )
    try:
        manifest = parse(content)
    except DecoError as error:
        raise BundleError(f"expected {path / MANIFEST} to describe a bundle, but: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise BundleError(
            f"expected {path / MANIFEST} to describe a bundle, but it is malformed ({type(error).__name__}: {error}); "
            "export again"
        ) from error
    for name, expected in manifest.files.items():
        file = path / name
        if not is_file(root, name):
            raise BundleError(f"expected the bundle's file {file}, but it is missing; copy the bundle again")
        try:
            actual = sha256(root.joinpath(name))
        except OSError as error:
            raise BundleError(
                f"expected to read {file}, but the system says: {error.strerror}; copy it anew"
            ) from error
        except Exception:  # zipfile and zlib raise a dozen kinds
            actual = None
        if actual != expected:
            raise BundleError(f"expected {file} as it was exported, but its hash differs; copy the bundle again")
    return Bundle(**vars(manifest), path=path, root=root, hash=hashlib.sha256(data).hexdigest())
