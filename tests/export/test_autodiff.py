"""Every gradient rule against torch autograd in float64, on small models that export to the operator in question."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnxruntime  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from deco_export import graphs  # noqa: E402
from deco_export.autodiff import RULES  # noqa: E402
from deco_export.forward import Forward  # noqa: E402
from deco_export.tracing import flatten, trace  # noqa: E402
from deco_runtime.errors import ExportError  # noqa: E402
from deco_runtime.learning.random_model import Parameter  # noqa: E402
from torch import nn  # noqa: E402

CLASSES = 3


pytestmark = pytest.mark.usefixtures("one_thread")


class Do(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class With(nn.Module):
    """function(x, p) with a parameter p of this shape, all of its values above 0.5."""

    def __init__(self, shape: tuple[int, ...], function: Callable) -> None:
        super().__init__()
        self.p, self.function = nn.Parameter(0.5 + torch.rand(shape)), function

    def forward(self, x):
        return self.function(x, self.p)


class Attention(nn.Module):
    """Two-headed self-attention over the pixels, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x):
        tokens = x.flatten(2).transpose(1, 2)  # (N, pixels, 4)
        q, k, v = (part.unflatten(2, (2, 2)).transpose(1, 2) for part in self.qkv(tokens).chunk(3, dim=2))
        weights = torch.softmax(q @ k.transpose(2, 3) / 2**0.5, dim=-1)
        return tokens + self.out((weights @ v).transpose(1, 2).flatten(2))


def after_conv(*layers: nn.Module, channels: int = 4, kernel: int | tuple[int, int] = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, channels, kernel), *layers)


def activation(function: Callable, scale: float = 1.0) -> nn.Module:
    """Scaled so that every piece of the function is met."""
    return after_conv(Do(lambda y: function(scale * y)))


def randomised(norm: nn.Module) -> nn.Module:
    """A norm as it is after training."""
    values = {name: 0.5 + torch.rand_like(v) for name, v in norm.state_dict().items() if v.is_floating_point()}
    norm.load_state_dict(values, strict=False)
    return norm


CASES: dict[str, Callable[[], nn.Module]] = {
    # convolutions
    "conv": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "conv-unpadded-no-bias": lambda: nn.Conv2d(3, 4, 3, bias=False),
    "conv-1x1": lambda: nn.Conv2d(3, 4, 1),
    "conv-1x1-stride": lambda: nn.Conv2d(3, 4, 1, stride=3),
    "conv-stride": lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1),
    "conv-stride-leftover": lambda: nn.Conv2d(3, 4, 2, stride=2),
    "conv-stride-4-leftover": lambda: nn.Conv2d(3, 4, 3, stride=4, padding=1),
    "conv-dilation": lambda: nn.Conv2d(3, 4, 3, dilation=2, padding=2),
    "conv-groups": lambda: after_conv(nn.Conv2d(4, 6, 3, groups=2, padding=1)),
    "conv-depthwise": lambda: nn.Conv2d(3, 3, 3, groups=3, padding=1, bias=False),
    "conv-depthwise-multiplier-stride": lambda: nn.Conv2d(3, 6, 3, stride=2, groups=3),
    "conv-asymmetric": lambda: nn.Conv2d(3, 4, (3, 2), (2, 3), padding=(1, 0), dilation=(2, 1)),
    "conv-of-asymmetric": lambda: after_conv(nn.Conv2d(4, 5, 3, 2, 1), kernel=(1, 4)),
    "conv-groups-everything": lambda: after_conv(nn.Conv2d(4, 4, (2, 3), (2, 1), (0, 1), (1, 2), groups=2)),
    # pooling
    "avg-pool": lambda: after_conv(nn.AvgPool2d(2), kernel=2),
    "avg-pool-leftover": lambda: after_conv(nn.AvgPool2d(2)),
    "avg-pool-overlapping": lambda: after_conv(nn.AvgPool2d(3, stride=2), kernel=2),
    "avg-pool-gaps": lambda: after_conv(nn.AvgPool2d(2, stride=3)),
    "avg-pool-padded": lambda: after_conv(nn.AvgPool2d(3, stride=2, padding=1), kernel=2),
    "avg-pool-padding-not-counted": lambda: after_conv(nn.AvgPool2d(3, 2, 1, count_include_pad=False), kernel=2),
    "avg-pool-asymmetric": lambda: after_conv(nn.AvgPool2d((3, 1), stride=(2, 1)), kernel=(1, 3)),
    "avg-pool-adaptive": lambda: after_conv(nn.AdaptiveAvgPool2d(2), kernel=2),
    "global-avg-pool": lambda: after_conv(nn.AdaptiveAvgPool2d(1)),
    "max-pool": lambda: after_conv(nn.MaxPool2d(2)),
    "max-pool-overlapping": lambda: after_conv(nn.MaxPool2d(3, stride=2, padding=1)),
    "max-pool-ties": lambda: nn.MaxPool2d(2),
    "max-pool-overlapping-ties": lambda: nn.MaxPool2d(3, stride=1, padding=1),
    "max-pool-dilated-ties": lambda: nn.MaxPool2d(2, stride=2, dilation=2),
    # norms
    "batch-norm": lambda: after_conv(randomised(nn.BatchNorm2d(4))),
    "batch-norm-of-features": lambda: nn.Sequential(nn.Flatten(), nn.Linear(243, 6), randomised(nn.BatchNorm1d(6))),
    "instance-norm": lambda: after_conv(randomised(nn.InstanceNorm2d(4, affine=True))),
    "instance-norm-plain": lambda: after_conv(nn.InstanceNorm2d(4, eps=0.1)),
    "group-norm": lambda: after_conv(randomised(nn.GroupNorm(2, 6)), channels=6),
    "group-norm-plain": lambda: after_conv(nn.GroupNorm(3, 6, affine=False), channels=6),
    "group-norm-per-channel": lambda: after_conv(randomised(nn.GroupNorm(4, 4))),
    "layer-norm": lambda: after_conv(randomised(nn.LayerNorm([4, 7, 7]))),
    "layer-norm-last-axis": lambda: after_conv(randomised(nn.LayerNorm(7, eps=0.1))),
    "layer-norm-no-bias": lambda: after_conv(randomised(nn.LayerNorm(7, bias=False))),
    "layer-norm-plain": lambda: after_conv(nn.LayerNorm([7, 7], elementwise_affine=False)),
    # activations
    "relu": lambda: activation(torch.relu),
    "leaky-relu": lambda: activation(lambda y: F.leaky_relu(y, 0.2)),
    "relu6": lambda: activation(F.relu6, 6.0),
    "clamp-one-side": lambda: activation(lambda y: y.clamp(min=0.1)),
    "relu6-ties": lambda: Do(lambda x: F.relu6(3 * x)),
    "clamp-ties": lambda: Do(lambda x: x.clamp(-1, 2)),
    "gelu": lambda: activation(F.gelu, 2.0),
    "silu": lambda: activation(F.silu, 2.0),
    "hardswish": lambda: activation(F.hardswish, 4.0),
    "hardsigmoid": lambda: activation(F.hardsigmoid, 4.0),
    "sigmoid": lambda: activation(torch.sigmoid),
    "tanh": lambda: activation(torch.tanh),
    "softmax-channels": lambda: activation(lambda y: torch.softmax(y, 1)),
    "log-softmax-columns": lambda: activation(lambda y: torch.log_softmax(y, 2)),
    # arithmetic with broadcasting, both operands carrying gradients
    "exp": lambda: With((1, 3, 1, 1), lambda x, p: x * torch.exp(-p)),
    "log-sqrt": lambda: With((3, 1, 1), lambda x, p: torch.log(x * x + p) + torch.sqrt(x * x + p)),
    "reciprocal": lambda: With((9,), lambda x, p: 1 / (x * x + p)),
    "rsqrt": lambda: With((3, 1, 9), lambda x, p: torch.rsqrt(x * x + p)),
    "add-sub": lambda: With((3, 1, 1), lambda x, p: (x + p) * (p - x) - (x - p)),
    "mul-div": lambda: With((1, 9, 1), lambda x, p: x * p + p / (x * x + 1) + x / p),
    "scalar": lambda: With((), lambda x, p: 2 * x / p - p),
    # shapes
    "cat": lambda: after_conv(Do(lambda y: torch.cat([y, torch.tanh(y), y], 1))),
    "cat-last-axis": lambda: after_conv(Do(lambda y: torch.cat([y, torch.tanh(y)], -1))),
    "chunk": lambda: after_conv(Do(lambda y: torch.mul(*y.chunk(2, 1)))),
    "split-unused-part": lambda: after_conv(Do(lambda y: torch.split(y, [1, 2, 1], 1)[1])),
    "squeeze": lambda: after_conv(Do(lambda y: y.mean(2, keepdim=True).squeeze(2).unsqueeze(1))),
    "transpose": lambda: nn.Sequential(nn.Conv2d(3, 4, 2), nn.PixelUnshuffle(2), nn.ChannelShuffle(2)),
    "mean-channels": lambda: after_conv(Do(lambda y: y.mean(1))),
    "mean-keepdim": lambda: after_conv(Do(lambda y: y - y.mean((-2, -1), keepdim=True))),
    "sum": lambda: after_conv(Do(lambda y: torch.tanh(y.sum((2, 3)) / 9))),
    "sum-keepdim": lambda: after_conv(Do(lambda y: y / (1 + (y * y).sum(1, keepdim=True)))),
    # products
    "attention": lambda: after_conv(Attention(), kernel=5),
    "matmul-from-left": lambda: With((2, 9), lambda x, p: p @ x),
    "matmul-batched": lambda: With((3, 9, 2), lambda x, p: torch.tanh(x @ p)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(243, 6), nn.Tanh(), nn.Linear(6, 5, bias=False)),
}
CELL, GRID = 9, 4
PER_MODEL = GRID * GRID
"""torch.onnx.export takes seconds for the smallest model, so cases share one, each with its own part of the image."""


class Cells(nn.Module):
    """Each body on its own CELL × CELL pixels, their outputs side by side."""

    def __init__(self, bodies: list[nn.Module]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x):
        cells = [cell for row in x.split(CELL, dim=2) for cell in row.split(CELL, dim=3)]
        return torch.cat([body(cell).flatten(1) for body, cell in zip(self.bodies, cells, strict=False)], 1)


def closed(body: nn.Module, size: int) -> nn.Module:
    """The body with the classifier it needs to be a model."""
    with torch.no_grad():
        features = body.eval()(torch.zeros(1, 3, size, size)).numel()
    return nn.Sequential(body, nn.Flatten(), nn.Linear(features, CLASSES)).eval()


def places(model: nn.Module) -> tuple[Parameter, ...]:
    found, offset = [], 0
    for name, p in model.named_parameters():
        found.append(Parameter(name, tuple(p.shape), offset, "constant", 0.0, 0.0))
        offset += p.numel()
    return tuple(found)


@cache
def traced(group: int) -> tuple[nn.Module, Callable[[], Forward]]:
    """The model of this many-th PER_MODEL cases, and its forward graph."""
    torch.manual_seed(group)
    names = list(CASES)[group * PER_MODEL :][:PER_MODEL]
    model = closed(Cells([CASES[name]() for name in names]), CELL * GRID)
    return model, trace(model, places(model), CELL * GRID)


def from_torch(model: nn.Module, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Features, loss and gradients in float64; the model's last layer is the classifier."""
    model = copy.deepcopy(model).double()
    x, t, u = (torch.from_numpy(given[name]).double() for name in "xtu")
    x.requires_grad_()
    features = model[:-1](x)
    loss = -(t * torch.log_softmax(model[-1](features), 1)).sum()
    *by_weight, by_input = torch.autograd.grad(loss, [*model.parameters(), x], retain_graph=True)
    (by_feature,) = torch.autograd.grad((features * u).sum(), x)
    values = {
        "features": features,
        "loss": loss,
        "weight_gradient": torch.cat([g.reshape(-1) for g in by_weight]),
        "input_gradient": by_input,
        "feature_gradient": by_feature,
    }
    return {name: value.detach().numpy() for name, value in values.items()}


def from_graphs(fresh: Callable[[], Forward], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {}
    for name, proto in graphs.learning_graphs(fresh).items():
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        outputs = [o.name for o in session.get_outputs()]
        values = session.run(outputs, {i.name: given[i.name] for i in session.get_inputs()})
        found |= {name if o == "gradient" else o: v for o, v in zip(outputs, values, strict=True)}
    return found


@cache
def compared(group: int, n: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the graphs and what torch say of n images."""
    model, fresh = traced(group)
    rng = np.random.default_rng(n)
    x = 2 * rng.standard_normal((n, 3, CELL * GRID, CELL * GRID), np.float32)
    for place, case in enumerate(list(CASES)[group * PER_MODEL :][:PER_MODEL]):
        if case.endswith("-ties"):  # whole numbers: many equal maxima, of which torch takes the first, and many bounds
            x[cell(place)] = x[cell(place)].round()
    given = {
        "theta": flatten(model),
        "x": x,
        "t": rng.uniform(0, 1, (n, CLASSES)).astype(np.float32),
        "u": rng.standard_normal((n, fresh().features), np.float32),
    }
    return from_graphs(fresh, given), from_torch(model, given)


def cell(place: int) -> tuple[slice, ...]:
    """Where in the image the place-th case of a group looks."""
    top, left = CELL * (place // GRID), CELL * (place % GRID)
    return slice(None), slice(None), slice(top, top + CELL), slice(left, left + CELL)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_torchs(case: str, n: int) -> None:
    group, place = divmod(list(CASES).index(case), PER_MODEL)
    found, expected = compared(group, n)
    assert relative_error(found["loss"], expected["loss"]) <= 1e-4
    assert relative_error(found["features"], expected["features"]) <= 1e-4
    for name in ("input_gradient", "feature_gradient"):
        assert found[name].shape == expected[name].shape
        assert relative_error(found[name][cell(place)], expected[name][cell(place)]) <= 1e-4, name
    largest = np.abs(expected["weight_gradient"]).max()
    for p in places(traced(group)[0]):
        if p.name.startswith(f"0.bodies.{place}."):
            part, reference = (values["weight_gradient"][p.slice] for values in (found, expected))
            # A convolution's bias before a norm has no gradient but rounding: hence a floor under the scale.
            assert np.abs(part - reference).max() <= 1e-4 * max(np.abs(reference).max(), 1e-2 * largest), p.name


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


ALONE = {
    *("And", "Cast", "DepthToSpace", "Elu", "Equal", "Expand", "Flatten", "Gather", "GlobalAveragePool", "Greater"),
    *("GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Not", "Or", "Pad", "Pow", "PRelu", "ReduceL2"),
    *("ReduceSumSquare", "Selu", "Sign", "Slice", "Softplus", "Sum", "Tile", "Where"),
}
"""Operators that test_backbone_operators writes itself, as torch.onnx exports them rarely, or in one of their ways."""


def test_the_cases_cover_every_rule() -> None:
    groups = range(-(-len(CASES) // PER_MODEL))
    met = {node.op_type for group in groups for node in traced(group)[1]().graph.nodes}
    assert sorted({*RULES, "Split"} - met - ALONE) == []


class Spare(nn.Module):
    """A classifier without bias, and with a parameter that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.spare, self.linear = nn.Parameter(torch.ones(7)), nn.Linear(48, CLASSES, bias=False)

    def forward(self, x):
        return self.linear(x.flatten(1))


def test_an_unused_parameter_has_zero_gradient() -> None:
    model = Spare().eval()
    fresh = trace(model, places(model), 4)
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((3, 3, 4, 4), np.float32), np.eye(CLASSES, dtype=np.float32)
    u = rng.standard_normal((3, 48), np.float32)
    found = from_graphs(fresh, {"theta": flatten(model), "x": x, "t": t, "u": u})
    assert not found["weight_gradient"][:7].any()
    residual = torch.softmax(model(torch.from_numpy(x)), 1).detach().numpy() - t
    by_hand = residual.T @ x.reshape(3, 48)
    np.testing.assert_allclose(found["weight_gradient"][7:].reshape(CLASSES, 48), by_hand, atol=1e-5)
    np.testing.assert_allclose(found["feature_gradient"], u.reshape(x.shape), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (lambda: after_conv(Do(torch.sin)), "Sin"),
        (lambda: after_conv(nn.AvgPool2d(2, ceil_mode=True)), "AveragePool"),
        (lambda: after_conv(Do(lambda y: y.flatten(0, 1).square().unflatten(0, (-1, 4)))), "batch first"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(body: Callable[[], nn.Module], named: str) -> None:
    model = closed(body(), 7)
    with pytest.raises(ExportError, match=named):
        graphs.learning_graphs(trace(model, places(model), 7))


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        ((nn.Flatten(), nn.Linear(48, CLASSES), nn.Softmax(dim=1)), "Softmax"),
        ((nn.Conv2d(3, CLASSES, 4), nn.Flatten()), "Reshape"),
    ],
)
def test_a_model_that_does_not_end_in_linear_is_refused(tail: tuple[nn.Module, ...], found: str) -> None:
    model = nn.Sequential(*tail).eval()
    with pytest.raises(ExportError, match=rf"ends with torch.nn.Linear.*{found}"):
        trace(model, places(model), 4)()


def test_a_model_that_cannot_be_traced_is_refused_in_one_sentence() -> None:
    model = nn.Sequential(Do(lambda x: x if x.sum() > 0 else -x), nn.Flatten(), nn.Linear(48, CLASSES)).eval()
    with pytest.raises(ExportError, match=r"free batch size") as refused:
        trace(model, places(model), 4)
    assert "\n" not in str(refused.value)
