"""The classifier behind frozen features: logistic regression, as strongly penalised as held-out takes like it best."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from deco_runtime.errors import RuntimeMissingError
from deco_runtime.learning.prior import folds
from deco_runtime.learning.vote import log_softmax
from deco_runtime.types import Floats, Ints

STRENGTHS = (0.1, 0.01, 0.001)
"""Inverse penalties tried, the least penalised first."""
STEPS = 200
"""Of the solver, at most: beyond these the answers hardly change."""
MOST = 2000
"""Images that the penalty is chosen with."""


@dataclass(frozen=True)
class Head:
    """Logits are f·w + b for features f (n, F). w: (F, K) float32, b: (K,) float32. strength: the inverse penalty."""

    w: Floats
    b: Floats
    strength: float

    def logits(self, f: Floats) -> Floats:
        """(n, K) float32."""
        values: Floats = f @ self.w + self.b
        return values


def fit(f: Floats, y: Ints, takes: Ints, rng: np.random.Generator, strength: float | None = None) -> Head:
    """A head for features f (n, F), their classes y (n,), each of which occurs, and takes (n,).

    strength: None to choose it. Raises RuntimeMissingError without scikit-learn.
    """
    mean, scale = f.mean(axis=0), np.float32(f.std() + 1e-12)
    x, basis = (f - mean) / scale, None
    if len(f) < f.shape[1]:
        # The penalised weights lie in the span of the images, which has fewer dimensions.
        left, sizes, basis = np.linalg.svd(x, full_matrices=False)
        x = left * sizes
    if strength is None:
        some = np.sort(rng.choice(len(x), MOST, replace=False)) if len(x) > MOST else np.arange(len(x))
        fold, strength = folds(y[some], takes[some]), STRENGTHS[1]
        if (fold >= 0).any():
            losses = [_loss(x[some], y[some], fold, each) for each in STRENGTHS]
            strength = STRENGTHS[int(np.argmin(losses))]
    w, b = _regression(x, y, strength)
    w = (basis.T @ w if basis is not None else w) / scale
    return Head(w.astype(np.float32), (b - mean @ w).astype(np.float32), strength)


def _regression(x: Floats, y: Ints, strength: float) -> tuple[Floats, Floats]:
    """w (D, K) and b (K,) of x (n, D), whose classes y are 0 … K−1."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise RuntimeMissingError(
            "expected scikit-learn for --backbone, but it is not installed; run pip install 'deco-edge[backbone]'"
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = LogisticRegression(C=strength, max_iter=STEPS, tol=1e-3).fit(x, y)
    w, b = found.coef_.T, found.intercept_
    if len(found.classes_) == 2:  # scikit-learn keeps the difference of the two
        w, b = np.concatenate([-w, w], axis=1) / 2, np.concatenate([-b, b]) / 2
    return w.astype(np.float32), b.astype(np.float32)


def _loss(x: Floats, y: Ints, fold: Ints, strength: float) -> float:
    """Mean of −log p(y | x) over the images of all folds, each by a regression on the others."""
    wrong = []
    for number in np.unique(fold[fold >= 0]):
        held = fold == number
        known = np.unique(y[~held])
        w, b = _regression(x[~held], np.searchsorted(known, y[~held]), strength)
        log_p = log_softmax(x[held] @ w + b)
        wrong.append(-log_p[np.arange(held.sum()), np.searchsorted(known, y[held])])
    return float(np.mean(np.concatenate(wrong)))
