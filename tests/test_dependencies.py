"""What the device side may import: nothing of the workstation's, and for the algorithm itself numpy alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import deco_runtime
import pytest

PACKAGE = Path(deco_runtime.__file__).parent
WORKSTATION = {"torch", "onnx", "onnxscript", "sklearn", "deco_export", "deco_models", "deco_benchmarks"}
DEVICE = {"numpy", "cv2", "PIL", "onnxruntime", "openvino", "tensorrt", "click", "rich", "paho", "deco_runtime"} | {
    *("starlette", "uvicorn", "prometheus_client", "flwr"),
}
ALGORITHM = sorted(file.stem for file in (PACKAGE / "learning").glob("*.py"))
ALGORITHM_MAY_USE = {"deco_runtime.learning", *(f"deco_runtime.learning.{name}" for name in ALGORITHM)} | {
    f"deco_runtime.{name}" for name in ("types", "errors", "engine", "plugins")
}

MODULES = sorted(
    ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for file in PACKAGE.rglob("*.py")
)


def imports(file: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            assert node.module is not None
            if node.module == "deco_runtime":  # from deco_runtime import state
                yield from (f"deco_runtime.{alias.name}" for alias in node.names)
            else:
                yield node.module


def loaded_after(code: str) -> set[str]:
    """Top-level names of the modules in a fresh interpreter that has run this."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_every_module_imports_without_the_workstation() -> None:
    assert {"deco_runtime", "deco_runtime.commands.run", "deco_runtime.engines.portable"} <= set(MODULES)
    # Private modules are imported when needed: by a source OpenCV, by an engine onnxruntime, whose training build
    # brings what it finds.
    loaded = loaded_after("import " + ", ".join(m for m in MODULES if not m.rpartition(".")[2].startswith("_")))
    assert "deco_runtime" in loaded
    assert not loaded & {*WORKSTATION, "onnxruntime", "openvino"}


def test_help_needs_neither_opencv_nor_onnxruntime() -> None:
    loaded = loaded_after(
        "from deco_runtime.commands.run import command; command().get_help(__import__('click').Context(command()))"
    )
    assert not loaded & {"cv2", "onnxruntime", *WORKSTATION}


@pytest.mark.parametrize("module", MODULES)
def test_imports_of(module: str) -> None:
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    roots = {name.partition(".")[0] for name in imports(file)}
    assert roots <= DEVICE | set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", ALGORITHM)
def test_the_algorithm_is_numpy_alone(name: str) -> None:
    used = set(imports(PACKAGE / "learning" / f"{name}.py"))
    own = {module for module in used if module.partition(".")[0] == "deco_runtime"}
    assert own <= ALGORITHM_MAY_USE
    assert {module.partition(".")[0] for module in used - own} <= {"numpy", *sys.stdlib_module_names}


UNPICKLERS = {"pickle", "_pickle", "shelve", "marshal", "dill", "joblib"}


@pytest.mark.parametrize("module", MODULES)
def test_nothing_on_the_device_runs_what_a_file_says(module: str) -> None:
    """A pickle may call any function. numpy.load takes one if told to, and allocates whatever a header promises."""
    path = PACKAGE.parent.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert not {name.partition(".")[0] for name in imports(file)} & UNPICKLERS
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    assert not called & {"np.load", "numpy.load", "eval", "exec"}
