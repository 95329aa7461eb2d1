"""Labelled folders: what is listed, what is refused and in which words, what an unreadable image does."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from deco_runtime.errors import DataError
from deco_runtime.pictures.folder import (
    Unreadable,
    fingerprint,
    list_folder,
    part_for_testing,
    read_image,
    split_folder,
)
from deco_runtime.pictures.layout import EXTENSIONS
from deco_runtime.types import Pixels


def picture(blue: int = 255, green: int = 0, red: int = 0) -> Pixels:
    return np.full((24, 32, 3), (blue, green, red), np.uint8)


def touch(root: Path, *names: str) -> Path:
    """Make empty files; listing does not look into them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def encoded(extension: str, pixels: Pixels) -> bytes:
    ok, data = cv2.imencode(extension, pixels)
    assert ok
    return bytes(data.tobytes())


def verbose_opencv() -> None:
    """OpenCV's level as it is before anybody silences it, whatever ran before."""
    set_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel
    set_level(3)


# --- split_folder


def test_split_takes_train_and_test(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.png", "test/cat/2.png")
    assert split_folder(tmp_path) == (tmp_path / "train", tmp_path / "test")


def test_split_without_test(tmp_path: Path) -> None:
    touch(tmp_path, "train/cat/1.png")
    assert split_folder(tmp_path) == (tmp_path / "train", None)


def test_split_without_train_is_the_folder_itself(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "test/2.png")
    assert split_folder(tmp_path) == (tmp_path, None)


# --- list_folder


def test_lists_images_sorted_and_ignores_the_rest(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("dog/b.png", "dog/a.JPG", "cat/z.jpeg", "cat/.hidden.png", "cat/notes.txt", "cat/deeper/c.png"),
        *(".cache/x.png", "readme.png", "readme.md", "dog/.DS_Store", "dog/Thumbs.db", "dog/._a.JPG"),
    )
    (tmp_path / "dog" / "folder.png").mkdir()
    listed = list_folder(tmp_path)
    assert listed.root == tmp_path
    assert listed.classes == ("cat", "dog")
    assert listed.files == tuple(
        tmp_path / name for name in ("cat/deeper/c.png", "cat/z.jpeg", "dog/a.JPG", "dog/b.png")
    )
    assert listed.labels == (0, 0, 1, 1)
    assert [listed.name(file).as_posix() for file in listed.files] == ["deeper/c.png", "z.jpeg", "a.JPG", "b.png"]
    assert listed.note == (
        f"passed over in {tmp_path}, by kind and with an example: 2 hidden entries (.cache), "
        "1 .txt files (cat/notes.txt), 1 images outside of the class folders (readme.png)"
    )


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_lists_every_extension(tmp_path: Path, extension: str) -> None:
    touch(tmp_path, f"a/1{extension}", f"b/2{extension}")
    assert len(list_folder(tmp_path).files) == 2


def test_labels_follow_the_classes_given(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.png", "dog/2.png")
    listed = list_folder(tmp_path, ["dog", "bird", "cat"])
    assert listed.classes == ("dog", "bird", "cat")
    assert [(file.parent.name, label) for file, label in zip(listed.files, listed.labels, strict=True)] == [
        ("cat", 2),
        ("dog", 0),
    ]


def test_one_class_is_enough_where_the_classes_are_given(tmp_path: Path) -> None:
    touch(tmp_path, "dog/2.png")
    assert list_folder(tmp_path, ["cat", "dog"]).labels == (1,)


ERRORS: dict[str, tuple[Callable[[Path], object], list[str] | None, list[str]]] = {
    "missing": (lambda root: None, None, ["nothing at", "check the path"]),
    "a file": (lambda root: root.touch(), None, ["found the file", "name the folder"]),
    "empty": (lambda root: root.mkdir(), None, ["no class folder", "make one folder per class"]),
    "no class folders": (lambda root: touch(root, "1.png"), None, ["no class folder", "per class"]),
    "hidden class folders": (lambda root: touch(root, ".a/1.png", ".b/1.png"), None, ["no class folder"]),
    "one class": (lambda root: touch(root, "cat/1.png"), None, ["2 or more", "only 'cat'", "add another"]),
    "class without images": (
        lambda root: touch(root, "cat/1.png", "dog/notes.txt"),
        None,
        ["expected images (.jpg,", "dog", "found none but 1 .txt files (dog/notes.txt)", "add images or remove"],
    ),
    "unknown class": (
        lambda root: touch(root, "cat/1.png", "dog/1.png", "eel/1.png"),
        ["cat", "bird"],
        ["among cat, bird", "found dog, eel", "rename or remove"],
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_was_expected_and_found_and_what_to_do(tmp_path: Path, case: str) -> None:
    make, classes, words = ERRORS[case]
    root = tmp_path / "data"
    make(root)
    with pytest.raises(DataError) as caught:
        list_folder(root, classes)
    message = str(caught.value)
    assert message.startswith("expected ")
    assert " found " in message
    assert str(root) in message
    assert "\n" not in message
    assert ". " not in message
    for word in words:
        assert word in message


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", forbidden)  # a mode would not stop root
    with pytest.raises(DataError, match=r"cannot \(Permission denied\): check its permissions"):
        list_folder(tmp_path)


# --- what is passed over, and other layouts


def write(root: Path, *names: str) -> Path:
    """Make small images."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(".png", picture()))
    return root


def test_what_is_passed_over_is_counted_by_reason(tmp_path: Path) -> None:
    """As a folder from a phone, with links to a disk that is away and takes in folders of their own."""
    write(tmp_path, "cat/0.jpg", "dog/0.jpg", "dog/day1/1.jpg", "dog/day1/am/2.jpg", "dog/day2/1.jpg")
    touch(tmp_path, *(f"cat/{i}.heic" for i in range(5)), "dog/notes", "dog/day1/.x.jpg", "dog/day1/clip.mov")
    for i in range(3):
        (tmp_path / "dog" / f"{i + 5}.jpg").symlink_to("/mnt/nas/none.jpg")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    listed = list_folder(tmp_path)
    dogs = [file for file in listed.files if file.is_relative_to(tmp_path / "dog")]
    assert [listed.name(file).as_posix() for file in dogs] == ["0.jpg", "day1/1.jpg", "day1/am/2.jpg", "day2/1.jpg"]
    assert listed.labels == (0, 1, 1, 1, 1)
    assert listed.note == (
        f"passed over in {tmp_path}, by kind and with an example: "
        "5 .heic files, to be converted to JPEG (cat/0.heic), 3 links to nothing (dog/5.jpg), 1 .mov files "
        "(dog/day1/clip.mov), 1 files without an ending (dog/notes), 1 hidden entries (dog/day1/.x.jpg), "
        "1 images that are no regular files (dog/pipe.png)"
    )


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write(tmp_path, "cat/0.jpg", "cat/more/1.jpg", "dog/0.jpg")
    (tmp_path / "cat" / "more" / "again").symlink_to(tmp_path / "cat")
    (tmp_path / "dog" / "elsewhere").symlink_to(tmp_path / "cat" / "more")
    listed = list_folder(tmp_path)
    assert [file.relative_to(tmp_path).as_posix() for file in listed.files] == [
        *("cat/0.jpg", "cat/more/1.jpg", "dog/0.jpg", "dog/elsewhere/1.jpg", "dog/elsewhere/again/0.jpg"),
    ]
    assert listed.note is not None
    assert "2 links to folders that are read already" in listed.note


@pytest.mark.parametrize("classes", [None, ["cat", "dog", "eel"]])
def test_a_class_that_would_be_lost_is_refused(tmp_path: Path, classes: list[str] | None) -> None:
    write(tmp_path, "cat/0.jpg", "dog/0.jpg")
    (tmp_path / "eel").symlink_to("/mnt/nas/eel")
    with pytest.raises(DataError, match=r"the link .*eel leads to nothing: mount the disk"):
        list_folder(tmp_path, classes)
    (tmp_path / "eel").unlink()
    touch(tmp_path, "eel/1.heic", "eel/2.heic")
    words = r"class folder .*eel, found none but 2 \.heic files, to be converted to JPEG \(eel/1\.heic\): add images"
    with pytest.raises(DataError, match=words):
        list_folder(tmp_path, classes)


def test_files_beside_the_class_folders_lose_nothing(tmp_path: Path) -> None:
    write(tmp_path, "cat/0.jpg", "dog/0.jpg")
    touch(tmp_path, "labels.csv", "README.md")
    (tmp_path / "old.csv").symlink_to("nowhere.csv")
    assert list_folder(tmp_path).note is None


@pytest.mark.parametrize("name", ["train", "test", "val", "Train", "stream"])
def test_a_class_may_be_called_like_a_part(tmp_path: Path, name: str) -> None:
    write(tmp_path, "bus/0.jpg", "car/1.jpg", f"{name}/2.jpg")
    known = ["bus", "car", name]
    for classes in (None, known):
        assert split_folder(tmp_path, classes) == (tmp_path, None)
    assert part_for_testing(tmp_path, known) == tmp_path
    listed = list_folder(tmp_path)
    assert set(listed.classes) == {"bus", "car", name}
    assert len(listed.files) == 3
    assert listed.note is None
    # The same classes as a data set in parts.
    laid = tmp_path / "laid"
    for part in ("train", "test"):
        write(laid, *(f"{part}/{k}/0.jpg" for k in known))
    for classes in (None, known):
        assert split_folder(laid, classes) == (laid / "train", laid / "test")
    assert part_for_testing(laid, known) == laid / "test"


def test_a_class_called_train_with_takes(tmp_path: Path) -> None:
    write(tmp_path, "bus/day1/0.jpg", "car/day1/1.jpg", "train/day1/2.jpg", "train/day2/2.jpg")
    assert split_folder(tmp_path) == (tmp_path, None)
    listed = list_folder(tmp_path)
    assert listed.labels == (0, 1, 2, 2)
    assert listed.note == f"takes train in {tmp_path} for a class, since class folders lie beside it"


def test_parts_beside_other_folders_are_still_parts(tmp_path: Path) -> None:
    write(tmp_path, "train/cat/0.jpg", "train/dog/0.jpg", "train/cover.jpg", "test/cat/1.jpg", "docs/figure.png")
    assert split_folder(tmp_path) == (tmp_path / "train", tmp_path / "test")


LAYOUTS: dict[str, tuple[list[str], list[str] | None, str]] = {
    "images directly": (["a.jpg", "b.jpg"], None, "no class folder in {root}, but 2 images directly in it: make one "),
    "and a table": (["a.jpg", "labels.csv"], ["cat"], "but 1 images directly in it and labels.csv: make one folder"),
    "packed": (["photos.zip"], None, "no class folder in {root}, but photos.zip: unpack it, and make one folder per"),
    "one folder too high": (
        ["photos/cat/0.jpg", "photos/dog/0.jpg"],
        None,
        "only 'photos' in {root}, which holds cat, dog: name {root}/photos",
    ),
    "for a bundle": (["photos/cat/0.jpg"], ["cat", "dog"], "only 'photos' in {root}, which holds cat: name {root}/"),
    "parts of other names": (
        ["Training/cat/0.jpg", "Training/dog/0.jpg", "Testing/cat/0.jpg"],
        None,
        "the parts Testing, Training of a data set in {root}: name one of them, such as {root}/Training",
    ),
    "no test part": (
        ["train/cat/0.jpg", "val/cat/0.jpg"],
        ["cat", "dog"],
        "the parts train, val of a data set in {root}: name one of them, such as {root}/train",
    ),
    "for detection": (["images/a.jpg", "labels/a.txt"], None, "the folders images, labels in {root}, as for finding"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_other_layouts_get_advice(tmp_path: Path, name: str) -> None:
    files, classes, words = LAYOUTS[name]
    write(tmp_path, *files)
    with pytest.raises(DataError) as error:
        list_folder(tmp_path, classes)
    said = str(error.value)
    assert words.format(root=tmp_path) in said
    assert said.startswith("expected ")
    assert "\n" not in said


# --- names


def test_class_names_are_compared_in_one_form(tmp_path: Path) -> None:
    nfc, nfd = (unicodedata.normalize(form, "Äpfel") for form in ("NFC", "NFD"))
    assert nfc != nfd
    write(tmp_path / "mac", f"{nfd}/0.jpg", "Brot/0.jpg")
    assert list_folder(tmp_path / "mac").classes == ("Brot", nfc)
    for classes in ((nfc, "Brot"), (nfd, "Brot")):
        listed = list_folder(tmp_path / "mac", classes)
        assert listed.classes == classes
        assert listed.labels == (1, 0)
        assert listed.name(listed.files[1]).as_posix() == "0.jpg"
    write(tmp_path / "mac", f"{nfc}/1.jpg")  # both forms side by side: one class
    listed = list_folder(tmp_path / "mac")
    assert listed.classes == ("Brot", nfc)
    assert listed.labels == (0, 1, 1)


# --- read_image


@pytest.mark.parametrize("extension", [".png", ".bmp", ".tif", ".ppm", ".webp", ".jpg"])
def test_a_blue_image_is_blue_first(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"blue{extension}"
    path.write_bytes(encoded(extension, picture(blue=250, green=10, red=30)))
    pixels = read_image(path)
    assert pixels is not None
    assert pixels.shape == (24, 32, 3)
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels.mean((0, 1)), (250, 10, 30), atol=4)


def test_grey_transparent_and_deep_images_become_bgr(tmp_path: Path) -> None:
    cases = {
        "grey.pgm": (np.full((8, 8), 90, np.uint8), (90, 90, 90)),
        "transparent.png": (np.full((8, 8, 4), (10, 20, 30, 0), np.uint8), (255, 255, 255)),
        "deep.png": (np.full((8, 8, 3), (0x1234, 0x5678, 0x9ABC), np.uint16), (0x12, 0x56, 0x9A)),
    }
    for name, (pixels, expected) in cases.items():
        path = tmp_path / name
        path.write_bytes(encoded(path.suffix, pixels))  # type: ignore[arg-type]
        read = read_image(path)
        assert read is not None, name
        assert read.shape == (8, 8, 3)
        assert read.dtype == np.uint8
        np.testing.assert_allclose(read[0, 0], expected, atol=1)


def test_a_name_that_is_not_ascii(tmp_path: Path) -> None:
    path = tmp_path / "Brücke 橋.png"
    path.write_bytes(encoded(".png", picture()))
    assert read_image(path) is not None


@pytest.mark.parametrize("extension", [".png", ".jpg", ".bmp", ".tif", ".ppm", ".webp"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_an_image_cut_short_is_unreadable_in_silence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], extension: str, share: float
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(extension, noise)
    path = tmp_path / f"cut{extension}"
    path.write_bytes(data[: int(len(data) * share)])
    verbose_opencv()
    assert read_image(path) is None
    assert capfd.readouterr() == ("", "")


def test_what_is_no_image_is_unreadable_in_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.png").write_text("not an image\n" * 50)
    (tmp_path / "noise.jpg").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "folder.png").mkdir()
    # A header promising 60000 × 60000 pixels: OpenCV raises instead of allocating.
    (tmp_path / "huge.pgm").write_bytes(b"P5 60000 60000 255\n" + bytes(100))
    verbose_opencv()
    for name in ("empty.jpg", "text.png", "noise.jpg", "folder.png", "huge.pgm", "missing.png"):
        assert read_image(tmp_path / name) is None, name
    assert capfd.readouterr() == ("", "")


# --- fingerprint, Unreadable


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    for name, content in [("a.png", b"same"), ("copy.png", b"same"), ("b.png", b"other")]:
        (tmp_path / name).write_bytes(content)
    assert fingerprint(tmp_path / "a.png") == hashlib.sha256(b"same").hexdigest()[:16]
    assert fingerprint(tmp_path / "a.png") == fingerprint(tmp_path / "copy.png")
    assert fingerprint(tmp_path / "a.png") != fingerprint(tmp_path / "b.png")


@pytest.mark.parametrize(("total", "allowed"), [(5, 10), (100, 10), (1099, 10), (1100, 11), (5000, 50)])
def test_too_many_are_more_than_ten_and_more_than_one_percent(total: int, allowed: int) -> None:
    unreadable = Unreadable(total)
    for i in range(allowed):
        unreadable.add(Path(f"{i}.png"))
    with pytest.raises(DataError, match=rf"at most {allowed} unreadable images.*0\.png \(No .*, 2\.png \(.* and "):
        unreadable.add(Path("last.png"))


def test_summary_names_up_to_three_with_their_reasons_and_counts_all(tmp_path: Path) -> None:
    unreadable = Unreadable(100)
    assert unreadable.summary() is None
    unreadable.add(Path("a.png"))
    lacking = "(No such file or directory)"
    assert unreadable.summary() == f"skipped 1 unreadable image: a.png {lacking}"
    empty = tmp_path / "b.png"
    empty.touch()
    for file in (empty, *map(Path, ("c.png", "d.png", "e.png"))):
        unreadable.add(file)
    names = f"a.png {lacking}, {empty} (it is empty), c.png {lacking} and 2 more"
    assert unreadable.summary() == f"skipped 5 unreadable images: {names}"
