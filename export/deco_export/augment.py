"""Augmentation: what pre-training does to its images so that the model does not learn them by heart.

Images of many scenes are shifted. Those of few, such as frames of some takes, lack more: they are turned, scaled and
shifted, changed in contrast, brightness and colour, blurred, made noisy, and partly covered. Chosen on held-out takes
and images: where there are thousands of scenes the second does harm, see docs/results.md. Mirroring is `pretrain`'s,
since it may change the class.
"""

from __future__ import annotations

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
"""Images blurred at a time: torch's convolution takes many times the memory of its images."""
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
    most = x.shape[-1] // SHIFT
    wide = functional.pad(x, (most,) * 4, mode="reflect")
    down, right = (torch.from_numpy(by[:, axis, None]) for axis in range(2))
    across = torch.arange(x.shape[-1])
    rows, columns = (down + across)[:, None, :, None], (right + across)[:, None, None, :]
    return wide[torch.arange(len(x))[:, None, None, None], torch.arange(x.shape[1])[None, :, None, None], rows, columns]


def mirrored(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images x (N, C, H, W), about half of them mirrored."""
    return torch.where(_some(x, rng, 0.5), x.flip(-1), x)


def varied(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Images x (N, C, H, W), normalised, each as another take might show it: moved, lit, blurred, noisy and covered."""
    return covered(noisy(blurred(lit(moved(x, rng), rng), rng), rng), rng)


def moved(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Turned, scaled and shifted; what comes in is reflected."""
    n = len(x)
    angle, scale, stretch = (rng.uniform(-most, most, n) for most in (TURN, SCALE, STRETCH))
    affine = np.zeros((n, 2, 3))
    height, width = np.exp(scale), np.exp(scale + stretch)
    affine[:, 0, 0], affine[:, 0, 1] = np.cos(angle) * width, -np.sin(angle) * height
    affine[:, 1, 0], affine[:, 1, 1] = np.sin(angle) * width, np.cos(angle) * height
    affine[:, :, 2] = rng.uniform(-2 / SHIFT, 2 / SHIFT, (n, 2))  # torch's image is 2 wide
    grid = functional.affine_grid(torch.from_numpy(affine).to(x.dtype), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def lit(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """In other light: contrast and brightness changed in all and per channel."""
    n, channels = x.shape[:2]
    contrast = _uniform(x, rng, CONTRAST, (n, 1, 1, 1)) + _uniform(x, rng, COLOUR, (n, channels, 1, 1))
    brightness = _uniform(x, rng, BRIGHTNESS, (n, 1, 1, 1)) + _uniform(x, rng, COLOUR, (n, channels, 1, 1))
    return x * contrast.exp() + brightness


def blurred(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Some of them once or three times with a binomial kernel of 3 × 3."""
    some, more = _some(x, rng, BLURRED), _some(x, rng, 0.5)
    parts = zip(*(each.split(FEW) for each in (x, some, more)), strict=True)
    return torch.cat([_blurred(*part) for part in parts])


def _blurred(x: torch.Tensor, some: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    once = _binomial(x)
    many = _binomial(_binomial(once))
    return torch.where(some, torch.where(more, many, once), x)


def noisy(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """With noise of its own strength on each."""
    strength = _uniform(x, rng, NOISE, (len(x), 1, 1, 1)).abs()
    return x + strength * torch.from_numpy(rng.standard_normal(tuple(x.shape), np.float32))


def covered(x: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A square of some of them set to the mean colour (DeVries & Taylor 2017)."""
    n, _, height, width = x.shape
    side = rng.uniform(LEAST, MOST, n) * height
    near = [
        np.abs(np.arange(size)[None] - rng.uniform(0, size, (n, 1))) < side[:, None] / 2 for size in (height, width)
    ]
    square = torch.from_numpy(near[0][:, None, :, None] & near[1][:, None, None, :])
    return torch.where(square & _some(x, rng, COVERED), torch.zeros((), dtype=x.dtype), x)


def _binomial(x: torch.Tensor) -> torch.Tensor:
    row = torch.tensor([0.25, 0.5, 0.25], dtype=x.dtype)
    kernel = (row[:, None] * row).expand(x.shape[1], 1, 3, 3)
    return functional.conv2d(functional.pad(x, (1,) * 4, mode="reflect"), kernel, groups=x.shape[1])


def _uniform(x: torch.Tensor, rng: np.random.Generator, most: float, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(-most, most, shape)).to(x.dtype)


def _some(x: torch.Tensor, rng: np.random.Generator, share: float) -> torch.Tensor:
    """(N, 1, 1, 1) bool, about this share of them true."""
    return torch.from_numpy(rng.random(len(x)) < share)[:, None, None, None]
