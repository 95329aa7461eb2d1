"""Pre-training: plain supervised training of the model on the labelled images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from deco_runtime.preprocess import Preprocessing, normalise
from deco_runtime.scoring import answers
from deco_runtime.types import Floats, Ints
from torch import nn

from deco_export.data import Images

BATCH = 64
RATE = 0.02
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
EPOCHS = 30
LEAST_STEPS = 600


def statistics(images: Images, size: int) -> Preprocessing:
    """Mean and standard deviation per channel (R, G, B) of the training images; a constant channel gets std 1/255."""
    rgb = images.pixels[..., ::-1].reshape(-1, 3).astype(np.float64) / 255
    mean, std = rgb.mean(axis=0), np.maximum(rgb.std(axis=0), 1 / 255)
    return Preprocessing(size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def default_epochs(images: int) -> int:
    """30, or as many more as it takes for 600 steps of 64 images."""
    return max(EPOCHS, -(-LEAST_STEPS // -(-images // BATCH)))


def accuracy(model: nn.Module, images: Images, how: Preprocessing) -> float | None:
    """Share of images classified right, 0 … 1; None for no images."""
    if not len(images):
        return None
    with torch.inference_mode():
        found = answers(lambda x: model(torch.from_numpy(x)).numpy(), images.pixels, how)
    return float(np.mean(found == images.labels))


TEMPERATURES = np.geomspace(0.5, 10.0, 61)
"""Tried; a model that has fitted its training images is about twice as sure of others as it should be."""


def temperature(predict: Callable[[Floats], Floats], x: Floats, y: Ints) -> float:
    """T for which softmax(logits / T) gives held-out labels the highest likelihood (Guo et al. 2017); 1 without any.

    predict: x (n, C, H, W) → logits (n, K). y: (n,).
    """
    if not len(y):
        return 1.0
    wide = torch.from_numpy(predict(x)).double()
    losses = [float(nn.functional.cross_entropy(wide / t, torch.from_numpy(y))) for t in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def pretrain(
    model: nn.Module,
    images: Images,
    how: Preprocessing,
    epochs: int,
    seed: int,
    tick: Callable[[int, float], None],
) -> None:
    """Train in place: SGD with momentum, cosine rate after a short warm-up, cross-entropy, no augmentation.

    tick: called after each epoch with (epochs done, mean loss). Deterministic in `seed` on one machine.
    """
    rng = np.random.default_rng(seed)
    steps_per_epoch = -(-len(images) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=RATE,
        total_steps=max(2, epochs * steps_per_epoch),
        cycle_momentum=False,
        pct_start=0.1,
    )
    model.train()
    for epoch in range(epochs):
        order, total = rng.permutation(len(images)), 0.0
        # Batches of nearly equal size: batch norm cannot train on a last one of a single image.
        for batch in np.array_split(order, steps_per_epoch):
            x = torch.from_numpy(normalise(images.pixels[batch], how))
            loss = nn.functional.cross_entropy(model(x), torch.from_numpy(images.labels[batch]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        tick(epoch + 1, total / len(images))
    model.eval()
