"""CIFAR and SVHN as their sites ship them, from files written here in the official formats."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deco_runtime.errors import DataError

pytest.importorskip("torch")

from deco_benchmarks.archives import unpickle
from deco_benchmarks.datasets import load

RED = np.r_[np.full(1024, 250), np.full(1024, 20), np.full(1024, 10)].astype(np.uint8)
"""One CIFAR row: the R plane, then G, then B."""


def dump(path: Path, value: object) -> None:
    path.write_bytes(pickle.dumps(value, protocol=2))


def cifar10(root: Path) -> None:
    dump(root / "batches.meta", {b"label_names": [b"plane", b"car"], b"num_vis": 3072})
    for number, name in enumerate([f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]):
        data = np.stack([RED, np.full(3072, number, np.uint8)])
        dump(root / name, {b"data": data, b"labels": [1, 0], b"filenames": [b"a.png", b"b.png"]})


def cifar100(root: Path) -> None:
    dump(root / "meta", {b"fine_label_names": [b"apple", b"bee"], b"coarse_label_names": [b"fruit", b"insect"]})
    for name, count in (("train", 4), ("test", 2)):
        labels = [n % 2 for n in range(count)]
        dump(root / name, {b"data": np.stack([RED] * count), b"fine_labels": labels, b"coarse_labels": [0] * count})


def svhn(root: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    for name, labels in (("train", [10, 1, 9]), ("test", [10, 3])):
        x = np.zeros((32, 32, 3, len(labels)), np.uint8)
        x[:, :, 0] = 250
        savemat(root / f"{name}_32x32.mat", {"X": x, "y": np.array(labels, np.uint8)[:, None]})


def test_cifar10(tmp_path: Path) -> None:
    cifar10(tmp_path)
    found = load(str(tmp_path), 32, seed=0)
    assert (found.name, found.classes) == ("CIFAR-10", ("plane", "car"))
    assert found.train.pixels.shape == (10, 32, 32, 3)
    assert found.train.pixels.dtype == np.uint8
    assert found.train.labels.tolist() == [1, 0] * 5
    assert found.train.pixels[0, 5, 7].tolist() == [10, 20, 250]  # B, G, R
    assert found.train.pixels[1::2, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]  # batches in order
    assert found.test.pixels[1, 0, 0, 0] == 5


def test_cifar_rows_run_left_to_right_then_down(tmp_path: Path) -> None:
    cifar10(tmp_path)
    row = np.zeros(3072, np.uint8)
    row[1024 + 32 * 3 + 8] = 77  # green, fourth line, ninth column
    dump(tmp_path / "test_batch", {b"data": row[None], b"labels": [0]})
    pixels = load(str(tmp_path), 32, seed=0).test.pixels
    assert pixels[0, 3, 8, 1] == 77
    assert pixels.sum() == 77


def test_cifar100_has_the_fine_labels(tmp_path: Path) -> None:
    cifar100(tmp_path)
    found = load(str(tmp_path), 16, seed=0)
    assert (found.name, found.classes) == ("CIFAR-100", ("apple", "bee"))
    assert found.train.pixels.shape == (4, 16, 16, 3)
    assert found.test.labels.tolist() == [0, 1]


def test_svhn_calls_ten_zero(tmp_path: Path) -> None:
    svhn(tmp_path)
    found = load(str(tmp_path), 32, seed=0)
    assert (found.name, found.classes) == ("SVHN", tuple("0123456789"))
    assert found.train.labels.tolist() == [0, 1, 9]
    assert found.test.labels.dtype == np.int64
    assert found.train.pixels.shape == (3, 32, 32, 3)
    assert found.train.pixels[0, 0, 0].tolist() == [0, 0, 250]


def test_a_file_as_python_2_wrote_it(tmp_path: Path) -> None:
    """The real files hold Python 2 strings (opcode U), which newer Pythons cannot write, also inside the array."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x06abcdeftb"
    )
    (tmp_path / "old").write_bytes(b"\x80\x02}(U\x04data" + array + b"U\x06labels]K\x01au.")
    found = unpickle(tmp_path / "old")
    assert found[b"labels"] == [1]
    assert found[b"data"].tolist() == [[97, 98, 99], [100, 101, 102]]


class Malicious:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.made = (call, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.made


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    cifar10(tmp_path)
    trace = tmp_path / "trace"
    evil = pickle.dumps({b"data": Malicious(os.mkdir, str(trace)), b"labels": []}, protocol)
    (tmp_path / "data_batch_3").write_bytes(evil)
    with pytest.raises(DataError, match="mkdir"):
        load(str(tmp_path), 32, seed=0)
    assert not trace.exists()
    pickle.loads(evil)  # it would have done it
    assert trace.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n.",
        b"cnumpy\nload\n.",
        b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    ],
)
def test_only_what_the_files_contain_is_allowed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match="expected"):
        unpickle(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("test_batch", [1, 2]),
        ("test_batch", {b"labels": [0]}),
        ("test_batch", {b"data": np.zeros((1, 3072), np.float32), b"labels": [0]}),
        ("test_batch", {b"data": np.zeros((1, 3000), np.uint8), b"labels": [0]}),
        ("test_batch", {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}),
        ("test_batch", {b"data": np.zeros((1, 3072), np.uint8), b"labels": [7]}),
        ("test_batch", {b"data": np.zeros((1, 3072), np.uint8)}),
        ("batches.meta", {b"label_names": []}),
    ],
)
def test_a_file_that_is_otherwise_is_named(tmp_path: Path, name: str, value: object) -> None:
    cifar10(tmp_path)
    dump(tmp_path / name, value)
    with pytest.raises(DataError, match=name):
        load(str(tmp_path), 32, seed=0)


@pytest.mark.parametrize("name", ["test_batch", "test_32x32.mat"])
@pytest.mark.parametrize("content", [b"", b"\x80\x02}q", b"no such file at all" * 20])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (cifar10 if name == "test_batch" else svhn)(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        load(str(tmp_path), 32, seed=0)


@pytest.mark.parametrize(("write", "lost"), [(cifar10, "data_batch_4"), (cifar100, "meta"), (svhn, "test_32x32.mat")])
def test_a_missing_file_is_named_with_its_place(tmp_path: Path, write: Any, lost: str) -> None:
    write(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(DataError, match=f"{lost} missing") as caught:
        load(str(tmp_path), 32, seed=0)
    assert str(tmp_path) in str(caught.value)


def test_nothing_there_says_what_could_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1.*train_32x32\.mat"):
        load(str(tmp_path / "nowhere"), 32, seed=0)
