"""deco-export: from labelled images to a bundle for the device."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.terminal import exit_with, progress_bars
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.host.scratch import check_temporary
from deco_runtime.telemetry.console import say, tell

from deco_export.heap import give_back_large_blocks


@click.command(context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option(
    "--data",
    default="digits",
    metavar="DIR|digits",
    help="Image folder DIR/<class>/<image> or DIR/train/<class>/<image>; a folder 'none' or 'background' beside the "
    "classes shows what is none of them; or 'digits', handwritten digits that come "
    "with scikit-learn and need no download. A digits bundle carries its own stream for deco-run --demo.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Directory to make; or, if the name ends with .deco, one file, which every command opens as it is.  "
    "[required but for --check]",
)
@click.option(
    "--labelled",
    default=0.1,
    type=click.FloatRange(0, 1, min_open=True),
    metavar="FRACTION",
    help="Share of the images of every class whose labels are used; the rest stays unseen, for the stream.",
)
@click.option(
    "--model",
    default="convnet",
    metavar="NAME|PKG.MODULE:FACTORY",
    help="convnet (the paper's), resnet, mobilenet, or your own factory(classes, image_size) returning a torch module "
    "that maps (N, 3, H, W) to logits and ends with nn.Linear.",
)
@click.option("--width", type=click.IntRange(1), help="Channels of the model.  [default: the model's, convnet 128]")
@click.option(
    "--depth",
    type=click.IntRange(1),
    help="Blocks of the model.  [default: the model's, convnet 3 at 32 pixels]",
)
@click.option(
    "--image-size",
    type=click.IntRange(8, 1024),
    help="Side of the square input in pixels.  [default: 32, of a --backbone its own]",
)
@click.option(
    "--backbone",
    metavar="SOURCE",
    help="Take a public, pre-trained network in place of training one: onnx:FILE, an ONNX classifier or feature "
    "extractor of any exporter; timm:NAME or torchvision:NAME with --weights; or PKG.MODULE:FACTORY, your own function "
    "without arguments that returns a torch module with its weights. It stays as it is, and a new classifier is fitted "
    "behind it in seconds.",
)
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Of timm:NAME or torchvision:NAME: safetensors, or a state dict. Without, they are random.",
)
@click.option(
    "--input",
    "pictures",
    multiple=True,
    metavar="KEY=VALUE",
    help="How the backbone's pictures are prepared, where its source does not say: mean=R,G,B and std=R,G,B of values "
    "0 to 1 or 0 to 255, colour=bgr, shorter=256 (what the shorter side is scaled to before the centre is cut out) and "
    "method=area, bilinear or bicubic; may be repeated.",
)
@click.option(
    "--features",
    metavar="TENSOR",
    help="What of the backbone is classified, by its name in the graph.  [default: what its own classifier takes]",
)
@click.option(
    "--cut",
    default="auto",
    metavar="auto|TENSOR",
    help="Where the backbone is cut: --recipe paper trains what lies behind, on what the frozen trunk makes of a "
    "frame. auto takes the last block, if that is cheap enough.",
)
@click.option(
    "--finetune",
    type=click.Choice(["none", "last-block", "all"]),
    help="Train the backbone's layers behind the cut, or all of them, on the labelled images.  [default: none or "
    "last-block, whichever answers more held-out takes right]",
)
@click.option(
    "--quantize",
    default="none",
    type=click.Choice(["none", "int8"]),
    help="Keep the frozen part of the backbone, up to the cut, in 8-bit integers: a quarter of its size, and on "
    "processors with instructions for them twice as fast or more, if it is made of convolutions and ReLU; of SiLU and "
    "gates it gains little. What learns, and the new classifier, stays in float32. Ranges are taken from the labelled "
    "images, and the export is refused if 8 bits lose more than 1% of the held-out answers.",
)
@click.option(
    "--ipc",
    type=click.IntRange(0),
    help="Condensed images per class in the buffer, which --recipe paper learns with; 0 for a bundle that does without "
    "and is made in less time.  [default: as the recipe needs, paper 10]",
)
@click.option(
    "--spare",
    default=0,
    type=click.IntRange(0, 100),
    help="Outputs for classes that people may add later under --recipe paper; deco+ needs none.",
)
@click.option(
    "--epochs",
    type=click.IntRange(0),
    help="Passes over the labelled images in pre-training.  [default: 60, paper 30; more for few images]",
)
@click.option(
    "--recipe",
    default="deco+",
    type=RecipeName(),
    help="Of the bundle, which deco-run goes by unless told otherwise. paper pre-trains on the images as they are, all "
    "others on shifted and, where held-out images allow, mirrored ones, which takes twice as long.",
)
@click.option("--seed", default=0, type=click.IntRange(0), help="Of every random choice.")
@click.option(
    "--val",
    "validation",
    default=0.1,
    type=click.FloatRange(0, 1, max_open=True),
    metavar="FRACTION",
    help="Share of the labelled images held out to report accuracy and to guard updates on the device.",
)
@click.option(
    "--report/--no-report",
    default=True,
    help="Write BUNDLE-report.html beside the bundle: how well each class is known, which pictures hurt, and what more "
    "labels would bring. It holds small copies of labelled pictures, so it is not in the bundle that goes to devices.",
)
@click.option(
    "--check",
    type=click.Choice(["tensorrt"]),
    help="Export nothing: tell which operators of the graphs of --bundle TensorRT's published support matrix lacks, "
    "without a GPU. The exit code is 1 if any.",
)
@click.option(
    "--bundle", type=click.Path(path_type=Path), metavar="BUNDLE", help="With --check: made by an earlier deco-export."
)
def command(out: Path | None, check: str | None, bundle: Path | None, **given: object) -> int:
    """Pre-train a classifier on a few labelled images and make a bundle for deco-run.

    Trains on the labelled share of --data, condenses those images into the initial buffer, where the recipe keeps one,
    with the code the device runs, writes the learning graphs for both engines, checks each against torch, and puts the
    finished bundle at --out.

    \b
    deco-export --out digits-bundle                         no data needed
    deco-export --data photos --out bundle --labelled 0.2   your own folder of class folders
    deco-export --data photos --out bundle.deco             one file, to copy to a device
    deco-export --data photos --out bundle --backbone onnx:mobilenetv3.onnx
    deco-export --data photos --out bundle --backbone timm:efficientnet_lite0 --weights model.safetensors
    deco-export --check tensorrt --bundle bundle            before a Jetson
    """
    if check is not None or bundle is not None:
        return _check(check, bundle, out)
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    check_temporary()
    give_back_large_blocks()
    try:
        from deco_export.export import Options, export
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected torch, onnx, onnxscript, OpenCV and an onnxruntime for deco-export, but {error}; run "
            "pip install 'deco-edge[export,ort-training]'"
        ) from error
    with progress_bars() as progress:
        done = export(Options(out=out, **given), progress)  # type: ignore[arg-type]
    for note in done.notes:
        say(f"note: {note}")
    judged, validation = done.judged, "none held out"
    if judged.accuracy is not None:
        validation = f"{judged.accuracy:.1%}, balanced over classes {judged.balanced:.1%}"
    tell(f"labelled images    {done.labelled}")
    tell(f"accuracy           {done.train_accuracy:.1%} on training images, validation {validation}")
    tell(
        f"graphs             {', '.join(done.engines)}; largest relative error to {done.reference} "
        f"{max(done.errors.values()):.1e}"
    )
    tell(f"bundle             {out}")
    if done.report is not None:
        tell(f"report             {done.report}")
    return 0


def _check(check: str | None, bundle: Path | None, out: Path | None) -> int:
    """0 where TensorRT has all operators of the bundle's graphs, else 1."""
    if check is None or bundle is None or out is not None:
        raise UsageError(
            "expected --check tensorrt with --bundle BUNDLE and without --out, which exports nothing, but found only a "
            "part of it; give both, or neither"
        )
    try:
        from deco_export import tensorrt_check
    except ImportError as error:
        raise RuntimeMissingError(
            f"expected onnx and numpy for deco-export --check, but {error}; run pip install 'deco-edge[backbone]'"
        ) from error
    lines, fine = tensorrt_check.check(bundle)
    for line in lines:
        tell(line)
    return 0 if fine else 1


def main() -> None:
    """Entry point: every DecoError becomes its sentence and exit code."""
    sys.exit(exit_with(command))
