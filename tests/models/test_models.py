"""The built-in network families: sizes, and ConvNet as the paper has it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from deco_models import convnet, mobilenet, resnet  # noqa: E402
from torch import nn  # noqa: E402


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in model]


@pytest.mark.parametrize("build", [convnet.build, resnet.build, mobilenet.build])
@pytest.mark.parametrize("size", [16, 28, 33])
def test_images_to_logits(build, size: int) -> None:
    model = build(classes=7, image_size=size, width=4)
    for n in (1, 3):
        logits = model(torch.randn(n, 3, size, size))
        assert logits.shape == (n, 7)
        assert logits.dtype == torch.float32
    assert isinstance(list(model.children())[-1], nn.Linear)


@pytest.mark.parametrize("build", [convnet.build, resnet.build, mobilenet.build])
def test_images_of_a_batch_do_not_mix(build) -> None:
    """No batch statistics: an image's logits do not depend on its neighbours, in training mode neither."""
    model = build(classes=3, image_size=16, width=4).train()
    x = torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))


@pytest.mark.parametrize(
    ("build", "depth", "least"), [(convnet.build, 3, 8), (resnet.build, 3, 8), (mobilenet.build, 4, 8)]
)
def test_too_small_an_image_is_refused(build, depth: int, least: int) -> None:
    model = build(classes=2, image_size=least, width=4, depth=depth)
    assert model(torch.randn(1, 3, least, least)).shape == (1, 2)
    with pytest.raises(ValueError, match=rf"at least {least} pixels.*{least - 1}"):
        build(classes=2, image_size=least - 1, width=4, depth=depth)


def test_convnet_is_the_papers() -> None:
    model = convnet.build(classes=10, image_size=32)
    assert kinds(model) == 3 * ["Conv2d", "GroupNorm", "ReLU", "AvgPool2d"] + ["Flatten", "Linear"]
    for convolution in (model[0], model[4], model[8]):
        assert (convolution.out_channels, convolution.kernel_size, convolution.padding) == (128, (3, 3), (1, 1))
    for norm in (model[1], model[5], model[9]):
        assert (norm.num_groups, norm.num_channels) == (128, 128)  # one channel per group: instance norm
    weights, biases, norms = 9 * 128 * (3 + 128 + 128), 3 * 128, 3 * 2 * 128
    classifier = (128 * 4 * 4 + 1) * 10
    assert parameter_count(model) == weights + biases + norms + classifier == 320_010


@pytest.mark.parametrize(("size", "depth", "side"), [(8, 1, 4), (16, 2, 4), (28, 2, 7), (32, 3, 4), (224, 5, 7)])
def test_convnets_default_depth_leaves_4_to_7_pixels(size: int, depth: int, side: int) -> None:
    model = convnet.build(classes=2, image_size=size, width=2)
    assert kinds(model).count("Conv2d") == depth
    assert model[-1].in_features == 2 * side * side


def test_resnet_halves_the_image_and_doubles_the_width() -> None:
    model = resnet.build(classes=2, image_size=16, width=4, depth=3)
    maps = model[:3](torch.randn(1, 3, 16, 16))
    shapes = []
    for block in model[3:6]:
        maps = block(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(4, 16, 16), (8, 8, 8), (16, 4, 4)]


def test_mobilenet_is_depthwise_separable() -> None:
    convolutions = [m for m in mobilenet.build(classes=2, image_size=16, width=8).modules() if type(m) is nn.Conv2d]
    stem, *rest = convolutions
    assert stem.groups == 1
    for depthwise, pointwise in zip(rest[::2], rest[1::2], strict=True):
        assert depthwise.groups == depthwise.in_channels == depthwise.out_channels
        assert pointwise.kernel_size == (1, 1)
    assert [c.out_channels for c in rest[1::2]] == [8, 16, 16, 32]
