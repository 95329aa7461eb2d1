"""Augmentation: what each change does to a picture, and that it keeps to its limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from deco_export import augment  # noqa: E402

Change = Callable[["torch.Tensor", np.random.Generator], "torch.Tensor"]
CHANGES = (augment.varied, augment.moved, augment.lit, augment.blurred, augment.noisy, augment.covered)


def pictures(n: int, side: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, 3, side, side)).astype(np.float32))


@pytest.mark.parametrize("change", CHANGES)
def test_shape_type_and_seed(change: Change) -> None:
    x = pictures(40)
    once, again, other = (change(x, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert once.shape == x.shape
    assert once.dtype == torch.float32
    assert torch.isfinite(once).all()
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert torch.equal(x, pictures(40))  # in place of nothing


@pytest.mark.parametrize("side", [8, 15, 32])
def test_any_side(side: int) -> None:
    assert augment.varied(pictures(3, side), np.random.default_rng(0)).shape == (3, 3, side, side)


@pytest.mark.parametrize("change", [*CHANGES, augment.shifted, augment.mirrored])
def test_in_parts_it_is_the_same_as_at_once(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    x = pictures(3 * augment.FEW + 1, side=40)
    in_parts = change(x, np.random.default_rng(0))
    monkeypatch.setattr(augment, "FEW", len(x))
    assert torch.equal(in_parts, change(x, np.random.default_rng(0)))


def test_moved_by_nothing_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TURN", "SCALE", "STRETCH"):
        monkeypatch.setattr(augment, name, 0.0)
    monkeypatch.setattr(augment, "SHIFT", 1e12)
    x = pictures(5)
    torch.testing.assert_close(augment.moved(x, np.random.default_rng(0)), x, atol=1e-4, rtol=0)


def test_moved_is_turned_scaled_and_shifted_within_its_limits() -> None:
    """Two bright dots left and right of the middle: their distance, direction and middle afterwards."""
    side = 64
    x = torch.zeros(200, 1, side, side)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    for column in (20, 44):
        x += torch.exp(-((rows - 32) ** 2 + (columns - column) ** 2) / 8.0)
    out = augment.moved(x, np.random.default_rng(0)).numpy()[:, 0]
    found = []
    for picture in out:
        first = np.unravel_index(picture.argmax(), picture.shape)
        near = (np.arange(side)[:, None] - first[0]) ** 2 + (np.arange(side) - first[1]) ** 2 < 64
        second = np.unravel_index(np.where(near, -1, picture).argmax(), picture.shape)
        found.append(sorted((first[::-1], second[::-1])))
    dots = np.array(found, float)
    across = dots[:, 1] - dots[:, 0]
    distance, angle = np.hypot(*across.T) / 24, np.arctan2(across[:, 1], across[:, 0])
    middle = dots.mean(axis=1) - 32
    assert 0.65 < distance.min() < 0.85
    assert 1.15 < distance.max() < 1.5
    assert 0.2 < np.abs(angle).max() < 0.35
    assert 5 < np.abs(middle).max() < 12


def test_light_changes_contrast_and_brightness_and_no_pattern() -> None:
    x = pictures(300)
    out = augment.lit(x, np.random.default_rng(0))
    contrast = out.std(dim=(2, 3)) / x.std(dim=(2, 3))
    brightness = out.mean(dim=(2, 3)) - x.mean(dim=(2, 3)) * contrast
    assert 0.4 < contrast.min() < 0.7
    assert 1.5 < contrast.max() < 2.1
    assert 0.5 < brightness.abs().max() < 0.71
    for before, after in zip(x[0], out[0], strict=True):
        assert np.corrcoef(before.flatten(), after.flatten())[0, 1] > 0.9999


def test_some_are_blurred_and_what_is_even_stays_so() -> None:
    x = pictures(1000)
    out = augment.blurred(x, np.random.default_rng(0))
    changed = (out != x).flatten(1).any(dim=1)
    assert changed.float().mean() == pytest.approx(augment.BLURRED, abs=0.05)
    assert (out[changed].flatten(1).std(dim=1) < 0.6).all()  # 3/8 each way for one pass
    even = torch.ones(50, 3, 8, 8)
    torch.testing.assert_close(augment.blurred(even, np.random.default_rng(0)), even)


def test_noise_has_a_strength_of_its_own_on_each() -> None:
    spread = augment.noisy(torch.zeros(300, 3, 16, 16), np.random.default_rng(0)).flatten(1).std(dim=1)
    assert spread.min() < 0.01
    assert 0.09 < spread.max() < 0.11


def test_a_square_of_some_is_covered() -> None:
    out = augment.covered(torch.ones(1000, 3, 32, 32), np.random.default_rng(0))
    gone = (out == 0).all(dim=1)
    assert set(np.unique(out.numpy())) == {0, 1}
    assert gone.flatten(1).any(dim=1).float().mean() == pytest.approx(augment.COVERED, abs=0.05)
    height, width = gone.any(dim=2).sum(dim=1), gone.any(dim=1).sum(dim=1)
    assert height.max() <= np.ceil(augment.MOST * 32)
    assert width.max() <= np.ceil(augment.MOST * 32)
    assert torch.equal(gone.sum(dim=(1, 2)), height * width)  # a rectangle, cut off at the border
