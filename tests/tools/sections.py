"""Parts of a Markdown page that a tool makes, between two comments that name the tool.

<!-- models: made by python -m tests.tools.gpu_models --write -->
...
<!-- end of models -->
"""

from __future__ import annotations

import re
from pathlib import Path


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(<!-- {re.escape(name)}: made by [^>]+ -->\n)(.*?)(<!-- end of {re.escape(name)} -->)",
        re.DOTALL,
    )


def section(page: Path, name: str) -> str:
    """Return the text of a made part; ValueError where the page has no such part, or two."""
    found = _pattern(name).findall(page.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{page.name} has {len(found)} parts named {name}, expected 1")
    return str(found[0][1])


def write_section(page: Path, name: str, made: str) -> None:
    """Replace the text of a made part."""
    section(page, name)
    text = page.read_text(encoding="utf-8")
    text = _pattern(name).sub(lambda m: f"{m[1]}{made}{m[3]}", text)
    page.write_text(text, encoding="utf-8")


def update(page: Path, name: str, made: str, *, write: bool) -> int:
    """Write the part, or say that it is out of date; return 1 for that, else 0."""
    if write:
        write_section(page, name, made)
    elif section(page, name) != made:
        print(f"{page.name}: {name} is out of date: --write makes it anew")
        return 1
    return 0
