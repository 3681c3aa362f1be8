"""Plain English: numbers agree with their nouns, and "per" says per, wherever people read.

The sources are walked, so that a new message is held too.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.wording import counted, plural
from tests.selftests import support
from tests.selftests.support import CHECKOUT

pytestmark = pytest.mark.cpu

PACKAGES = ("fixtures", "reports", "training")
INDEPENDENT = (
    "fixtures/sandbox", "reports/second_judge", "fixtures/wording.py",
    "fixtures/workloads/filesystem/filesystem_child.py",
)  # fmt: skip
"""What imports nothing of the suite, and so not its wording."""

NOUNS = re.compile(
    r"^ (nodes|GPUs|CPUs|NICs|ranks|rows|checks|files|jobs|runs|values|pairs|samples|attempts"
    r"|errors|devices|criteria|links|days|hours|minutes|peers|processes|records|measurements|lines"
    r"|steps|calls|batches|elements|rounds|tests|limits|racks|leaves|slots|ports|faults|layers"
    r"|tokens|sizes|repetitions|others|launches|domains|parts|entries|failures|culprits|reasons)\b"
)
DECIMAL = re.compile(r"\.\d+[fge]")

PER = re.compile(
    r"\b(GPUs?|NICs?|CPUs?|ranks?|jobs?|tests|rows|tokens|tokens/s|files|cores|lines|samples|bytes"
    r"|processes|Gbit/s|GB/s|TFLOPS|ms|percent) an? (node|GPU|rank|run|day|second|hour|step|job"
    r"|clock|cycle)\b(?! (that|which|looks|knows|works|is|has|of)\b)"
)
IS_NO = re.compile(
    r"\b(is|are|was|were) no (?!longer\b|more\b|one\b|better\b|fault\b|part\b)[a-z]+"
)
THERE = re.compile(r"\b([Tt]here|[Ww]here)\s+(\w+\s+)?$")
SUBJECT = re.compile(r"^ (is|are|was|were|can|may)\b")


def modules() -> list[Path]:
    found = [p for package in PACKAGES for p in (CHECKOUT / package).rglob("*.py")]
    return [p for p in found if not str(p.relative_to(CHECKOUT)).startswith(INDEPENDENT)]


def disagreements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the f-strings in which a number stands before a plural without counted()."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not (isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant)):
                continue
            if not NOUNS.match(str(text.value)) or _is_never_one(value):
                continue
            yield node.lineno, ast.unparse(node)


def _is_never_one(value: ast.FormattedValue) -> bool:
    """A constant of the suite, a decimal ("1.0 days"), or words that are no number."""
    if isinstance(value.value, ast.Name) and value.value.id.isupper():
        return True
    if isinstance(value.value, ast.Constant):
        return True
    return value.format_spec is not None and bool(DECIMAL.search(ast.unparse(value.format_spec)))


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "node", "1 node"), (2, "node", "2 nodes"), (0, "check", "0 checks"),
        (1, "criterion", "1 criterion"), (3, "criterion", "3 criteria"), (2, "batch", "2 batches"),
        (2, "process", "2 processes"), (2, "entry", "2 entries"), (2, "day", "2 days"),
        (1, "Xid", "1 Xid"), (1.0, "hour", "1.0 hour"),
    ],
)  # fmt: skip
def test_a_number_agrees_with_its_noun(count: float, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert plural(count, noun) == text.partition(" ")[2]


def test_a_disagreement_is_found() -> None:
    planted = 'f"{n} nodes"; f"{n} node"; f"{counted(n, "node")}"; f"{MOST} nodes"; f"{d:.1f} days"'
    tree = ast.parse(planted.replace('"node")}', "'node')}"))
    assert [text for _, text in disagreements(tree)] == ["f'{n} nodes'"]


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_messages_count_in_words_that_agree(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert dict(disagreements(tree)) == {}


def texts() -> list[Path]:
    """Everything that is read: sources, docs, limits, templates."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = (".py", ".md", ".yaml", ".jinja2", ".js", ".toml")
    return [
        CHECKOUT / name
        for name in listed
        if name.endswith(wanted) and "selftests/data/" not in name
        and not name.endswith("test_wording.py") and (CHECKOUT / name).exists()
    ]  # fmt: skip


def awkward(text: str) -> list[str]:
    """Return phrases that a native reader stumbles over."""
    found = [m[0] for m in PER.finditer(text)]
    for m in IS_NO.finditer(text):
        if THERE.search(text[: m.start()][-24:]) or SUBJECT.match(text[m.end() :]):
            continue
        found.append(m[0])
    return found


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("8 GPUs a node", ["GPUs a node"]), ("8 GPUs per node", []),
        ("it is no number", ["is no number"]),
        ("there is no number", []), ("it is no longer there", []), ("of which no rank is left", []),
    ],
)  # fmt: skip
def test_an_awkward_phrase_is_found(text: str, phrases: list[str]) -> None:
    assert awkward(text) == phrases


@pytest.mark.parametrize("path", texts(), ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_texts_are_in_plain_english(path: Path) -> None:
    assert awkward(path.read_text(encoding="utf-8")) == []


# --- what the recorded runs say

ONE = re.compile(
    r"(?<![\d.,-])1 (nodes|GPUs|ranks|rows|checks|jobs|devices|criteria|links|Xids|peers)\b"
)


VERDICTS = sorted((support.DATA / "verdicts").iterdir())


@pytest.mark.parametrize("path", VERDICTS, ids=lambda p: p.stem)
def test_verdicts_of_recorded_runs_count_in_words_that_agree(path: Path) -> None:
    assert [m[0] for m in ONE.finditer(path.read_text(encoding="utf-8"))] == []
