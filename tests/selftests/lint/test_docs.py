"""The playbook: its links lead somewhere, its commands exist, its table is the code's."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from dataclasses import fields
from unittest import mock

import pytest

from fixtures.records.absence import JobKind, Kind
from fixtures.run.options import RunOptions
from fixtures.thresholds.definitions import shipped
from fixtures.verdict.absence import TABLE, next_step_of
from fixtures.workloads.health import xids
from tests.selftests.support import CHECKOUT, DATA, replay
from tests.tools import criteria

pytestmark = pytest.mark.cpu

DOCS = CHECKOUT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), CHECKOUT / "README.md", CHECKOUT / "deploy" / "README.md"]


def test_the_failure_modes_are_those_of_the_code():
    text = (DOCS / "failure-modes.md").read_text(encoding="utf-8")
    table = text.partition("\n|---")[2].partition("\n\n")[0]  # the first one of the page
    rows = [[c.strip() for c in n.strip("|").split("|")] for n in table.splitlines()[1:]]
    told = {row[0]: row[2] for row in rows}
    assert told == {k.value: next_step_of(k) for k in JobKind if k is not JobKind.UNUSABLE}
    assert all(row[1] for row in rows)


def test_the_table_of_absences_is_that_of_the_code():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8").partition("## Absence")[2]
    lines = text.partition("\n|---")[2].partition("\n\n")[0].splitlines()[1:]
    told = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert told == [
        (k, row.outcome, row.not_owed, row.cause, row.accused)
        for k, row in TABLE.items()
        if isinstance(k, Kind)
    ]


def test_the_table_of_xids_is_that_of_the_code():
    text = (DOCS / "health.md").read_text(encoding="utf-8")
    table = text.partition("| Xid | means | do |\n|---|---|---|\n")[2].partition("\n\n")[0]
    told = [[c.strip() for c in row.strip("|").split("|")] for row in table.splitlines()]
    noted, alone = " (not counted: a program causes it)", " (counted where no other comes with it)"
    assert told == [
        [
            str(number),
            xid.meaning + noted * (number in xids.BY_PROGRAM) + alone * (number == xids.CLEAN_UP),
            xid.action,
        ]
        for number, xid in xids.XIDS.items()
    ]
    assert 20 < len(told) == len({number for number, *_ in told})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        found = page if not path else page.parent / path
        assert found.exists(), f"{page.name}: {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
            assert heading in slugs, f"{page.name}: {target}"


def printed_help(module: str, *command: str) -> str:
    """What a module prints with --help, as a program; in this process, but for pytest."""
    wide = {"COLUMNS": "400"}
    if module == "pytest":
        start = [sys.executable, "-m", module, "--help"]
        return subprocess.run(
            start, cwd=CHECKOUT, capture_output=True, text=True, env=os.environ | wide, check=True
        ).stdout
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, wide),
        mock.patch.object(sys, "argv", [module, *command, "--help"]),
        contextlib.redirect_stdout(printed),
        warnings.catch_warnings(),
    ):
        # A test may have imported the program already: here it starts once more.
        warnings.simplefilter("ignore", RuntimeWarning)
        status: object = None
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            status = ended.code
    assert not status, (module, command, printed.getvalue())
    return printed.getvalue()


@functools.cache
def help_of(*command: str) -> dict[str, str]:
    """Option -> what it takes ("" for nothing), as `--help` of a command says."""
    found = {}
    for line in printed_help(*command).splitlines():
        for option, takes in re.findall(r"(?:^ +|, )(--[a-z-]+)(?:[= ]([^ ,]+))?", line):
            found.setdefault(option, takes)
    return found


def commands(text: str) -> list[str]:
    """Command lines of a page: in backticks, and in code blocks, continued lines joined."""
    blocks = re.findall(r"^```.*?$(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [n for block in blocks for n in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return [line.partition(" #")[0].strip() for line in [*lines, *inline]]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(CHECKOUT)))
def test_commands_that_a_page_names_take_these_options(page):
    targets = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    for line in commands(page.read_text(encoding="utf-8")):
        if make := re.match(r"make ([a-z-]+)", line):
            assert re.search(rf"^{make[1]}:", targets, re.MULTILINE), line
        if line.startswith("pytest "):
            known = help_of("pytest")
        elif module := re.search(r"-m ((?:fixtures|reports|training|tests)[\w.]*) ?(.*)", line):
            with_subcommands = module[1] in ("reports", "fixtures.patrol", "fixtures.sandbox")
            subcommand = (
                re.match(r"(?:challenge )?[a-z-]+", module[2]) if with_subcommands else None
            )
            known = help_of(module[1], *(subcommand[0].split() if subcommand else []))
            line = module[2]
        else:
            continue
        for option in re.findall(r"(?<!\S)(--[a-z-]+)", re.split(r"(?:^| )-- ", line)[0]):
            assert option in known, f"{page.name}: {line}: {option}"


def test_the_options_of_the_reference_card_take_what_it_says():
    text = (DOCS / "reference-card.md").read_text(encoding="utf-8")
    table = text.partition("## Options")[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = [re.split(r"(?<!\\)\|", row.strip("|"))[0] for row in table.splitlines()[2:]]
    known = help_of("pytest")
    named = [m for cell in cells for m in re.findall(r"(--[a-z-]+)(?:[= ]('?[A-Z][A-Z]*))?", cell)]
    assert {option for option, _ in named} >= {f"--{name}" for name in ours()}
    for option, takes in named:
        assert option in known, option
        if takes:
            assert known[option].strip("'").startswith(takes.strip("'")), option


def ours() -> set[str]:
    """The suite's own options, but for `--from`, whose field has another name."""
    return {f.name.replace("_", "-") for f in fields(RunOptions)} - {"from-run"}


def test_the_index_names_every_page():
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in text, page.name


TERMS = [
    "AllReduce",
    "Batch size",
    "BF16",
    "Checkpoint",
    "DDP",
    "DeepSpeed",
    "Fine-tuning",
    "Gradient",
    "Gradient accumulation",
    "Gradient checkpointing",
    "HBM3",
    "InfiniBand",
    "LoRA",
    "Loss",
    "NCCL",
    "NVLink",
    "RDMA",
    "Tensor Cores",
    "TFLOPS",
    "torchrun",
    "Warmup",
    "ZeRO",
]


def test_the_glossary_explains_the_words_of_the_field_in_order():
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    table = text.partition("## Words of the field")[2].partition("|---|---|")[2]
    rows = [[c.strip() for c in n.strip("|").split("|")] for n in table.splitlines() if n]
    assert [word for word, _ in rows] == TERMS
    assert all(len(meaning) > 10 for _, meaning in rows)


def test_every_criterion_is_on_the_page_of_its_area_with_all_that_is_said_of_it():
    assert criteria.main([]) == 0, "python -m tests.tools.criteria --write"
    known = shipped()
    listed: dict[str, str] = {}
    for area, page in criteria.pages().items():
        text = page.read_text(encoding="utf-8").partition(criteria.BEGIN)[2]
        rows = re.findall(r"^\| (\*\*.*?) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
        assert rows, page.name
        for checks, *_ in rows:
            found = re.findall(r"\*\*(.+?)\*\*<br>`(\S+)` \(.+?\): (\S+)", checks)
            assert len(found) == checks.count("**") / 2, checks
            assert all(known.noun_of(key) == noun for noun, key, _ in found)
            listed |= dict.fromkeys((key for _, key, _ in found), area)
        for key in (key for key, where in listed.items() if where == area):
            for said in ("proves", "not", "red"):
                assert criteria.markdown(known.texts_of(key)[said]) in text, (key, said)
    assert listed == dict(known.areas)
    for key in known.criteria:
        assert known.page_of(key) == f"docs/{known.areas[key]}.md"
        assert known.title_of(key) == known.titles[known.areas[key]]


def test_no_page_says_by_hand_what_its_table_says():
    made = re.compile(f"{re.escape(criteria.BEGIN)}.*{re.escape(criteria.END)}", re.DOTALL)
    texts = {page.name: made.sub("", page.read_text(encoding="utf-8")) for page in PAGES}
    head = re.compile(r"^\|.*does not prove", re.MULTILINE)
    assert [name for name, text in texts.items() if head.search(text)] == []


def test_texts_on_a_page_link_to_pages_and_show_keys_as_code():
    for text, shown in (
        ("See health.xid, a <k> and `x <y> health.xid`.",
         "See `health.xid`, a &lt;k> and `x <y> health.xid`."),
        ("In docs/tuning.md: a|b of no.row.", "In [tuning.md](tuning.md): a\\|b of no.row."),
    ):  # fmt: skip
        assert criteria.markdown(text) == shown


def test_a_page_whose_list_is_out_of_date_is_found(monkeypatch, tmp_path):
    copies = {}
    for area, page in criteria.pages().items():
        copies[area] = tmp_path / page.name
        copies[area].write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(criteria, "pages", lambda: copies)
    assert criteria.main([]) == 0
    text = copies["memory"].read_text(encoding="utf-8")
    head, begin, listed = text.partition(criteria.BEGIN)
    changed = listed.replace("`memory.copy`", "`memory.copied`", 1)
    copies["memory"].write_text(head + begin + changed, encoding="utf-8")
    assert criteria.main([]) == 1
    assert criteria.main(["--write"]) == 0
    assert copies["memory"].read_text(encoding="utf-8") == text


def test_the_tour_leads_through_a_recorded_run(tmp_path):
    replay(DATA / "h200-2x2", tmp_path / "run")
    command = [sys.executable, "-m", "reports.console.tour", "--run", str(tmp_path / "run")]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    text = run.stdout
    places = [
        text.index(w) for w in ("acceptance", "1. hardware", "2. health", "4. bench", "summary")
    ]
    assert places == sorted(places)
    assert "2 x NVIDIA H200" in text
    assert re.search(r"# gemm worker0, slowest of 2, TFLOPS: bf16 [67]\d\d", text)
    assert "# allreduce worker0: 2 ranks" in text
    assert "DEMONSTRATION" in text


def test_a_tour_of_nothing_is_refused(tmp_path):
    command = [sys.executable, "-m", "reports.console.tour", "--run", str(tmp_path)]
    run = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert run.returncode == 4
    assert "no verdict.json" in run.stdout.replace("\n", "")
