"""A page in headless Chromium: what it became, how long it took to open, what it asked for."""

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

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
REFUSAL = None if CHROMIUM or os.environ.get("CI") else "no chromium on the PATH"
"""Why a browser test may be skipped; in CI none may."""

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
TIMEOUT_S = 120

_ASK = """<script>
addEventListener("load", function () {
  setTimeout(async function () {
    var said;
    try { said = await (async function () { %s })(); } catch (error) { said = String(error); }
    parent.postMessage(JSON.stringify(said), "*");
  }, 0);
});
</script>"""

_FRAMES = """<!DOCTYPE html><html><body>%s<script>
var frames_ = Array.from(document.querySelectorAll("iframe")), answers = {};
addEventListener("message", function (event) {
  var from = frames_.findIndex(function (frame) { return frame.contentWindow === event.source; });
  answers[from] = event.data;
  document.documentElement.setAttribute("data-said", JSON.stringify(answers));
});
</script></body></html>"""
"""A window is never as narrow as a phone; a frame is, to the page in it."""

_OPENED = """<script>
addEventListener("load", function () {
  document.body.getBoundingClientRect();  // lay it out, as it is before anybody sees it
  document.documentElement.setAttribute("data-said", performance.now() / 1000);
});
</script>"""


def browse(page: Path, *options: str) -> str:
    """What Chromium prints of a page."""
    assert CHROMIUM is not None, REFUSAL
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        done = subprocess.run(
            [CHROMIUM, *QUIET, f"--user-data-dir={profile}", *options, page.as_uri()],
            capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    return done.stdout


def ask(pages: Sequence[Path], script: str, *, width: int = 1280) -> list[Any]:
    """What a function body in JavaScript returns in (a copy of) each page, when it has opened."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        for k, page in enumerate(pages):
            _with(page, _ASK % script, Path(folder) / f"{k}.html")
        frames = "".join(
            f'<iframe src="{k}.html" width="{width}" height="844"></iframe>'
            for k in range(len(pages))
        )
        around = Path(folder) / "frames.html"
        around.write_text(_FRAMES % frames, encoding="utf-8")
        said = json.loads(_said(browse(around, "--dump-dom", "--virtual-time-budget=60000")))
    return [json.loads(said[str(k)]) for k in range(len(pages))]


def opened_s(page: Path) -> float:
    """Seconds from the start of the navigation until the page is loaded and laid out."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        copy = _with(page, _OPENED, Path(folder) / page.name)
        return float(_said(browse(copy, "--dump-dom")))


def _with(page: Path, script: str, copy: Path) -> Path:
    head, end, rest = page.read_text(encoding="utf-8").rpartition("</body>")
    copy.write_text(head + script + end + rest, encoding="utf-8")
    return copy


def _said(dom: str) -> str:
    said = re.search(r'<html[^>]* data-said="([^"]*)"', dom)
    assert said is not None, f"the page did not answer: {dom[:300]}"
    return unescape(said[1])


def asked_of_network(pages: Sequence[Path]) -> list[str]:
    """The addresses that opening these pages, not Chromium itself, asked for."""
    with tempfile.TemporaryDirectory(prefix="net-") as folder:
        log, around = Path(folder) / "net.json", Path(folder) / "frames.html"
        around.write_text("".join(f'<iframe src="{page.as_uri()}"></iframe>' for page in pages))
        # Whatever it would look up stays here, and in the log.
        browse(
            around, "--dump-dom", f"--log-net-log={log}", "--host-resolver-rules=MAP * ~NOTFOUND"
        )
        text = log.read_text(encoding="utf-8")
    own = r"(?:[\w.-]*\.)?(?:google|googleapis|gstatic|gvt1)\.com"
    urls = set(re.findall(r'"(?:url|original_url)":"((?:https?|wss?|ftp):[^"]*)"', text))
    return sorted(u for u in urls if not re.match(rf"\w+://{own}[:/]", u))
