"""Pages in headless Chromium: their content, the time to open them, their network requests."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

from reports.facts import policy

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


DARK = "--blink-settings=preferredColorScheme=0"
"""What a reader with a dark screen has set."""

PAPER_MARGIN = 40
"""Pixels beside a page that is shown as it is printed."""

AXE = "axe-core@4.14.1"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""The package with the rules of accessibility that are checked, and the digest of its script."""

SERIOUS = ("serious", "critical")

AS_PRINTED = """
  Array.from(document.styleSheets).forEach(function (sheet) {
    Array.from(sheet.cssRules).forEach(function (rule) {
      if (!rule.media) return;
      rule.media.mediaText = rule.media.mediaText.includes("print") ? "all" : "not all";
    });
  });
"""
"""Applies the rules for print alone: with the width of a sheet the page is as on paper."""

_AXE_SCRIPT = """%s;
  var found = await axe.run(document, {resultTypes: ["violations"], elementRef: false});
  return found.violations.map(function (v) {
    return [v.impact, v.id, v.nodes.slice(0, 3).map(function (n) { return n.html.slice(0, 120); })];
  });
"""


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
    pages: Sequence[Path], script: str, *options: str, width: int = 1280, height: int = 844
) -> list[Any]:
    """Run a JavaScript function body in a copy of each loaded page; return what it returns.

    `width` and `height` are those of the window that each page has, in pixels; `options` are those
    of Chromium.
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
            _answer(browse(frames_page, "--dump-dom", "--virtual-time-budget=60000", *options))
        )
    return [json.loads(answers[str(k)]) for k in range(len(pages))]


@functools.cache
def axe_script() -> str | None:
    """Download the rules of accessibility; return their script, None where npm cannot get it."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    with tempfile.TemporaryDirectory(prefix="axe-") as folder:
        done = subprocess.run(
            [npm, "pack", "--silent", "--fetch-retries=1", AXE], cwd=folder, capture_output=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        packed = list(Path(folder).glob("axe-core-*.tgz"))
        if done.returncode or not packed:
            return None
        with tarfile.open(packed[0]) as package:
            member = package.extractfile("package/axe.min.js")
            assert member is not None
            script = member.read()
    assert hashlib.sha256(script).hexdigest() == AXE_SHA256, f"{AXE} is not what was looked at"
    return script.decode()


def inaccessible(
    pages: Sequence[Path], axe: str, *options: str, width: int = 1280
) -> list[list[Any]]:
    """Return of each page the serious rules of accessibility that it breaks: (impact, rule,
    elements)."""
    of_pages = evaluate(pages, _AXE_SCRIPT % axe, *options, width=width)
    return [[rule for rule in broken if rule[0] in SERIOUS] for broken in of_pages]


def picture(
    page: Path,
    into: Path,
    *,
    width: int,
    height: int,
    dark: bool = False,
    printed: bool = False,
) -> None:
    """Write a PNG file with the top of a page; more than `width` x `height` may be on it."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        shown, margin = page, 0
        if printed:
            margin = PAPER_MARGIN
            script = f"<script>addEventListener('load', function () {{{AS_PRINTED}}});</script>"
            shown = _with_script(page, script, Path(folder) / page.name)
        frame = Path(folder) / "frame.html"
        frame.write_text(
            f"<!DOCTYPE html><body style='margin: {margin}px'><iframe scrolling='no' "
            f"style='border: 0' width='{width - 2 * margin}' height='{height - 2 * margin}' "
            f"src='{shown.as_uri()}'></iframe></body>"
        )
        size = f"--window-size={max(width, 500)},{height + 100}"
        browse(frame, f"--screenshot={into}", size, "--hide-scrollbars", *([DARK] if dark else []))


def sheets(page: Path) -> int:
    """Return on how many sheets a page is printed."""
    with tempfile.TemporaryDirectory(prefix="print-") as folder:
        printed = Path(folder) / "page.pdf"
        browse(page, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
        return len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))


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
