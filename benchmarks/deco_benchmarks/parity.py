"""How closely the graphs agree with torch, and the five passes with the paper's formula in float64.

    python -m deco_benchmarks.parity --out benchmarks/results/parity.json

For each model of `deco_models`: every graph of every engine at N = 1 and N = 17 against torch autograd in float32, the
two engines against each other, and `five_passes` against eq:opt4 in float64 with the same θ̃ and ε, for several
draws of both. A unit within rounding of a ReLU's kink falls on either side, which the finite difference divides by 2ε:
torch's own float32 is measured beside the engines to show what such a draw looks like.
"""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import torch
from deco_export import graph_values, graphs, initialisers, models, ort_artifacts, tracing, verify
from deco_runtime.engines._sessions import SessionEngine
from deco_runtime.engines.golden import relative_error
from deco_runtime.learning.deco import five_passes
from deco_runtime.learning.random_model import Parameter, draw_model
from torch import nn

CLASSES, SIZE = 10, 32
DRAWS = 9
BATCHES = (1, 17, 2)
"""Numbers of images, more than an engine hands to a graph among them."""


def five_passes_by_torch(
    model: nn.Module,
    theta: np.ndarray,
    x_syn: np.ndarray,
    t_syn: np.ndarray,
    x_real: np.ndarray,
    t_real: np.ndarray,
    epsilon: float,
    dtype: torch.dtype = torch.float64,
) -> tuple[float, np.ndarray]:
    """D and its eq:opt4 gradient on x_syn as `deco.five_passes` defines them, by torch autograd in `dtype`.

    model: any torch model of the family; theta (P,) replaces its weights. Other arguments and results as there.
    """
    model = copy.deepcopy(model).to(dtype)
    names, shapes = zip(*[(name, p.shape) for name, p in model.named_parameters()], strict=True)
    sizes = [shape.numel() for shape in shapes]

    def gradients(at: np.ndarray, x: np.ndarray, t: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
        parts = torch.tensor(at, dtype=dtype).split(sizes)
        weights = [part.reshape(shape).requires_grad_() for part, shape in zip(parts, shapes, strict=True)]
        image = torch.tensor(x, dtype=dtype).requires_grad_()
        logits = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (image,))
        loss = -(torch.tensor(t, dtype=dtype) * torch.log_softmax(logits, 1)).sum()
        *by_weight, by_image = torch.autograd.grad(loss, [*weights, image])
        return torch.cat([g.reshape(-1) for g in by_weight]), by_image.numpy()

    g_syn = gradients(theta, x_syn, t_syn)[0].requires_grad_()
    g_real = gradients(theta, x_real, t_real)[0]
    distance = 1 - torch.nn.functional.cosine_similarity(g_syn, g_real, dim=0)
    v = torch.autograd.grad(distance, g_syn)[0].numpy()
    step = epsilon / np.linalg.norm(v)
    plus, minus = (gradients(theta.astype(np.float64) + sign * step * v, x_syn, t_syn)[1] for sign in (1, -1))
    return float(distance.detach()), (plus - minus) / (2 * step)


def engines(
    model: nn.Module, parameters: tuple[Parameter, ...], folder: Path
) -> tuple[dict[str, SessionEngine], dict[str, dict[str, Path]]]:
    """Every engine that can be made for this model here, and the files of its graphs."""
    fresh = tracing.trace(model, parameters, SIZE)
    sets = {"portable": graphs.learning_graphs(fresh)}
    if ort_artifacts.missing() is None:
        sets["ort-training"] = {**sets["portable"], **ort_artifacts.gradient_graphs(fresh)}
    files: dict[str, dict[str, Path]] = {}
    for name, protos in sets.items():
        files[name] = {graph: folder / f"{name}-{graph}.onnx" for graph in protos}
        for graph, proto in protos.items():
            onnx.save_model(proto, files[name][graph])
    return {name: SessionEngine(name, paths) for name, paths in files.items()}, files


def matching_data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x_syn, t_syn, x_real, t_real: 10 and 24 random images of one class, the real ones with confidences."""
    rng = np.random.default_rng(seed)
    x_syn, x_real = (rng.standard_normal((n, 3, SIZE, SIZE)).astype(np.float32) for n in (10, 24))
    one_hot = np.eye(CLASSES, dtype=np.float32)[np.full(24, 3)]
    return x_syn, one_hot[:10], x_real, one_hot * rng.uniform(0.3, 1, (24, 1)).astype(np.float32)


def measure(name: str) -> dict[str, Any]:
    """All errors of one model family, at its default width and depth."""
    make = models.factory(name, CLASSES, SIZE, None, None)
    torch.manual_seed(0)
    model, parameters = make().eval(), initialisers.parameters(make)
    theta = tracing.flatten(model)
    with tempfile.TemporaryDirectory() as folder:
        found, files = engines(model, parameters, Path(folder))
        result: dict[str, Any] = {"weights": len(theta), "against_torch": {}, "between_engines": {}, "five_passes": {}}
        for n in BATCHES:
            inputs = graph_values.draw_inputs(
                (3, SIZE, SIZE), CLASSES, _features(found["portable"], theta), len(theta), n, seed=0
            )
            expected = verify.reference(model, inputs)
            values = {engine: graph_values.run_graphs(paths, theta, inputs) for engine, paths in files.items()}
            for engine, got in values.items():
                errors = {key: relative_error(value, expected[key]) for key, value in got.items()}
                result["against_torch"][f"{engine}, N = {n}"] = errors
            if "ort-training" in values:
                a, b = values["ort-training"], values["portable"]
                result["between_engines"][f"N = {n}"] = {key: relative_error(a[key], b[key]) for key in a}
        result["five_passes"] = {name: [] for name in (*found, "torch float32")}
        for seed in range(DRAWS):
            for engine, error in five_pass_errors(model, parameters, found, seed).items():
                result["five_passes"][engine].append(error)
    return result


def five_pass_errors(
    model: nn.Module, parameters: tuple[Parameter, ...], found: dict[str, SessionEngine], seed: int
) -> dict[str, float]:
    """‖found − float64‖₂ / ‖float64‖₂ of the gradient of one draw, per engine and for torch in float32."""
    theta, data = draw_model(parameters, np.random.default_rng(seed)), matching_data(seed)
    _, expected = five_passes_by_torch(model, theta, *data, 0.01)
    got = {name: five_passes(e, theta, *data, 0.01)[1] for name, e in found.items()}
    got["torch float32"] = five_passes_by_torch(model, theta, *data, 0.01, torch.float32)[1]
    return {name: float(np.linalg.norm(g - expected) / np.linalg.norm(expected)) for name, g in got.items()}


def _features(engine: SessionEngine, theta: np.ndarray) -> int:
    return int(engine.predict(theta, np.zeros((1, 3, SIZE, SIZE), np.float32))[1].shape[1])


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Result file, JSON.")
def main(out: Path) -> None:
    """Measure and write the relative errors of every graph, engine and model."""
    import onnxruntime

    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
    results = {"versions": versions, "models": {name: measure(name) for name in models.built_in()}}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    for name, result in results["models"].items():
        worst = max(e for errors in result["against_torch"].values() for e in errors.values())
        passes = {engine: float(np.median(errors)) for engine, errors in result["five_passes"].items()}
        said = ", ".join(f"{engine} {error:.1e}" for engine, error in passes.items())
        click.echo(f"{name}: graphs against torch {worst:.1e}; five passes against float64, median: {said}")


if __name__ == "__main__":
    main()
