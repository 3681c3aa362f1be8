"""Pages in headless Chromium: their content, the time to open them, their network requests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

from reports import policy

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
REFUSAL = None if CHROMIUM or os.environ.get("CI") else "no chromium on the PATH"
"""Why browser tests are skipped; None where they run, and always in CI."""

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
TIMEOUT_S = 120

_EVALUATE_SCRIPT = """<script>
addEventListener("load", function () {
  setTimeout(async function () {
    var said;
    try { said = await (async function () { %s })(); } catch (error) { said = String(error); }
    parent.postMessage(JSON.stringify(said), "*");
  }, 0);
});
</script>"""

_FRAMES_PAGE = """<!DOCTYPE html><html><body>%s<script>
var frames_ = Array.from(document.querySelectorAll("iframe")), answers = {};
addEventListener("message", function (event) {
  var from = frames_.findIndex(function (frame) { return frame.contentWindow === event.source; });
  answers[from] = event.data;
  document.documentElement.setAttribute("data-said", JSON.stringify(answers));
});
</script></body></html>"""
"""A page with frames: a frame can be as narrow as a phone, a window of Chromium cannot."""

_OPENING_SCRIPT = """<script>
addEventListener("load", function () {
  document.body.getBoundingClientRect();  // lay it out, as it is before anybody sees it
  document.documentElement.setAttribute("data-said", performance.now() / 1000);
});
</script>"""


def browse(page: Path, *options: str) -> str:
    """Open a page in Chromium and return its output."""
    assert CHROMIUM is not None, REFUSAL
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        done = subprocess.run(
            [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()],
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    return done.stdout


def evaluate(
    pages: Sequence[Path], script: str, *, width: int = 1280, height: int = 844
) -> list[Any]:
    """Run a JavaScript function body in a copy of each loaded page; return what it returns.

    `width` and `height` are those of the window that each page has, in pixels.
    """
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        for k, page in enumerate(pages):
            _with_script(page, _EVALUATE_SCRIPT % script, Path(folder) / f"{k}.html")
        frames = "".join(
            f'<iframe src="{k}.html" width="{width}" height="{height}"></iframe>'
            for k in range(len(pages))
        )
        frames_page = Path(folder) / "frames.html"
        frames_page.write_text(_FRAMES_PAGE % frames, encoding="utf-8")
        answers = json.loads(
            _answer(browse(frames_page, "--dump-dom", "--virtual-time-budget=60000"))
        )
    return [json.loads(answers[str(k)]) for k in range(len(pages))]


def opening_time_s(page: Path) -> float:
    """Return the seconds from the start of the navigation until the page is laid out."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        copy = _with_script(page, _OPENING_SCRIPT, Path(folder) / page.name)
        return float(_answer(browse(copy, "--dump-dom")))


def _with_script(page: Path, script: str, copy: Path) -> Path:
    """Write a copy of the page with the script at the end of its body; return the copy."""
    text = page.read_text(encoding="utf-8")
    # The page's own policy refuses any script that the suite did not put in.
    allowed = policy.source(script.removeprefix("<script>").removesuffix("</script>"))
    head, end, rest = text.replace("script-src ", f"script-src {allowed} ", 1).rpartition("</body>")
    copy.write_text(head + script + end + rest, encoding="utf-8")
    return copy


def _answer(dom: str) -> str:
    """Return what the script has left in the attribute data-said of the page."""
    attribute = re.search(r'<html[^>]* data-said="([^"]*)"', dom)
    assert attribute is not None, f"the page did not answer: {dom[:300]}"
    return unescape(attribute[1])


def requested_urls(pages: Sequence[Path]) -> list[str]:
    """Return the URLs that these pages, not Chromium itself, requested while opening."""
    with tempfile.TemporaryDirectory(prefix="net-") as folder:
        log, frames_page = Path(folder) / "net.json", Path(folder) / "frames.html"
        frames_page.write_text(
            "".join(f'<iframe src="{page.as_uri()}"></iframe>' for page in pages)
        )
        # No name resolves, so requests appear in the log and do not leave this machine.
        browse(
            frames_page,
            "--dump-dom",
            f"--log-net-log={log}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
        )
        text = log.read_text(encoding="utf-8")
    chromium_hosts = r"(?:[\w.-]*\.)?(?:google|googleapis|gstatic|gvt1)\.com"
    urls = set(re.findall(r'"(?:url|original_url)":"((?:https?|wss?|ftp):[^"]*)"', text))
    return sorted(u for u in urls if not re.match(rf"\w+://{chromium_hosts}[:/]", u))
