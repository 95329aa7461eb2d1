"""The learners there are: what each of them declares, and one that a package outside the project brings."""

from __future__ import annotations

import inspect
import io
import json
import shutil
import subprocess
from dataclasses import fields, is_dataclass, replace
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import without
from deco_runtime import learning
from deco_runtime.engine import EXACT, Engine
from deco_runtime.engines.golden import INPUTS
from deco_runtime.errors import BundleError, UsageError
from deco_runtime.learning import registry
from deco_runtime.learning.arrays import arrays_of
from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import normalise
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.state import CURRENT, SCHEMA
from deco_runtime.storage.untrusted import read_npz
from deco_runtime.types import Segment
from installed import command, package
from processes import events

LEARNERS = registry.learners()
KINDS = [pytest.param(kind, id=name) for name, kind in LEARNERS.items()]
TEXTS = ("NAME", "TITLE", "ABOUT", "GRAPH")


def test_every_file_with_a_learner_is_found_and_nothing_else() -> None:
    folder = Path(next(iter(learning.__path__)))
    files = [file.stem for file in folder.glob("*.py") if "\nLEARNER = " in file.read_text("utf-8")]
    assert {"deco", "deco_plus", "frozen"} <= set(files)
    assert sorted(kind.__module__.rpartition(".")[2] for kind in LEARNERS.values()) == sorted(files)
    assert list(LEARNERS) == sorted(LEARNERS)
    assert {"deco+", "frozen", "paper"} <= set(LEARNERS)
    assert registry.names() == [name for name in LEARNERS if name != "frozen"]  # those that learn
    assert registry.learners() is LEARNERS  # looked for once


@pytest.mark.parametrize("kind", KINDS)
class TestEveryLearner:
    def test_it_declares_what_it_is(self, kind: type[Learner]) -> None:
        assert issubclass(kind, Learner)
        assert not inspect.isabstract(kind)
        declared = {name: inspect.getattr_static(kind, name) for name in (*TEXTS, "RECIPE")}
        assert all(isinstance(declared[name], str) and declared[name] for name in TEXTS)
        assert isinstance(kind.RECIPE, Recipe)
        assert kind.RECIPE.name == kind.NAME == kind.NAME.strip()
        assert kind.ABOUT.endswith(".")
        assert kind.GRAPH in INPUTS
        assert kind.IPC >= 0
        assert 0 < kind.LEAST <= 1
        assert registry.learner(kind.NAME) is kind
        assert registry.named(kind.NAME) is kind.RECIPE

    def test_it_opens_from_the_bundle_without_calling_its_engine(self, kind: type[Learner], bundle: Bundle) -> None:
        """`registry.started` gives none, so that any call would raise."""
        it = registry.started(kind, bundle)
        assert type(it) is kind
        assert it.engine is None
        assert it.recipe == kind.RECIPE
        assert it.classes == len(bundle.classes)
        assert it.model.dtype == np.float32
        assert it.model.ndim == 1
        assert np.isfinite(it.model).all()
        assert (it.segments, it.since_retrain, it.retrains, it.dropped, it.scene) == (0, 0, 0, 0, None)
        for name, count in (it.steps, it.solve_steps):
            assert name
            assert count >= 1

    def test_its_memory_is_a_frozen_record_of_arrays(self, kind: type[Learner], bundle: Bundle) -> None:
        memory = registry.started(kind, bundle).memory
        assert is_dataclass(memory)
        assert type(memory).__dataclass_params__.frozen
        assert all(isinstance(array, np.ndarray) for array in arrays_of(memory).values())
        assert list(arrays_of(memory)) == [each.name for each in fields(memory)]

    def test_what_it_has_learned_takes_the_bytes_that_are_told(self, kind: type[Learner], bundle: Bundle) -> None:
        it = registry.started(kind, bundle)
        memory = sum(array.nbytes for array in arrays_of(it.memory).values())
        assert registry.state_bytes(kind, bundle) == it.model.nbytes + 2 * memory

    def test_another_one_goes_on_from_what_it_gave(self, kind: type[Learner], bundle: Bundle) -> None:
        it, other = registry.started(kind, bundle), registry.started(kind, bundle)
        it.rng.random(3)
        it.segments, it.since_retrain, it.retrains, it.dropped = 7, 2, 5, 1
        it.model = it.model + np.float32(1)
        if it.states:
            it.scene = np.full(it.states, 1 / it.states, np.float32)
        arrays, values = it.arrays(), json.loads(json.dumps(it.values()))
        other.restore(arrays, values)
        assert other.values() == it.values()
        assert {name: array.tobytes() for name, array in other.arrays().items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
        assert other.rng.random() == it.rng.random()
        assert (other.scene is None) == (it.states == 0)
        it.interrupted()
        other.restore(it.arrays(), it.values())
        assert other.scene is None

    @pytest.mark.parametrize("damage", ["shape", "type", "nan", "missing", "scene", "count", "generator"])
    def test_what_is_not_of_one_like_it_is_refused_and_changes_nothing(
        self, damage: str, kind: type[Learner], bundle: Bundle
    ) -> None:
        given, it = registry.started(kind, bundle), registry.started(kind, bundle)
        arrays, values = given.arrays(), json.loads(json.dumps(given.values()))
        model = arrays["model"]
        if damage == "shape":
            arrays["model"] = model[:-1]
        elif damage == "type":
            arrays["model"] = model.astype(np.float64)
        elif damage == "nan":
            arrays["model"] = np.where(np.arange(len(model)) == 3, np.float32(np.nan), model)
        elif damage == "missing":
            del arrays["model"]
        elif damage == "scene":
            arrays["scene"] = np.zeros(it.states + 1, np.float32)
        elif damage == "count":
            values["counts"]["retrains"] = -1
        else:
            values["generator"]["state"] = "elsewhere"
        values["counts"]["segments"] = 9
        before = it.arrays(), it.values()
        with pytest.raises((ValueError, KeyError, TypeError)):
            it.restore(arrays, values)
        assert it.values() == before[1]
        assert all(array is before[0][name] for name, array in it.arrays().items())


def test_the_frozen_model_answers_as_the_bundle_does_and_never_changes(engine: Engine, bundle: Bundle) -> None:
    frozen = LEARNERS["frozen"]
    it = frozen.open(bundle, engine, frozen.RECIPE, np.random.default_rng(0))
    pixels, labels = bundle.labelled_pixels("demo/test.npz")
    x = normalise(pixels[:64], bundle.preprocessing)
    logits, _ = engine.predict(bundle.weights(), x)
    assert it.predict(x).tobytes() == logits.tobytes()
    model, memory, generator = it.model, it.memory, it.rng.bit_generator.state
    for _ in range(3):
        report = it.learn(Segment(it.observe(x), *pseudo_label(logits), labels[:64]))
        assert replace(report, seconds=0.0) == SegmentReport()
        assert not it.retrain_due
    assert (it.model, it.memory, it.rng.bit_generator.state) == (model, memory, generator)
    assert (it.segments, it.retrains, it.dropped) == (3, 0, 0)
    assert not it.LEARNS
    assert not it.strangeness(it.observe(x)).any()


@pytest.mark.parametrize(("name", "lacking"), [("paper", "buffer.npz"), ("deco+", "fitted/deco+.npz")])
def test_a_bundle_without_what_a_learner_starts_from_is_refused(
    name: str, lacking: str, bundle_path: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle_path, tmp_path / "bundle")
    without(tmp_path / "bundle", lacking)
    lean = open_bundle(tmp_path / "bundle")
    with pytest.raises(BundleError):
        registry.started(registry.learner(name), lean)
    assert registry.state_bytes(registry.learner(name), lean) == 0
    assert registry.started(LEARNERS["frozen"], lean).model.tobytes() == lean.weights().tobytes()


class Precise:
    """An engine, as far as `check_engine` asks."""

    name = "engine"

    def __init__(self, precision: str = "fp32") -> None:
        self.precision = precision


def test_what_a_learner_needs_of_bundle_and_engine_is_checked(bundle: Bundle) -> None:
    def bare(graph: str) -> Bundle:
        return replace(bundle, files={k: v for k, v in bundle.files.items() if k != f"graphs/{graph}.onnx"})

    paper, plus, frozen = (LEARNERS[name] for name in ("paper", "deco+", "frozen"))
    exact = replace(paper.RECIPE, gradient="exact")  # type: ignore[call-arg]
    for kind in (paper, plus, frozen):
        kind.check_engine(bundle, Precise(), kind.RECIPE)
    paper.check_engine(bundle, Precise("bf16"), exact)
    paper.check_engine(bundle, Precise("bf16"), replace(exact, matching="distribution", gradient="finite-difference"))
    paper.check_engine(bare(EXACT), Precise(), paper.RECIPE)
    with pytest.raises(UsageError, match="computes in fp16; add --set gradient=exact"):
        paper.check_engine(bundle, Precise("fp16"), paper.RECIPE)
    with pytest.raises(BundleError, match=f"with the graph {EXACT} for gradient=exact"):
        paper.check_engine(bare(EXACT), Precise(), exact)
    with pytest.raises(UsageError, match=r"expected --precision fp32 with --recipe deco\+"):
        plus.check_engine(bundle, Precise("bf16"), plus.RECIPE)
    with pytest.raises(BundleError, match=r"expected a bundle with the graph representation and fitted/deco\+\.npz"):
        plus.check_engine(bare("representation"), Precise(), plus.RECIPE)


def test_a_name_of_no_learner() -> None:
    for look in (registry.learner, registry.named):
        with pytest.raises(UsageError) as caught:
            look("papers")
        assert str(caught.value) == (
            f"expected --recipe to be one of {', '.join(LEARNERS)}, but found 'papers'; correct it, or install the "
            "package that brings it"
        )


# --- a package outside the project -----------------------------------------------------------------------------------

MEANS = '''
"""The mean of each class as the pre-trained model has seen it, added to what that says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deco_runtime.learning.learner import Learner
from deco_runtime.learning.recipe import Recipe
from deco_runtime.learning.reports import SegmentReport
from deco_runtime.learning.vote import pseudo_label
from deco_runtime.preprocess import normalise
from deco_runtime.learning.reports import SegmentReport


@dataclass(frozen=True)
class Values(Recipe):
    name: str = "means"
    segment: int = 32
    pull: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        self.check_positive("pull")


@dataclass(frozen=True)
class Sums:
    sums: np.ndarray
    frames: np.ndarray


class Means(Learner):
    NAME, TITLE, ABOUT = "means", "Means", "Adds the nearest mean of a class to the answer."
    RECIPE, GRAPH, OWN = Values(), "predict", ("widest", "luck")

    def __init__(self, engine, theta, features, classes, recipe, rng):
        sums = Sums(np.zeros((classes, features), np.float32), np.zeros(classes, np.float32))
        super().__init__(engine, np.zeros(classes * features, np.float32), sums, classes, recipe, rng)
        self.steps, self.solve_steps = ("adding up", 1), ("dividing", 1)
        self.theta, self.widest, self.luck = theta, 0, np.zeros(3, np.float32)

    @classmethod
    def open(cls, bundle, engine, recipe, rng):
        return cls(engine, bundle.weights(), bundle.features, len(bundle.classes), recipe, rng)

    def observe(self, x):
        logits, z = self.engine.predict(self.theta, x)
        return {"logits": logits, "z": z}

    def answer(self, model, observed):
        z = observed["z"] / np.linalg.norm(observed["z"], axis=1, keepdims=True)
        return observed["logits"] + self.recipe.pull * z @ model.reshape(self.classes, -1).T

    def update(self, segment, check):
        check()
        votes = np.eye(self.classes, dtype=np.float32)[segment.pseudo]
        self.widest = max(self.widest, len(np.unique(segment.pseudo)))
        self.luck = self.rng.random(3, np.float32)
        memory = Sums(self.memory.sums + votes.T @ segment.observed["z"], self.memory.frames + votes.sum(axis=0))
        return memory, SegmentReport(
            active=np.unique(segment.pseudo).tolist(), kept=1.0, figures={"widest": self.widest}, words={"luck": "good"}
        )

    def solve(self, check):
        means = self.memory.sums / np.maximum(self.memory.frames, 1)[:, None]
        return (means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-6)).ravel(), []
'''


@pytest.fixture(scope="module")
def means(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return package(tmp_path_factory.mktemp("packages") / "means", "deco_means", MEANS, "means = deco_means:Means")


def learned(state: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the numbers of a learned state."""
    arrays = read_npz(io.BytesIO((state / CURRENT).read_bytes()[32:]))
    return arrays, json.loads(arrays.pop("meta").tobytes())


def test_help_names_the_learner_of_another_package(means: Path) -> None:
    done = command(means, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert f"[{'|'.join(sorted([*registry.names(), 'means']))}]" in said.replace(" ", "")
    assert "means: Adds the nearest mean of a class to the answer." in said


def test_the_learner_of_another_package_learns_and_goes_on(means: Path, bundle_path: Path, tmp_path: Path) -> None:
    """In two runs it learns what it learns in one, bit for bit: its memory, its own values, and its generator."""

    def run(state: str, segments: int) -> dict[str, object]:
        done = command(
            *(means, "--bundle", bundle_path, "--demo", "--recipe", "means", "--set", "pull=2", "--engine", "portable"),
            *("--max-segments", segments, "--state", tmp_path / state, "--events", tmp_path / f"{state}.jsonl"),
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        summary: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return summary

    once = run("one", 5)
    assert once["segments"] == 5
    assert once["retrains"] == 5
    assert once["learned"] != once["before"] == once["frozen"]
    assert run("two", 2)["segments"] == 2
    rest = run("two", 3)
    assert rest["segments"] == 3
    assert rest["learned"] == once["learned"]
    one, two = learned(tmp_path / "one"), learned(tmp_path / "two")
    assert set(one[0]) == {"model", "sums", "frames", "own_widest", "own_luck", "guard_best"}
    for name, array in one[0].items():
        assert array.tobytes() == two[0][name].tobytes(), name
    assert one[1] == two[1]
    assert (one[1]["schema"], one[1]["recipe"]) == (SCHEMA, "means")
    assert one[1]["values"]["counts"] == {
        "segments": 5,
        "since_retrain": 0,
        "retrains": 5,
        "dropped": 0,
        "merges": 0,
        "offers": 0,
    }
    assert one[0]["frames"].sum() == 5 * 32
    told, again = (events(tmp_path / f"{state}.jsonl", "segment") for state in ("one", "two"))
    assert [each["number"] for each in told] == [1, 2, 3, 4, 5]
    assert all({"widest", "active", "kept"} <= set(each) for each in told)
    assert not any({"distances", "contrastive"} & set(each) for each in told)
    assert [[each[name] for name in ("number", "votes", "active", "kept", "widest")] for each in again] == [
        [each[name] for name in ("number", "votes", "active", "kept", "widest")] for each in told
    ]


def test_engines_are_timed_and_checked_by_its_graph(means: Path, bundle_path: Path, tmp_path: Path) -> None:
    done = command(
        *(means, "--bundle", bundle_path, "--demo", "--recipe", "means", "--max-segments", 1),
        *("--state", tmp_path / "state", "--no-guard"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retrains"] == 1
    assert "guard_best" not in learned(tmp_path / "state")[0]


def test_its_state_is_its_own_and_its_values_are_checked(means: Path, bundle_path: Path, tmp_path: Path) -> None:
    given = (means, "--bundle", bundle_path, "--demo", "--engine", "portable", "--max-segments", 1)
    assert command(*given, "--state", tmp_path / "state", "--recipe", "means").returncode == 0
    for arguments, code, words in (
        (("--recipe", "deco+", "--state", tmp_path / "state"), 7, "was learned with 'means'; give that recipe"),
        (
            ("--recipe", "means", "--state", tmp_path / "other", "--set", "pull=0"),
            2,
            "value pull to be a finite number above 0, but found 0.0",
        ),
        (
            ("--recipe", "means", "--state", tmp_path / "other", "--set", "alpha=1"),
            2,
            "one of segment, retrain_interval, pull for --recipe means",
        ),
    ):
        done = command(*given, *arguments)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr
        assert done.stderr.startswith("error: expected ")
        assert done.stderr.count("\n") == 1


def test_without_the_package_its_state_and_its_name_are_unknown(means: Path, bundle_path: Path, tmp_path: Path) -> None:
    given = ("--bundle", bundle_path, "--demo", "--engine", "portable", "--max-segments", 1)
    assert command(means, *given, "--state", tmp_path / "state", "--recipe", "means").returncode == 0
    for recipe, code, words in (("means", 2, "'means' is not one of 'deco+', "), ("paper", 7, "with 'means'")):
        done = command(tmp_path, *given, "--state", tmp_path / "state", "--recipe", recipe)
        assert (done.returncode, done.stdout) == (code, "")
        assert words in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


BROKEN = {
    "fails": ("import no_such_module_of_all\nMeans = 1", "fails with: No module named 'no_such_module_of_all'"),
    "raises": ("raise ValueError('first\\nsecond')", "fails with: first;"),
    "syntax": ("def", "fails with: invalid syntax"),
    "lacks": ("", "has no attribute 'Means'"),
    "number": ("Means = 7", "fails with: it is no class derived from Learner;"),
    "other": ("class Means:\n    NAME = 'means'", "fails with: it is no class derived from Learner;"),
    "half": (
        "from deco_runtime.learning.learner import Learner\nclass Means(Learner):\n    NAME = 'means'",
        "fails with: Means lacks TITLE, ABOUT, RECIPE, GRAPH, answer, observe, open, solve, update;",
    ),
    "abstract": (
        MEANS.replace("    def solve(self, check):", "    def dissolve(self, check):"),
        "fails with: Means lacks solve;",
    ),
    "taken": (MEANS.replace('"means"', '"paper"'), "fails with: its NAME 'paper' is that of another learner;"),
    "misnamed": (
        MEANS.replace('name: str = "means"', 'name: str = "average"'),
        "fails with: its RECIPE is named 'average', and its NAME is 'means';",
    ),
}
COMMANDS = [
    ("run", ("--help",)),
    ("run", ("--bundle", "nowhere", "--demo", "--recipe", "deco+")),
    ("run", ("install-service", "--help")),
    ("export", ("--help",)),
    ("export", ("--out", "nowhere", "--recipe", "means")),
    ("bench", ("run", "--help")),
]


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """What a command says of a learner that it cannot have, in one sentence and with its exit code."""
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (5, "")
    line = done.stderr.removesuffix("\n")
    assert line.startswith("error: expected a learner from the installed package's entry point 'means' = ")
    assert line.endswith("; mend or uninstall that package")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("case", BROKEN)
def test_a_learner_that_cannot_be_had_is_one_sentence(case: str, tmp_path: Path) -> None:
    source, words = BROKEN[case]
    site = package(tmp_path / "site", "deco_means", source, "means = deco_means:Means")
    assert words in refused(command(site, "--help"))


@pytest.mark.parametrize(("start", "arguments"), COMMANDS)
def test_so_it_is_for_every_command_that_has_recipes(start: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    if start == "export" and util.find_spec("torch") is None:
        pytest.skip("the device exports nothing")
    site = package(tmp_path / "site", "deco_means", "raise OSError('no such device')", "means = deco_means:Means")
    assert "fails with: no such device;" in refused(command(site, *arguments, start=start))


def test_the_doctor_finds_it(bundle_path: Path, tmp_path: Path) -> None:
    site = package(tmp_path / "site", "deco_means", "raise OSError('no such device')", "means = deco_means:Means")
    done = command(site, "--bundle", bundle_path, "--json", start="doctor")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (finding,) = (each for each in json.loads(done.stdout)["findings"] if each["check"] == "bundle")
    assert finding["level"] == "FAIL"
    assert "fails with: no such device; mend or uninstall that package" in json.dumps(finding)
