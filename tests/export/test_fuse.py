"""Which norms become one operator; that the gradients stay right is test_autodiff's and test_graphs' part."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnxruntime  # noqa: E402
from deco_export import graphs, initialisers, tracing  # noqa: E402
from torch import nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


class ScaledByPixel(nn.Module):
    """Looks like the chain, but for a scale with a value per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(4, 8, 8)), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x):
        return nn.functional.group_norm(x, 4) * self.scale + self.shift


@pytest.mark.parametrize(
    ("norm", "affine"),
    [
        (lambda: nn.GroupNorm(4, 4, eps=0.1), 0),
        (lambda: nn.GroupNorm(4, 4, affine=False), 0),
        (lambda: nn.GroupNorm(2, 4), 2),
        (lambda: ScaledByPixel(), 2),
    ],
    ids=["per-channel", "plain", "two-groups", "scaled-by-pixel"],
)
def test_a_norm_per_channel_has_its_scale_and_shift_inside(norm, affine: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), norm(), nn.Flatten(), nn.Linear(256, 2)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    fresh = tracing.trace(model, initialisers.parameters(lambda: model), 8)
    proto = graphs.predict(fresh())
    count = Counter(node.op_type for node in proto.graph.node)
    assert count["InstanceNormalization"] == 1
    assert count["Mul"] + count["Add"] == affine
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"theta": tracing.flatten(model), "x": x})[0]
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)
