"""deco-bench profile: each runtime's own account of a graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from deco_benchmarks.bench.cli import command


@pytest.mark.parametrize(("engine", "convolution"), [("portable", "Conv"), ("openvino", "Convolution")])
def test_all_of_a_graph_is_accounted_for(bundle_path: Path, tmp_path: Path, engine: str, convolution: str) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino")
    out = tmp_path / "profile.json"
    done = CliRunner().invoke(command, ["profile", "--bundle", str(bundle_path), "--engine", engine, "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert sum(each["share"] for each in found["operators"]) == pytest.approx(1)
    assert sum(each["milliseconds"] for each in found["operators"]) == pytest.approx(found["milliseconds"])
    times = [each["milliseconds"] for each in found["operators"]]
    assert times == sorted(times, reverse=True)
    convolutions = [each["nodes"] for each in found["operators"] if each["operator"].split()[0] == convolution]
    assert sum(convolutions) == 2  # the test bundle's model has two
    assert f"weight_gradient on {engine}" in done.output


@pytest.mark.parametrize("engine", ["portable", "openvino"])
def test_every_graph_can_be_looked_into(bundle_path: Path, engine: str) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino")
    graphs = [path.stem for path in (bundle_path / "graphs").iterdir()]
    assert {"representation", "input_gradient_tangent", "predict"} <= set(graphs)
    for graph in graphs:
        done = CliRunner().invoke(
            command, ["profile", "--bundle", str(bundle_path), "--graph", graph, "--engine", engine]
        )
        assert done.exit_code == 0, (graph, done.exception)
        assert f"{graph} on {engine}" in done.output


def test_a_graph_that_there_is_not(bundle_path: Path) -> None:
    done = CliRunner().invoke(command, ["profile", "--bundle", str(bundle_path), "--graph", "forward"])
    assert "expected --graph to be one of" in str(done.exception)
