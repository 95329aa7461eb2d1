"""Files that nobody vouches for: read exactly, or refused before anything is allocated, and never run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import deco_runtime
import numpy as np
import pytest
from deco_runtime.storage.untrusted import ALWAYS_FINE, check_archive, parse_json, read_bytes, read_npy, read_npz
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

numbers = arrays.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "|u1", ">f4"]), arrays.array_shapes(min_dims=0, min_side=0, max_dims=4)
)


def packed(compress: bool = False, **values: Any) -> bytes:
    memory = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(memory, **values)
    return memory.getvalue()


def npy(header: str | bytes, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header if isinstance(header, bytes) else header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2 if version[0] == 1 else 4, "little") + text + data


def header(shape: str, descr: str = "<f4") -> str:
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}"


@given(a=numbers, b=numbers, fortran=st.booleans(), compress=st.booleans())
@settings(max_examples=50)
def test_what_numpy_writes_is_read_bit_for_bit(a: Any, b: Any, fortran: bool, compress: bool) -> None:
    a = np.asfortranarray(a) if fortran and a.ndim else a
    found = read_npz(io.BytesIO(packed(compress, a=a, b=b)))
    for name, value in (("a", a), ("b", b)):
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes()
        assert found[name].flags.writeable
    assert list(read_npz(io.BytesIO(packed(compress, a=a, b=b)), ("b", "c"))) == ["b"]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\x93NUMPY", b"hello, this is no array", npy(""), npy("{}"), npy("__import__('os')"), npy("1")),
        npy("(" * 9000),
        npy("-" * 9000 + "1"),
        npy("[" * 9000 + "]" * 9000),
        npy(b"\xff\xfe"),
        npy(header("(-1,)"), bytes(4)),
        npy(header("(-2, -3)"), bytes(24)),
        npy(header("(0, -1)")),
        npy(header("(True,)"), bytes(4)) + b"more",
        npy(header("(1,)"), bytes(3)),
        npy(header("(1,)"), bytes(5)),
        npy(header("(10**9,)"), bytes(4)),
        npy(header(f"({10**18},)"), bytes(4)),
        npy(header("(" + "9" * 5000 + ",)"), bytes(4)),
        npy(header(f"({2**62}, 4)"), b""),  # 0 bytes in 64-bit arithmetic
        npy(header("(1,)", "|O"), bytes(8)),
        npy(header("(1,)", "<U1"), bytes(4)),
        npy(header("(1,)", "|V4"), bytes(4)),
        npy(header("(9,)", "|V0")),
        npy(header("(1,)", "<M8[s]"), bytes(8)),
        npy(header("(1,)"), bytes(4), version=b"\x02\x00")[:-1],
        npy(header("(1,)"), bytes(4), version=b"\x03\x00"),
        npy(header("(1,)"), bytes(4), version=b"\x09\x00"),
    ],
    ids=lambda data: repr(data[:60]),
)
def test_what_is_no_array_of_numbers(data: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"^its header is none of numpy's$|^it holds no array of numbers$|^its length is not"
    ):
        read_npy(io.BytesIO(data), len(data))


good_archive = packed(x=np.arange(12, dtype=np.float32).reshape(3, 4), y=np.arange(3))


@given(
    where=st.integers(0, len(good_archive) - 1),
    junk=st.binary(max_size=8),
    length=st.integers(0, 8),
    end=st.integers(0, len(good_archive)) | st.just(len(good_archive)),
)
@settings(max_examples=150)
def test_any_damage_of_an_archive_is_a_value_error(where: int, junk: bytes, length: int, end: int) -> None:
    data = (good_archive[:where] + junk + good_archive[where + length :])[:end]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of names given twice
        try:
            found = read_npz(io.BytesIO(data))
        except ValueError:
            return
    assert sum(array.nbytes for array in found.values()) <= len(data)


def archive(*members: tuple[str, bytes], kind: int = stat.S_IFREG, method: int = zipfile.ZIP_STORED) -> io.BytesIO:
    memory = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(memory, "w", method) as out:
        warnings.simplefilter("ignore")
        for name, data in members:
            info = zipfile.ZipInfo("placeholder")
            info.filename, info.external_attr, info.compress_type = name, (kind | 0o644) << 16, method
            out.writestr(info, data)
    return memory


def refuse(memory: io.BytesIO, words: str) -> None:
    with zipfile.ZipFile(memory) as found, pytest.raises(ValueError, match=words):
        check_archive(found, len(memory.getvalue()))


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "..", "a\\b", "c:/a", "a//b", "./a", "", "a/./b"])
def test_names_that_could_lead_elsewhere(name: str) -> None:
    refuse(archive((name, b"x")), "member with the name")


def test_archives_that_are_not_plain() -> None:
    refuse(archive(("a", b"x"), ("a", b"y")), "twice")
    refuse(archive(("a", b"x"), ("a/", b"")), "twice")
    refuse(archive(("a", b"/etc/passwd"), kind=stat.S_IFLNK), "a link or a device")
    refuse(archive(("a", b""), kind=stat.S_IFCHR), "a link or a device")
    refuse(archive(("a", b"x"), method=zipfile.ZIP_BZIP2), "packed in another way")
    locked = archive(("a", b"x"))
    data = bytearray(locked.getvalue())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refuse(io.BytesIO(bytes(data)), "encrypted")
    with zipfile.ZipFile(archive(("a", b"x"), ("b/c", bytes(9)), ("b/", b""))) as plain:
        check_archive(plain, 10**6)


def test_archives_that_unpack_to_too_much() -> None:
    bomb = archive(("a", bytes(ALWAYS_FINE + 1)), method=zipfile.ZIP_DEFLATED)
    assert len(bomb.getvalue()) < ALWAYS_FINE / 500
    refuse(bomb, "would unpack to")
    shared = archive(("a", bytes(1000)), ("b", b"x"))
    data = bytearray(shared.getvalue())
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 20 : second + 24] = data[second + 24 : second + 28] = (1000).to_bytes(4, "little")
    data[second + 42 : second + 46] = bytes(4)  # the bytes of the first
    refuse(io.BytesIO(bytes(data)), "more bytes than it has")


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b'"\xff"', b"\xef\xbb\xbf{}", b"[" * 10**5, b"9" * 5000, b"'a'"),
        *(b'{"a": 1, "a": 1}', b'[{"b": {"a": 1, "a": 2}}]'),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expect|decode|BOM|nested|digits|twice"):
        parse_json(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_a_pipe_or_a_device_is_no_file_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(ValueError, match="no file"):
            read_bytes(path, 100)


BOMBS = """
import io, resource, sys, zipfile
from pathlib import Path
import numpy as np
from deco_runtime.storage.bundle import open_bundle
from deco_runtime.errors import DecoError
from deco_runtime.learning import registry
from deco_runtime.learning.guard import Unguarded
from deco_runtime.storage.untrusted import read_npy, read_npz
from deco_runtime.storage.state import load
folder, bundle = Path(sys.argv[1]), open_bundle(Path(sys.argv[2]))
fresh = {name: Unguarded(registry.started(kind, bundle)) for name, kind in registry.learners().items()}
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (96 << 20),) * 2)
try:
    np.ones(128 << 20, np.uint8)
    print("without a limit")
except MemoryError:
    pass
calls = {
    "npy": lambda path: read_npy(path.open("rb"), path.stat().st_size),
    "npz": lambda path: read_npz(path.open("rb")),
    "deco": open_bundle,
    "state": lambda path: load(path, bundle, fresh["paper"]),
    "plus": lambda path: load(path, bundle, fresh["deco+"]),
}
for path in sorted(folder.iterdir()):
    try:
        calls[path.suffix[1:]](path)
        print(path.name, "was taken")
    except (ValueError, DecoError) as error:
        assert "memory" not in str(error), error
    except MemoryError:
        print(path.name, "took all memory")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to limit memory")
def test_no_size_in_a_file_is_allocated_before_it_is_checked(tmp_path: Path, bundle_path: Path) -> None:
    """In a process that may take 96 MiB more than it has."""
    places = tmp_path / "bombs"
    places.mkdir()
    many, zeros = npy(header(f"({1 << 28},)"), bytes(400)), bytes(200 << 20)
    (places / "header.npy").write_bytes(many)
    (places / "header.npz").write_bytes(archive(("x.npy", many)).getvalue())
    (places / "member.npz").write_bytes(archive(("x.npy", zeros), method=zipfile.ZIP_DEFLATED).getvalue())
    (places / "manifest.deco").write_bytes(
        archive(("manifest.json", b" " * (200 << 20)), method=zipfile.ZIP_DEFLATED).getvalue()
    )
    declared = bytearray(archive(("x.npy", many), method=zipfile.ZIP_DEFLATED).getvalue())
    entry = declared.index(b"PK\x01\x02")
    declared[entry + 24 : entry + 28] = (4 * (1 << 28) + 128).to_bytes(4, "little")
    (places / "declared.npz").write_bytes(bytes(declared))
    payload = archive(("model.npy", many), ("meta.npy", many)).getvalue()
    for ending in ("state", "plus"):
        huge, full = (places / f"{name}.{ending}" / "learned.deco" for name in ("huge", "full"))
        for file in (huge, full):
            file.parent.mkdir()
        with huge.open("wb") as sparse:
            sparse.truncate(1 << 40)
        full.write_bytes(hashlib.sha256(payload).digest() + payload)
    done = subprocess.run(
        [sys.executable, "-c", BOMBS, places, bundle_path],
        env={**os.environ, "PYTHONPATH": str(Path(deco_runtime.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("", 0), done.stderr
