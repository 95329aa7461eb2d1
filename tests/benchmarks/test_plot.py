"""Figures from result files: what is drawn, read back from the figure itself."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from deco_benchmarks import looks, plot
from deco_runtime.errors import DataError
from made_results import made_result
from matplotlib.axes import Axes


def result(row: str, seed: int, final: float, settings: tuple[str, ...] = (), **more: object) -> dict[str, object]:
    drawn = {
        "kept": final / 2,
        "distances": [[0.2, 0.1], [], [0.4, 0.3]],
        "confusions_before": {"cat": [["dog", 7]], "dog": []},
        "confusions_after": {"cat": [["dog", 5]], "dog": [["cat", 2]]},
        "config": {"preset": "quick", "settings": list(settings)},
        "file": f"{row.lower()}-{seed}-{'-'.join(settings)}.json",
    }
    return made_result(row, seed, final, frozen=0.5, **{**drawn, **more})


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def test_learning_curves_are_means_over_seeds() -> None:
    figure = plot.learning_curves([result("DECO", 0, 0.6), result("DECO", 1, 0.7), result("Frozen", 0, 0.5)])
    (axes,) = figure.axes
    never, deco, _ = axes.lines
    assert deco.get_label() == "DECO (2 seeds)"
    np.testing.assert_allclose(deco.get_xydata(), [[0, 50], [1280, 65]])
    assert deco.get_markevery() == [0]  # a point before the stream
    np.testing.assert_allclose(never.get_ydata(), [50, 50])
    assert legend_of(axes) == ["DECO (2 seeds)", "never updated (2 seeds)", "before the stream"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("frames seen", "test accuracy, %")
    assert figure.get_suptitle() == "cifar10, 10% labelled, stream stc=500, 1 to 2 seeds, mean and standard deviation"


def test_a_learner_without_a_buffer_starts_where_it_stands_itself() -> None:
    """DECO+ knows more than the pre-trained model before it has seen a frame; ipc 0 is no size of a buffer."""
    curve = [{"frames": 0, "accuracy": 0.55}, {"frames": 1280, "accuracy": 0.45}]
    (axes,) = plot.learning_curves([result("DECO+", 0, 0.45, ipc=0, curve=curve)]).axes
    assert axes.get_title() == ""
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [50, 50])  # although there is no row Frozen
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [55, 45])
    assert legend_of(axes) == ["never updated", "DECO+", "before the stream"]  # from top to bottom, as they end


def test_rows_without_a_buffer_are_beside_those_with_one() -> None:
    figure = plot.learning_curves([result("DECO+", 0, 0.7, ipc=0), *(result("DECO", 0, 0.6, ipc=n) for n in (1, 10))])
    assert [axes.get_title() for axes in figure.axes] == ["buffer: 1 image per class", "buffer: 10 images per class"]
    for axes in figure.axes:
        assert legend_of(axes) == ["DECO+", "DECO", "never updated", "before the stream"]


def test_every_row_has_a_look_of_its_own() -> None:
    found = [tuple(sorted(look.items())) for look in looks.looks_of(map(str, range(28))).values()]
    assert len(set(found)) == 28


def test_matching_loss_is_the_mean_over_segments_that_had_one() -> None:
    figure = plot.matching_loss([result("DECO", 0, 0.6), result("Frozen", 0, 0.5, distances=[[], []])])
    (line,) = figure.axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[1, 0.3], [2, 0.2]])
    assert plot.matching_loss([result("Frozen", 0, 0.5, distances=[[]])]) is None


def test_a_study_holds_the_default_and_leaves_other_rows_out() -> None:
    trials = [
        result("DECO", 0, 0.6),
        result("Frozen", 0, 0.5),
        result("DECO", 0, 0.62, ("threshold=0.2",)),
        result("DECO", 1, 0.64, ("threshold=0.2",)),
        result("DECO", 0, 0.1, ("threshold=0.2", "alpha=0")),
    ]
    (figure,) = plot.studies(trials).values()
    accuracy, kept = figure.axes[:2]
    assert accuracy.get_xlabel() == "filter threshold M"
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), [[0.2, 63], [0.4, 60]])
    np.testing.assert_allclose(kept.lines[0].get_ydata(), [31.5, 30])
    assert not figure.axes[2].lines  # no label accuracy is known


def test_the_confusions_of_decos_first_seed() -> None:
    figure = plot.confusions([result("DECO", 0, 0.6), result("Frozen", 0, 0.5)])
    before, after = figure.axes
    assert [patch.get_width() for patch in before.patches] == [7]
    assert [patch.get_width() for patch in after.patches] == [5, 2]
    assert [text.get_text() for text in after.texts] == ["dog 5", "cat 2"]
    assert before.get_xlim() == after.get_xlim()
    assert figure.get_suptitle().startswith("DECO (buffer: 10 images per class), cifar10, ")


def test_a_grid_has_a_line_per_class() -> None:
    pixels = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 3), np.uint8)
    picture = plot.grid(pixels, np.array([1, 0, 1, 1]), most=2)
    assert picture[..., 0].tolist() == [[1, 1, 255, 255]] * 2 + [[0, 0, 2, 2]] * 2


def test_a_damaged_buffer_is_named(tmp_path: Path) -> None:
    trial = result("DECO", 0, 0.6)
    file = (tmp_path / Path(str(trial["file"]))).with_suffix(".npz")
    np.savez_compressed(file)  # as a row that keeps no images has it
    assert plot.buffers([trial], tmp_path) == {}
    file.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"expected .*\.npz to hold the buffer of a trial"):
        plot.buffers([trial], tmp_path)


def test_all_figures_are_files_that_can_be_read(tmp_path: Path) -> None:
    trials = [result("DECO", 0, 0.6), result("DECO", 0, 0.5, ("alpha=0.5",)), result("Frozen", 0, 0.5)]
    images = {when: np.zeros((2, 4, 4, 3), np.uint8) for when in ("before", "after")}
    labels = {f"y_{when}": np.arange(2) for when in images}
    np.savez(tmp_path / Path(str(trials[0]["file"])).with_suffix(".npz"), **images, **labels)
    written = plot.draw_all(trials, tmp_path, tmp_path / "figures")
    assert sorted(path.name for path in written) == [
        "buffer-deco-ipc10-cifar10-0.1-stc-500-quick.png",
        "confusions-cifar10-0.1-stc-500-quick.png",
        "learning-curves-cifar10-0.1-stc-500-quick.png",
        "matching-loss-cifar10-0.1-stc-500-quick.png",
        "study-alpha-cifar10-0.1-stc-500-quick.png",
    ]
    for path in written:
        assert cv2.imread(str(path)).std() > 1
