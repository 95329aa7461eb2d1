"""How a network's pictures are prepared: what its source says, and what was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deco_runtime.errors import UsageError
from deco_runtime.preprocess import METHODS, Preprocessing

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pictures that most public networks were trained on."""
SIDE = 224
CONFIGURATIONS = ("preprocessor_config.json", "config.json")
"""Files beside a network's own, as the Hugging Face hub keeps them."""
PILLOW = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of its filters."""
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Pictures:
    """What is known; None where nobody says.

    size: side of the input in pixels. mean, std: R, G, B, of pixel values scaled to 0 … 1. shorter, method: see
    `Preprocessing`. bgr: whether the network takes its channels as B, G, R.
    """

    size: int | None = None
    mean: Triple | None = None
    std: Triple | None = None
    shorter: int | None = None
    method: str | None = None
    bgr: bool | None = None

    def over(self, other: Pictures) -> Pictures:
        """What this says and, where it is silent, what the other does."""
        return replace(other, **{name: value for name, value in vars(self).items() if value is not None})

    def preprocessing(self, size: int) -> Preprocessing:
        """For the device, at this size."""
        shorter = self.shorter
        if shorter is not None and self.size is not None and size != self.size:
            shorter = round(shorter * size / self.size)  # the same part of the picture
        method = self.method or METHODS[0]
        return Preprocessing(size, self.mean or IMAGENET_MEAN, self.std or IMAGENET_STD, shorter, method)


def parse(texts: Sequence[str]) -> Pictures:
    """What `--input KEY=VALUE` says. Raises UsageError for a key or value that there is not."""
    found = Pictures()
    for text in texts:
        key, _, value = text.partition("=")
        try:
            if key in ("mean", "std"):
                numbers = [float(part) for part in value.split(",")]
                if len(numbers) not in (1, 3) or (key == "std" and min(numbers) <= 0):
                    raise ValueError
                three = _triple(numbers * (3 // len(numbers)))
                found = replace(found, mean=three) if key == "mean" else replace(found, std=three)
            elif key == "shorter":
                found = replace(found, shorter=int(value))
            elif key == "method" and value in METHODS:
                found = replace(found, method=value)
            elif key == "colour" and value in ("rgb", "bgr"):
                found = replace(found, bgr=value == "bgr")
            else:
                raise ValueError
        except ValueError as error:
            raise UsageError(
                "expected --input mean=R,G,B, std=R,G,B, shorter=PIXELS, colour=rgb|bgr or "
                f"method={'|'.join(METHODS)}, but found {text!r}; correct it"
            ) from error
    return scaled(found)


def scaled(found: Pictures) -> Pictures:
    """The same for pixel values of 0 … 1, where a mean or std above 1 shows that these are of 0 … 255."""
    given = [*(found.mean or ()), *(found.std or ())]
    if not given or max(given) <= 1:
        return found
    mean, std = (_triple([v / 255 for v in each]) if each else None for each in (found.mean, found.std))
    return replace(found, mean=mean, std=std)


def of_timm(config: Mapping[str, Any]) -> Pictures:
    """From the `pretrained_cfg` of timm, as a model holds it or as config.json has it."""
    size = int(config["input_size"][1]) if config.get("input_size") else None
    part = config.get("crop_pct")
    squashed = config.get("crop_mode", "center") != "center"
    return Pictures(
        size,
        _triple(config.get("mean")),
        _triple(config.get("std")),
        int(size / part) if size and part and not squashed else None,
        config["interpolation"] if config.get("interpolation") in METHODS else None,
    )


def of_hugging_face(config: Mapping[str, Any]) -> Pictures:
    """From a preprocessor_config.json."""
    crop, size = config.get("crop_size"), config.get("size")
    whole = _side(size)
    side = _side(crop) if config.get("do_center_crop", crop is not None) else whole
    cropped = side is not None and whole is not None and config.get("do_center_crop", crop is not None)
    mean, std = _triple(config.get("image_mean")), _triple(config.get("image_std"))
    if not config.get("do_normalize", True):
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Pictures(side, mean, std, whole if cropped else None, PILLOW.get(config.get("resample", 0)))


def beside(file: Path) -> Pictures:
    """From a configuration in the folder of a network's file; nothing where there is none that can be read."""
    for name in CONFIGURATIONS:
        try:
            config = json.loads((file.parent / name).read_text("utf-8"))
            if "pretrained_cfg" in config:
                return of_timm(config["pretrained_cfg"])
            if "image_mean" in config:
                return of_hugging_face(config)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            continue
    return Pictures()


def _triple(value: Any) -> Triple | None:
    if value is None:
        return None
    a, b, c = (float(v) for v in value)
    return a, b, c


def _side(value: Any) -> int | None:
    if isinstance(value, Mapping):
        value = value.get("shortest_edge", value.get("height"))
    return int(value) if value is not None else None
