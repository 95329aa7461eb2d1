"""The report's twins, and its page: what it shows, that it is whole, and that it asks nobody for anything."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2")
onnx = pytest.importorskip("onnx")

from deco_export.data import Data  # noqa: E402
from deco_export.images import Images  # noqa: E402
from deco_export.report import duplicates, verdicts  # noqa: E402
from deco_export.report.album import Album, kinds, open_album, uri  # noqa: E402
from deco_export.report.findings import Findings, find  # noqa: E402
from deco_export.report.gather import MOST, MOST_HELD, Sample, Watched  # noqa: E402
from deco_export.report.make import report_path, write  # noqa: E402
from deco_export.report.page import SHOWN, page  # noqa: E402
from deco_export.representation import Representation  # noqa: E402
from deco_runtime.preprocess import Preprocessing  # noqa: E402

SIZE = 32
HOW = Preprocessing(SIZE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
EVIL = '<img src="http://evil.example/x" onerror=alert(1)>&"\'.jpg'
VOID = {"meta", "img", "br", "path", "rect", "circle"}


class Strict(HTMLParser):
    """Every element that is opened is closed in order; what refers to something is kept."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.refers: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
                self.refers.append((tag, value or ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


def parsed(text: str) -> Strict:
    """A page that is whole, has no script, and refers to nothing but pictures inside it."""
    found = Strict()
    found.feed(text)
    found.close()
    assert found.open == []
    assert not found.seen & {"script", "link", "iframe", "object", "form", "base"}
    assert all(tag == "img" and value.startswith("data:image/") for tag, value in found.refers)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    return found


def scene(rng: np.random.Generator, size: int = SIZE) -> np.ndarray:
    """A picture with large and small things in it."""
    large = cv2.resize(rng.integers(0, 256, (5, 5, 3)).astype(np.uint8), (size, size), interpolation=cv2.INTER_CUBIC)
    fine = cv2.resize(rng.normal(0, 40, (size // 2, size // 2, 3)), (size, size))
    return np.clip(large + fine, 0, 255).astype(np.uint8)


def changed(picture: np.ndarray, how: str) -> np.ndarray:
    if how == "compressed":
        return cv2.imdecode(cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 60])[1], cv2.IMREAD_COLOR)
    if how == "brighter":
        return np.clip(picture.astype(int) + 25, 0, 255).astype(np.uint8)
    if how == "scaled":
        half = cv2.resize(picture, (24, 24), interpolation=cv2.INTER_AREA)
        return cv2.resize(half, picture.shape[:2], interpolation=cv2.INTER_CUBIC)
    return picture.copy()


@pytest.mark.parametrize("how", ["copied", "compressed", "brighter", "scaled"])
def test_planted_twins_are_found_and_nothing_else(how: str) -> None:
    rng = np.random.default_rng(0)
    pictures = [scene(rng) for _ in range(300)]
    pictures += [changed(pictures[i], how) for i in (3, 77, 150)]
    labels = np.arange(303) % 4
    labels[300:302] = [(3 + 1) % 4, (77 + 1) % 4]
    labels[302] = labels[150]  # of the same class, which is no concern here
    found = duplicates.duplicates(duplicates.patterns(pictures), labels, lambda i: pictures[i])
    assert {(pair.a, pair.b) for pair in found} == {(3, 300), (77, 301)}


def test_two_signs_of_one_shape_are_no_twins() -> None:
    def sign(number: str) -> np.ndarray:
        large = np.full((128, 128, 3), 40, np.uint8)
        cv2.circle(large, (64, 64), 58, (255, 255, 255), -1)
        cv2.circle(large, (64, 64), 54, (40, 40, 220), 10)
        cv2.putText(large, number, (28, 82), cv2.FONT_HERSHEY_SIMPLEX, 1.8, (0, 0, 0), 6)
        return cv2.resize(large, (SIZE, SIZE), interpolation=cv2.INTER_AREA)

    thirty, eighty = sign("30"), sign("80")
    x = duplicates.patterns([thirty, eighty, changed(thirty, "compressed")])
    assert len(duplicates.candidates(x, np.arange(3))) >= 1
    assert duplicates.alike(thirty, eighty) < duplicates.SAME
    found = duplicates.duplicates(x, np.arange(3), lambda i: [thirty, eighty, changed(thirty, "compressed")][i])
    assert [(pair.a, pair.b) for pair in found] == [(0, 2)]


def test_plain_pictures_are_twins_only_if_they_are_equal() -> None:
    rng = np.random.default_rng(0)
    noisy = [(100 + rng.integers(-1, 2, (SIZE, SIZE, 3))).astype(np.uint8) for _ in range(3)]
    black = [np.zeros((SIZE, SIZE, 3), np.uint8)] * 2
    pictures = noisy + black
    found = duplicates.duplicates(duplicates.patterns(pictures), np.arange(5), lambda i: pictures[i])
    assert [(pair.a, pair.b, pair.correlation) for pair in found] == [(3, 4, 1.0)]


def test_of_very_many_candidates_the_nearest_stay() -> None:
    x = np.zeros((1500, 8), np.float32)
    x[:, 0] = 1
    x[700:, 1] = 0.1
    found = duplicates.candidates(x, np.arange(1500))
    assert len(found) == duplicates.PAIRS
    assert (found[:, 0] < found[:, 1]).all()
    assert (np.linalg.norm(x[found[:, 0]] - x[found[:, 1]], axis=1) == 0).all()


def data(classes: int, of_class: int, of_take: int, held: float, none: int = 0, size: int = SIZE) -> Data:
    rng = np.random.default_rng(0)
    n = classes * of_class
    labels = np.repeat(np.arange(classes), of_class)
    takes = np.arange(n) // of_take
    means = [scene(rng, size) for _ in range(classes)]
    pixels = np.stack([cv2.addWeighted(means[c], 0.5, scene(rng, size), 0.5, 0) for c in labels])
    every = Images(pixels, labels.astype(np.int64), takes)
    per = max(1, of_class // of_take)
    kept = (np.arange(n) // of_take % per) < max(1, round(per * (1 - held))) if held else np.ones(n, bool)
    parts = np.flatnonzero(kept), np.flatnonzero(~kept)
    names = tuple(tuple(f"class {labels[i]}/{i}.jpg" for i in part) for part in parts)
    empty = np.zeros((none, size, size, 3), np.uint8), np.zeros(none, np.int64)
    called = tuple(f"none/{i}.jpg" for i in range(none))
    return Data(
        tuple(f"class {c}" for c in range(classes)),
        every[parts[0]],
        every[parts[1]],
        (),
        none=Images(*empty),
        names=(*names, called),
    )


def found_in(loaded: Data, from_scratch: bool = False, source: str = "nowhere") -> tuple[Findings, Album]:
    """What the report finds where φ are the pictures themselves, made small."""
    rng = np.random.default_rng(0)
    parts = (loaded.train, loaded.validation)
    pixels = np.concatenate([part.pixels for part in parts if isinstance(part, Images)])
    phi = np.stack([cv2.resize(p, (4, 4), interpolation=cv2.INTER_AREA) for p in pixels]).reshape(len(pixels), -1)
    y, takes, index = (
        np.concatenate(each)
        for each in zip(*((p.labels, p.takes, np.arange(len(p))) for p in parts), strict=True)
    )  # fmt: skip
    sample = Sample((phi / 128 - 1).astype(np.float32), y, takes, index, len(loaded.train), True)
    answers = loaded.validation.labels.copy()
    answers[::3] = (answers[::3] + 1) % len(loaded.classes)
    album = open_album(source, loaded, HOW, rng)
    return find(loaded, album, sample, (answers, loaded.validation.labels), "deco+", from_scratch, rng), album


SHAPES = {
    "usual": data(4, 40, 1, 0.3),
    "takes": data(3, 60, 5, 0.3, none=4),
    "two classes": data(2, 30, 1, 0.4),
    "one take a class": data(3, 8, 8, 0.0),
    "nothing held out": data(3, 20, 2, 0.0),
    "one picture a class": data(5, 1, 1, 0.0),
    "many classes": data(200, 4, 1, 0.25),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_there_is_a_page_whatever_the_data(shape: str) -> None:
    loaded = SHAPES[shape]
    found, album = found_in(loaded)
    text = page(found, album, "bundle", ["a note"])
    read = parsed(text)
    assert "What the export said" in read.text
    assert not re.search(r"\b(nan|inf|None(?!:))\b", re.sub(r'"data:[^"]*"', "", text))
    for sentence in verdicts.verdicts(found):
        assert sentence in read.text
    if not len(loaded.validation):
        assert "Nothing was held out" in read.text
        assert "There are too few takes to say what more labels would bring." in read.text
    else:
        assert all(name in read.text for name in loaded.classes)
    assert len(text) < 1_000_000


def test_names_with_markup_stay_text() -> None:
    loaded = SHAPES["takes"]
    names = tuple(tuple(f"{i}{EVIL}" for i, _ in enumerate(part)) for part in loaded.names)
    loaded = replace(loaded, names=names, classes=(f"<b>{EVIL}", "a&amp;b", "</td>"))
    pixels = loaded.train.pixels.copy()  # type: ignore[union-attr]
    pixels[-1] = pixels[0]  # a twin of another class, for their names
    loaded = replace(loaded, train=replace(loaded.train, pixels=pixels))
    found, album = found_in(loaded)
    assert found.across
    assert found.disputed
    read = parsed(page(found, album, f"<script>{EVIL}", [f"note {EVIL}"]))
    assert read.text.count(EVIL) > 8
    assert "a&amp;b" in read.text


def test_planted_things_are_shown_with_their_names() -> None:
    loaded = SHAPES["usual"]
    pixels, labels = loaded.train.pixels.copy(), loaded.train.labels.copy()  # type: ignore[union-attr]
    labels[5] = 3
    pixels[100] = changed(pixels[10], "compressed")
    held = loaded.validation.pixels.copy()  # type: ignore[union-attr]
    held[0] = changed(pixels[11], "brighter")
    loaded = replace(
        loaded,
        train=replace(loaded.train, pixels=pixels, labels=labels),
        validation=replace(loaded.validation, pixels=held),
    )
    found, album = found_in(loaded)
    first = {(part, place, d.says) for part, place, d in found.disputed[:2]}
    assert first == {(0, 5, 0), (0, 100, 0)}  # the second is the copy, under another class
    assert [(pair.a, pair.b) for pair in found.across] == [((0, 10), (0, 100))]
    assert [(pair.a, pair.b) for pair in found.between] == [((0, 11), (1, 0))]
    read = parsed(page(found, album, "bundle", []))
    for name in (loaded.names[0][5], loaded.names[0][10], loaded.names[0][100], loaded.names[1][0]):
        assert name in read.text
    assert "1 pair of nearly the same picture has two classes: one is wrong." in read.text


def test_pictures_are_bounded_in_number_and_bytes() -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (400, 224, 224, 3)).astype(np.uint8)
    noise[200:] = noise[:200]
    train = Images(noise, np.arange(400) // 200)
    loaded = Data(("a", "b"), train, train[:0], ())
    found, album = found_in(loaded)
    assert len(found.across) == 200
    read = parsed(text := page(found, album, "bundle", []))
    assert len(read.refers) <= SHOWN + 2 * SHOWN
    assert len(text) < 1_000_000
    assert max(len(value) for _, value in read.refers) < 16_000


def test_a_small_picture_is_kept_as_it_is() -> None:
    picture = scene(np.random.default_rng(0))
    head, _, body = uri(picture).partition(",")
    assert head == "data:image/png;base64"
    back = cv2.imdecode(np.frombuffer(base64.b64decode(body), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(back, picture)


def test_a_test_part_of_the_folder_is_compared_too(tmp_path: Path) -> None:
    loaded = SHAPES["usual"]
    for part in ("train", "test"):
        for c, name in enumerate(loaded.classes):
            (tmp_path / part / name).mkdir(parents=True)
            cv2.imwrite(str(tmp_path / part / name / "other.png"), scene(np.random.default_rng(1000 + c)))
    cv2.imwrite(str(tmp_path / "test" / "class 0" / "copy.png"), loaded.train[np.array([7])].pixels[0])
    (tmp_path / "test" / "class 0" / "broken.png").write_bytes(b"no picture")
    found, album = found_in(loaded, source=str(tmp_path))
    assert len(album.sets[3]) == 5
    assert [(pair.a, album.name(*pair.b)) for pair in found.between] == [((0, 7), "test/class 0/copy.png")]
    assert kinds(album)[0].shape == (160 + 5,)
    assert len(open_album(str(tmp_path / "absent"), loaded, HOW, np.random.default_rng(0)).sets[3]) == 0


def test_of_many_images_the_sample_is_kept_as_they_come_by() -> None:
    n, held = 6000, 2000
    phi = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    passes = []

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        passes.append(1)
        return ((phi[start : start + 2500], phi[start : start + 2500, :2]) for start in range(0, n, 2500))

    pixels = np.zeros((n, 1, 1, 3), np.uint8)
    train, other = (Images(pixels[:m], np.arange(m) % 2) for m in (n, held))
    made = Representation(onnx.ModelProto(), 3, parts)
    watched = Watched(made, Data(("a", "b"), train, other, ()), np.random.default_rng(0))
    assert (len(watched.train), len(watched.held)) == (MOST - MOST_HELD, MOST_HELD)
    seen = np.concatenate([each for each, _ in watched.represented.parts()])
    np.testing.assert_array_equal(seen, phi)  # who asks for them gets all
    np.testing.assert_array_equal(watched.phi(), phi[watched.train])
    assert len(passes) == 1
    unasked = Watched(made, Data(("a", "b"), train, other, ()), np.random.default_rng(0))
    np.testing.assert_array_equal(unasked.phi(), phi[unasked.train])
    assert len(passes) == 2


def test_a_network_trained_on_these_labels_is_said_to_hide_what_more_would_bring() -> None:
    plain, scratch = (found_in(SHAPES["usual"], each)[0] for each in (False, True))
    cut = [replace(each, start=each.pretrained) for each in (plain, scratch)]
    assert "whole network" not in verdicts.more(cut[0])
    assert "whole network" in verdicts.more(cut[1])
    assert re.search(r"expect about \d+", verdicts.more(cut[0]))


def test_the_file_lies_beside_the_bundle_and_replaces_an_older_one(tmp_path: Path) -> None:
    place = report_path(tmp_path / "my.bundle.deco")
    assert place == tmp_path / "my.bundle.deco-report.html"
    place.write_text("old")
    write("new: é", place)
    assert place.read_text("utf-8") == "new: é"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    with pytest.raises(OSError, match="No such file"):
        write("new", tmp_path / "absent" / "x.html")
