"""Inputs of the learning graphs, and what onnxruntime makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

TOLERANCE = 1e-4
"""Largest allowed ‖found − expected‖∞ / ‖expected‖∞, where the expected is torch's."""

Values = dict[str, np.ndarray]


def draw_inputs(shape: tuple[int, ...], classes: int, features: int, weights: int, n: int, seed: int) -> Values:
    """x (n, *shape) normal, t (n, K) weighted one-hot, u (n, F) normal, v (P,) normal."""
    rng = np.random.default_rng(seed)
    t = np.eye(classes, dtype=np.float32)[rng.integers(0, classes, n)] * rng.uniform(0.2, 1, (n, 1)).astype(np.float32)
    return {
        "x": rng.standard_normal((n, *shape), np.float32),
        "t": t,
        "u": rng.standard_normal((n, features), np.float32),
        "v": rng.standard_normal(weights, np.float32),
    }


def run_graphs(files: dict[str, Path], theta: np.ndarray, inputs: Values) -> Values:
    """The same quantities from the graphs {name: file}, whole batch in one run."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # it takes up to twice what it needs
    found: Values = {}
    for name, file in files.items():
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        given = {"theta": theta, **inputs}
        outputs = [o.name for o in session.get_outputs()]
        values = session.run(outputs, {i.name: given[i.name] for i in session.get_inputs()})
        found |= {name if output == "gradient" else output: v for output, v in zip(outputs, values, strict=True)}
    return found
