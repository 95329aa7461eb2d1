"""A small residual network (He et al. 2016, the CIFAR form) with group norm, which has no batch statistics to drift."""

import torch
from torch import nn


class Block(nn.Module):  # type: ignore[misc]
    """Two 3×3 convolutions beside a shortcut; (N, in, H, W) → (N, out, H/stride, W/stride)."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(min(8, out), out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(min(8, out), out)
        same = into == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(into, out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def build(classes: int, image_size: int, width: int = 16, depth: int = 3) -> nn.Module:
    """ResNet with `depth` stages of one block, widths width, 2·width, 4·width …, global average pooling.

    width must be a multiple of 8 or below 8 (group norm). image_size only bounds the depth.
    """
    if image_size >> (depth - 1) < 2:
        raise ValueError(
            f"depth {depth} needs images of at least {2 << (depth - 1)} pixels, but they have {image_size}"
        )
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.GroupNorm(min(8, width), width),
        nn.ReLU(),
    ]
    channels = width
    for stage in range(depth):
        out = width << stage
        layers.append(Block(channels, out, stride=1 if stage == 0 else 2))
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
