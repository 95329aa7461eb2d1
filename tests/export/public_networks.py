"""Public networks for tests: timm's, and one that is small enough to be exported in seconds."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

KEPT: list[object] = []
"""A library's operators live as long as it does."""


def timm() -> ModuleType:
    """The package, or the test is skipped.

    torchvision's wheels of PyPI are built for torch with CUDA. Beside a torch for the CPU their compiled operators do
    not load, and importing them fails, although no classifier needs one. Declared without a body, they let it pass.
    """
    try:
        import_module("torchvision")
    except ImportError:
        pytest.skip("timm needs torchvision")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)
    return pytest.importorskip("timm")


class Tiny(nn.Module):
    """Three blocks on maps of 16, 8 and 4 positions each way at 32 pixels, and a classifier of seven other things."""

    def __init__(self) -> None:
        super().__init__()

        def block(into: int, out: int, stride: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU6(), nn.Dropout(0.5)
            )

        self.stem, self.middle, self.last = block(3, 8, 2), block(8, 12, 2), block(12, 16, 2)
        self.deep = nn.Sequential(
            nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Hardswish(), nn.Conv2d(16, 24, 1), nn.SiLU()
        )
        self.classifier = nn.Linear(24, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.deep(self.last(self.middle(self.stem(x))))
        return self.classifier(maps.mean(dim=(2, 3)))


class Far(Tiny):
    """The same, but that its maps lie far from 0 on the way, where 256 steps cannot tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.away = nn.Conv2d(12, 12, 1, groups=12)
        nn.init.ones_(self.away.weight)
        nn.init.constant_(self.away.bias, 1e4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.deep(self.last(self.away(self.middle(self.stem(x))) - 1e4))
        return self.classifier(maps.mean(dim=(2, 3)))


class Extractor(Tiny):
    """Maps of features, and no classifier."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.deep(self.last(self.middle(self.stem(x))))


def tiny(kind: type[Tiny] = Tiny) -> nn.Module:
    """Random weights, and running statistics as after some training."""
    torch.manual_seed(5)
    network = kind()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    return network


def far() -> nn.Module:
    """`Far`, with the weights of `tiny`."""
    return tiny(Far)


def extractor() -> nn.Module:
    """`Extractor`, with the weights of `tiny`."""
    return tiny(Extractor)
