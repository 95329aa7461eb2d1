"""Results of trials as `deco-eval run` writes them, without running any."""

from __future__ import annotations


def made_result(row: str, seed: int, final: float, frozen: float = 0.6, **more: object) -> dict[str, object]:
    """One result; `more` replaces or adds values."""
    return {
        "row": row,
        "dataset": "cifar10",
        "labelled": 0.1,
        "ipc": 10,
        "stream": "stc=500",
        "seed": seed,
        "final_accuracy": final,
        "frozen_accuracy": frozen,
        "average_accuracy": final,
        "forgetting_per_class": {"cat": 0.0, "dog": 0.1},
        "curve": [{"frames": 0, "accuracy": frozen}, {"frames": 1280, "accuracy": final}],
        "distances": [[0.2, 0.1], []],
        "seconds_by_stage": {"learn": 6.0, "retrain": 4.0},
        "kept": 0.5,
        "pseudo_accuracy": None,
        "config": {"preset": "quick"},
        **more,
    }
