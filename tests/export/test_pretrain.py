"""Pre-training: the augmentation against numpy, whether images may be mirrored, and that a seed decides everything."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deco_export import pretrain  # noqa: E402
from deco_export.augment import SHIFT, mirrored, shifted  # noqa: E402
from deco_export.images import Images  # noqa: E402
from deco_export.pretrain import EPOCHS, default_epochs, few_scenes, mirrors  # noqa: E402
from deco_models import convnet  # noqa: E402
from torch import nn  # noqa: E402

CLASSES = 4


def numbered(n: int, side: int) -> torch.Tensor:
    """Images in which every pixel of every channel has a value of its own."""
    return torch.arange(n * 3 * side * side, dtype=torch.float32).reshape(n, 3, side, side)


@pytest.mark.parametrize("side", [8, 15, 16, 24])
def test_a_shift_moves_an_image_as_a_whole_and_reflects_what_comes_in(side: int) -> None:
    """Each of them, up to an eighth of the side each way, is one that numpy makes; and each of those is reached."""
    most, n = side // SHIFT, 400
    x = numbered(n, side)
    found = shifted(x, np.random.default_rng(0)).numpy()
    assert found.shape == x.shape
    wide = np.pad(x.numpy(), ((0, 0), (0, 0), (most, most), (most, most)), mode="reflect")
    moves = {(d, r): wide[:, :, d : d + side, r : r + side] for d in range(2 * most + 1) for r in range(2 * most + 1)}
    count = dict.fromkeys(moves, 0)
    for i in range(n):
        (move,) = (each for each, by_numpy in moves.items() if np.array_equal(by_numpy[i], found[i]))
        count[move] += 1
    assert min(count.values()) > 0
    assert np.array_equal(moves[most, most], x)  # no shift is one of them


def test_about_half_of_the_images_are_mirrored() -> None:
    x = numbered(400, 8)
    found = mirrored(x, np.random.default_rng(0))
    turned = [torch.equal(after, before.flip(-1)) for before, after in zip(x, found, strict=True)]
    kept = [torch.equal(after, before) for before, after in zip(x, found, strict=True)]
    assert all(a != b for a, b in zip(turned, kept, strict=True))
    assert 150 < sum(turned) < 250


def blocks(n: int, seed: int, symmetric: bool) -> Images:
    """Noise with a bright block: across the image in the row of its class, or in the half that tells the class."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % CLASSES
    pixels = rng.integers(0, 120, (n, 16, 16, 3))
    for i, c in enumerate(labels):
        row, columns = (c, slice(None)) if symmetric else (c // 2, slice(8 * (c % 2), 8 * (c % 2) + 8))
        pixels[i, 4 * row : 4 * row + 4, columns] += 120
    return Images(pixels.astype(np.uint8), labels)


def trained(images: Images, held: Images, seed: int = 0, augment: bool = True, epochs: int = 12):
    """The model, what `pretrain` says of mirroring, and the loss of each epoch."""
    torch.manual_seed(0)
    model, losses = convnet.build(CLASSES, 16, width=8, depth=1), list[float]()
    how = pretrain.statistics(images, 16)
    mirror = pretrain.pretrain(model, images, how, epochs, seed, lambda _, loss: losses.append(loss), held, augment)
    return model, mirror, losses


def test_the_statistics_are_those_of_all_pixels() -> None:
    images = blocks(pretrain.BATCH + 6, 0, True)  # more than are read at a time
    images.pixels[..., 0] = 77  # blue, so that it comes last
    rgb = images.pixels[..., ::-1].reshape(-1, 3) / 255
    how = pretrain.statistics(images, 16)
    np.testing.assert_allclose(how.mean, rgb.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(how.std, [*rgb.std(axis=0)[:2], 1 / 255], rtol=1e-12)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
def test_images_may_be_mirrored_unless_the_side_tells_the_class(symmetric: bool, augment: bool) -> None:
    images, held = blocks(160, 0, symmetric), blocks(80, 1, symmetric)
    model, mirror, losses = trained(images, held, augment=augment)
    how = pretrain.statistics(images, 16)
    assert mirror is symmetric
    assert pretrain.accuracy(model, held, how) > 0.9
    assert mirrors(model, held, how) is symmetric
    assert not mirrors(model, held[:0], how)  # nobody can say
    assert losses[-1] < 0.5 * losses[0]
    assert not model.training


@pytest.mark.parametrize("epochs", [1, 2, 9, 10, 11])
def test_any_number_of_steps_can_be_trained(epochs: int) -> None:
    _, _, losses = trained(blocks(40, 0, symmetric=True), blocks(20, 1, symmetric=True), epochs=epochs)
    assert len(losses) == epochs
    assert np.isfinite(losses).all()


def test_a_model_that_knows_nothing_does_not_say_that_images_may_be_mirrored() -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), CLASSES).float()

    images = blocks(80, 0, True)
    held = images[np.flatnonzero(images.labels != 0)]
    assert not mirrors(Wrong(), held, pretrain.statistics(images, 16))


@pytest.mark.parametrize("augment", [False, True])
def test_the_seed_decides(augment: bool) -> None:
    images, held = blocks(96, 0, True), blocks(40, 1, True)
    first, again, other = (trained(images, held, seed, augment, epochs=3)[0] for seed in (5, 5, 6))
    weights = [torch.cat([p.flatten() for p in model.state_dict().values()]) for model in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(("scenes", "change"), [(10, "shifted"), (1000, "varied")])
def test_augmentation_is_what_it_takes_in(scenes: int, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is changed without it; with it every batch is shifted, or varied where there are fewer scenes than this,
    and mirrored once it is known to be right."""
    calls: list[str] = []
    monkeypatch.setattr(pretrain, "SCENES", scenes)
    for name in ("shifted", "varied", "mirrored"):
        real = getattr(pretrain, name)
        monkeypatch.setattr(pretrain, name, lambda x, rng, name=name, real=real: calls.append(name) or real(x, rng))
    for symmetric in (False, True):
        images, held = blocks(64, 0, symmetric), blocks(40, 1, symmetric)
        trained(images, held, augment=False, epochs=8)
        assert calls == []
        _, mirror, _ = trained(images, held, epochs=80)
        assert mirror is symmetric
        assert calls.count(change) == 80
        assert calls.count("mirrored") == (60 if symmetric else 0)
        assert len(calls) == 80 + 60 * symmetric
        calls.clear()


def test_scenes_are_takes_and_single_photographs() -> None:
    images = blocks(1200, 0, True)
    assert not few_scenes(images)
    assert few_scenes(images[np.arange(999)])
    assert few_scenes(Images(images.pixels, images.labels, np.arange(1200) // 2))


def test_nothing_is_mirrored_where_too_few_classes_were_held_out() -> None:
    """One of three classes is told by the side, and none of its images is held out."""
    images, held = blocks(200, 0, True), blocks(120, 1, True)
    model, mirror, _ = trained(images, held)
    assert mirror
    some = held[np.flatnonzero(held.labels < CLASSES - 1)]
    assert not mirrors(model, some, pretrain.statistics(images, 16))


def test_epochs_are_more_for_few_images_and_twice_as_many_with_augmentation() -> None:
    assert [default_epochs(5000, augment) for augment in (False, True)] == [EPOCHS, 2 * EPOCHS]
    assert [default_epochs(64, augment) for augment in (False, True)] == [600, 1200]
    assert default_epochs(65, False) == 300


@pytest.mark.parametrize("norm", [nn.Identity, nn.BatchNorm2d])
def test_a_gradient_added_up_of_parts_is_the_whole_one(norm: type[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm knows its whole batch, so a model that has it is trained on no parts."""
    images, held = blocks(75, 0, True), blocks(40, 1, True)
    how, weights, losses = pretrain.statistics(images, 16), [], [list[float](), list[float]()]
    for at_once, told in zip((pretrain.BATCH, 7), losses, strict=True):
        monkeypatch.setattr(pretrain, "asked", lambda side, at_once=at_once: at_once)
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, CLASSES))
        model, seen = nn.Sequential(*layers), []
        layers[0].register_forward_pre_hook(
            lambda layer, given, seen=seen: seen.append(len(given[0])) if layer.training else None
        )
        pretrain.pretrain(model, images, how, 2, 0, lambda _, loss, told=told: told.append(loss), held, True)
        assert max(seen) == (38 if norm is nn.BatchNorm2d else min(38, at_once))
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)
