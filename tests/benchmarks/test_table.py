"""Tables from result files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deco_runtime.errors import DataError

pytest.importorskip("torch")

from deco_benchmarks import paper
from deco_benchmarks.table import read, tables
from made_results import made_result as result


def write(folder: Path, *results: dict[str, object]) -> Path:
    for number, each in enumerate(results):
        (folder / f"{number}.json").write_text(json.dumps(each))
    return folder


def test_mean_deviation_gain_and_the_papers_number(tmp_path: Path) -> None:
    write(tmp_path, result("DECO", 0, 0.58, 0.60), result("DECO", 1, 0.60, 0.61), result("Frozen", 0, 0.60))
    text = tables(read(tmp_path))
    assert "### cifar10, 10% labelled, stc=500, preset quick\n" in text
    assert "| DECO | 10 | 2 | 60.50 ± 0.71 | 59.00 ± 1.41 | -1.50 | 59.0 | 5.0 | 50.0 | – | 59.28 |" in text
    assert "| Frozen | 10 | 1 | 60.00 | 60.00 | +0.00 | 60.0 | 5.0 | 50.0 | – | – |" in text
    assert text.index("| Frozen") < text.index("| DECO")


def test_a_row_may_start_from_another_model_than_the_never_updated_one(tmp_path: Path) -> None:
    """Files of earlier versions tell it by the first point of the curve."""
    new = result("DECO+", 0, 0.70, 0.60, before_accuracy=0.65)
    old = result("DECO+", 1, 0.70, 0.60, curve=[{"frames": 0, "accuracy": 0.63}])
    write(tmp_path, new, old)
    text = tables(read(tmp_path))
    assert "| row | ipc | seeds | before the stream % | final accuracy % | against never updated |" in text
    assert "| DECO+ | 10 | 2 | 64.00 ± 1.41 | 70.00 ± 0.00 | +10.00 |" in text


def test_times_are_compared_by_their_ratio_to_deco(tmp_path: Path) -> None:
    full = result("DECO-Full (finite difference)", 0, 0.5, seconds_by_stage={"learn": 50.0, "predict": 3.0})
    write(tmp_path, result("DECO", 0, 0.5), full, result("Random", 0, 0.5, ipc=1))
    text = tables(read(tmp_path))
    assert "| DECO | 10 | 6 | 4 | 1.00 | 1.00 |" in text
    assert "| DECO-Full (finite difference) | 10 | 50 | 0 | 5.00 | 8.79 |" in text
    assert "| Random | 1 | 6 | 4 | – | – |" in text


def test_what_deviates_is_named(tmp_path: Path) -> None:
    config = {"preset": "quick", "settings": ["alpha=0"], "validation": True}
    write(tmp_path, result("DECO", 0, 0.5, config=config, versions={"engine": "portable"}))
    text = tables(read(tmp_path))
    assert "preset quick, alpha=0, scored on validation images" in text
    assert (
        "Deviates from the paper: width 32, not 128; at most the first 7680 images of the stream; 2000 test images; "
        "alpha=0; one pass over the stream, the paper's figures count more; 1 seed, not 5; engine portable."
    ) in text


def test_streams_and_presets_are_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, result("DECO", 0, 0.5), result("DECO", 0, 0.4, stream="stc=100,interleave=2"))
    assert tables(read(tmp_path)).count("###") == 2


def test_labelled_folders_are_not_mixed(tmp_path: Path) -> None:
    room, street = ({"preset": "tracks", "labelled_from": name} for name in ("room", "street"))
    share = result("DECO", 0, 0.5, labelled=1.0)
    write(tmp_path, share, *(result("DECO", 0, 0.5, labelled=1.0, config=c) for c in (room, street)))
    text = tables(read(tmp_path))
    assert text.count("###") == 3
    assert "### cifar10, labelled images of room, stc=500, preset tracks\n" in text
    assert text.count("width 64, not 128; labelled images of a folder of their own;") == 2


def test_what_is_no_result_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found none"):
        read(tmp_path)
    lacking = result("DECO", 0, 0.5)
    del lacking["stream"]
    write(tmp_path, lacking)
    with pytest.raises(DataError, match=r"0\.json.*'stream'"):
        read(tmp_path)
    (tmp_path / "0.json").write_text("{")
    with pytest.raises(DataError, match=r"0\.json.*cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": 3},
        {"seed": {}},
        {"labelled": "x"},
        {"kept": "a"},
        {"curve": None},
        {"curve": [{"frames": 0}]},
        {"curve": []},
        {"before_accuracy": None},
        {"distances": [[0.1], 7]},
        {"seconds_by_stage": []},
        {"forgetting_per_class": {"cat": None}},
        {"confusions_after": {"cat": [["cow", 3]]}},
        {"config": 3},
        {"config": {"settings": [1]}},
        {"config": {"labelled_from": 1}},
    ],
)
def test_a_value_of_another_kind_is_named(wrong: dict[str, object], tmp_path: Path) -> None:
    write(tmp_path, {**result("DECO", 0, 0.5), **wrong})
    with pytest.raises(DataError, match=rf"0\.json.*'{next(iter(wrong))}' is none"):
        read(tmp_path)


def test_the_papers_table_is_whole_and_deco_leads_it() -> None:
    """Its own claim: DECO is ahead of every baseline in each of the 32 settings."""
    assert len(paper.ACCURACY) == 32
    for numbers in paper.ACCURACY.values():
        assert len(numbers) == len(paper.METHODS)
        assert numbers[-1] == max(numbers)
