"""The certificate in docs/examples, made from a recorded run of one node with four H100.

python -m tests.tools.example_certificate            print the verdict of the recorded run
python -m tests.tools.example_certificate --write    write docs/examples/certificate.html anew

The run is judged by today's thresholds.yaml. tests/selftests/tools/test_example_certificate.py
holds that the committed page says the same of every row.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from fixtures.paths import CHECKOUT
from fixtures.records.run_directory import RunDirectory
from reports.pages import certificate
from tests.selftests import support

SOURCE = support.DATA / "h100-1x4-accepted"
EXAMPLE = CHECKOUT / "docs" / "examples" / "certificate.html"
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")


def page(folder: Path) -> tuple[str, str]:
    """Judge the recorded run in `folder`; return its verdict and its certificate."""
    _, verdict = support.judged(SOURCE, folder / "run")
    text = certificate.page(RunDirectory(folder / "run"), verdict)
    return str(verdict["verdict"]), text.replace(f"{CHECKOUT}/", "")


def rows(text: str) -> list[str]:
    """Return the text of every table row of a certificate."""
    return [" ".join(_TAG.sub(" ", row.replace("<wbr>", "")).split()) for row in _ROW.findall(text)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.example_certificate")
    parser.add_argument("--write", action="store_true", help="write the example anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        verdict, text = page(Path(folder))
    if options.write:
        EXAMPLE.write_text(text, encoding="utf-8")
    print(f"{verdict}: {len(rows(text))} rows, {len(text)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
