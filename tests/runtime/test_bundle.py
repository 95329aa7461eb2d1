"""The bundle: what is opened, and every kind of damage met by a BundleError that names the file."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import BundleError
from deco_runtime.learning import registry
from deco_runtime.learning.buffer import initial
from deco_runtime.learning.recipe import override
from deco_runtime.storage.bundle import Bundle, open_bundle
from deco_runtime.storage.bundle_files import MANIFEST, sha256
from deco_runtime.storage.manifest import FILES, write_manifest
from deco_runtime.storage.untrusted import parse_json
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

on_one_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def copy(tmp_path: Path, bundle_path: Path) -> Path:
    """A copy of the small bundle that a test may damage."""
    return shutil.copytree(bundle_path, tmp_path / "copy")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, bundle_path: Path) -> Path:
    """As `copy`, for tests that put back what they change."""
    return shutil.copytree(bundle_path, tmp_path_factory.mktemp("shared") / "copy")


def read_manifest(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((path / MANIFEST).read_text("utf-8"))
    return content


def write_json(path: Path, content: Any) -> None:
    (path / MANIFEST).write_text(json.dumps(content), "utf-8")


def change(path: Path, **values: Any) -> None:
    """Put other values into the manifest."""
    write_json(path, {**read_manifest(path), **values})


def replace_file(path: Path, name: str, data: bytes) -> None:
    """Put other bytes into a file, and its hash into the manifest."""
    (path / name).write_bytes(data)
    manifest = read_manifest(path)
    manifest["files"][name] = sha256(path / name)
    write_json(path, manifest)


def npy(array: Any) -> bytes:
    memory = io.BytesIO()
    np.save(memory, array)
    return memory.getvalue()


def npz(**arrays: Any) -> bytes:
    memory = io.BytesIO()
    np.savez(memory, **arrays)
    return memory.getvalue()


def read_everything(bundle: Bundle) -> None:
    bundle.weights()
    bundle.labelled_pixels("guard.npz")
    bundle.guard_takes()
    for kind in registry.learners().values():
        registry.started(kind, bundle)
    bundle.trained_on()
    bundle.golden()


def test_an_exported_bundle_opens(bundle_path: Path) -> None:
    bundle = open_bundle(bundle_path)
    assert bundle.path == bundle_path
    assert bundle.hash == sha256(bundle_path / MANIFEST)
    assert bundle.classes == tuple("0123456789")
    assert bundle.image_shape == (3, 16, 16)
    assert set(FILES) <= set(bundle.files)
    assert "portable" in bundle.engines
    assert len(bundle.weights()) == bundle.weight_count == sum(p.size for p in bundle.parameters)
    buffer = initial(bundle)
    assert buffer.ipc == 2
    assert buffer.x_syn.shape == (20, 3, 16, 16)
    assert np.bincount(buffer.y_syn).tolist() == [2] * 10
    assert not buffer.velocity.any()
    pixels, labels = bundle.labelled_pixels("guard.npz")
    assert pixels.dtype == np.uint8
    assert len(pixels) == len(labels) == bundle.guard_images > 0
    assert len(bundle.guard_takes()) == bundle.guard_images
    golden = bundle.golden()
    assert golden["logits"].shape == (2, 10)
    assert golden["features"].shape == (2, bundle.features)
    assert golden["representation"].shape == (2, bundle.represented)
    assert set(bundle.array("demo/labels.npy", None, np.int64, (None,))) <= set(range(10))
    for name in ("deco+", "slda"):
        assert f"fitted/{name}.npz" in bundle.files


def test_a_bundle_need_not_have_guard_images(copy: Path) -> None:
    (copy / "guard.npz").unlink()
    files = read_manifest(copy)["files"]
    del files["guard.npz"]
    change(copy, files=files)
    assert open_bundle(copy).guard_images == 0


def test_fingerprints_of_the_training_images(copy: Path) -> None:
    replace_file(copy, "trained_on.txt", b"00ff\n1234\n\xff\n")
    assert {"00ff", "1234"} <= open_bundle(copy).trained_on()


def test_what_is_written_is_read(copy: Path) -> None:
    old = open_bundle(copy)
    classes = ("Äpfel", "caf\udce9", *old.classes[2:])  # a class folder's name need not be text
    made_with = {"seed": 1}
    write_manifest(
        copy,
        classes,
        old.preprocessing,
        old.parameters,
        old.latent,
        old.features,
        old.represented + 1,
        old.engines,
        old.recipe,
        made_with,
    )
    new = open_bundle(copy)
    changed = {"classes": classes, "represented": old.represented + 1, "made_with": made_with}
    assert new == replace(old, hash=new.hash, **changed)
    assert new.hash != old.hash


@pytest.mark.parametrize("name", registry.names())
def test_a_recipe_is_written_with_the_values_of_its_own_learner_alone(name: str, copy: Path) -> None:
    recipe = override(registry.named(name), ["segment=48"])
    change(copy, recipe=recipe.to_json())
    assert open_bundle(copy).recipe == recipe
    assert read_manifest(copy)["recipe"].keys() == {field.name for field in fields(recipe)}
    assert ("alpha" in read_manifest(copy)["recipe"]) is (name == "paper")
    others = {key for kind in registry.names() for key in registry.named(kind).to_json()} - recipe.to_json().keys()
    for key in others:
        change(copy, recipe={**recipe.to_json(), key: 1})
        with pytest.raises(BundleError, match=f"expected recipe values by name and type, but found {key} = 1"):
            open_bundle(copy)


@pytest.mark.parametrize("name", ["", "decoplus", None, 7])
def test_a_recipe_of_no_learner_here(name: Any, copy: Path) -> None:
    """As of another package's learner that is not installed."""
    change(copy, recipe={**read_manifest(copy)["recipe"], "name": name})
    with pytest.raises(
        BundleError, match=r"expected .*manifest.json to describe a bundle, but: expected --recipe to be"
    ):
        open_bundle(copy)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda path: None, "found nothing"),
        (lambda path: path.touch(), r"found a file that is no plain zip \(File is not a zip file\)"),
        (lambda path: path.mkdir(), "found no manifest.json in it"),
        (lambda path: (path / MANIFEST).mkdir(parents=True), "found no manifest.json in it"),
        (lambda path: path.symlink_to(path), "found nothing"),
    ],
)
def test_no_bundle_at_all(tmp_path: Path, make: Callable[[Path], Any], found: str) -> None:
    make(tmp_path / "bundle")
    with pytest.raises(
        BundleError,
        match=f"^expected a bundle at .*, but {found}; make one with deco-export",
    ):
        open_bundle(tmp_path / "bundle")


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 3000, "nul\0", "\udcff"])
def test_a_name_that_no_bundle_can_have(name: str) -> None:
    with pytest.raises(BundleError, match="expected a bundle at"):
        open_bundle(Path(name))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"hello", b"\xff\xfe", b"[]", b"null", b"3", b'"schema"', b"{}"),
        b'{"schema": ' + b"9" * 5000 + b"}",
        b'{"schema": 1, "schema": 1}',
        b'{"schema": 4, "x": ' + b"[" * 995 + b"]" * 995 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_manifest_that_is_none(copy: Path, text: bytes) -> None:
    (copy / MANIFEST).write_bytes(text)
    with pytest.raises(BundleError, match=r"^expected .*manifest.json to"):
        open_bundle(copy)


@pytest.mark.parametrize("schema", [0, 1, 2, 3, 99, 1.5, "3", None, [3], {"a": 1}])
def test_another_schema(copy: Path, schema: Any) -> None:
    change(copy, schema=schema)
    with pytest.raises(BundleError, match=r"^expected a bundle of schema 4, but .* is of schema .*; use the deco-edge"):
        open_bundle(copy)


def test_a_newer_schema_may_look_quite_different(copy: Path) -> None:
    write_json(copy, {"schema": 5})
    with pytest.raises(BundleError, match="is of schema 5"):
        open_bundle(copy)


@pytest.mark.parametrize("where", [0, -1])
def test_one_changed_byte_in_any_file(shared: Path, where: int) -> None:
    for name in open_bundle(shared).files:
        good = (shared / name).read_bytes()
        bad = bytearray(good)
        bad[where] ^= 1
        (shared / name).write_bytes(bad)
        with pytest.raises(BundleError, match="as it was exported, but its hash differs") as caught:
            open_bundle(shared)
        assert str(shared / name) in str(caught.value)
        (shared / name).write_bytes(good)
    open_bundle(shared)


def test_any_missing_file(shared: Path) -> None:
    for name in open_bundle(shared).files:
        (shared / name).rename(shared / "aside")
        with pytest.raises(BundleError, match="but it is missing; copy the bundle again") as caught:
            open_bundle(shared)
        assert str(shared / name) in str(caught.value)
        (shared / "aside").rename(shared / name)
    open_bundle(shared)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="/proc/self/mem stands for a bad sector")
def test_a_file_that_cannot_be_read(copy: Path) -> None:
    (copy / "weights.npy").unlink()
    (copy / "weights.npy").symlink_to("/proc/self/mem")
    with pytest.raises(BundleError, match=r"expected to read .*weights.npy, but the system says"):
        open_bundle(copy)


@pytest.mark.parametrize("name", FILES)
def test_a_file_without_a_hash(copy: Path, name: str) -> None:
    manifest = read_manifest(copy)
    del manifest["files"][name]
    write_json(copy, manifest)
    with pytest.raises(BundleError, match=f"no hash of {name}"):
        open_bundle(copy)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "graphs/../../x", "..", "..\\x", "graphs\\x"])
def test_names_that_lead_elsewhere(copy: Path, name: str) -> None:
    change(copy, files={**read_manifest(copy)["files"], name: "0"})
    with pytest.raises(BundleError, match="file name"):
        open_bundle(copy)


@pytest.mark.parametrize("name", ["", ".", "a" * 5000, "nul\0", "\udcff", "graphs"])
def test_names_of_no_file(copy: Path, name: str) -> None:
    change(copy, files={**read_manifest(copy)["files"], name: "0"})
    with pytest.raises(BundleError, match="missing"):
        open_bundle(copy)


@pytest.mark.parametrize("classes", [[], ["one"], ["a", "b", "a"], [1, "1"], None, 7, "x"])
def test_wrong_classes(copy: Path, classes: Any) -> None:
    change(copy, classes=classes)
    with pytest.raises(BundleError, match="malformed"):
        open_bundle(copy)


@pytest.mark.parametrize(
    "values",
    [
        {"offset": 1},
        {"offset": -1},
        {"offset": None},
        {"offset": 10**40},
        {"kind": "cauchy"},
        {"kind": None},
        {"a": float("nan")},
        {"b": float("inf")},
        {"a": 10**400},
        {"a": "much"},
        {"shape": [8, 3, 3, 0]},
        {"shape": [8, 3, 3, -3]},
        {"shape": [8, 3, 3, 2]},
        {"shape": [8, 3, 3, 3.0]},
        {"shape": [8, 3, 3, True]},
        {"shape": [2**31]},
        {"shape": 216},
        {"shape": None},
    ],
)
def test_wrong_parameters(copy: Path, values: dict[str, Any]) -> None:
    first, *others = read_manifest(copy)["parameters"]
    change(copy, parameters=[{**first, **values}, *others])
    with pytest.raises(BundleError, match="malformed"):
        open_bundle(copy)


def test_parameters_out_of_order(copy: Path) -> None:
    first, second, *others = read_manifest(copy)["parameters"]
    change(copy, parameters=[second, first, *others])
    with pytest.raises(BundleError, match=r"parameter '0.bias'"):
        open_bundle(copy)


@pytest.mark.parametrize(
    "values",
    [
        {"size": 0},
        {"size": "16"},
        {"size": True},
        {"size": 2**31},
        {"size": 1025},
        {"mean": [0.5, 0.5]},
        {"mean": 0.5},
        {"mean": [0.5, 0.5, float("nan")]},
        {"std": [0.5, 0.5, 0]},
        {"std": [-1, 1, 1]},
        {"std": [[1], 1, 1]},
        {"std": None},
    ],
)
def test_wrong_preprocessing(copy: Path, values: dict[str, Any]) -> None:
    change(copy, preprocessing={**read_manifest(copy)["preprocessing"], **values})
    with pytest.raises(BundleError, match="malformed"):
        open_bundle(copy)


@pytest.mark.parametrize("size", [0, -1, 256.0, "256", True, None, [256], 2**31])
@pytest.mark.parametrize("name", ["features", "represented"])
def test_wrong_lengths(name: str, size: Any, copy: Path) -> None:
    change(copy, **{name: size})
    with pytest.raises(BundleError, match=f"malformed .*size {re.escape(repr(size))}"):
        open_bundle(copy)


@pytest.mark.parametrize("recipe", [{"segment": 0}, {"segment": 1.5}, {"alpha": 10**400}, {"unknown": 1}, [], None])
def test_a_wrong_recipe(copy: Path, recipe: Any) -> None:
    change(copy, recipe=recipe)
    with pytest.raises(BundleError, match=r"expected .*manifest.json to describe a bundle, but"):
        open_bundle(copy)


SIZE = 257
"""D + 1 of the small bundle: the representation and the constant."""


def regression(size: int = SIZE, **other: Any) -> bytes:
    """Statistics of so many values, one of them the constant, but for these arrays."""
    arrays = {"a": np.zeros(size * (size + 1) // 2, np.float32), "b": np.zeros((size, 10), np.float32)}
    kinds = ("network", "regression", "mixed")
    fits = {
        "worth": np.float32(0.5),
        "prior": np.float32(0.1),
        "unknown": np.zeros(4, np.float32),
        **{f"{kind}_temperature": np.float32(1) for kind in kinds},
    }
    return npz(**{**arrays, **fits, **other})


WRONG_FILES = {
    "weights.npy": {
        "empty": b"",
        "text": b"hello",
        "no zip": b"PK\x03\x04" + bytes(60),
        "a zip": npz(a=np.zeros(2130, np.float32)),
        "float64": npy(np.zeros(2130)),
        "big-endian": npy(np.zeros(2130, ">f4")),
        "longer": npy(np.zeros(2131, np.float32)),
        "two dimensions": npy(np.zeros((2130, 1), np.float32)),
        "scalar": npy(np.float32(1)),
        "pickled": npy(np.array([object], dtype=object)),
        "cut": npy(np.zeros(2130, np.float32))[:-1],
        "huge": npy(np.zeros(2130, np.float32)).replace(b"(2130,)", b"(2**9,)"),
        "not a number": npy(np.full(2130, np.nan, np.float32)),
        "infinite": npy(np.r_[np.zeros(2129, np.float32), np.float32(-np.inf)]),
        "far too long": npy(np.zeros(10**9, np.void)).replace(b"|V0", b"<f4"),
    },
    "buffer.npz": {
        "one array": npy(np.zeros(20, np.float32)),
        "no zip": b"PK\x03\x04" + bytes(60),
        "without labels": npz(x_syn=np.zeros((20, 3, 16, 16), np.float32)),
        "without images": npz(y_syn=np.repeat(np.arange(10), 2)),
        "fewer labels": npz(x_syn=np.zeros((20, 3, 16, 16), np.float32), y_syn=np.arange(10)),
        "int32 labels": npz(x_syn=np.zeros((10, 3, 16, 16), np.float32), y_syn=np.arange(10, dtype=np.int32)),
        "other size": npz(x_syn=np.zeros((20, 3, 8, 8), np.float32), y_syn=np.repeat(np.arange(10), 2)),
        "uneven": npz(x_syn=np.zeros((11, 3, 16, 16), np.float32), y_syn=np.r_[np.arange(10), 0]),
        "a class missing": npz(x_syn=np.zeros((10, 3, 16, 16), np.float32), y_syn=np.r_[np.arange(9), 0]),
        "labels out of range": npz(x_syn=np.zeros((11, 3, 16, 16), np.float32), y_syn=np.arange(11)),
        "labels negative": npz(x_syn=np.zeros((11, 3, 16, 16), np.float32), y_syn=np.arange(-1, 10)),
        "nothing": npz(x_syn=np.zeros((0, 3, 16, 16), np.float32), y_syn=np.zeros(0, np.int64)),
        "pickled": npz(x_syn=np.array([object], dtype=object), y_syn=np.arange(10)),
    },
    "guard.npz": {
        "other size": npz(pixels=np.zeros((4, 8, 8, 3), np.uint8), labels=np.arange(4), takes=np.arange(4)),
        "float pixels": npz(pixels=np.zeros((4, 16, 16, 3), np.float32), labels=np.arange(4)),
        "fewer labels": npz(pixels=np.zeros((4, 16, 16, 3), np.uint8), labels=np.arange(3)),
        "without takes": npz(pixels=np.zeros((4, 16, 16, 3), np.uint8), labels=np.arange(4)),
        "fewer takes": npz(pixels=np.zeros((4, 16, 16, 3), np.uint8), labels=np.arange(4), takes=np.arange(3)),
        "nothing": npz(pixels=np.zeros((0, 16, 16, 3), np.uint8), labels=np.arange(0)),
        "labels out of range": npz(pixels=np.zeros((1, 16, 16, 3), np.uint8), labels=np.array([10])),
        "labels negative": npz(pixels=np.zeros((1, 16, 16, 3), np.uint8), labels=np.array([-1])),
    },
    "fitted/deco+.npz": {
        "one array": npy(np.zeros(3, np.float32)),
        "without sums": npz(network_temperature=np.float32(1), worth=np.float32(1)),
        "without temperatures": npz(a=np.zeros(SIZE * (SIZE + 1) // 2, np.float32), b=np.zeros((SIZE, 10), np.float32)),
        "without a value": regression(0),
        "a constant alone": regression(1),
        "of a smaller representation": regression(SIZE - 1),
        "of a larger representation": regression(SIZE + 1),
        "a square": regression(a=np.zeros((SIZE, SIZE), np.float32)),
        "of another size": regression(a=np.zeros(SIZE * (SIZE + 1) // 2 + 1, np.float32)),
        "float64": regression(a=np.zeros(SIZE * (SIZE + 1) // 2)),
        "fewer classes": regression(b=np.zeros((SIZE, 9), np.float32)),
        "not a number": regression(b=np.full((SIZE, 10), np.nan, np.float32)),
        "a network at temperature 0": regression(network_temperature=np.float32(0)),
        "a regression below 0": regression(regression_temperature=np.float32(-1)),
        "both at 0": regression(mixed_temperature=np.float32(0)),
        "infinite temperature": regression(network_temperature=np.float32(np.inf)),
        "temperature of each class": regression(network_temperature=np.ones(10, np.float32)),
        "worth more than all": regression(worth=np.float32(1.5)),
        "too few weights of the signs": regression(unknown=np.zeros(3, np.float32)),
        "worth less than nothing": regression(worth=np.float32(-0.1)),
        "a prior below nothing": regression(prior=np.float32(-0.1)),
    },
    "fitted/slda.npz": {
        "empty": b"",
        "without a temperature": npz(a=np.float32(1)),
        "at temperature 0": npz(temperature=np.float32(0)),
        "below 0": npz(temperature=np.float32(-1)),
        "not a number": npz(temperature=np.float32(np.nan)),
        "float64": npz(temperature=np.float64(1)),
        "of each class": npz(temperature=np.ones(10, np.float32)),
    },
    "golden.npz": {
        "empty": b"",
        "one array": npy(np.zeros(3)),
        "no zip": b"PK\x03\x04" + bytes(60),
        "text": b"hello",
        "pickled": npz(x=np.array([object], dtype=object)),
    },
}


@pytest.mark.parametrize(
    ("name", "data"),
    [(name, data) for name, kinds in WRONG_FILES.items() for data in kinds.values()],
    ids=[f"{name} {kind}" for name, kinds in WRONG_FILES.items() for kind in kinds],
)
def test_wrong_files_with_a_right_hash(copy: Path, name: str, data: bytes) -> None:
    read_everything(open_bundle(copy))
    replace_file(copy, name, data)
    bundle = open_bundle(copy)
    with pytest.raises(
        BundleError, match=r"^expected .* to hold .*, but it does not; export the bundle again$"
    ) as caught:
        read_everything(bundle)
    assert f"expected {copy / name} to hold" in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([0, 1, -1, 10**400, "1", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    if isinstance(value, dict):
        here = list(value.items())
    elif isinstance(value, list):
        here = list(enumerate(value))
    else:
        return []
    return [(value, key) for key, _ in here] + [place for _, inner in here for place in places(inner)]


FITS = {
    "classes": ("buffer.npz", "guard.npz", "fitted/deco+.npz"),
    "preprocessing": ("buffer.npz", "guard.npz"),
    "parameters": ("weights.npy",),
    "represented": ("fitted/deco+.npz",),
}
"""Files that no longer fit what the manifest says when this part of it has changed."""


def check_another_manifest(path: Path, bad: bytes) -> None:
    """The bundle as it is can be read. With these bytes as its manifest it can too, or the error names what has changed
    or no longer fits; a file is never read that has not the hash it is listed with. Puts the manifest back."""
    good = (path / MANIFEST).read_bytes()
    read_everything(open_bundle(path))
    said = None
    try:
        (path / MANIFEST).write_bytes(bad)
        read_everything(open_bundle(path))
    except BundleError as error:
        said = str(error)
    finally:
        (path / MANIFEST).write_bytes(good)
    if said is None:
        assert json.loads(bad)["files"].items() <= json.loads(good)["files"].items()
    else:
        blamed = [f"{name}{end}" for name in to_blame(path, json.loads(good), bad) for end in (" ", ", but")]
        assert any(words in said for words in blamed), said


def to_blame(path: Path, good: dict[str, Any], bad: bytes) -> list[Path]:
    """What an error may name where a manifest has become these bytes: the manifest, and what its changes concern.

    Nothing if it says the same.
    """
    names = [MANIFEST]
    try:
        found = parse_json(bad)
        if json.dumps(found) == json.dumps(good):
            return []
        changed = {key for key in good if json.dumps(found.get(key)) != json.dumps(good[key])}
        names += [name for key in changed for name in FITS.get(key, ())]
        files = dict(found["files"])
        names += [name for name in files if name not in good["files"] or files[name] != good["files"][name]]
        names += [name for name in good["files"] if name not in files]
        if "buffer.npz" not in files:
            names.append(".")  # the bundle, which then is one without
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # none that could be understood
    return [path / name for name in names]


@given(data=st.data())
@on_one_directory
def test_any_change_of_the_manifest_is_met(shared: Path, data: st.DataObject) -> None:
    manifest = json.loads((shared / MANIFEST).read_bytes())
    for _ in range(data.draw(st.integers(1, 2))):
        everywhere = places(manifest)
        if not everywhere:
            break
        container, key = everywhere[data.draw(st.integers(0, len(everywhere) - 1))]
        what = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if what == "remove":
            del container[key]
        elif what == "add" and isinstance(container, dict):
            container[data.draw(st.text())] = data.draw(json_values)
        else:
            container[key] = data.draw(json_values)
    check_another_manifest(shared, json.dumps(manifest).encode())


@given(st.binary(max_size=40), st.integers(0, 8000), st.integers(0, 8000))
@example(b"", 0, 0)
@on_one_directory
def test_any_bytes_in_the_manifest_are_met(shared: Path, junk: bytes, start: int, length: int) -> None:
    good = (shared / MANIFEST).read_bytes()
    check_another_manifest(shared, good[:start] + junk + good[start + length :])


def test_a_file_that_the_manifest_does_not_list_is_not_read(bundle_path: Path, tmp_path: Path) -> None:
    """Nobody has its hash: it may be what another export left there."""
    from bundles import without

    copy = tmp_path / "bundle"
    shutil.copytree(bundle_path, copy)
    name = "fitted/slda.npz"
    assert open_bundle(copy).array(name, "temperature", np.float32, ()) > 0
    content = (copy / name).read_bytes()
    without(copy, name)
    (copy / name).write_bytes(content)
    with pytest.raises(BundleError, match=r"slda\.npz"):
        open_bundle(copy).array(name, "temperature", np.float32, ())
