"""Augmentation: what pre-training does to its images so that the model does not learn them by heart.

Images of many scenes are shifted. Those of few, such as frames of some takes, lack more: they are turned, scaled and
shifted, changed in contrast, brightness and colour, blurred, made noisy, and partly covered. Chosen on held-out takes
and images: where there are thousands of scenes the second does harm (docs/results/tried.md). Mirroring is
`pretrain`'s, since it may change the class.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from deco_runtime.types import Ints
from torch.nn import functional

SHIFT = 8
"""An image is shifted by up to a SHIFT-th of its side each way; what comes in is reflected."""
TURN, SCALE, STRETCH = np.pi / 12, 0.25, 0.08
"""Largest angle, and logarithm of the factors of size and of width."""
CONTRAST, BRIGHTNESS, COLOUR = 0.5, 0.5, 0.2
"""Largest logarithm of the contrast's factor, and changes in brightness and in one colour, in standard deviations."""
NOISE, BLURRED = 0.1, 0.3
"""Largest standard deviation of the noise, and share of the images that are blurred."""
FEW = 8
"""Images changed at a time, which are then held several times over, and in torch's convolution many times."""
COVERED, LEAST, MOST = 0.5, 0.15, 0.4
"""Share of the images of which a square is covered, and its side in parts of the image's."""


def shifted(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images x (N, C, H, W), each shifted by its own up to a SHIFT-th of the side."""
    return shift(x, shifts(len(x), x.shape[-1], rng))


def shifts(n: int, side: int, rng: np.random.Generator) -> Ints:
    """Where each of n images begins, down and right, in itself continued by a SHIFT-th of its side each way: (n, 2)
    int64, 0 … 2 · (side // SHIFT)."""
    return np.stack([rng.integers(0, 2 * (side // SHIFT) + 1, n) for _ in range(2)], axis=1)


def shift(x: torch.Tensor, by: Ints) -> torch.Tensor:
    """Images x (N, C, H, W), shifted by (N, 2) of `shifts`."""
    return _in_parts(_shift, x, torch.from_numpy(by))


def _shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    most = x.shape[-1] // SHIFT
    wide = functional.pad(x, (most,) * 4, mode="reflect")
    across = torch.arange(x.shape[-1])
    rows, columns = (by[:, :1] + across)[:, None, :, None], (by[:, 1:] + across)[:, None, None, :]
    return wide[torch.arange(len(x))[:, None, None, None], torch.arange(x.shape[1])[None, :, None, None], rows, columns]


def mirrored(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images x (N, C, H, W), about half of them mirrored."""
    return _in_parts(lambda x, some: torch.where(some, x.flip(-1), x), x, _some(x, rng, 0.5))


def varied(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images x (N, C, H, W), normalised, each as another take might show it: moved, lit, blurred, noisy and covered."""
    for change in (moved, lit, blurred, noisy, covered):
        x = change(x, rng)
    return x


def moved(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Turned, scaled and shifted; what comes in is reflected."""
    n = len(x)
    angle, scale, stretch = (rng.uniform(-most, most, n) for most in (TURN, SCALE, STRETCH))
    affine = np.zeros((n, 2, 3))
    height, width = np.exp(scale), np.exp(scale + stretch)
    affine[:, 0, 0], affine[:, 0, 1] = np.cos(angle) * width, -np.sin(angle) * height
    affine[:, 1, 0], affine[:, 1, 1] = np.sin(angle) * width, np.cos(angle) * height
    affine[:, :, 2] = rng.uniform(-2 / SHIFT, 2 / SHIFT, (n, 2))  # torch's image is 2 wide
    return _in_parts(_move, x, torch.from_numpy(affine).to(x.dtype))


def _move(x: torch.Tensor, affine: torch.Tensor) -> torch.Tensor:
    grid = functional.affine_grid(affine, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def lit(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """In other light: contrast and brightness changed in all and per channel."""
    n, channels = x.shape[:2]
    contrast = _uniform(x, rng, CONTRAST, (n, 1, 1, 1)) + _uniform(x, rng, COLOUR, (n, channels, 1, 1))
    brightness = _uniform(x, rng, BRIGHTNESS, (n, 1, 1, 1)) + _uniform(x, rng, COLOUR, (n, channels, 1, 1))
    return _in_parts(lambda x, contrast, brightness: x * contrast + brightness, x, contrast.exp(), brightness)


def blurred(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Some of them once or three times with a binomial kernel of 3 × 3."""
    return _in_parts(_blurred, x, _some(x, rng, BLURRED), _some(x, rng, 0.5))


def _blurred(x: torch.Tensor, some: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    once = _binomial(x)
    many = _binomial(_binomial(once))
    return torch.where(some, torch.where(more, many, once), x)


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """With noise of its own strength on each."""
    strength = _uniform(x, rng, NOISE, (len(x), 1, 1, 1)).abs()
    # Drawn in parts, the noise is the same as drawn at once.
    return _in_parts(
        lambda x, strength: x + strength * torch.from_numpy(rng.standard_normal(tuple(x.shape), np.float32)),
        x,
        strength,
    )


def covered(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A square of some of them set to the mean colour (DeVries & Taylor 2017)."""
    n, _, height, width = x.shape
    side = rng.uniform(LEAST, MOST, n) * height
    near = [
        np.abs(np.arange(size)[None] - rng.uniform(0, size, (n, 1))) < side[:, None] / 2 for size in (height, width)
    ]
    rows, columns = torch.from_numpy(near[0][:, None, :, None]), torch.from_numpy(near[1][:, None, None, :])
    return _in_parts(_cover, x, rows, columns, _some(x, rng, COVERED))


def _cover(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
    return torch.where(rows & columns & some, torch.zeros((), dtype=x.dtype), x)


def _in_parts(change: Callable[..., torch.Tensor], x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
    """`change` of FEW images x and their parts of what is given, at a time; filled into one tensor, since a list of
    parts would be held twice."""
    out = torch.empty_like(x)
    for parts in zip(*(each.split(FEW) for each in (out, x, *given)), strict=True):
        parts[0].copy_(change(*parts[1:]))
    return out


def _binomial(x: torch.Tensor) -> torch.Tensor:
    row = torch.tensor([0.25, 0.5, 0.25], dtype=x.dtype)
    kernel = (row[:, None] * row).expand(x.shape[1], 1, 3, 3)
    return functional.conv2d(functional.pad(x, (1,) * 4, mode="reflect"), kernel, groups=x.shape[1])


def _uniform(x: torch.Tensor, rng: np.random.Generator, most: float, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(-most, most, shape)).to(x.dtype)


def _some(x: torch.Tensor, rng: np.random.Generator, share: float) -> torch.Tensor:
    """(N, 1, 1, 1) bool, about this share of them true."""
    return torch.from_numpy(rng.random(len(x)) < share)[:, None, None, None]
