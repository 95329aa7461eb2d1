"""The device's code and eager torch in one process on the same threads, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from deco_export.onnx_graph import IR_VERSION, OPSET
from deco_runtime.engine import EXACT, Engine
from deco_runtime.engines.registry import open_engine
from deco_runtime.host.threads import threads
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.deco import Deco, five_passes
from deco_runtime.learning.retrain import retrain
from deco_runtime.learning.vote import targets
from deco_runtime.types import Floats

from deco_benchmarks.bench import torch_side
from deco_benchmarks.bench.jobs import Progress
from deco_benchmarks.bench.timing import effort, milliseconds, quantity, stopwatch
from deco_benchmarks.bench.workload import Work, open_work
from deco_benchmarks.rows._loops import InnerLoop

MICRO_BATCHES = (4, 8, 16, 32, 64)
STOCK = "portable"
GEMM_SIDE = 2048
PAUSE_S = 0.02
"""Between two turns: threads of the one side spin for a while before they leave the cores to the other."""

Call = Callable[[], object]


def measure(path: Path, progress: Progress, names: Sequence[str], quick: bool) -> dict[str, Any]:
    """Ratios against torch that are taken in one process (smaller is better), and what they were made of.

    names: the engines; the best is the one with the fastest iteration here. Both sides of an iteration compute
    eq:opt4's gradient for the same θ̃, 128 real images and the synthetic ones of a class; `agreement` is the relative
    difference of each engine's to torch's.
    """
    work, how = open_work(path, names[0]), effort(quick)
    engines = {name: open_engine(work.bundle, name) for name in dict.fromkeys([*names, STOCK])}
    done = iter(range(10))

    def step() -> None:
        progress("against torch", next(done), 5)

    step()
    model = torch_side.build(work.bundle)
    theta, data = work.kind_of(Deco).random_model(), _matching(work)
    torch_side.load(model, theta)
    tensors = torch_side.matching(*data, work.recipe.epsilon)

    def ours(engine: Engine) -> Floats:
        return five_passes(engine, theta, *data, work.recipe.epsilon)[1]

    expected = torch_side.match_gradients(model, tensors).numpy()
    agreement = {
        name: float(np.linalg.norm(ours(engine) - expected) / np.linalg.norm(expected))
        for name, engine in engines.items()
    }
    micro = micro_batches(model, tensors, how.rounds)
    step()
    sides: dict[str, Call] = {name: partial(ours, engine) for name, engine in engines.items()}
    sides["torch whole batch"] = lambda: torch_side.match_gradients(model, tensors)
    sides["torch micro-batch"] = lambda: torch_side.match_gradients(model, tensors, min(micro, key=micro.__getitem__))
    times = turns(sides, how.rounds)
    best = min(names, key=lambda name: float(np.median(times[name])))
    engine = engines[best]
    step()
    x, t = data[2], data[3]
    gemm = turns({"weight gradient": lambda: engine.weight_gradient(theta, x, t), "gemm": matmul()}, how.rounds)
    multiply_adds = torch_side.multiply_adds(model, work.bundle.image_shape)
    ideal = [seconds * multiply_adds / GEMM_SIDE**3 for seconds in gemm["gemm"]]
    step()
    epochs = 1 if quick else max(1, work.recipe.retrain_epochs // how.rounds)
    updates = turns(_updates(work, engine, model, epochs), how.rounds)
    step()
    segments = turns(_segments(work, engine), min(how.rounds, 3)) if f"graphs/{EXACT}.onnx" in work.bundle.files else {}
    step()
    per_image = [seconds / len(x) for seconds in gemm["weight gradient"]]
    pairs = {
        "iteration_vs_torch_whole_batch": (times[best], times["torch whole batch"]),
        "iteration_vs_torch_micro_batch": (times[best], times["torch micro-batch"]),
        "iteration_onnxruntime_vs_torch_whole_batch": (times[STOCK], times["torch whole batch"]),
        "weight_gradient_vs_gemm": (per_image, ideal),
        "retrain_vs_torch": (updates["engine"], updates["torch"]),
    }
    loops, missing = work.recipe.iterations, {}
    full = [loops * seconds for seconds in segments.get("one of DECO-Full's loops", ())]
    if segments:
        pairs["segment_vs_deco_full"] = (segments["DECO"], full)
    else:
        missing["segment_vs_deco_full"] = f"not measured: the bundle lacks the graph {EXACT}"
    scale = work.recipe.retrain_epochs / epochs
    return {
        "best_engine": best,
        "missing": missing,
        "ratios": {name: quantity(_ratios(a, b), "").to_json() for name, (a, b) in pairs.items()},
        "iteration": {name: milliseconds(seconds).to_json() for name, seconds in times.items()},
        "micro_batches": {str(size): 1e3 * seconds for size, seconds in micro.items()},
        "agreement": agreement,
        "weight_gradient_per_image": milliseconds(per_image).to_json(),
        "multiply_adds_per_image": multiply_adds,
        "gemm_multiply_adds_per_second": GEMM_SIDE**3 / float(np.median(gemm["gemm"])),
        "update": {side: quantity([scale * s for s in seconds], "s").to_json() for side, seconds in updates.items()},
        "update_epochs_per_turn": epochs,
        "segment": {
            side: quantity(seconds, "s").to_json()
            for side, seconds in (("DECO", segments.get("DECO", [])), ("DECO-Full", full))
            if seconds
        },
    }


def turns(sides: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round, A B A B …, after one call each that does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, call in sides.items():
            time.sleep(PAUSE_S)
            seconds = stopwatch(call)
            if turn > 0:
                times[name].append(seconds)
    return times


def micro_batches(model: Any, tensors: torch_side.Matching, rounds: int) -> dict[int, float]:
    """Median seconds of torch's iteration by micro-batch."""
    calls = {str(n): lambda n=n: torch_side.match_gradients(model, tensors, n) for n in MICRO_BATCHES}
    return {int(name): float(np.median(seconds)) for name, seconds in turns(calls, min(rounds, 3)).items()}


def matmul() -> Call:
    """A product of two square matrices of GEMM_SIDE on onnxruntime, with the engines' settings."""
    shape = [GEMM_SIDE, GEMM_SIDE]
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "ab"]
    output = onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["a", "b"], ["c"])], "gemm", inputs, [output])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape, np.float32) for name in "ab"}
    return lambda: session.run(None, values)


def _matching(work: Work) -> tuple[Floats, Floats, Floats, Floats]:
    """x_syn, t_syn, x_real, t_real of class 0."""
    buffer, classes = initial(work.bundle), len(work.bundle.classes)
    mine = buffer.y_syn == 0
    t_syn = targets(buffer.y_syn[mine], np.ones(int(mine.sum()), np.float32), classes)
    t_real = targets(work.segment.pseudo, work.segment.confidence, classes)
    return buffer.x_syn[mine], t_syn, work.segment.observed["x"], t_real


def _segments(work: Work, engine: Engine) -> dict[str, Call]:
    """DECO's whole segment, and one of the L random models of DECO-Full, each matched L times with the exact order."""
    deco = replace(work, engine=engine).learner()
    recipe = replace(work.recipe, gradient="exact")
    full = replace(work, engine=engine, recipe=recipe).kind_of(InnerLoop)
    x, y, w = work.segment.observed["x"], work.segment.pseudo, work.segment.confidence
    return {
        "DECO": lambda: deco.learn(work.segment),
        "one of DECO-Full's loops": lambda: full.inner_loop(full.begin(x, y, w), lambda: None),
    }


def _updates(work: Work, engine: Engine, model: Any, epochs: int) -> dict[str, Call]:
    """Retraining for so many epochs on either side, from the deployed weights on."""
    buffer, theta, recipe = initial(work.bundle), work.bundle.weights(), replace(work.recipe, retrain_epochs=epochs)
    torch_side.load(model, theta)
    x, y, rng = torch.from_numpy(buffer.x_syn), torch.from_numpy(buffer.y_syn), np.random.default_rng(0)
    return {
        "engine": lambda: retrain(engine, theta, buffer, len(work.bundle.classes), recipe, rng),
        "torch": lambda: torch_side.retrain(model, x, y, recipe, epochs),
    }


def _ratios(a: list[float], b: list[float]) -> list[float]:
    """Round by round, so that a drift of the machine cancels out."""
    return [x / y for x, y in zip(a, b, strict=True)]
