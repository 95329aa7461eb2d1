"""The paper's ConvNet: depth × (3×3 convolution, instance norm, ReLU, 2×2 average pooling), then a linear classifier.

Gidaris & Komodakis 2018 as used by dataset condensation (Zhao et al. 2020): width 128, depth 3 for 32-pixel inputs.
"""

from torch import nn


def build(classes: int, image_size: int, width: int = 128, depth: int | None = None) -> nn.Module:
    """ConvNet for (N, 3, image_size, image_size) → (N, classes).

    depth defaults to the number of halvings that leaves a 4- to 7-pixel map: 3 for 32 pixels, 5 for 224.
    Raises ValueError when the image is too small for the depth.
    """
    if depth is None:
        depth = max(1, (image_size // 4).bit_length() - 1)
    side = image_size >> depth
    if side < 1:
        raise ValueError(f"depth {depth} needs images of at least {1 << depth} pixels, but they have {image_size}")
    layers: list[nn.Module] = []
    channels = 3
    for _ in range(depth):
        layers += [
            nn.Conv2d(channels, width, kernel_size=3, padding=1),
            nn.GroupNorm(width, width),  # one group per channel is instance norm, with scale and shift
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * side * side, classes))
