"""ONNX Runtime's training artifacts of a bundle: they load, and one step of theirs is one step of torch's SGD."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
api = pytest.importorskip("onnxruntime.training.api", reason="onnxruntime.training is not installed here")

import onnx  # noqa: E402
from deco_export import export, initialisers, ort_artifacts, tracing, verify  # noqa: E402
from deco_models import convnet, resnet  # noqa: E402
from torch import nn  # noqa: E402

CLASSES, SIZE, BATCH, RATE = 4, 14, 5, 0.05  # ConvNet pools 7 × 7 pixels: the windows leave a row over
BUILDS = {
    "convnet": lambda: convnet.build(CLASSES, SIZE, width=6, depth=2),
    "resnet": lambda: resnet.build(CLASSES, SIZE, width=4, depth=2),
}


@pytest.fixture(scope="module", params=BUILDS)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A model and the folder of its artifacts."""
    build, folder = BUILDS[request.param], tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    model = build().eval()
    fresh = tracing.trace(model, initialisers.parameters(build), SIZE)
    ort_artifacts.write_training_artifacts(fresh, tracing.flatten(model), folder)
    return model, folder


def test_a_package_that_fails_costs_its_graphs_and_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(*_: object, **__: object) -> None:
        raise RuntimeError("ShapeInferenceError: no such operator\nat line 7")

    monkeypatch.setattr("onnxruntime.training.artifacts.generate_artifacts", generate)
    model = BUILDS["convnet"]().eval()
    fresh, notes = tracing.trace(model, initialisers.parameters(BUILDS["convnet"]), SIZE), list[str]()
    sets = export._write_graphs(tmp_path, fresh, tracing.flatten(model), notes)
    assert tuple(sets) == ("portable",)
    assert "weight_gradient" in sets["portable"]
    assert notes == ["made without --engine ort-training: ShapeInferenceError: no such operator"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graphs"]


@pytest.fixture(scope="module")
def batch() -> tuple[np.ndarray, np.ndarray]:
    drawn = verify.draw_inputs((3, SIZE, SIZE), CLASSES, 1, 1, BATCH, seed=0)
    return drawn["x"], drawn["t"]


def opened(folder: Path):
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    return state, module, api.Optimizer(str(folder / "optimizer_model.onnx"), module)


def torch_loss(model: nn.Module, x: np.ndarray, t: np.ndarray):
    return -(torch.from_numpy(t) * torch.log_softmax(model(torch.from_numpy(x)), 1)).sum()


def test_the_folder_holds_the_artifacts_and_nothing_else(exported: tuple[nn.Module, Path]) -> None:
    _, folder = exported
    assert {file.name for file in folder.iterdir()} == set(ort_artifacts.ARTIFACTS)
    for name in ort_artifacts.ARTIFACTS:
        if name.endswith(".onnx"):
            proto = onnx.load_model(folder / name, load_external_data=False)
            assert proto.ir_version <= 9
            assert all(t.data_location == onnx.TensorProto.DEFAULT for t in proto.graph.initializer)


def test_the_checkpoint_holds_the_weights(exported: tuple[nn.Module, Path]) -> None:
    model, folder = exported
    state, _, _ = opened(folder)
    for name, p in model.named_parameters():
        np.testing.assert_array_equal(state.parameters[f"param:{name}"].data, p.detach().numpy())


def test_the_losses_are_torchs(exported: tuple[nn.Module, Path], batch: tuple[np.ndarray, np.ndarray]) -> None:
    model, folder = exported
    _, module, _ = opened(folder)
    with torch.no_grad():
        expected = float(torch_loss(model, *batch))
    module.eval()
    assert float(module(*batch)) == pytest.approx(expected, rel=1e-5)
    module.train()
    assert float(module(*batch)) == pytest.approx(expected, rel=1e-5)


def test_a_step_is_torchs(exported: tuple[nn.Module, Path], batch: tuple[np.ndarray, np.ndarray]) -> None:
    model, folder = exported
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    state, module, optimizer = opened(folder)
    optimizer.set_learning_rate(RATE)
    module.train()
    module(*batch)
    optimizer.step()
    module.lazy_reset_grad()
    try:
        sgd = torch.optim.SGD(model.parameters(), lr=RATE)
        sgd.zero_grad()
        torch_loss(model, *batch).backward()
        sgd.step()
        moved = 0.0
        for name, p in model.named_parameters():
            found, expected = state.parameters[f"param:{name}"].data, p.detach().numpy()
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)
            moved = max(moved, float((p.detach() - before[name]).abs().max()))
        assert moved > 0.01  # a step that did something
        with torch.no_grad():
            expected = float(torch_loss(model, *batch))
    finally:
        model.load_state_dict(before)
    module.eval()
    assert float(module(*batch)) == pytest.approx(expected, rel=1e-4)
