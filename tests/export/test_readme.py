"""The commands of the README, of getting started and of scripts/demo, run one after the other as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("starlette")

import cv2  # noqa: E402
import onnx  # noqa: E402
import public_networks  # noqa: E402
from deco_export.cli import main as export  # noqa: E402
from deco_runtime import __version__  # noqa: E402
from drawn import box, cross  # noqa: E402
from markdown_pages import Page, whole_lines  # noqa: E402
from mjpeg_server import mjpeg_server  # noqa: E402
from processes import here  # noqa: E402

ROOT = Path(__file__).parents[2]
README, STARTED, DEMO = ROOT / "README.md", ROOT / "docs/getting-started.md", ROOT / "scripts/demo"
NOT_RUN = {
    "./scripts/demo": "its two commands are run below",
    "./scripts/test": "it runs this",
    "pip install": "asks an index of packages",
    "pip wheel": "asks an index of packages for what builds it; scripts/setup makes the same wheel",
    "python3 -m venv": "of no use without the packages",
    "photos/": "no command: where the pictures lie",
}
"""Lines that are not run here, by how they begin, with the reason."""
SUBSTITUTES = {
    r"^\.venv(?:-device)?/bin/": "",
    r"--camera 0": "--camera {camera}",
    r"^deco-run --bundle.*": r"\g<0> --max-segments 2",
    r"--page(?= --|$)": "--page 127.0.0.1:0",  # any port that is free
    r"--backbone onnx:mobilenetv3\.onnx": r"\g<0> --input mean=0.5 --input std=0.25",  # what a public one says itself
    r" --width 32": "",
    r"^deco-export (?!.*--backbone)": r"\g<0>--width 4 --epochs 2 ",
    r" >&2$": "",
}
"""What is put in another thing's place, so that it runs here, and in seconds."""

pytestmark = pytest.mark.usefixtures("one_thread", "no_torch_in_processes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with what the pages speak of: photographs, and a network that others trained."""
    for name, numbers in (("photos", range(12)), ("others", range(20, 24))):
        for kind, draw in (("badger", box), ("fox", cross)):
            (tmp_path / name / kind).mkdir(parents=True)
            for i in numbers:
                cv2.imwrite(str(tmp_path / name / kind / f"{i}.jpg"), draw(i))
    example = (torch.zeros(1, 3, 32, 32),)
    program = torch.onnx.export(public_networks.tiny().eval(), example, dynamo=True, opset_version=18, verbose=False)
    onnx.save_model(program.model_proto, tmp_path / "mobilenetv3.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def camera() -> Iterator[str]:
    """Sees a badger and a fox by turns."""
    with mjpeg_server(lambda i: (box, cross)[i // 40 % 2](i), fps=100) as url:
        yield url


def shown(path: Path) -> list[str]:
    """The lines of shell of a page that are run here."""
    lines = [line for _, block in Page(path.read_text("utf-8")).blocks for line in whole_lines(block)]
    return [line for line in lines if not line.startswith(tuple(NOT_RUN))]


def run(line: str, **places: str) -> str:
    """Standard output of what a shell does with a line, once SUBSTITUTES are in it. An export needs no process of its
    own, which takes seconds to import torch."""
    for pattern, other in SUBSTITUTES.items():
        line = re.sub(pattern, other, line)
    line = line.format(**places)
    if line.startswith("deco-export"):
        done = here(export, *shlex.split(line)[1:])
    else:
        env = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        command = ["bash", "-c", line]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_commands_of_the_readme_and_of_getting_started(folder: Path, camera: str) -> None:
    lines = list(dict.fromkeys(shown(README) + shown(STARTED)))
    assert [line for line in lines if not line.startswith("deco-")] == []  # run it here, or say in NOT_RUN why not
    assert {line.split()[0] for line in lines} == {"deco-export", "deco-doctor", "deco-run"}
    for line in lines:
        if (folder / "bundle.deco").exists():  # the other way to make it
            line = line.replace("--out bundle.deco", "--out another.deco")
        out = run(line, camera=camera)
        if line.startswith("deco-run --bundle"):
            assert json.loads(out.splitlines()[-1])["segments"] == 2
    assert (folder / "bundle.deco-report.html").exists()


def test_commands_of_the_demo(bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made, learned = [line for line in whole_lines(DEMO.read_text("utf-8").splitlines()) if "bin/deco-" in line]
    run(made)
    assert (tmp_path / "demo-bundle/demo/stream.avi").exists()
    summary = json.loads(run(learned.replace("demo-bundle", str(bundle_path))).splitlines()[-1])
    assert summary["segments"] == 2
    assert summary["learned"] is not None


def test_the_wheel_that_the_pages_name_is_this_release() -> None:
    named = {name for page in (README, STARTED) for name in re.findall(r"deco_edge-\S+?\.whl", page.read_text("utf-8"))}
    assert named == {f"deco_edge-{__version__}-py3-none-any.whl"}
