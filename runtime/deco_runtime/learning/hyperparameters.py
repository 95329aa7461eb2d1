"""The hyper-parameters of Algorithm 1; the defaults are the paper's (docs/algorithm.md says where it is silent)."""

from __future__ import annotations

from dataclasses import dataclass

from deco_runtime.learning.recipe import LARGEST, Recipe

CHOICES = {
    "vote": ("filter", "relabel"),
    "matching": ("gradient", "distribution"),
    "distance": ("cosine", "layerwise"),
    "scope": ("joint", "per-class"),
    "gradient": ("finite-difference", "exact"),
}


@dataclass(frozen=True)
class Hyperparameters(Recipe):
    """Raises UsageError for a value outside its range."""

    name: str = "paper"
    vote: str = "filter"
    """Which label an active frame gets: "filter" its own, "relabel" the only active class of its segment."""
    threshold: float = 0.4
    """M of eq:filter, as a fraction of the segment: a class is active when more frames than this vote for it."""
    iterations: int = 10
    """L, matching iterations per segment, each with a fresh random model."""
    matching: str = "gradient"
    """What the condensed images match: the paper's "gradient", or the mean features of each class, "distribution",
    which distance, scope, gradient and epsilon have no part in."""
    distance: str = "cosine"
    """D: "cosine" over the whole gradient, "layerwise" summed over the tensors of the model."""
    scope: str = "joint"
    """Active classes matched "joint"-ly or "per-class"."""
    gradient: str = "finite-difference"
    """∇_{X'} D by the five passes of eq:opt4, or "exact", by automatic differentiation."""
    epsilon: float = 0.01
    """ε = epsilon / ‖∇_g D‖ of eq:opt4."""
    alpha: float = 0.1
    """α of eq:final, the weight of the contrastive term; 0 leaves it out."""
    temperature: float = 0.07
    """τ of eq:contrast."""
    synthetic_rate: float = 1.0
    """Learning rate of opt_S, the SGD on the condensed images."""
    synthetic_momentum: float = 0.5
    """Momentum of opt_S."""
    retrain_interval: int = 10
    """β, segments between two updates of the deployed model."""
    retrain_epochs: int = 200
    """Passes of opt_θ over the condensed buffer per update."""
    retrain_batch: int = 128
    """Batch size of opt_θ."""
    retrain_rate: float = 1e-3
    """Learning rate of opt_θ."""
    retrain_momentum: float = 0.9
    """Momentum of opt_θ."""
    weight_decay: float = 5e-4
    """Weight decay of opt_θ."""
    taught_weight: float = 3.0
    """How often a frame counts that people said the class of, against 1 for a condensed image of that class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_whole("iterations", "retrain_batch")
        self.check_whole("retrain_epochs", least=0)
        self.check("threshold", 0 <= self.threshold < 1, "at least 0 and below 1")
        self.check_positive("epsilon", "temperature", "synthetic_rate", "retrain_rate", "taught_weight")
        for name in ("alpha", "weight_decay"):
            self.check(name, 0 <= getattr(self, name) <= LARGEST, "a finite number of at least 0")
        for name in ("synthetic_momentum", "retrain_momentum"):
            self.check(name, 0 <= getattr(self, name) < 1, "at least 0 and below 1")
        for name, allowed in CHOICES.items():
            self.check_among(name, allowed)
