"""Pre-training: supervised training of the model on the labelled images, plain or with augmentation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Ints
from torch import nn

from deco_export.augment import mirrored, shifted, varied
from deco_export.images import BATCH, ImageSet, Inputs, asked, batches, pictures

RATE = 0.02
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
DECAY_AUGMENTED = 2e-3
"""Weight decay with augmentation, whose longer training has more use for it."""
EPOCHS = 30
LEAST_STEPS = 600
LONGER = 2
"""Times as many epochs with augmentation: no image comes twice in the same place, so there is more to learn."""
SCENES = 1000
"""Takes, a photograph being one of its own, below which images are varied more than shifted."""
UNMIRRORED = 0.25
"""Part of the epochs for which images are not mirrored, so that the model can say whether they may be."""
AS_GOOD = 0.9
"""A mirrored image shows the same class where a model that saw none gets at least this part of its answers right."""
ASKED = 0.8
"""Part of the classes that held-out images must show, for the model to say whether they may be mirrored."""


def statistics(images: ImageSet, size: int) -> Preprocessing:
    """Mean and standard deviation per channel (R, G, B) of the training images; a constant channel gets std 1/255."""
    # How often each value comes: exact, whatever is read at a time.
    count = np.zeros((3, 256), np.int64)
    for picture in pictures(images):
        count += [np.bincount(channel, minlength=256) for channel in picture[..., ::-1].reshape(-1, 3).T]
    values, pixels = np.arange(256), count[0].sum()
    mean = count @ values / pixels / 255
    variance = (count * (values / 255 - mean[:, None]) ** 2).sum(axis=1) / pixels
    std = np.maximum(np.sqrt(variance), 1 / 255)
    return Preprocessing(size, (mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def default_epochs(images: int, augment: bool) -> int:
    """30, or as many more as it takes for 600 steps of 64 images; twice that with augmentation."""
    return max(EPOCHS, -(-LEAST_STEPS // -(-images // BATCH))) * (LONGER if augment else 1)


def answers(model: nn.Module, images: ImageSet, preprocessing: Preprocessing, turned: bool = False) -> Ints:
    """The class (n,) int64 that the model gives each image; turned: its mirror image."""
    inputs, found = Inputs(images, preprocessing), [np.zeros(0, np.int64)]
    with torch.inference_mode():
        for batch in batches(len(images), asked(preprocessing.size)):
            x = torch.from_numpy(inputs[batch])
            found.append(model(x.flip(-1) if turned else x).argmax(dim=1).numpy())
    return np.concatenate(found)


def accuracy(model: nn.Module, images: ImageSet, preprocessing: Preprocessing, turned: bool = False) -> float | None:
    """Share of images classified right, 0 … 1; None for no images. turned: of their mirror images."""
    return float(np.mean(answers(model, images, preprocessing, turned) == images.labels)) if len(images) else None


def mirrors(model: nn.Module, held: ImageSet, preprocessing: Preprocessing) -> bool:
    """Whether a mirrored image shows the same class: a photograph does, a digit does not.

    Asked of a model that was not trained on mirrored images, by held-out ones; no, where these show less than ASKED of
    its classes: signs to the left and to the right are told apart by two classes of forty.
    """
    with torch.inference_mode():
        classes = model(torch.from_numpy(Inputs(held, preprocessing)[:1])).shape[1] if len(held) else 1
    if len(np.unique(held.labels)) < ASKED * classes:
        return False
    straight = accuracy(model, held, preprocessing)
    turned = accuracy(model, held, preprocessing, turned=True)
    return straight is not None and turned is not None and turned >= AS_GOOD * straight > 0


def few_scenes(images: ImageSet) -> bool:
    """Whether the images show so few scenes, takes or single photographs, that the model would know them by heart."""
    return len(np.unique(images.takes)) < SCENES


def _mixes(model: nn.Module) -> bool:
    """Whether what the model makes of an image in training depends on the others of its batch."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def pretrain(
    model: nn.Module,
    images: ImageSet,
    preprocessing: Preprocessing,
    epochs: int,
    seed: int,
    tick: Callable[[int, float], None],
    held: ImageSet,
    augment: bool,
) -> bool:
    """Train in place: SGD with momentum, cosine rate after a short warm-up, cross-entropy. Returns `mirrors`.

    augment: images are shifted at random or, where they show `few_scenes`, varied more; and mirrored, where `mirrors`
    says so by the held-out ones. Where they are large, a step's gradient is added up a few images at a time, unless the
    model has batch norm.
    tick: called after each epoch with (epochs done, mean loss). Deterministic in `seed` on one machine.
    """
    mirror, changed = None, varied if few_scenes(images) else shifted
    rng, decay = np.random.default_rng(seed), DECAY_AUGMENTED if augment else WEIGHT_DECAY
    steps_per_epoch = -(-len(images) // BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=decay)
    steps = max(2, epochs * steps_per_epoch)
    # Of 10 steps a tenth is one, and OneCycleLR divides by what is left of the rise behind the first: by 0.
    rise = 0.1 if steps != 10 else 0.2
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=RATE, total_steps=steps, cycle_momentum=False, pct_start=rise
    )
    inputs, at_once = Inputs(images, preprocessing), BATCH if _mixes(model) else asked(preprocessing.size)
    model.train()
    for epoch in range(epochs):
        if augment and mirror is None and epoch >= UNMIRRORED * epochs:
            mirror = mirrors(model.eval(), held, preprocessing)
            model.train()
        order, total = rng.permutation(len(images)), 0.0
        # Batches of nearly equal size: batch norm cannot train on a last one of a single image.
        for batch in np.array_split(order, steps_per_epoch):
            # Whoever changes a batch has it alone, and lets go of it: at 224 pixels each copy is 39 MB.
            x = changed(torch.from_numpy(inputs[batch]), rng) if augment else torch.from_numpy(inputs[batch])
            if mirror:
                x = mirrored(x, rng)
            optimizer.zero_grad(set_to_none=True)
            for part in batches(len(batch), at_once):
                labels = torch.from_numpy(images.labels[batch[part]])
                loss = nn.functional.cross_entropy(model(x[part]), labels) * (len(labels) / len(batch))
                loss.backward()
                total += float(loss.detach()) * len(batch)
            optimizer.step()
            schedule.step()
            del x, loss  # before the next ones are made
        tick(epoch + 1, total / len(images))
    model.eval()
    return mirrors(model, held, preprocessing) if mirror is None else mirror
