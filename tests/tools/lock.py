"""Write constraints.txt anew: every package that make installs, pinned, with its files' hashes.

python -m tests.tools.lock             keep the versions that it has; add what is missing
python -m tests.tools.lock --upgrade   take the newest ones that work together

Needs `uv` (`pip install uv`): it resolves for all supported Pythons and architectures at once.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fixtures.setup.lock import Package, read

CHECKOUT = Path(__file__).resolve().parents[2]
CONSTRAINTS = CHECKOUT / "constraints.txt"
SECTIONS = {
    "run": "what every run needs, and what builds a package of which there is only the source",
    "torch": "torch in the default build, and what it needs",
    "finetune": "the extra finetune",
    "development": "what tests and lint need",
    "more": "the extras zero3 and sign, which make does not install",
}
HEAD = """\
# Everything that make installs, pinned, with the SHA-256 of every file that the index has of it;
# known to work together on Python 3.11 to 3.14. `python -m tests.tools.lock` writes it anew.
# fixtures/setup/install.py installs each section as a whole, without asking for dependencies.
"""
BUILD_TOOL = "setuptools"
"""Builds what is there as source only; no package is built by tools that the index names itself."""
ASKED = {
    "run": [],
    "torch": [],
    "finetune": ["finetune"],
    "development": ["finetune", "dev"],
    "more": ["finetune", "dev", "zero3", "sign"],
}
"""Section -> the extras of which it has what the sections before it have not."""
ELSEWHERE = re.compile(r"sys_platform == '(win32|emscripten)'")


def compiled(source: str, extras: Sequence[str], *, upgrade: bool) -> list[Package]:
    """Return what a resolution by uv gives for pyproject.toml with extras, or for a requirement."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wanted = CHECKOUT / "pyproject.toml"
        if source:
            wanted = folder / "wanted.in"
            wanted.write_text(f"{source}\n")
        pins = folder / "pins.txt"
        known = [] if upgrade or not CONSTRAINTS.exists() else read(CHECKOUT)
        pins.write_text("".join(f"{p.name}=={p.version}\n" for p in known))
        out = folder / "lock.txt"
        argv = [
            "uv", "pip", "compile", str(wanted), "--universal", "--python-version", "3.11",
            "--generate-hashes", "--no-annotate", "--no-header", "--constraint", str(pins),
            "--output-file", str(out), *(f"--extra={extra}" for extra in extras),
        ]  # fmt: skip
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        text = out.read_text()
        (folder / "constraints.txt").write_text(text)
        return [p for p in read(folder) if not ELSEWHERE.search(p.marker)]


def text_of(sections: dict[str, list[Package]]) -> str:
    parts = [HEAD]
    for name, packages in sections.items():
        parts.append(f"\n# --- {name}: {SECTIONS[name]}\n")
        parts += [package.text for package in packages]
    return "".join(parts)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.lock", description=__doc__)
    parser.add_argument("--upgrade", action="store_true")
    upgrade = parser.parse_args(argv).upgrade
    seen: set[str] = set()
    sections: dict[str, list[Package]] = {}
    for name, extras in ASKED.items():
        found = compiled("torch" if name == "torch" else "", extras, upgrade=upgrade)
        if name == "run":
            found += compiled(BUILD_TOOL, [], upgrade=upgrade)
        new = [p for p in found if p.name not in seen]
        sections[name] = sorted(new, key=lambda p: p.name)
        seen |= {p.name for p in new}
    CONSTRAINTS.write_text(text_of(sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
