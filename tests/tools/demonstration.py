"""What the docs show of a demonstration: its last screen, and pictures of its pages.

python -m tests.tools.demonstration --write              run one (minutes; needs the sandbox)
python -m tests.tools.demonstration --write --run RUN    take a run that is there: of the whole
                                                         suite, on two virtual nodes of two GPUs

The last screen and the pictures of the report are made from one run, so that the counts agree.
docs/images/report.png is the top of the report in headless Chromium; beside it are the report on a
phone and in the dark, and the example of a certificate on a screen and on paper. The PNG file of
the first keeps the counts of that run and a digest of what it shows;
tests/selftests/tools/test_demonstration.py compares them with a run of today.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from fixtures.paths import CHECKOUT, RUNS
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import read_verdict
from reports.console import terminal
from reports.pages import page
from reports.pages.artefacts import Artefacts
from reports.pages.banner import style_text
from tests.tools import browser, sections

README = CHECKOUT / "README.md"
PICTURE = CHECKOUT / "docs" / "images" / "report.png"
STYLE = CHECKOUT / "reports" / "templates" / "report.css"
CERTIFICATE = CHECKOUT / "docs" / "examples" / "certificate.html"
WIDTH = 1280
"""Pixels of the picture, and of the window that the report is laid out for."""
MAX_HEIGHT = 1200
TERMINAL_WIDTH = 80
COLORS = 128
KEY = "gpu-cluster-acceptance"
"""Name of the text in the PNG file."""

_ABOVE_THE_CHARTS = """
  document.documentElement.style.overflow = "hidden";  // as a screenshot has it: no scroll bar
  var below = document.getElementById("values") || document.getElementById("charts");
  var cut = Math.floor(below.getBoundingClientRect().top) - 8, texts = [], node;
  var walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while ((node = walker.nextNode())) {
    var range = document.createRange();
    range.selectNodeContents(node);
    var box = range.getBoundingClientRect();
    if (box.height > 0 && box.top >= 0 && box.bottom <= cut) texts.push(node.data.trim());
  }
  return {height: cut, texts: texts};
"""
_WHEN = re.compile(r"^Measured [0-9-]+ .* run \S+$")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
_MARGIN = re.compile(r"^# [x%]$")


def command() -> list[str]:
    """Return the command of a demonstration on a host without GPUs, as `make accept` starts it."""
    return ["pytest", "-m", "multinode", "--cluster", "sandbox", "--sandbox-nodes", "2",
            "--sandbox-gpus", "2"]  # fmt: skip


def last_screen(run: Path, verdict: dict[str, Any]) -> list[str]:
    """Return the verdict and the lines below it, as the run printed them in the checkout."""
    lines = terminal.summary(Artefacts(RunDirectory(run), verdict), TERMINAL_WIDTH)
    shown = f"{RUNS.relative_to(CHECKOUT)}/{read_json(run / 'run.json')['id']}"
    word = f" {verdict['verdict']} "
    return [
        word.center(TERMINAL_WIDTH, "="),
        *(line.replace(str(_relative(run)), shown) for line in lines),
    ]


def _relative(run: Path) -> Path:
    return run.relative_to(Path.cwd()) if run.is_relative_to(Path.cwd()) else run


def sample(run: Path) -> str:
    """Return the code block of the README: the command, and the last screen."""
    lines = [f"$ {' '.join(command())}", *last_screen(run, read_verdict(RunDirectory(run)))]
    return "\n".join(["```", *lines, "```", ""])


def look(report: Path) -> dict[str, Any]:
    """Return the height of what the picture shows, in pixels, and its texts."""
    (found,) = browser.evaluate([report], _ABOVE_THE_CHARTS, width=WIDTH, height=MAX_HEIGHT)
    assert isinstance(found, dict), found
    return found


def digest(texts: Iterable[str]) -> str:
    """Return the SHA-256 of what a picture shows, whatever the values of its run, and its style."""
    plain = (_WHEN.sub("#", " ".join(text.split())) for text in texts)
    said = {_MARGIN.sub("#", _NUMBER.sub("#", text)) for text in plain}
    style = hashlib.sha256(style_text(STYLE).encode()).hexdigest()
    return hashlib.sha256(json.dumps([sorted(said), style]).encode()).hexdigest()


def take_picture(run: Path, into: Path) -> None:
    """Write the top of the report of a run as a PNG file that says what it was made from."""
    verdict = read_verdict(RunDirectory(run))
    with tempfile.TemporaryDirectory(prefix="picture-") as folder:
        report, shot = Path(folder) / "report.html", Path(folder) / "shot.png"
        report.write_text(page.page(RunDirectory(run), verdict), encoding="utf-8")
        seen = look(report)
        height = min(int(seen["height"]), MAX_HEIGHT)
        browser.browse(
            report, f"--screenshot={shot}", f"--window-size={WIDTH},{height}", "--hide-scrollbars"
        )
        facts = {"counts": verdict["counts"], "shows": digest(seen["texts"])}
        text = PngImagePlugin.PngInfo()
        text.add_text(KEY, json.dumps(facts))
        with Image.open(shot) as image:
            small = image.convert("RGB").crop((0, 0, WIDTH, height)).quantize(COLORS)
            small.save(into, optimize=True, pnginfo=text)


MORE: dict[str, tuple[Path | None, dict[str, Any]]] = {
    "phone": (None, {"width": 390, "height": 1100}),
    "dark": (None, {"width": WIDTH, "height": 900, "dark": True}),
    "certificate": (CERTIFICATE, {"width": 1000, "height": 1100}),
    "print": (CERTIFICATE, {"width": 776, "height": 960, "printed": True}),
}
"""Name of a picture -> page (None: the report of the run), and how it is looked at."""


def take_more(run: Path) -> None:
    """Write the other pictures."""
    with tempfile.TemporaryDirectory(prefix="picture-") as folder:
        report = Path(folder) / "report.html"
        report.write_text(page.page(RunDirectory(run)), encoding="utf-8")
        for name, (shown, how) in MORE.items():
            into = PICTURE.with_name(f"{name}.png")
            browser.picture(shown or report, into, **how)
            with Image.open(into) as image:
                small = image.convert("RGB").crop((0, 0, how["width"], how["height"]))
                small.quantize(COLORS).save(into, optimize=True)


def facts() -> dict[str, Any]:
    """Return what the committed picture says of the run that it was made from."""
    with Image.open(PICTURE) as image:
        found: dict[str, Any] = json.loads(image.info[KEY])
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.demonstration")
    parser.add_argument("--write", action="store_true", required=True, help="write both anew")
    parser.add_argument("--run", type=Path, metavar="RUN", help="a run that is there")
    options = parser.parse_args()
    if options.run is None:
        done = subprocess.run([sys.executable, "-m", *command()], cwd=CHECKOUT)
        if done.returncode:
            return done.returncode
    run = (options.run or RUNS / "latest").resolve()
    word = read_verdict(RunDirectory(run))["verdict"]
    if word != "DEMONSTRATION":
        print(f"{run} is {word}: a DEMONSTRATION is wanted")
        return 1
    sections.write_section(README, "sample", sample(run))
    take_picture(run, PICTURE)
    take_more(run)
    print(f"{README.name} and {PICTURE.parent.relative_to(CHECKOUT)} show {run.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
