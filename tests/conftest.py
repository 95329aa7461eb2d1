"""Fixtures shared by all tests.

The device environment has no torch, so it cannot export: there the bundles come from the folder that DECO_TEST_BUNDLES
names, made by the workstation environment with `python tests/conftest.py DIR` (scripts/test does both).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # busy ones are not what a property is about
settings.load_profile("any machine")
ENGINES = ("portable", "ort-training", "openvino")


SLOW = {
    *("test_address", "test_cli_errors", "test_choose", "test_doctor_command", "test_doctor_parts", "test_live"),
    *("test_notify", "test_power", "test_registry", "test_resources", "test_run", "test_service", "test_job"),
    *("test_view_sources", "test_together", "test_output_run", "test_page_browser", "test_teach_command"),
    *("test_fleet_command", "test_examples", "test_example_figure"),
    *("test_ablation", "test_bench_growth", "test_bench_run", "test_checkpoint", "test_hostile", "test_memory"),
    *("test_measure_unknown", "test_sweep", "test_export_cli", "test_report_cli", "test_representation"),
    *("test_graphs", "test_backbone", "test_backbone_operators", "test_readme"),
}
"""Modules that `--fast` leaves out: most of the time of all tests, in processes, cameras, clocks and whole exports."""
ON_THE_DEVICE = {
    *("test_address", "test_cameras", "test_cli_errors", "test_live", "test_notify", "test_odd_disks", "test_power"),
    *("test_output_run", "test_redact", "test_resources", "test_run", "test_service", "test_story", "test_together"),
    *("test_teach_command", "test_view_sources", "test_examples"),
}
"""Modules of processes, signals, cameras, sockets and disks, all with the portable engine: it does not matter to them
which onnxruntime is installed, and they take most of the runtime's time. `--beside-the-device` leaves them to the tests
of the device's environment, which scripts/test runs in the same go; but for those marked `everywhere`, which need an
engine or a package that the device has not, or find another there."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the modules that take longest, SLOW")
    parser.addoption("--beside-the-device", action="store_true", help="leave ON_THE_DEVICE to the device's environment")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--fast") and collection_path.stem in SLOW else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """pytest tells how many were deselected."""
    if config.getoption("--beside-the-device"):
        left = {each for each in items if each.path.stem in ON_THE_DEVICE and not each.get_closest_marker("everywhere")}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [each for each in items if each not in left]


def make_bundle(out: Path) -> None:
    """A small digits bundle: ConvNet of width 8 on 16 pixels, 2 condensed images per class."""
    from deco_export.export import Options, export

    options = Options(
        data="digits",
        out=out,
        labelled=0.05,
        model="convnet",
        width=8,
        depth=2,
        image_size=16,
        ipc=2,
        epochs=30,
        seed=0,
        validation=0.1,
        recipe="paper",
    )
    export(options, lambda stage, done, total: None)


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small digits bundle; tests must not change it."""
    given = os.environ.get("DECO_TEST_BUNDLES")
    if given:
        return Path(given) / "digits"
    if util.find_spec("torch") is None:
        pytest.skip("needs a bundle: set DECO_TEST_BUNDLES, or install torch to export one")
    path = tmp_path_factory.mktemp("bundles") / "digits"
    make_bundle(path)
    return path


@pytest.fixture(scope="module")
def no_torch_in_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No device has torch, and the training build of onnxruntime, where it finds it, takes seconds to import it. For
    modules whose tests all start commands of the device: it holds to the end of the module."""
    place = tmp_path_factory.mktemp("site")
    (place / "sitecustomize.py").write_text("import sys\n\nsys.modules['torch'] = None\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch's and ONNX Runtime's threads together wait longer for each other than small models take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, bundle_path: Path):
    """Every engine that this environment can run, opened on the small bundle."""
    from deco_runtime.engines.registry import engines, open_engine
    from deco_runtime.storage.bundle import open_bundle

    bundle = open_bundle(bundle_path)
    reason = engines()[request.param].unusable(bundle)
    if reason:
        pytest.skip(reason)
    return open_engine(bundle, request.param)


if __name__ == "__main__":
    make_bundle(Path(sys.argv[1]) / "digits")
