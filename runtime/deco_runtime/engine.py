"""The one seam to a numeric runtime: seven calls, most of them on flat weights.

θ is one float32 vector of P weights, so θ± = θ ± εv is one line. Gradients are sums over the batch, so an engine may
cut a batch into micro-batches and add up. Who answers these calls is found by `engines.registry`.

Where the bundle has a frozen trunk, x stands for the latents it makes of images, and θ for the weights behind it.
"""

from __future__ import annotations

from typing import Protocol

from deco_runtime.types import Floats


class Engine(Protocol):
    """What the learner needs of a runtime. All arrays float32; N ≥ 1 is free in every call.

    precision: what the gradients are computed in, one of PRECISIONS.
    """

    name: str
    precision: str

    def encode(self, images: Floats) -> Floats:
        """Images (N, 3, S, S) → x (N, …): the frozen trunk's latents, or in a bundle without a trunk the images."""
        ...

    def predict(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        """θ (P,), x (N, C, H, W) → logits (N, K), features (N, F): the deployed model and its encoder f_θ."""
        ...

    def weight_gradient(self, theta: Floats, x: Floats, t: Floats) -> tuple[float, Floats]:
        """θ, x, weighted one-hot targets t (N, K) → L = −Σ t·log p_θ(x) and ∇_θ L (P,)."""
        ...

    def input_gradient(self, theta: Floats, x: Floats, t: Floats) -> Floats:
        """θ, x, t → ∇_x L (N, C, H, W)."""
        ...

    def feature_gradient(self, theta: Floats, x: Floats, u: Floats) -> Floats:
        """θ, x, cotangent u (N, F) → ∇_x Σ f_θ(x)·u (N, C, H, W)."""
        ...

    def input_gradient_tangent(self, theta: Floats, x: Floats, t: Floats, v: Floats) -> Floats:
        """θ, x, t, direction v (P,) → d/dε ∇_x L at θ + εv for ε = 0, (N, C, H, W)."""
        ...

    def represent(self, images: Floats) -> tuple[Floats, Floats]:
        """Images (N, 3, S, S) → φ (N, D), logits (N, K) of the pre-trained model, which the graph holds: for `deco+`,
        what it regresses on and what it votes with."""
        ...


EXACT = "input_gradient_tangent"
"""The graph of `gradient=exact`, which a bundle may lack."""
REPRESENTATION = "representation"
"""The graph of `deco+`, which a bundle of an earlier version lacks."""
TRUNK = "trunk"
"""The graph in front of all others but REPRESENTATION, which only a bundle with a frozen trunk has."""


PRECISIONS = ("fp32", "bf16", "fp16")
