"""The files of the checkout, with git or without: an image and an unpacked archive have no `.git`.

Only the standard library: tools that run before anything is installed list files too.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def names(*places: str, checkout: Path = CHECKOUT) -> list[str]:
    """Return the paths below the checkout that git does not ignore, sorted; without git the same.

    places: files and folders of the checkout; without them, all of it.
    """
    # A copy inside another repository has no `.git` of its own, and git would list that one's.
    found = _of_git(checkout) if (checkout / ".git").exists() else None
    if found is None:
        found = [
            path.relative_to(checkout).as_posix() for path in _walk(checkout, _rules(checkout))
        ]
    return sorted(
        name
        for name in found
        if not places or any(name == place or name.startswith(f"{place}/") for place in places)
    )


def _of_git(checkout: Path) -> list[str] | None:
    """Return what git lists and the disk has; None where git cannot say."""
    argv = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others",
            "--exclude-standard"]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    named = dict.fromkeys(filter(None, done.stdout.split("\0")))
    return [n for n in named if (checkout / n).is_file() or (checkout / n).is_symlink()]


def _rules(checkout: Path) -> list[re.Pattern[str]]:
    """Return the lines of .gitignore as patterns of paths below the checkout, folders with a /."""
    text = checkout / ".gitignore"
    lines = text.read_text(encoding="utf-8").splitlines() if text.is_file() else []
    rules = []
    for line in filter(None, map(str.strip, lines)):
        if line[0] in "#!" or re.search(r"[\[\]\\?]|\*\*", line):
            if line[0] == "#":
                continue
            raise ValueError(f"{text}: {line}: only names, folders and * are read here")
        # A slash before the end binds a line to the top, as git has it.
        anywhere = "" if "/" in line.rstrip("/") else "(.*/)?"
        name = re.escape(line.lstrip("/")).replace(r"\*", "[^/]*")
        rules.append(re.compile(anywhere + name + ("" if line.endswith("/") else "/?")))
    return rules


def _walk(
    checkout: Path, rules: list[re.Pattern[str]], below: Path | None = None
) -> Iterator[Path]:
    for path in sorted((below or checkout).iterdir()):
        name = path.relative_to(checkout).as_posix()
        folder = path.is_dir() and not path.is_symlink()
        if name == ".git" or any(r.fullmatch(f"{name}/" if folder else name) for r in rules):
            continue
        if not folder:
            yield path
        # Caches of tools say in a .gitignore of their own that all of them is ignored.
        elif not _ignores_itself(path):
            yield from _walk(checkout, rules, path)


def _ignores_itself(folder: Path) -> bool:
    own = folder / ".gitignore"
    return own.is_file() and "*" in own.read_text(encoding="utf-8").split()
