"""A public network and a few labelled images → what a bundle is made of, in one pass of the images through it.

look        every labelled image, once: features, latents, pooled maps   probe.py
head        logistic regression on the features                           head.py
reduce      the trunk in 8 bits, if asked for                             quantize.py
tune        some layers trained on, if that helps                         finetune.py
layers      which of them learners see                                    phi.py
network     trunk and rest                                                split.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from deco_runtime.engine import REPRESENTATION
from deco_runtime.preprocess import Preprocessing
from deco_runtime.types import Ints

from deco_export import representation
from deco_export.backbone import anatomy as places
from deco_export.backbone import check, finetune, head, phi, probe, quantize, split
from deco_export.backbone.head import Head
from deco_export.backbone.probe import Seen
from deco_export.backbone.source import Backbone
from deco_export.data import Data
from deco_export.graph_values import Values
from deco_export.images import Arrays, ImageSet, Inputs
from deco_export.network import Network, Progress
from deco_export.representation import Representation

GOLDEN = 2
"""Images of the golden values."""


def make(
    backbone: Backbone,
    preprocessing: Preprocessing,
    features: str | None,
    cut: str,
    tuning: str | None,
    quantizing: str,
    seed: int,
    loaded: Data,
    progress: Progress,
) -> tuple[Network, list[str]]:
    """The network with a head for the classes of `loaded`, ready to be put into a bundle; and notes about it.

    features, cut: as for `anatomy.features_of` and `anatomy.cut`. tuning: one of finetune.CHOICES, or None to have it
    chosen between the first two. quantizing: one of quantize.CHOICES. Raises UsageError and ExportError as these do.
    """
    work = _Work(backbone, preprocessing, features, cut, seed, loaded, progress)
    if quantizing != "none":
        quantize.check(work.cut)  # before anything takes time
    work.look("looking at the images")
    work.fit_head()
    if quantizing != "none" and tuning != "all":
        work.reduce(head_anew=True)
    tuning = tuning or work.choose_tuning()
    work.choose_layers(tuning)  # before any is trained on the labelled images, which it knows by heart then
    work.tune(tuning)
    if quantizing != "none" and tuning == "all":
        work.reduce(head_anew=False)  # its features know the labelled images by heart
    return work.network({"finetune": tuning, "quantize": quantizing}), work.notes


class _Work:
    """The network as it becomes one for these classes: body, top and what is seen through them change together."""

    top: Head
    seen: Seen

    def __init__(
        self,
        backbone: Backbone,
        preprocessing: Preprocessing,
        features: str | None,
        cut: str,
        seed: int,
        loaded: Data,
        progress: Progress,
    ) -> None:
        self.name, self.notes, self.preprocessing = backbone.name, list(backbone.notes), preprocessing
        self.loaded, self.train, self.seed, self.progress = loaded, loaded.train, seed, progress
        self.y, self.takes, self.rng = loaded.train.labels, loaded.train.takes, np.random.default_rng(seed)
        self.body = places.read(backbone.model)
        self.features = places.features_of(self.body, features)
        self.cut = places.cut(self.body, self.features, cut)
        self.maps = places.maps(self.body, self.features)
        self.lost: dict[str, Any] = {}

    def look(self, what: str) -> None:
        """Pass the labelled images through the network as it is now."""
        how = (self.features, self.cut, self.maps, self.train, self.preprocessing)
        self.seen = Seen(self.body, *how, self.tick(what))

    def tick(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self.progress(what, done, total)

    def fit_head(self, strength: float | None = None) -> None:
        self.progress("fitting the classifier", 0, 1)
        self.top = head.fit(self.seen.features, self.y, self.takes, self.rng, strength)
        self.progress("fitting the classifier", 1, 1)

    def answers(self, images: ImageSet) -> Ints:
        """The class (n,) that the network gives each image as it is now."""
        if images is self.train:
            logits = self.top.logits(self.seen.features)
        else:
            logits = probe.run(self.whole(), images, self.preprocessing, lambda done, n: None)["logits"]
        found: Ints = logits.argmax(axis=1)
        return found

    def whole(self) -> onnx.ModelProto:
        """Images → logits, features."""
        return split.whole(self.body, self.features, self.top)

    def reduce(self, head_anew: bool) -> None:
        """Keep what is in front of the cut in 8 bits, unless that loses answers."""
        judging = self.loaded.validation if len(self.loaded.validation) else self.train
        before, size = self.answers(judging), split.trunk(self.body, self.cut, 1.0).ByteSize()
        self.progress("quantizing the trunk", 0, 1)
        self.body = quantize.trunk(self.body, self.cut, self.maps, Inputs(self.train, self.preprocessing))
        self.progress("quantizing the trunk", 1, 1)
        self.look("looking at the images in 8 bits")
        if head_anew:
            self.fit_head(self.top.strength)
        now, held_out = split.trunk(self.body, self.cut, 1.0).ByteSize(), judging is not self.train
        loss = quantize.compared(before, self.answers(judging), judging.labels, held_out, size, now)
        self.lost = loss.figures()
        self.notes.append(loss.note())

    def choose_tuning(self) -> str:
        """Whether training the last block answers more of held-out takes right."""
        if self.cut in ("x", self.features):
            return "none"

        def fitted(index: Ints) -> Head:
            chosen = self.seen.features[index], self.y[index], self.takes[index]
            return head.fit(*chosen, self.rng, self.top.strength)

        how = (self.features, fitted, self.cut, self.seen.latents, self.y, self.takes, self.rng)
        said = finetune.helps(self.body, *how, self.tick("trying to fine-tune"))
        if said is None:
            return "none"
        better, without, having = said
        tuning = "last-block" if better else "none"
        self.notes.append(
            f"--finetune {tuning}: of held-out takes {without:.1%} are right without training the last block, and "
            f"{having:.1%} with it"
        )
        return tuning

    def choose_layers(self, tuning: str) -> None:
        """Those that learners see; of a network whose last block is trained, those in front of it."""
        n = len(self.y)
        self.some = np.arange(n) if n <= phi.MOST else np.sort(self.rng.choice(n, phi.MOST, replace=False))
        last = self.body.made_by[self.cut] if tuning == "last-block" and self.cut != "x" else len(self.body.nodes)
        raw = {name: each[self.some] for name, each in self.seen.maps.items() if self.body.made_by[name] <= last}
        # On three data sets three maps were nowhere far from the best row of layers; the features alone, and each
        # single map, were on one of them (docs/results/tried.md).
        maps = [name for name in raw if name != self.features][:3] or list(raw)
        chosen, self.scores = phi.layers(raw, self.y[self.some], self.takes[self.some], maps)
        self.layers = [name for name in self.seen.maps if name in chosen]

    def tune(self, tuning: str) -> None:
        """Train what lies behind the cut, or everything."""
        if tuning == "none":
            return
        behind = "x" if tuning == "all" else self.cut
        x: Arrays = Inputs(self.train, self.preprocessing) if behind == "x" else self.seen.latents
        how = (behind, x, self.y, self.rng, self.tick("fine-tuning"))
        self.body, self.top = finetune.trained(self.body, self.features, self.top, *how)
        self.look("looking at the images again")

    def network(self, made_with: dict[str, Any]) -> Network:
        """What the export goes on with. made_with: how it came about."""
        body, cut, whole = self.body, self.cut, self.whole()
        scale = float(np.sqrt(np.mean(self.seen.latents[:256] ** 2))) if cut != "x" else 1.0
        fresh, theta, parameters = split.rest(body, cut, scale, self.features, self.top)
        trunk = split.trunk(body, cut, scale) if cut != "x" else None

        def inputs(images: ImageSet) -> Arrays:
            if trunk is None:
                return Inputs(images, self.preprocessing)
            if images is self.train:
                return self.seen.latents / np.float32(scale)
            return probe.run(trunk, images, self.preprocessing, lambda done, n: None)["latents"]

        def represent(rng: np.random.Generator) -> Representation:
            self.progress("choosing what learners see", 0, 1)
            found = phi.represent(body, self.features, self.top, self.layers, self.seen, self.y, self.some, rng)
            self.progress("choosing what learners see", 1, 1)
            return found

        images = np.random.default_rng(self.seed).standard_normal((GOLDEN, *body.shapes["x"])).astype(np.float32)
        x = representation.run(trunk, "latents", images) if trunk is not None else images

        def golden(_: Path, represented: onnx.ModelProto, found: Values) -> Values:
            values = {name: representation.run(represented, name, images) for name in ("votes", REPRESENTATION)}
            return values | {"images": images} if trunk is not None else values

        def told(name: str) -> str:
            return name.removeprefix(places.OWN)

        return Network(
            self.preprocessing,
            parameters,
            theta,
            fresh,
            trunk,
            whole,
            self.answers,
            inputs,
            represent,
            lambda sets: check.check(fresh, theta, parameters, sets, x),
            golden,
            {
                "backbone": self.name,
                "features": told(self.features),
                "cut": told(cut),
                "layers": [told(name) for name in self.layers],
                "layers_tried": {row.replace(places.OWN, ""): score for row, score in self.scores.items()},
                "strength": self.top.strength,
                "mirrored": False,
                **made_with,
                **self.lost,
            },
            "finite differences",
        )
