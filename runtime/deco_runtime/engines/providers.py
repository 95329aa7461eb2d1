"""Execution providers: who computes an ONNX Runtime session's operators, other than the CPU. One table.

`--provider NAME` goes with the engine `portable`: the same graphs, on what else the installed onnxruntime offers. An
engine on a provider is called "portable/NAME"; `open_engine` takes that for a name, and `typed` gives what to type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from deco_runtime.errors import RuntimeMissingError, UsageError

if TYPE_CHECKING:
    from deco_runtime.engine import Engine
    from deco_runtime.storage.bundle import Bundle

PORTABLE = "portable"
"""The engine that has them, by its NAME; its module needs numpy, which deco-doctor's own process must not."""
CPU = "cpu"
TENSORRT = "tensorrt"
SUFFIX = "ExecutionProvider"
IGNORED = ("AzureExecutionProvider",)
"""Calls of a web service, which stock wheels list; it has none of our operators."""
THREADS = "{threads}"
"""In the value of an option: as many as one call may be computed by."""


@dataclass(frozen=True)
class Provider:
    """One provider.

    name: for --provider. full: ONNX Runtime's. package: what brings it, to go behind "comes with". options: its own,
    at each session, where its defaults compute in fewer bits than float32 or on all processors. timed: whether "auto"
    tries it; one that builds for minutes is taken when asked for only.
    """

    name: str
    full: str
    package: str
    options: Mapping[str, str] = field(default_factory=dict)
    timed: bool = True


PROVIDERS = {
    each.name: each
    for each in (
        Provider(CPU, "CPUExecutionProvider", "every onnxruntime"),
        Provider("cuda", "CUDAExecutionProvider", "onnxruntime-gpu", {"use_tf32": "0"}),
        Provider(TENSORRT, "TensorrtExecutionProvider", "onnxruntime-gpu and TensorRT", timed=False),
        Provider(
            "openvino",
            "OpenVINOExecutionProvider",
            "onnxruntime-openvino",
            {"device_type": "CPU", "precision": "FP32", "num_of_threads": THREADS},
        ),
        Provider("qnn", "QNNExecutionProvider", "onnxruntime-qnn", {"backend_type": "htp"}),
        Provider("coreml", "CoreMLExecutionProvider", "onnxruntime on macOS"),
        Provider(
            "xnnpack",
            "XnnpackExecutionProvider",
            "an onnxruntime built with --use_xnnpack",
            {"intra_op_num_threads": THREADS},
        ),
        Provider("dml", "DmlExecutionProvider", "onnxruntime-directml on Windows"),
        Provider("migraphx", "MIGraphXExecutionProvider", "AMD's onnxruntime-migraphx"),
        Provider("acl", "ACLExecutionProvider", "an onnxruntime built with --use_acl"),
        Provider("armnn", "ArmNNExecutionProvider", "an onnxruntime built with --use_armnn"),
        Provider("dnnl", "DnnlExecutionProvider", "an onnxruntime built with --use_dnnl"),
        Provider("cann", "CANNExecutionProvider", "onnxruntime-cann"),
        Provider("vitisai", "VitisAIExecutionProvider", "AMD's Ryzen AI onnxruntime"),
    )
}


def offered() -> dict[str, Provider]:
    """What the installed onnxruntime offers, by name, in its own order; one that the table lacks too."""
    import onnxruntime

    known = {each.full: each for each in PROVIDERS.values()}
    found = {}
    for full in onnxruntime.get_available_providers():
        if full not in IGNORED:
            name = full.removesuffix(SUFFIX).lower()
            each = known.get(full, Provider(name, full, "the installed onnxruntime"))
            found[each.name] = each
    return found


def timed() -> list[str]:
    """Names of the engines on providers that "auto" may take here."""
    try:
        return [f"{PORTABLE}/{each.name}" for each in offered().values() if each.timed and each.name != CPU]
    except Exception:  # a broken onnxruntime is met, and said, when an engine is opened
        return []


def provider(name: str) -> Provider:
    """The provider of this name. Raises UsageError for one that nobody knows, RuntimeMissingError for one that the
    installed onnxruntime does not offer."""
    here = offered()
    if name in here:
        return here[name]
    listed = ", ".join(here)
    if name not in PROVIDERS:
        raise UsageError(
            f"expected --provider auto or one of {', '.join(sorted({*PROVIDERS, *here}))}, but found {name!r}; the "
            f"onnxruntime installed here offers {listed}"
        )
    raise RuntimeMissingError(
        f"expected an onnxruntime that offers {PROVIDERS[name].full} for --provider {name}, but the installed one "
        f"offers {listed}; {name} comes with {PROVIDERS[name].package}, to be installed in place of the other one"
    )


def on(engine: str, name: str) -> str:
    """The name of an engine, or "auto" or "all" of them, on what --provider says. Raises UsageError where only
    another engine has providers."""
    if name == "auto":
        return engine
    if engine not in ("auto", "all", PORTABLE):
        raise UsageError(
            f"expected --engine {PORTABLE} beside --provider {name}, but found --engine {engine}, which computes "
            "by itself; leave one of them out"
        )
    return PORTABLE if name == CPU else f"{PORTABLE}/{name}"


def typed(engine: str) -> str:
    """What chooses this engine, as it is typed behind --engine."""
    return engine.replace("/", " --provider ")


def load(bundle: Bundle, name: str, answers: str = "fp32", directory: Path | None = None) -> Engine:
    """Open the bundle's `graphs/` on the provider of this name, which the installed onnxruntime must offer.

    answers: what predictions may be computed in. directory: of learned state, where engines that take minutes to build
    are kept; None to keep none.
    """
    from deco_runtime.engines import portable

    chosen = provider(name)
    if name == TENSORRT:
        from deco_runtime.engines._engine_cache import FOLDER
        from deco_runtime.engines._tensorrt import TensorRTEngine

        kept = directory / FOLDER if directory is not None else None
        return TensorRTEngine(f"{PORTABLE}/{name}", bundle, chosen, answers, kept)
    from deco_runtime.engines._provider_sessions import ProviderEngine

    return ProviderEngine(f"{PORTABLE}/{name}", portable.files(bundle.root), chosen)


def to_build(engine: Engine, graphs: tuple[str, ...]) -> list[str]:
    """Those of these graphs for which this engine first builds something, which takes minutes."""
    asked = getattr(engine, "to_build", None)  # of TensorRT's alone
    return list(asked(graphs)) if asked is not None else []


def prepare(engine: Engine, graphs: tuple[str, ...]) -> str | None:
    """Have this engine build what a run with these graphs needs beside their sessions. Returns why it cannot, as a
    sentence."""
    asked = getattr(engine, "prepare", None)  # of TensorRT's alone
    said: str | None = asked(graphs) if asked is not None else None
    return said


def left_to_the_cpu(engine: Engine) -> tuple[str, bool] | None:
    """What this engine's provider has left to the CPU so far, as a sentence, and whether that is all; None where there
    is nothing to say."""
    from deco_runtime.engines._placement import told

    placed = getattr(engine, "placed", None)  # of an engine on a provider alone
    return told(engine.name, placed) if placed else None
