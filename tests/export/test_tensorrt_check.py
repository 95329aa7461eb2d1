"""deco-export --check tensorrt, on real graphs and on operators that the matrix lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

onnx = pytest.importorskip("onnx")

from deco_export.cli import command  # noqa: E402
from deco_export.tensorrt_check import check, missing  # noqa: E402
from deco_export.tensorrt_operators import CONSTANT, SUPPORTED  # noqa: E402
from deco_runtime.errors import BundleError, UsageError  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402


def model(*nodes: onnx.NodeProto, given: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Of one input x (2, 3) of this type and one output y."""
    x = helper.make_tensor_value_info("x", given, [2, 3])
    y = helper.make_empty_tensor_value_info("y")
    axes = [helper.make_tensor("axes", TensorProto.INT64, [1], [1])]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], axes), opset_imports=opsets)


@pytest.mark.parametrize(
    ("nodes", "given", "found"),
    [
        ([helper.make_node("Relu", ["x"], ["y"])], TensorProto.FLOAT, {}),
        ([helper.make_node("Relu", ["x"], ["y"])], TensorProto.DOUBLE, {"Relu of double": 1}),
        ([helper.make_node("Relu", ["x"], ["y"])], TensorProto.INT8, {"Relu of int8": 1}),
        ([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE)], TensorProto.FLOAT, {"Cast of double": 1}),
        ([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64)], TensorProto.FLOAT, {}),
        ([helper.make_node("Unique", ["x"], ["y"])], TensorProto.FLOAT, {"Unique": 1}),
        ([helper.make_node("FusedConv", ["x"], ["y"], domain="com.microsoft")], 1, {"com.microsoft.FusedConv": 1}),
        ([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], TensorProto.FLOAT, {}),
        (
            [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("ReduceSum", ["x", "s"], ["y"])],
            TensorProto.FLOAT,
            {"ReduceSum by what is computed": 1},
        ),
        (
            [helper.make_node("Det", ["x"], ["a"]), helper.make_node("Det", ["a"], ["y"])],
            TensorProto.FLOAT,
            {"Det": 2},
        ),
        ([helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[1])], 1, {"MaxPool with indices": 1}),
    ],
)
def test_what_the_matrix_lacks(nodes: list[onnx.NodeProto], given: int, found: dict[str, int]) -> None:
    assert missing(model(*nodes, given=given)) == found


def test_the_table_is_of_operators_that_there_are() -> None:
    """A slip of the pen would be one that ONNX does not know; these were ONNX's once, or are TensorRT's."""
    older = {"ImageScaler", "ParametricSoftplus", "ScaledTanh"}
    assert set(SUPPORTED) - older <= {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    assert set(CONSTANT) <= set(SUPPORTED)
    assert len(SUPPORTED) > 140


def test_a_bundle(bundle_path: Path) -> None:
    lines, fine = check(bundle_path)
    rows = {line.split()[0]: line for line in lines if line}
    assert {"inference", "representation", "predict", "weight_gradient", "input_gradient"} <= set(rows)
    assert [name for name, line in rows.items() if " yes " in line] == ["representation", "inference"]
    for name in ("inference", "representation", "predict"):
        assert rows[name].endswith("–")
    done = CliRunner().invoke(command, ["--check", "tensorrt", "--bundle", str(bundle_path)], standalone_mode=False)
    assert done.return_value == (0 if fine else 1)
    assert done.output.splitlines() == lines


def test_what_cannot_be_checked(tmp_path: Path, bundle_path: Path) -> None:
    def run(*arguments: object) -> None:
        raise CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False).exception

    for given in (["--check", "tensorrt"], ["--bundle", bundle_path]):
        with pytest.raises(UsageError, match="expected --check tensorrt with --bundle BUNDLE and without --out"):
            run(*given)
    with pytest.raises(UsageError, match="without --out"):
        run("--check", "tensorrt", "--bundle", bundle_path, "--out", tmp_path / "b")
    with pytest.raises(BundleError):
        run("--check", "tensorrt", "--bundle", tmp_path)
