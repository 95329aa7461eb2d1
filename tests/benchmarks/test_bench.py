"""deco-bench: its statistics, result files, tables and command line; no time is asserted anywhere."""

from __future__ import annotations

import copy
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_benchmarks.bench import cli, sizes, tables, timing
from deco_benchmarks.bench import result as results
from deco_runtime.errors import DataError
from rich.console import Console


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def deco_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs deco-bench with these arguments."""

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["deco-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(ended.value.code or 0, *capsys.readouterr())

    return run


def refused(done: Done, code: int, words: str) -> None:
    """It ended with this exit code and one sentence that contains these words."""
    assert done.stderr.startswith("error: expected ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert words in done.stderr
    assert (done.returncode, done.stdout) == (code, "")


def content(scale: float = 1.0, **more: Any) -> dict[str, Any]:
    """A small result whose quantities are multiplied by `scale`."""
    quantities = {
        "iteration": timing.Quantity(200 * scale, 190 * scale, 220 * scale, 20, "ms"),
        "update": timing.Quantity(30 * scale, 30 * scale, 30 * scale, 1, "s"),
        "later": timing.Quantity(0.5, 0.5, 0.5, 1, "MiB"),
    }
    return {
        "kind": "deco-bench",
        "schema": 1,
        "time": "2026-01-02T03:04:05+00:00",
        "quick": False,
        "board": {"name": "Raspberry Pi 4 | B", "processor": "4 × Cortex-A72", "threads": 4},
        "bundle": {"hash": "a", "model": "convnet", "weights": 25432, "pixels": 16, "classes": 10, "ipc": 2},
        "recipe": {"name": "paper"},
        "best_engine": "portable",
        "engines": {"portable": {"quantities": {name: q.to_json() for name, q in quantities.items()}}},
        **more,
    }


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def printed(renderable: Any) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_median_and_quartiles_of_known_data() -> None:
    assert timing.quantity([5, 1, 4, 2, 3], "s") == timing.Quantity(3, 2, 4, 5, "s")
    assert timing.milliseconds([0.5]) == timing.Quantity(500, 500, 500, 1, "ms")


def test_p99_is_the_smallest_value_that_99_of_100_do_not_exceed() -> None:
    values = list(np.random.default_rng(0).permutation(np.arange(1.0, 201)))
    assert timing.p99(values) == 198
    assert timing.p99([3.0, 1.0]) == 3


def test_repeats_run_often_enough_and_leave_the_warm_up_out() -> None:
    calls: list[int] = []
    assert len(timing.repeat(lambda: calls.append(1), 3, 0)) == 3
    assert len(calls) == 3 + timing.WARM_UP


def test_requirements_leave_extras_out() -> None:
    lines = ["numpy<3,>=1.24", "colorama; platform_system == 'Windows'", "onnxruntime<2; extra == 'device'", "a_b (>1)"]
    assert sizes.requirements(lines) == ["numpy", "colorama", "a_b"]


def test_installed_sizes_follow_requirements() -> None:
    found = sizes.installed(["rich", "no-such-package-here"])
    assert {"rich", "pygments", "markdown-it-py"} <= set(found)
    assert all(size > 0 for size in found.values())
    assert "rich" in sizes.owners(["rich", "json"])


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    results.write(tmp_path / "new" / "a.json", content(ratios={"cold_start_vs_torch": 0.25}))
    read = results.read(tmp_path / "new" / "a.json")
    assert read.content == content(ratios={"cold_start_vs_torch": 0.25})
    assert read.engines["portable"]["iteration"].median == 200
    assert read.ratios == {"cold_start_vs_torch": 0.25}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.json"]


def broken(*keys: str, value: object = None) -> dict[str, Any]:
    """A result without the entry that the keys lead to, or with another value there."""
    whole = copy.deepcopy(content())
    inner = whole
    for key in keys[:-1]:
        inner = inner[key]
    inner.pop(keys[-1])
    if value is not None:
        inner[keys[-1]] = value
    return whole


@pytest.mark.parametrize(
    "value",
    [
        [],
        3,
        {},
        broken("kind"),
        broken("schema", value=2),
        broken("engines"),
        broken("engines", value=[]),
        broken("engines", "portable", "quantities", "iteration", "median"),
        broken("engines", "portable", "quantities", "iteration", "q1", value="fast"),
        broken("best_engine", value="openvino"),
        broken("board", "name"),
        broken("board", "threads"),
        broken("bundle", "weights"),
        broken("recipe"),
        broken("recipe", "name"),
        broken("quick"),
        broken("time"),
        content(ratios=[1]),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(DataError, match=r"expected .*a\.json to be a result of deco-bench run, but it"):
        results.read(write(tmp_path / "a.json", value))


def test_broken_files_end_in_one_sentence(tmp_path: Path, deco_bench: Callable[..., Done]) -> None:
    good, bad = write(tmp_path / "good.json", content()), tmp_path / "bad.json"
    bad.write_bytes(b'{"kind": "deco-bench", \xff')
    refused(deco_bench("compare", good, bad), 3, "bad.json")
    refused(deco_bench("row", tmp_path / "nowhere.json"), 3, "nowhere.json")
    (tmp_path / "empty").mkdir()
    refused(deco_bench("boards", tmp_path / "empty"), 3, "found none")


def test_what_cannot_be_measured_ends_in_one_sentence(tmp_path: Path, deco_bench: Callable[..., Done]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    refused(deco_bench("run", "--bundle", tmp_path, "--out", tmp_path), 2, "expected --out")
    refused(deco_bench("run", "--bundle", tmp_path), 4, "expected a bundle at")
    signal.signal(signal.SIGTERM, before)


def test_compare_divides_b_by_a(tmp_path: Path, deco_bench: Callable[..., Done]) -> None:
    a = write(tmp_path / "a.json", content(ratios={"cold_start_vs_torch": 0.5}))
    other = {"recipe": {"name": "deco+"}, "ratios": {"cold_start_vs_torch": 0.25}}
    b = write(tmp_path / "b.json", content(0.5, quick=True, **other))
    done = deco_bench("compare", a, b)
    assert done.returncode == 0, done.stderr
    rows = {line.split("│")[1].strip(): line.split("│")[2:5] for line in done.stdout.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["portable: one whole iteration"]] == ["200 ms", "100 ms", "0.50"]
    assert [cell.strip() for cell in rows["portable: later"]] == ["0.500 MiB", "0.500 MiB", "1.00"]
    assert [cell.strip() for cell in rows["cold_start_vs_torch"]] == ["0.500", "0.250", "0.50"]
    assert "A and B differ: --recipe paper, and deco+" in done.stdout
    assert "A and B differ: one was measured with --quick" in done.stdout


def test_the_row_of_a_board(tmp_path: Path, deco_bench: Callable[..., Done]) -> None:
    done = deco_bench("row", write(tmp_path / "a.json", content(quick=True)))
    assert done.stdout == (
        "| Raspberry Pi 4 \\| B (4 × Cortex-A72) | 4 | – | convnet, 25k weights, 16 pixels, 10 classes, ipc 2 "
        "| paper | portable | – | 200 ms | – | 30.0 s* | – | – | – | – | – | – | – | – | 2026-01-02 |\n"
    )


def test_boards_have_a_row_per_engine_sorted_by_file(tmp_path: Path, deco_bench: Callable[..., Done]) -> None:
    two = content()
    two["engines"]["openvino"] = two["engines"]["portable"]
    two["board"] = {"name": "Other", "processor": "Other", "threads": 2}
    write(tmp_path / "b.json", content())
    write(tmp_path / "a.json", two)
    page = deco_bench("boards", tmp_path).stdout
    assert page.startswith("# Boards\n")
    rows = [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| ")]
    assert len({len(row) for row in rows}) == 1
    assert [(row[0], row[5]) for row in rows[1:]] == [
        ("| Other", "portable"),
        ("| Other", "openvino"),
        ("| Raspberry Pi 4 \\| B (4 × Cortex-A72)", "portable"),
    ]


def test_the_page_in_docs_is_the_one_of_the_files() -> None:
    root = Path(__file__).parents[2]
    assert (root / "docs/boards.md").read_text("utf-8") == tables.boards(
        results.read_all(root / "benchmarks/boards")
    ) + "\n"


def test_a_run_is_shown_with_its_spread_ratios_and_warnings() -> None:
    board = {"name": "Board", "threads": 2, "load": 3.5}
    rates = [{"seconds": 0.0}, {"iterations_per_second": 4.0}, {"iterations_per_second": 2.5}]
    text = printed(
        tables.show(
            results.parse(
                "x",
                content(
                    board=board,
                    quick=True,
                    ratios={"cold_start_vs_torch": 0.25},
                    missing={"segment_vs_deco_full": "not yet"},
                    sustained={"samples": rates},
                ),
            )
        )
    )
    assert "200 (190 – 220) ms" in text
    assert "0.250" in text
    assert "segment_vs_deco_full" in text
    assert "load was 3.5" in text
    assert "quick" in text
    assert "4.00 iterations per second at first, 2.50 at the end" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (12.34, "12.3"), (123.4, "123"), (4567, "4567")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert tables._figure(value) == text


def test_help_teaches_and_needs_nothing(deco_bench: Callable[..., Done]) -> None:
    for arguments in (["--help"], ["run", "--help"], ["compare", "--help"], ["row", "--help"], ["boards", "--help"]):
        done = deco_bench(*arguments)
        assert done.returncode == 0
        assert "deco-bench" in done.stdout.partition("Options:")[0].partition("\n")[2]  # an example
