"""A MobileNet-style network (Howard et al. 2017): depthwise 3×3 and pointwise 1×1 convolutions with group norm."""

from torch import nn


def separable(into: int, out: int, stride: int) -> list[nn.Module]:
    """Depthwise then pointwise convolution, each with norm and activation."""
    return [
        nn.Conv2d(into, into, 3, stride, 1, groups=into, bias=False),
        nn.GroupNorm(min(8, into), into),
        nn.ReLU(),
        nn.Conv2d(into, out, 1, bias=False),
        nn.GroupNorm(min(8, out), out),
        nn.ReLU(),
    ]


def build(classes: int, image_size: int, width: int = 32, depth: int = 4) -> nn.Module:
    """MobileNet-style net: a 3×3 stem, `depth` separable convolutions (every second one halves the image and
    doubles the channels), global average pooling. width must be a multiple of 8 or below 8 (group norm).
    """
    if image_size >> (depth // 2) < 2:
        raise ValueError(
            f"depth {depth} needs images of at least {2 << (depth // 2)} pixels, but they have {image_size}"
        )
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.GroupNorm(min(8, width), width),
        nn.ReLU(),
    ]
    channels = width
    for index in range(depth):
        halve = index % 2 == 1
        out = channels * 2 if halve else channels
        layers += separable(channels, out, stride=2 if halve else 1)
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
