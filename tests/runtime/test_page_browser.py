"""The page in a real browser, before a real run: it moves, shows what is learned; what is taught changes answers."""

from __future__ import annotations

import http.server
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deco_runtime.fleet import client
from deco_runtime.learning.voter import start
from deco_runtime.storage.bundle import open_bundle
from page_runs import Open, box, digits, page_of

playwright = pytest.importorskip("playwright.sync_api", reason="the page is looked at by playwright")
pytest.importorskip("starlette", reason="the page needs the extra [page]")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here to look at the page with")
MARKUP = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as it:
        chromium = it.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def seen(browser: Any, page: Open) -> Iterator[Any]:
    """The page in a window of its own; what its script fails with fails the test."""
    context = browser.new_context(viewport={"width": 390, "height": 900})
    context.set_default_timeout(60_000)  # of a busy machine
    window, errors = context.new_page(), []
    window.on("pageerror", lambda error: errors.append(str(error)))
    window.on("dialog", lambda dialog: dialog.accept())
    window.goto(page.address, wait_until="commit")
    window.wait_for_selector("#figures dt")
    yield window
    context.close()
    assert not errors


DRAWN = """() => { const image = document.getElementById('frame'), canvas = document.createElement('canvas');
  canvas.width = canvas.height = 32; const c = canvas.getContext('2d'); c.drawImage(image, 0, 0, 32, 32);
  return Array.from(c.getImageData(0, 0, 32, 32).data).join(); }"""


def test_it_loads_moves_and_a_class_that_is_taught_is_answered(browser: Any, bundle_path: Path, tmp_path: Path) -> None:
    shown = digits(bundle_path, (0, 3, 7))

    def picture(i: int) -> Any:
        return box(i) if i // 80 % 2 else shown(i)

    with page_of(bundle_path, tmp_path / "state", picture, "--recipe", "deco+") as page, seen(browser, page) as window:
        first = window.evaluate(DRAWN)
        window.wait_for_function(f"(first) => ({DRAWN})() !== first", arg=first)
        window.wait_for_function("() => document.querySelectorAll('#segments > div').length > 1")
        begun = start(open_bundle(bundle_path)).statistics
        client.give(tmp_path / "state", None, "fp32", 1e9)
        frames = client.take(tmp_path / "state", None, begun, 0)["frames"]
        said = "(said) => document.getElementById('figures').textContent.includes(said)"
        window.wait_for_function(said, arg=f"{frames} frames in its sums, last merged ")
        assert window.locator("#known tbody tr").count() == 10
        assert window.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")  # of a phone
        assert "no picture is kept" in window.inner_text("#teach")

        # The group of boxes is found by its pictures' numbers: a person sees it, a test asks which were boxes.
        window.wait_for_function("() => document.querySelectorAll('#groups > li').length > 1")
        window.hover("#teach-title")  # so that the groups stay
        teach_boxes(window, page, MARKUP)
        window.wait_for_function(f"() => document.getElementById('answer').textContent === {MARKUP!r}")
        assert window.title() == "digits"  # a name is text
        assert window.locator("#answer img").count() == window.locator("#known img").count() == 0
        assert f"{MARKUP} (taught)" in window.locator("#known tbody").all_inner_texts()[0]
        assert MARKUP in page.get("/state.json")[1].decode().replace('\\"', '"')

        window.click("#undo")
        page.until(lambda now: MARKUP not in now["classes"], "the teaching to be taken back")
        window.wait_for_function("() => document.querySelectorAll('#known tbody tr').length === 10")

        window.focus("#hold")
        window.keyboard.press("Enter")
        window.wait_for_function("() => document.getElementById('hold').textContent === 'Go on learning'")
        window.keyboard.press("Enter")
        window.wait_for_function("() => document.getElementById('hold').textContent === 'Pause learning'")
        window.click("#save")
        window.wait_for_function("() => document.getElementById('status').textContent === 'saved'")
        window.select_option("#to", "start")
        window.click("#back")
        window.wait_for_function("() => document.getElementById('status').textContent.startsWith('went back')")


def teach_boxes(window: Any, page: Open, name: str) -> None:
    """Teach the group whose frames are boxes: the middle of such a picture is black, and its corner too."""
    find = """async () => { for (const item of document.querySelectorAll('#groups > li')) {
        const image = item.querySelector('img'); item.scrollIntoView();
        try { await image.decode(); } catch { continue; }  // gone meanwhile
        const canvas = document.createElement('canvas'); canvas.width = canvas.height = 96;
        const c = canvas.getContext('2d'); c.drawImage(image, 0, 0, 96, 96);
        const at = (x, y) => c.getImageData(x, y, 1, 1).data[0];
        const white = [[20, 48], [76, 48], [48, 20], [48, 76]].filter(([x, y]) => at(x, y) > 150).length;
        if (white >= 3 && at(48, 48) < 60 && at(3, 3) < 60) { item.id = 'boxes'; return true; } }
        return false; }"""
    limit = time.monotonic() + 60
    while not window.evaluate(find):
        assert time.monotonic() < limit, "no group is of boxes"
        window.evaluate(
            "() => document.querySelectorAll('#groups > li').forEach((item) => { item.className = 'old'; })"
        )
        window.click("#refresh")
        window.wait_for_function("() => document.querySelector('#groups > li:not(.old)') !== null")
    window.fill("#boxes input", name)
    window.press("#boxes input", "Enter")
    page.until(lambda now: name in now["classes"], "the class that was taught")


def test_the_condensed_images_change_while_it_learns(browser: Any, bundle_path: Path, tmp_path: Path) -> None:
    with page_of(
        bundle_path, tmp_path / "state", digits(bundle_path, (1, 4), 200), "--recipe", "paper", "--set", "iterations=2",
        "--set", "threshold=0.1",
    ) as page, seen(browser, page) as window:  # fmt: skip
        window.wait_for_selector("#buffer:not([hidden])")
        before, segment = page.get("/buffer.jpg")[1], page.state().get("segment", 0)
        source = window.get_attribute("#buffer", "src")
        page.until(lambda now: now.get("segment", 0) > segment + 1, "two segments")
        window.wait_for_function("(old) => document.getElementById('buffer').getAttribute('src') !== old", arg=source)
        assert page.get("/buffer.jpg")[1] != before


def test_another_site_changes_nothing(browser: Any, bundle_path: Path, tmp_path: Path) -> None:
    with page_of(bundle_path, tmp_path / "state", digits(bundle_path), "--recipe", "deco+") as page:
        evil = f"""<form id=f method=post action="{page.root}/do/hold" enctype="text/plain">
            <input name='{{"held":true,"a":"' value='"}}'></form>
            <script>fetch("{page.root}/do/hold", {{method: "POST", mode: "no-cors", body: '{{"held":true}}'}});
            fetch("{page.root}/do/hold", {{method: "POST", headers: {{"X-Deco": "page"}}, body: '{{"held":true}}'}})
              .catch(() => document.title = "refused");</script>"""

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(evil.encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        window = context.new_page()
        window.goto(f"http://localhost:{server.server_port}/")
        window.wait_for_function("() => document.title === 'refused'")
        window.evaluate("() => document.getElementById('f').submit()")
        window.wait_for_url(f"{page.root}/**")
        assert "expected a request of the page itself" in window.inner_text("body")
        assert page.state()["held"] is False
        context.close()
        server.shutdown()


def test_a_token_opens_it_once_and_is_not_in_the_address_then(browser: Any, bundle_path: Path, tmp_path: Path) -> None:
    with page_of(bundle_path, tmp_path / "state", digits(bundle_path), "--recipe", "deco+", where="0.0.0.0:0") as page:
        assert page.token is not None
        with seen(browser, page) as window:
            assert "token" not in window.url
            assert "token" not in window.evaluate("() => document.cookie")
        context = browser.new_context()
        window = context.new_page()
        window.goto(f"{page.root}/?token=wrong")
        assert window.inner_text("body").strip() == "expected the token; open the address that deco-run printed"
        context.close()
