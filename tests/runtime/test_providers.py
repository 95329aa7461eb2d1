"""Execution providers: which there are, what is said of those that are not here, and what falls back to the CPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import onnxruntime
import pytest
from deco_runtime.doctor import graphs
from deco_runtime.engine import REPRESENTATION
from deco_runtime.engines import autoselect, providers
from deco_runtime.engines._placement import Placement, read, told
from deco_runtime.engines._provider_sessions import ProviderEngine
from deco_runtime.engines.golden import compare, golden_check, read_golden
from deco_runtime.engines.portable import files
from deco_runtime.engines.registry import by_preference, open_engine
from deco_runtime.errors import RuntimeMissingError, UsageError
from deco_runtime.storage.bundle import Bundle
from test_cli_errors import FEW, deco_run, refused

HERE = list(providers.offered())
ABSENT = next(name for name in ("cann", "armnn") if name not in HERE)


def test_what_is_offered_is_what_onnxruntime_says() -> None:
    full = [each.full for each in providers.offered().values()]
    assert full == [name for name in onnxruntime.get_available_providers() if name != "AzureExecutionProvider"]
    assert HERE[-1] == "cpu"
    assert not {"portable/cpu", "portable/tensorrt"} & set(providers.timed())


def test_a_provider_that_the_table_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["NewThingExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: listed)
    assert list(providers.offered()) == ["newthing", "cuda", "cpu"]
    assert providers.provider("newthing").full == listed[0]
    assert providers.timed() == ["portable/newthing", "portable/cuda"]


@pytest.mark.parametrize("name", sorted(set(providers.PROVIDERS) - set(HERE)))
def test_what_brings_one_that_is_not_here(name: str, bundle: Bundle) -> None:
    one = providers.PROVIDERS[name]
    with pytest.raises(RuntimeMissingError) as caught:
        open_engine(bundle, f"portable/{name}")
    assert str(caught.value) == (
        f"expected an onnxruntime that offers {one.full} for --provider {name}, but the installed one offers "
        f"{', '.join(HERE)}; {name} comes with {one.package}, to be installed in place of the other one"
    )


@pytest.mark.parametrize("name", ["", "CUDA", "gpu", "azure"])
def test_one_that_nobody_knows(name: str) -> None:
    with pytest.raises(UsageError, match=r"^expected --provider auto or one of acl, .*; the onnxruntime .* offers "):
        providers.provider(name)


def test_names() -> None:
    assert [providers.on(engine, "auto") for engine in ("auto", "openvino")] == ["auto", "openvino"]
    assert {providers.on(engine, "cpu") for engine in ("auto", "all", "portable")} == {"portable"}
    assert {providers.on(engine, "cuda") for engine in ("auto", "all", "portable")} == {"portable/cuda"}
    with pytest.raises(UsageError, match="expected --engine portable beside --provider cpu, but found --engine openv"):
        providers.on("openvino", "cpu")
    assert providers.typed("portable/cuda") == "portable --provider cuda"
    assert providers.typed("openvino-bf16") == "openvino-bf16"


@pytest.mark.parametrize("name", ["openvino/cuda", "portable/", "/cuda", "cuda"])
def test_only_portable_has_providers(name: str, bundle: Bundle) -> None:
    if name == "portable/":
        assert open_engine(bundle, name).name == "portable"
        return
    with pytest.raises(UsageError, match="expected --engine auto or one of "):
        open_engine(bundle, name)


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_falls_back_whole_is_told_of_and_right(
    bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    """Older versions of ONNX Runtime open a session on a provider that is not there without an error."""
    gone = providers.Provider("gone", "GoneExecutionProvider", "nothing")
    engine = ProviderEngine("portable/gone", files(bundle.root), gone)
    assert providers.left_to_the_cpu(engine) is None  # nothing has run yet
    assert golden_check(bundle, engine, "weight_gradient") is None
    assert set(engine.placed) == {"predict", "weight_gradient"}
    assert all(each.idle and (each.on_cpu or each.reason) for each in engine.placed.values())
    words, whole = providers.left_to_the_cpu(engine)
    assert whole
    reason = engine.placed["predict"].reason
    why = f"it fails with: {reason}" if reason else "it took no operator; what it wrote above may say why"
    assert words.startswith(f"expected --provider gone to compute, but {why}; the CPU computes everything")
    assert capfd.readouterr().out == ""  # for what a run prints there


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_a_graph_that_fails_in_a_run_is_a_sentence(bundle: Bundle) -> None:
    engine = providers.load(bundle, "cpu")
    with pytest.raises(RuntimeMissingError, match=r"expected --provider cpu to compute predict, but it fails with: .+"):
        engine.predict(bundle.weights()[1:], bundle.golden(["x"])["x"])


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_the_first_run_says_where_each_operator_runs(bundle: Bundle) -> None:
    engine = providers.load(bundle, "cpu")
    golden = read_golden(bundle, "weight_gradient")
    assert compare(engine, "weight_gradient", bundle.weights(), golden).agrees
    assert engine.placed["weight_gradient"].idle  # all on the CPU
    assert engine.placed["weight_gradient"].on_cpu["ReduceSum"] >= 1


def test_what_a_profile_says() -> None:
    def ran(name: str, provider: str, operator: str) -> dict:
        args = {"provider": provider, "op_name": operator}
        return {"cat": "Node", "name": f"{name}_kernel_time", "args": args}

    cpu, cuda = "CPUExecutionProvider", "CUDAExecutionProvider"
    nodes = [ran("a", cuda, "Conv"), ran("b", cpu, "Shape"), ran("b", cpu, "Shape"), ran("c", cpu, "Shape")]
    other = [{"cat": "Session", "name": "model_run"}, {"cat": "Node", "name": "b_fence_before", "args": {}}]
    one = read(nodes + other)
    assert one == Placement(1, Counter(Shape=2))
    assert (one.idle, one.left) == (False, "2 Shape")
    many = Placement(9, Counter({"Shape": 5, "Gather": 4, "Slice": 3, "Cast": 2, "Where": 1, "Range": 1}))
    assert many.left == "5 Shape, 4 Gather, 3 Slice, 2 Cast, 2 others"
    whole = Placement(0, reason="no device")
    assert whole.left == "all of it (no device)"
    assert told("portable/cuda", {"predict": Placement(3)}) is None
    words = "--provider cuda leaves to the CPU of weight_gradient 2 Shape; of predict all of it (no device)"
    assert told("portable/cuda", {"weight_gradient": one, "predict": whole, "trunk": Placement(3)}) == (words, False)
    assert "it fails with: no device; the CPU computes everything" in told("portable/cuda", {"predict": whole})[0]


@pytest.mark.skipif("openvino" not in HERE, reason="needs onnxruntime-openvino")
def test_openvino_gives_the_golden_values(bundle: Bundle) -> None:
    engine = open_engine(bundle, "portable/openvino")
    for graph in ("weight_gradient", "input_gradient", "feature_gradient", REPRESENTATION):
        assert golden_check(bundle, engine, graph) is None
        assert not engine.placed[graph].idle


@pytest.mark.skipif(not {"cuda", "tensorrt"} & set(HERE), reason="needs onnxruntime-gpu")
@pytest.mark.parametrize("name", ["cuda", "tensorrt"])
def test_cuda_gives_the_golden_values_or_says_that_the_cpu_does(name: str, bundle: Bundle) -> None:
    engine = open_engine(bundle, f"portable/{name}")
    assert golden_check(bundle, engine, "weight_gradient") is None
    if engine.placed["weight_gradient"].idle:
        assert providers.left_to_the_cpu(engine)[1]


def test_auto_does_not_take_one_that_fails(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed in a real process, which finds no such provider."""
    monkeypatch.setattr(providers, "timed", lambda: [f"portable/{ABSENT}"])
    name, words = autoselect.fastest(bundle, tmp_path, REPRESENTATION, engine="portable")
    assert name == "portable"
    assert words.startswith("--provider auto takes portable; the representation of 16 images takes portable ")
    assert words.endswith(f", portable/{ABSENT} fails")
    kept = json.loads((tmp_path / autoselect.FILE).read_text("utf-8"))["seconds"]
    assert kept.keys() == {"portable", f"portable/{ABSENT}"}


def test_auto_does_not_take_one_that_leaves_all_to_the_cpu(bundle_path: Path) -> None:
    report = autoselect.run_job(
        "deco_runtime.engines.autoselect:time_engine",
        60.0,
        bundle=str(bundle_path),
        engine="portable/cpu",
        graph=REPRESENTATION,
        at_most=1,
    )
    assert report.end == "refused"
    assert report.words == "expected portable/cpu to compute representation, but the CPU does; leave the provider out"


def test_engines_that_are_usable_come_with_their_providers(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(providers, "timed", lambda: ["portable/cuda"])
    monkeypatch.setattr(autoselect, "_seconds", lambda path, name, *_: asked.append(name) or 1.0 / len(asked))
    name, words = autoselect.fastest(bundle, tmp_path, "weight_gradient")
    assert asked == [*(each for each, reason in by_preference(bundle).items() if reason is None), "portable/cuda"]
    assert name == "portable/cuda"
    assert words.startswith("--engine auto takes portable/cuda; ")


def test_what_is_wrong_is_a_sentence(bundle_path: Path, tmp_path: Path) -> None:
    run = ("--bundle", bundle_path, "--state", tmp_path / "s", "--demo")
    refused(5, f"--provider {ABSENT}, but the installed one offers", *run, "--provider", ABSENT)
    refused(2, "expected --provider auto or one of acl,", *run, "--provider", "gpu")
    refused(2, "expected --engine portable beside --provider cpu", *run, "--engine", "openvino", "--provider", "cpu")
    fp16 = ("--engine", "auto", "--precision", "fp16", "--provider", "cpu")
    refused(2, "expected --provider auto beside --precision fp16, but found --provider cpu; leave", *run, *fp16)
    bf16 = ("--engine", "auto", "--precision", "bf16", "--provider", "tensorrt")
    refused(2, "expected --provider auto beside --precision bf16, but found --provider tensorrt", *run, *bf16)
    if "tensorrt" not in HERE:
        half = ("--precision", "fp16", "--provider", "tensorrt")
        refused(5, "an onnxruntime that offers TensorrtExecutionProvider", *run, *half)


def test_a_run_on_the_cpu_by_name(bundle_path: Path, tmp_path: Path) -> None:
    run = ("--bundle", bundle_path, "--state", tmp_path / "s", "--demo", "--set", "segment=16", *FEW)
    done = deco_run(*run, "--provider", "cpu")
    assert json.loads(done.stdout.splitlines()[-1])["engine"] == "portable"
    assert "--provider" not in done.stderr


def test_the_doctor_tries_one(bundle_path: Path) -> None:
    found = list(graphs.findings(bundle_path, (), "cpu"))
    assert [each.level for each in found if each.check.endswith(" on portable")] == ["OK"] * 6
    absent = list(graphs.findings(bundle_path, (), ABSENT))
    assert [each.level for each in absent] == ["FAIL"]
    assert "the installed one offers" in absent[0].sentence


def test_the_doctor_says_what_the_cpu_computes() -> None:
    usual = {"graph": "predict", "images": 2, "again_seconds": 0.001, "first_seconds": 1.0, "error": 1e-7, "l2": 1e-7}
    usual |= {"agrees": True, "tolerance": 1e-3}
    some = graphs._graph("portable/cuda", {**usual, "idle": False, "left": "2 Shape"}, "WARN")
    assert (some.level, some.sentence) == ("OK", "off by 1.0e-07; 2 images in 1 ms; the CPU computes 2 Shape")
    whole = graphs._graph("portable/cuda", {**usual, "idle": True, "left": "all of it"}, "WARN")
    assert whole.level == "WARN"
    assert whole.sentence.startswith("expected cuda to compute it, but the CPU computes all of it; see that its lib")
