"""Plain English: numbers agree with their nouns, "per" says per, no riddles, wherever people read.

The sources are walked, so that a new message is held too. Each rule is one test, which names all
offenders.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from fixtures.wording import counted, plural
from tests.selftests import support
from tests.selftests.support import CHECKOUT
from tests.tools import checkout_files

pytestmark = pytest.mark.cpu

PACKAGES = ("fixtures", "reports", "training")
INDEPENDENT = (
    "fixtures/sandbox", "reports/second_judge", "reports/second_verifier.py", "fixtures/wording.py",
    "fixtures/workloads/filesystem/filesystem_child.py",
)  # fmt: skip
"""What imports nothing of the suite, and so not its wording."""

NOUNS = re.compile(
    r"^ (nodes|GPUs|CPUs|NICs|ranks|rows|checks|files|jobs|runs|values|pairs|samples|attempts"
    r"|errors|devices|criteria|links|days|hours|minutes|peers|processes|records|measurements|lines"
    r"|steps|calls|batches|elements|rounds|tests|limits|racks|leaves|slots|ports|faults|layers"
    r"|tokens|sizes|repetitions|others|launches|domains|parts|entries|failures|culprits|reasons"
    r"|figures)\b"
)
DECIMAL = re.compile(r"\.\d+[fge]")

PER = re.compile(
    r"\b(GPUs?|NICs?|CPUs?|ranks?|jobs?|tests?|rows|values?|tokens|tokens/s|files|cores|lines"
    r"|samples|bytes|process|processes|sequences|errors|corrections|packets|operations|once|FLOP"
    r"|Gbit/s|GB/s|TFLOPS|ms|percent) an? (node|GPU|rank|run|day|second|minute|hour|step|job|core"
    r"|clock|cycle|direction|parameter|planned)\b"
    r"(?! (that|which|looks|knows|works|is|has|of|counts|starts)\b)"
)
IS_NO = re.compile(
    r"\b(is|are|was|were) no (?!longer\b|more\b|one\b|better\b|fault\b|part\b)[a-z]+"
)
THERE = re.compile(r"\b([Tt]here|[Ww]here)\s+(\w+\s+)?$")
SUBJECT = re.compile(r"^ (is|are|was|were|can|may)\b")

VAGUE = re.compile(
    r"\bnobody\b|\bso many\b|\banyhow\b|\bsaid\b|\bwhat of (the|a|it|its|them)\b"
    r"|\b(held|holds?) (it |them |that |both )?against\b|\bsays? nothing of\b"
    r"|\bwhose fault it is\b|\bas ever\b",
    re.IGNORECASE,
)
"""Vague subjects and counts: say who or how many, or that something is unknown."""
REWRITTEN = (
    "this shows the suite, no cluster", "what makes jobs fail wants",
    "was measured and is beyond its limit", "took no part; measured on",
    "of the plan not applicable here", "a demonstration sweeps", "the order is not for",
    "No process that is not ours", "the row says what its number means", "NOT AS IT WAS",
    "vouched for", "the stack that the watchdog left", "facts of no sense", "if one who owes",
    "With whom a suspect", "whatever its own deadline is", "It is over, and what",
    "one process is done before", 'no such GPU"', "node lists beside them",
    "'node lists':<12} beside them", "nothing selected; what", "what is to be said of it",
    "why nothing is said of it", "What is below it is said", "what of the order the limit",
    "which of it the nodes owe", "of which nobody knows the meaning", "where nobody knows better",
    "is an end of all", "the way between gpu", "never back where it was",
    "when we looked no longer", "did not come to its fault", "ended without a word",
    "left out without a word", "killed in its middle", "the very same number", "has teeth",
    "launches rule it", "is as its manifest says", "what the units give", "accused this node",
    "cannot be looked at from here", "taken for whole", "whole checkpoint", "holds no workload",
    "has all: this order", "none can copy alone", "hold virtual nodes to", "fences nothing",
    "of no use", "who is slow here may wait", "none of them alone", "so many differ",
    "goes by the one it is given", "what kills something of its own", "no state of a patrol",
    "a look at every node in seconds", "lives on after", "as were ordered",
    "The clocks of all nodes are together", "becomes an address", "and connections enough",
    "while the nodes talk", "What ranks and jobs said", "is no DSSE", "who signed it: give",
    "some ranks measured more", "speak too little", "it is not so on",
    "takes all the nodes there are", "judge go over RUN", "what you have signed says",
    "the row has its text", "the row has its number", "hang on the CPU", "asks it all the time",
    "Memory is in use by", "that are written down", "left alone for", "said its last word",
    "all as manifest.sha256 says", "is no UTF-8", "is no JSON list", "of which {z",
    "was not good in the", "with changes that are not committed", "a person must fill it in",
    "the order says no", "spreads too far", "took {2 * limit_mib} MiB and lived",
    "asked for is stopped", "the suite stands for",
)  # fmt: skip
"""Phrases over which readers stumbled (issue 49), as they stood in sources, limits and pages."""
NOT_HELD = ("tests/", "docs/changes.md", "README.md", "docs/reference-card.md")
"""Not held to VAGUE and REWRITTEN: tests, history, and pages that issue 49 writes anew."""


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


def offenders(paths: Iterable[Path], find: Callable[[str], Iterable[object]]) -> list[str]:
    """Return "file: what was found" for each text in which `find` finds something."""
    return [
        f"{path.relative_to(CHECKOUT)}: {hit}"
        for path in paths
        for hit in find(path.read_text(encoding="utf-8"))
    ]


def test_a_number_agrees_with_its_noun() -> None:
    for count, noun, text in (
        (1, "node", "1 node"), (2, "node", "2 nodes"), (0, "check", "0 checks"),
        (1, "criterion", "1 criterion"), (3, "criterion", "3 criteria"), (2, "batch", "2 batches"),
        (2, "process", "2 processes"), (2, "entry", "2 entries"), (2, "day", "2 days"),
        (1, "Xid", "1 Xid"), (1.0, "hour", "1.0 hour"),
    ):  # fmt: skip
        assert (counted(count, noun), plural(count, noun)) == (text, text.partition(" ")[2])


def test_a_disagreement_is_found() -> None:
    planted = 'f"{n} nodes"; f"{n} node"; f"{counted(n, "node")}"; f"{MOST} nodes"; f"{d:.1f} days"'
    tree = ast.parse(planted.replace('"node")}', "'node')}"))
    assert [text for _, text in disagreements(tree)] == ["f'{n} nodes'"]


def test_messages_count_in_words_that_agree() -> None:
    found = offenders(modules(), lambda text: disagreements(ast.parse(text)))
    assert not found, "count by counted() or plural():\n" + "\n".join(found)


def texts() -> list[Path]:
    """Everything that is read: sources, docs, limits, templates."""
    wanted = (".py", ".md", ".yaml", ".jinja2", ".js", ".toml")
    return [
        CHECKOUT / name
        for name in checkout_files.names()
        if name.endswith(wanted) and "selftests/data/" not in name
        and not name.endswith("test_wording.py") and (CHECKOUT / name).exists()
    ]  # fmt: skip


def held() -> list[Path]:
    """The texts that are held to VAGUE and REWRITTEN."""
    found = [p for p in texts() if not str(p.relative_to(CHECKOUT)).startswith(NOT_HELD)]
    assert len(found) > 400, "the walk found too few files to mean anything"
    return found


def awkward(text: str) -> list[str]:
    """Return phrases that a native reader stumbles over."""
    found = [m[0] for m in PER.finditer(text)]
    for m in IS_NO.finditer(text):
        if THERE.search(text[: m.start()][-24:]) or SUBJECT.match(text[m.end() :]):
            continue
        found.append(m[0])
    return found


def prose(path: Path) -> str:
    """Return the text of a file on one line; of Python strings and comments only, not names."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        # From Python 3.12 on an f-string is several tokens.
        kinds = (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", None))
        parts = [re.sub(r"^[rbf]*\"+|\"+$|^#+", "", t.string) for t in tokens if t.type in kinds]
        text = " ".join(part for part in parts if " " in part)
    text = re.sub(r"\{[^{}]*\}|`[^`]*`|^\s*#", " ", text, flags=re.MULTILINE)
    return " ".join(text.split())


def flat(text: str) -> str:
    """Return a source on one line, strings that follow each other as one, without comment signs."""
    joined = re.sub(r'"\s*\n\s*f?"', "", text)
    return " ".join(re.sub(r"^\s*#", " ", joined, flags=re.MULTILINE).split())


def test_an_awkward_phrase_is_found() -> None:
    for text, phrases in (
        ("8 GPUs a node", ["GPUs a node"]), ("8 GPUs per node", []),
        ("once a second", ["once a second"]), ("one process a core", ["process a core"]),
        ("errors a node counts", []),
        ("it is no number", ["is no number"]),
        ("there is no number", []), ("it is no longer there", []), ("of which no rank is left", []),
    ):  # fmt: skip
        assert awkward(text) == phrases, text


def test_vague_words_and_rewritten_phrases_are_found(tmp_path: Path) -> None:
    source = tmp_path / "planted.py"
    source.write_text(
        'said = 1\nraise ValueError(f"{said} ranks, and nobody "\n    "knows it")  # so many\n'
        'text = ("NOT AS IT "\n    "WAS")\n"""What is held against it."""\n'
    )
    vague = [m[0] for m in VAGUE.finditer(prose(source))]
    assert vague == ["nobody", "so many", "held against"]
    assert [p for p in REWRITTEN if p in flat(source.read_text())] == ["NOT AS IT WAS"]


def test_texts_are_in_plain_english() -> None:
    found = offenders(texts(), awkward)
    assert not found, "write per, and `is not a`:\n" + "\n".join(found)


def test_texts_name_who_and_how_many() -> None:
    found = [
        f"{name}: {m[0]!r} in ...{text[max(0, m.start() - 40) : m.end() + 40]}..."
        for path in held() if path.suffix != ".js"
        for name, text in [(str(path.relative_to(CHECKOUT)), prose(path))]
        for m in VAGUE.finditer(text)
    ]  # fmt: skip
    assert not found, "say who, how many, or that it is unknown:\n" + "\n".join(found)


def test_rewritten_phrases_do_not_come_back() -> None:
    found = offenders(held(), lambda text: [p for p in REWRITTEN if p in flat(text)])
    assert not found, "rewritten for a reader who stumbled over it:\n" + "\n".join(found)


# --- what the recorded runs say

ONE = re.compile(
    r"(?<![\d.,-])1 (nodes|GPUs|ranks|rows|checks|jobs|devices|criteria|links|Xids|peers)\b"
)


def test_verdicts_of_recorded_runs_count_in_words_that_agree() -> None:
    verdicts = sorted((support.DATA / "verdicts").iterdir())
    assert verdicts
    found = offenders(verdicts, lambda text: [m[0] for m in ONE.finditer(text)])
    assert not found, "\n".join(found)
