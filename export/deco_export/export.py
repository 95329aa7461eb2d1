"""The export, start to finish: data → pre-training → graphs → initial buffer → checks → bundle."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, NamedTuple

import cv2
import numpy as np
import onnx
from deco_runtime.engine import EXACT, REPRESENTATION, TRUNK
from deco_runtime.engines.packages import check_runtime
from deco_runtime.engines.registry import engines
from deco_runtime.errors import ExportError, RuntimeMissingError, UsageError, first_line
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import FILE as BUFFER
from deco_runtime.learning.deco import Deco
from deco_runtime.learning.harm import smallest_harm
from deco_runtime.preprocess import Preprocessing, check_method
from deco_runtime.storage.manifest import write_manifest
from deco_runtime.types import Floats, Ints

from deco_export import data, graphs, ort_artifacts
from deco_export.fits import fit_learners
from deco_export.forward import Forward
from deco_export.graph_values import TOLERANCE, Values
from deco_export.images import Images, ImageSet
from deco_export.initial_buffer import check_enough, initial_buffer
from deco_export.judged import Judged, judge
from deco_export.network import Network, Progress
from deco_export.onnx_graph import IR_VERSION, OPSET
from deco_export.place import bundle_at
from deco_export.report import make as report
from deco_export.torch_side import needs_torch

GUARD_IMAGES, GUARD_BYTES = 500, 16_000_000
"""At most so many held-out images go along for the guard, and as many bytes of pixels: 106 images at 224 pixels."""

SMALL = 32
"""Side of the input in pixels, where nobody says."""
SMALL_HARM = 0.05
"""Loss of the answers that a guard should see; a note tells of one that does not."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; see `deco-export --help`. ipc: 0 for no condensed images, None for as many as the recipe
    needs. engine: the one that condenses them. augment: pre-train on shifted and mirrored images; None as the recipe
    does. spare: outputs for classes that people may add under the paper's recipe. image_size: None for the model's own,
    or SMALL. backbone, and what follows it: of a public network, in place of a model that is trained from scratch.
    report: write a page about the labelled images beside the bundle."""

    data: str
    out: Path
    labelled: float
    model: str
    width: int | None
    depth: int | None
    image_size: int | None
    ipc: int | None
    epochs: int | None
    seed: int
    validation: float
    recipe: str = "deco+"
    engine: str = "portable"
    augment: bool | None = None
    backbone: str | None = None
    weights: Path | None = None
    features: str | None = None
    cut: str = "auto"
    finetune: str | None = None
    pictures: tuple[str, ...] = ()
    quantize: str = "none"
    report: bool = False
    spare: int = 0


@dataclass(frozen=True)
class Exported:
    """What came out: accuracy on the training images, 0 … 1, what the validation images say, largest relative error per
    graph to the reference, notes. page: the report as HTML, until it is written; report: where it is then."""

    train_accuracy: float
    judged: Judged
    errors: dict[str, float]
    reference: str
    engines: tuple[str, ...]
    labelled: int
    notes: tuple[str, ...]
    page: str | None = None
    report: Path | None = None


def export(options: Options, progress: Progress, loaded: data.Data | None = None) -> Exported:
    """Make the bundle at `options.out`, one file if its name ends with .deco. It appears there complete or not at all.

    loaded: labelled data to use in place of reading `options.data`.

    Raises UsageError when something is at `out` already, and the errors of each stage.
    """
    check_runtime()
    if reason := engines()[options.engine].unusable(None):
        raise RuntimeMissingError(reason)
    # Pixels not in the system's folder for temporary files, which may be memory.
    with bundle_at(options.out) as directory, tempfile.TemporaryFile(dir=directory.parent) as pixels:
        origin = _origin(options, progress)
        done = _fill(directory, options, progress, origin, loaded or _load(options, origin, progress, pixels))
    if done.page is None:
        return done
    place = report.report_path(options.out)
    try:
        report.write(done.page, place)
    except OSError as error:
        return replace(done, page=None, notes=(*done.notes, report.failed(error)))
    return replace(done, page=None, report=place)


class Origin(NamedTuple):
    """Where a network comes from. pictures: how its pictures are cut and scaled; make: the network, and notes, once
    there are labelled images."""

    pictures: Preprocessing
    make: Callable[[data.Data], tuple[Network, list[str]]]


def _origin(options: Options, progress: Progress) -> Origin:
    if options.backbone is not None:
        return _public(options, options.backbone, progress)
    given = {"--weights": options.weights, "--features": options.features, "--finetune": options.finetune}
    chosen = {**given, "--input": options.pictures or None, "--cut": None if options.cut == "auto" else options.cut}
    chosen["--quantize"] = None if options.quantize == "none" else options.quantize
    if unused := [name for name, value in chosen.items() if value is not None]:
        raise UsageError(f"expected {unused[0]} with a --backbone, but found none; name one, or leave it out")
    size = options.image_size if options.image_size is not None else SMALL
    scratch = needs_torch("scratch", "a model that is trained here")

    def trained(loaded: data.Data) -> tuple[Network, list[str]]:
        augment = options.augment if options.augment is not None else registry.learner(options.recipe).AUGMENT
        sizes, epochs, seed = (options.width, options.depth, size), options.epochs, options.seed
        how = (*sizes, epochs, seed, augment, loaded, progress)
        network: Network = scratch.train(options.model, *how, spare=options.spare)
        return network, []

    return Origin(Preprocessing(size, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), trained)


def _public(options: Options, name: str, progress: Progress) -> Origin:
    from deco_export.backbone import network, pictures, quantize
    from deco_export.backbone.source import open_backbone

    given = {"--width": options.width, "--depth": options.depth, "--epochs": options.epochs}
    if unused := [option for option, value in given.items() if value is not None]:
        raise UsageError(
            f"expected no {unused[0]} with --backbone, whose size and training are done, but found one; leave it out"
        )
    if options.spare:
        raise UsageError(
            "expected no --spare with --backbone, whose learning graphs have the bundle's classes only, but found one; "
            "leave it out, and teach new classes to --recipe deco+"
        )
    if options.quantize not in quantize.CHOICES:
        raise UsageError(f"expected --quantize int8 or none, but found {options.quantize!r:.40}; take one of these")
    progress("opening the network", 0, 1)
    backbone = open_backbone(name, options.weights, options.image_size, pictures.parse(options.pictures))
    progress("opening the network", 1, 1)
    preprocessing = backbone.preprocessing
    check_method(preprocessing.method)
    how = (options.features, options.cut, options.finetune, options.quantize, options.seed)
    return Origin(preprocessing, lambda loaded: network.make(backbone, preprocessing, *how, loaded, progress))


def _load(options: Options, origin: Origin, progress: Progress, pixels: BinaryIO) -> data.Data:
    return data.load(
        options.data,
        options.labelled,
        options.validation,
        origin.pictures,
        options.seed,
        lambda done, total: progress("reading images", done, total),
        pixels,
    )


def _fill(directory: Path, options: Options, progress: Progress, origin: Origin, loaded: data.Data) -> Exported:
    kind, notes = registry.learner(options.recipe), loaded.notes()
    if loaded.skipped:
        notes.append(loaded.skipped)
    ipc = options.ipc if options.ipc is not None else kind.IPC
    if ipc == 0 and kind.IPC:
        raise UsageError(
            f"expected --ipc of at least 1 for --recipe {kind.NAME}, which learns with condensed images, but "
            "found 0; raise it, or take --recipe deco+"
        )
    check_enough(loaded.train.labels, loaded.classes, ipc)  # met here rather than after the training
    network, said = origin.make(loaded)
    notes += said
    train, held, rng = loaded.train, loaded.validation, np.random.default_rng(options.seed)
    train_accuracy = float(np.mean(network.answers(train) == train.labels))
    answers = network.answers(held)
    judged = judge(answers, held.labels, train.labels, loaded.classes)
    notes += judged.warnings()

    onnx.save_model(network.whole, directory / "inference.onnx")
    sets = _write_graphs(directory, network.fresh, network.theta, notes)
    if network.trunk is not None:
        onnx.save_model(network.trunk, directory / "graphs" / f"{TRUNK}.onnx")
    engine = engines()[options.engine].load(directory)
    if ipc:
        buffer = initial_buffer(
            engine,
            network.theta,
            network.inputs(train),
            train.labels,
            loaded.classes,
            ipc,
            network.parameters,
            Deco.RECIPE,
            np.random.default_rng(options.seed),
            lambda done, total: progress("condensing the labelled images", done, total),
        )
        np.savez(directory / BUFFER, x_syn=buffer.x_syn, y_syn=buffer.y_syn)

    represented = network.represent(rng)
    onnx.save_model(represented.model, directory / "graphs" / f"{REPRESENTATION}.onnx")
    watched = report.watch(represented, loaded, options.seed) if options.report else None
    looked = represented if watched is None else watched.represented
    notes += fit_learners(directory, looked, engine, loaded, network.preprocessing, progress)

    progress("checking every graph", 0, 1)
    golden, errors = _checked(directory, network, sets, notes)
    runs_on = tuple(sets)
    golden |= network.golden(directory / "inference.onnx", represented.model, golden)
    progress("checking every graph", 1, 1)
    if EXACT in sets["portable"] and f"portable/{EXACT}" not in errors:
        sets["portable"].pop(EXACT).unlink()
        notes.append(
            "made without gradient=exact: torch cannot differentiate this model twice, so nothing can check it"
        )
    if network.reference == "torch" and max(errors.values()) > TOLERANCE:
        notes.append(
            f"single elements of a gradient differ from torch by up to {max(errors.values()):.0e} of the largest: some "
            "units of this model sit within rounding of a kink of their activation, where either side is right"
        )

    np.save(directory / "weights.npy", network.theta)
    np.savez(directory / "golden.npz", **golden)  # type: ignore[arg-type]
    guard = guard_images(held)
    if len(guard):
        np.savez_compressed(directory / "guard.npz", pixels=guard.pixels, labels=guard.labels, takes=guard.takes)
        notes += filter(None, [_what_the_guard_sees(len(np.unique(guard.takes)))])
    else:
        notes.append("made without images for the guard of updates: none were held out, so raise --val or --labelled")
    (directory / "trained_on.txt").write_text("\n".join(loaded.trained_on) + "\n", "ascii")
    if loaded.stream is not None and loaded.test is not None:
        _write_demo(directory / "demo", loaded.stream, loaded.test)
    forward = network.fresh()
    write_manifest(
        directory,
        loaded.classes,
        network.preprocessing,
        network.parameters,
        tuple(int(side) for side in forward.x_shape[1:]),
        forward.features,
        represented.size,
        runs_on,
        kind.RECIPE,
        {
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "tools": tool_versions(),
            "opset": OPSET,
            "ir_version": IR_VERSION,
            "seed": options.seed,
            "labelled": options.labelled,
            "ipc": ipc,
            "spare": options.spare,
            "train_images": len(train),
            "validation_images": len(held),
            "train_accuracy": train_accuracy,
            "validation_accuracy": judged.accuracy,
            "validation_balanced_accuracy": judged.balanced,
            "by_class": judged.by_class(),
            "largest_relative_error": max(errors.values()),
            **network.made_with,
        },
    )
    page = None
    if watched is not None:
        scratch = options.backbone is None
        seen = (loaded, watched, engine, network.preprocessing, answers, scratch)
        try:
            page = report.make(directory, options.out, options.data, *seen, notes, options.seed, progress)
        except Exception as error:  # the bundle is complete, whatever a report of it dies of
            notes.append(report.failed(error))
    count = len(train) + len(held)
    return Exported(train_accuracy, judged, errors, network.reference, runs_on, count, tuple(notes), page)


def _write_graphs(
    directory: Path, fresh: Callable[[], Forward], theta: Floats, notes: list[str]
) -> dict[str, dict[str, Path]]:
    """Write the learning graphs to graphs/ and, where onnxruntime-training is installed, to ort_training/."""
    (directory / "graphs").mkdir()
    sets: dict[str, dict[str, Path]] = {"portable": {}}
    for name, model in graphs.learning_graphs(fresh).items():
        sets["portable"][name] = directory / "graphs" / f"{name}.onnx"
        onnx.save_model(model, sets["portable"][name])
    try:
        sets["portable"][EXACT] = directory / "graphs" / f"{EXACT}.onnx"
        onnx.save_model(graphs.input_gradient_tangent(fresh()), sets["portable"][EXACT])
    except ExportError as error:
        del sets["portable"][EXACT]
        notes.append(f"made without gradient=exact: {error}")
    try:
        if (missing := ort_artifacts.missing()) is not None:
            raise ExportError(missing)
        folder = directory / "ort_training"
        ort_artifacts.write_training_artifacts(fresh, theta, folder)
        sets["ort-training"] = {}
        for name, model in ort_artifacts.gradient_graphs(fresh).items():
            sets["ort-training"][name] = folder / f"{name}.onnx"
            onnx.save_model(model, sets["ort-training"][name])
    except Exception as error:  # optional, and foreign code: onnxruntime-training dies in many ways on some models
        _leave_ort_training_out(directory, sets, error, notes)
    return sets


def _checked(
    directory: Path, network: Network, sets: dict[str, dict[str, Path]], notes: list[str]
) -> tuple[Values, dict[str, float]]:
    """`Network.check`, without the optional set if that cannot be run or is wrong."""
    try:
        return network.check(sets)
    except Exception as error:
        if "ort-training" not in sets:
            raise
        _leave_ort_training_out(directory, sets, error, notes)
        return network.check(sets)


def _leave_ort_training_out(
    directory: Path, sets: dict[str, dict[str, Path]], error: Exception, notes: list[str]
) -> None:
    """The portable graphs do everything, so a bundle without the others is still whole."""
    shutil.rmtree(directory / "ort_training", ignore_errors=True)
    sets.pop("ort-training", None)
    words = first_line(error).rpartition(" was false. ")[2]  # before that stands where in its source it failed
    notes.append(f"made without --engine ort-training: {words}")


def _what_the_guard_sees(takes: int) -> str | None:
    """A note where the guard has so few takes that only large harm can be seen."""
    harm = smallest_harm(takes)
    if harm is None:
        return (
            f"the guard of updates has {takes} takes, too few to tell harm from chance: it rejects what is not finite, "
            "blind trust and collapse; label more takes, or raise --val"
        )
    if harm > SMALL_HARM:
        return f"the guard of updates has {takes} takes: it sees a loss of {harm:.0%} of the answers or more"
    return None


def guard_images(held: ImageSet) -> Images:
    """Held-out images, as many as GUARD_IMAGES and GUARD_BYTES allow: one of every take of every class in turn.

    Never one that was trained on: the model knows those, so it could only lose on them.
    """
    _, first, take = np.unique(held.takes, return_index=True, return_inverse=True)
    turns = _rank(held.labels[first])[take], _rank(held.takes)  # of a take in its class, of an image in its take
    most = min(GUARD_IMAGES, GUARD_BYTES // held[:1].pixels.nbytes) if len(held) else 0
    return held[np.sort(np.lexsort(turns)[:most])]


def _rank(groups: Ints) -> Ints:
    """How many elements (n,) of the same group come before each."""
    order = np.argsort(groups, kind="stable")
    _, start, size = np.unique(groups[order], return_index=True, return_counts=True)
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(start, size)
    return rank


def _write_demo(directory: Path, stream: Images, test: Images) -> None:
    """The stream as a Motion-JPEG video, which every OpenCV can read like a camera, and test images."""
    directory.mkdir()
    size = stream.pixels.shape[1]
    writer = cv2.VideoWriter(str(directory / "stream.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30.0, (size, size))
    if not writer.isOpened():
        raise ExportError("expected OpenCV to write Motion-JPEG video, but it cannot; install opencv-python-headless")
    for pixels in stream.pixels:
        writer.write(np.ascontiguousarray(pixels))
    writer.release()
    np.save(directory / "labels.npy", stream.labels)
    np.savez_compressed(directory / "test.npz", pixels=test.pixels, labels=test.labels)


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide what an export or an experiment gives."""
    names = ("deco-edge", "torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-training-cpu", "openvino", "numpy")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found["opencv"] = cv2.__version__
    return found
