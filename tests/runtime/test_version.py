"""--version of every command, and what shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

import pytest
from deco_runtime import __version__

COMMANDS = ("run", "doctor", "fleet", "export", "evaluate", "bench")


def told(entry: str, *arguments: str, **variables: str) -> str:
    program = f"import sys; sys.argv[0] = 'deco-{entry}'; from deco_runtime.start import {entry}; {entry}()"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("entry", COMMANDS)
def test_version(entry: str) -> None:
    if entry in ("export", "evaluate") and util.find_spec("torch") is None:
        pytest.skip("needs the workstation's packages")
    first, python, *packages = told(entry, "--version").splitlines()
    assert first == f"deco-{entry} {__version__}"
    assert python.startswith(f"python {sys.version_info.major}.{sys.version_info.minor}.")
    assert f"numpy {metadata.version('numpy')}" in packages
    import onnxruntime

    assert any(line.startswith("onnxruntime") and onnxruntime.__version__ in line for line in packages)


def test_version_is_that_of_the_wheel() -> None:
    if "site-packages" not in str(Path(sys.modules["deco_runtime"].__file__ or "")):
        pytest.skip("a checkout may be newer than what was installed of it")
    assert metadata.version("deco-edge") == __version__


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("deco-run --came", ["--camera"]),
        ("deco-run --recipe s", ["slda"]),
        ("deco-run te", ["teach"]),
        ("deco-run teach --und", ["--undo"]),
        ("deco-run --engine port", ["portable"]),
    ],
)
def test_completion(line: str, found: list[str]) -> None:
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_DECO_RUN_COMPLETE": "bash_complete"}
    assert [each.split(",", 1)[1] for each in told("run", **variables).splitlines()] == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    variables = {"PATH": os.environ["PATH"], "_DECO_RUN_COMPLETE": f"{shell}_source"}
    assert "_deco_run_completion" in told("run", **variables)
