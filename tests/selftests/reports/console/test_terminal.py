"""The end of a run on a screen of 80 x 24, and what the other commands print."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures import __main__ as accept
from fixtures.background import run_to_its_end
from fixtures.conclusion.run_verdict import demonstration_text
from fixtures.records.files import append_lines, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome
from reports.console import terminal
from reports.exports import tables
from reports.pages import banner, certificate
from reports.pages.artefacts import Artefacts
from tests.selftests.fabric_loads import fabric_load
from tests.selftests.reports.pages.test_page import measured, planned
from tests.selftests.reports.test_first_screen import BAD, KEYS, made
from tests.selftests.support import CHECKOUT, DATA, edited, run_pytest
from tests.tools.fleet_run import Fleet

pytestmark = pytest.mark.cpu

WIDTH, HEIGHT = 80, 24


def shown(root: Path) -> list[str]:
    directory = RunDirectory(root)
    return terminal.summary(Artefacts(directory, read_json(directory.verdict)), WIDTH)


@pytest.mark.parametrize("word", ["REJECTED", "INCOMPLETE", "ACCEPTED"])
def test_the_fabric_under_load_is_on_the_screen_and_leaves_room_for_the_rest(tmp_path, word):
    root = made(tmp_path / "run", word, 8).parent
    before = shown(root)
    with edited(root / "verdict.json") as verdict:
        verdict["fabric_load"] = fabric_load(8, never=3) | {"sentence": "12 min of each. " * 20}
        verdict["basis"]["demonstration"], verdict["basis"]["origin"] = True, "sandbox"
    lines = shown(root)
    text = " ".join("\n".join(lines).split())
    assert "12 min of each." in text
    assert "Fabric under load: 12 min of each." in text
    assert "Not covered: 3 of 56 not driven." in text
    assert text.count(demonstration_text("sandbox")) == 1
    assert sum(-(-len(line) // WIDTH) for line in lines) <= HEIGHT - 2
    assert {line for line in before if line.startswith(("report", "certificate", "1."))} <= {*lines}
    assert "12 min" not in "\n".join(before)


@pytest.mark.parametrize("count", [1, 2, 128])
@pytest.mark.parametrize("word", ["REJECTED", "INCOMPLETE", "ACCEPTED"])
def test_the_end_of_a_run_answers_five_questions_on_one_screen(tmp_path, word, count):
    lines = shown(made(tmp_path / "run", word, count).parent)
    screen_lines = sum(-(-len(line) // WIDTH) for line in lines)
    assert screen_lines <= HEIGHT - 2, "with the verdict above and a prompt below"
    text = "\n".join(lines)
    assert "Example AG, Example Systems, Frankfurt, 4711" in text
    assert f"report       {tmp_path / 'run' / 'report.html'}" in text
    assert f"certificate  {tmp_path / 'run' / 'certificate.html'}" in text
    if word == "REJECTED":
        assert f"1 node at fault (1 row): {BAD}" in text
        assert f"1. bf16 rate: {BAD} gpu3: 541 TFLOPS, limit >= 605" in text
        assert "Usually heat" in text
        assert "next: check GPU-8f1c2d" in text
    elif word == "INCOMPLETE":
        assert f"1 node dead ({len(KEYS)} rows): {BAD}" in text
        rows = f"({len(KEYS)} checks not measured: {BAD})"
        assert f"1. node lost: {BAD} went down {rows}" in " ".join(text.split())
    else:
        assert f"python -m reports sign {tmp_path / 'run'} --key KEY" in text.replace("\n", " ")


def test_what_is_wrong_is_named_and_no_requirement_read_backwards(tmp_path):
    root = made(tmp_path / "run", "REJECTED", 1).parent
    texts = {
        "report": (root / "report.html").read_text().partition('id="failed"')[2],
        "certificate": (root / "certificate.html").read_text().partition("is not accepted")[2],
        "terminal": "\n".join(line for line in shown(root) if line.startswith("1. ")),
    }
    (title,) = {v["title"] for v in read_json(root / "verdict.json")["criteria"]
                if v["outcome"] == "FAIL"}  # fmt: skip
    for page, text in texts.items():
        red = text.partition("</section>")[0]
        assert "bf16 rate" in red, page
        assert "gemm.bf16" in red.replace("<wbr>", ""), page
        assert title not in red, page


@pytest.mark.parametrize("word", ["REJECTED", "INCOMPLETE", "ACCEPTED"])
def test_a_verdict_on_virtual_nodes_says_on_its_first_screen_that_it_is_one(tmp_path, word):
    root = made(tmp_path / "run", word, 2).parent
    data = read_json(root / "verdict.json")
    directory = RunDirectory(root)
    for virtual in (False, True):
        data["basis"]["demonstration"] = virtual
        lines = terminal.summary(Artefacts(directory, data), WIDTH)
        texts = [
            " ".join(lines), banner.banner(data, read_json(directory.run_json)),
            certificate.page(directory, data),
        ]  # fmt: skip
        for text in texts:
            assert text.count("says nothing about a cluster") == virtual
        assert len(lines) <= terminal.MAX_LINES
    data["reasons"] = [demonstration_text(str(data["basis"].get("origin")))]
    text = " ".join(terminal.summary(Artefacts(directory, data), WIDTH))
    assert text.count("says nothing about a cluster") == 1


def test_of_many_failures_three_are_told_and_a_command_is_never_broken():
    command = f"`pytest -m multinode --retest=/runs/{'x' * 90} -k worker1`"
    rows = [
        measured(f"{k}.rate", "worker1", Outcome.FAIL, 1.0, next_step=f"look, then {command}")
        for k in ("gemm", "memory", "hostcopy", "isolation", "training")
    ]
    found = terminal.problems([v.to_json() for v in rows])
    assert len(found) == 5
    for room in (14, 9, 5):
        lines = terminal._fitting(found, WIDTH, room)
        assert sum(-(-len(line) // WIDTH) for line in lines) <= room
        assert [line[:2] for line in lines if line[0].isdigit()] == ["1.", "2.", "3."]
        assert lines[-1] == "   and 2 more: in the report"
    for room in (40, 14):
        lines = terminal._fitting(found, WIDTH, room)
        assert sum(command in line for line in lines) == 1, "one next step for the run"
        assert sum("next:" in line for line in lines) == 1


@pytest.mark.parametrize("note", [
    "Xid 79 (the GPU fell off the bus: power the node off, reseat the GPU; RMA)",
    "GPU-971f86e2-0e2b-4c5d-9d1c-6b1a2f3c4d5e: process 4711 (python3) holds 1.2 GiB of its memory",
    "network between the nodes: NET/Socket, the order names NET/IB",
], ids=["Xid", "process", "transport"])  # fmt: skip
def test_what_decides_is_not_cut(note):
    row = measured("health.foreign_processes", "worker0", Outcome.FAIL, 1.0, notes=[note],
                   limit="<= 0")  # fmt: skip
    lines = terminal._fitting(terminal.problems([row.to_json()]), WIDTH, 10)
    assert all(len(line) <= WIDTH for line in lines[:2])
    told = " ".join(" ".join(lines[:2]).split())
    assert note.removeprefix("GPU-971f86e2-0e2b-4c5d-9d1c-6b1a2f3c4d5e: ") in told
    assert "GPU-971f86e2" not in told


@pytest.mark.parametrize(
    ("bad", "nodes"),
    [
        (["worker1"], "NodeName=worker1"),
        (["gpu003", "gpu007", "gpu004"], "'NodeName=gpu[003-004,007]'"),
        (["n1", "$(reboot)", "n2;id", "-x", "a b", "n1\nn2", "`id`"], "NodeName=n1"),
    ],
    ids=["one", "several", "names that are none"],
)
def test_the_command_that_drains_bad_nodes_can_be_pasted_into_a_root_shell(bad, nodes):
    line = terminal.drain_line(bad, "20261120-141500-3fa2", "cluster")
    title, command = line[:12], line[13:]
    assert title.strip() == "to drain"
    reason = "'Reason=acceptance 20261120-141500-3fa2'"
    assert command == f"scontrol update {nodes} State=DRAIN {reason}"
    assert len(shlex.split(command)) == 5


@pytest.mark.parametrize(
    ("bad", "run_id", "origin"),
    [([], "r1", "cluster"), (["n1"], "r1", "sandbox"), (["n1"], "r1", "local"),
     (["n1"], "r'1", "cluster"), (["$(id)"], "r1", "cluster"),
     ([f"x{k * k}y" for k in range(99)], "r1", "cluster")],
    ids=["none bad", "virtual", "one host", "another id", "no names", "too many"],
)  # fmt: skip
def test_where_nothing_is_to_be_drained_there_is_no_command(bad, run_id, origin):
    assert terminal.drain_line(bad, run_id, origin) == ""


def test_reasons_that_count_rows_are_not_told_beside_the_counts(tmp_path):
    root = made(tmp_path / "run", "INCOMPLETE", 2).parent
    data = read_json(root / "verdict.json")
    assert any("judged" in reason for reason in data["reasons"])
    data["reasons"].append("run.json says of its nodes light True")
    lines = terminal.summary(Artefacts(RunDirectory(root), data), WIDTH)
    assert sum("not measured" in line for line in lines) == 2, "the counts, and the reason"
    assert "run.json says of its nodes light True" in lines


def test_rows_that_do_not_apply_are_a_line_for_each_reason():
    rows = [
        planned(f"gemm.{k}", "worker0", Outcome.NOT_APPLICABLE, reason=reason)
        for k, reason in enumerate(["a single node has no pairs"] * 3 + ["no NVML"] * 2)
    ]
    lines = terminal.not_applicable([v.to_json() for v in rows], WIDTH)
    assert lines == [
        "5 checks that do not apply here:",
        "     3  a single node has no pairs",
        "     2  no NVML",
    ]
    assert terminal.not_applicable([], WIDTH) == []
    many = [replace(rows[0], reason=f"reason {k}").to_json() for k in range(20)]
    assert len(terminal.not_applicable(many, WIDTH)) == terminal.MAX_REASONS + 2
    one_more = [
        replace(rows[0], reason=f"reason {k}").to_json() for k in range(terminal.MAX_REASONS + 1)
    ]
    last = terminal.not_applicable(one_more, WIDTH)[-1]
    assert last == "     1  for 1 other reason: in the report"


def test_the_verdict_is_the_last_thing_that_pytest_prints(tmp_path):
    source = DATA / "h200-2x2-scaling"
    done = run_pytest("--cluster", "replay", f"--from={source}", f"--run-dir={tmp_path / 'run'}")
    lines = done.stdout.rstrip().splitlines()
    at = max(k for k, line in enumerate(lines) if re.fullmatch(r"=+ REJECTED =+", line))
    last = lines[at + 1 :]
    assert len(last) <= HEIGHT - 2
    assert any(
        line.startswith("1. DDP training efficiency, cluster: cluster all nodes") for line in last
    )
    assert last[-1].startswith("node lists")
    assert not any(line.startswith("SKIPPED") for line in lines)
    assert any(re.search(r"1 failed.* passed", line) for line in lines[:at])


def without_a_node(root: Path, nodes: int) -> Path:
    """A run in which the last node died before it measured anything."""
    fleet = Fleet(root, nodes, 2)
    fleet.write()
    dead, lines = fleet.nodes[-1], []
    nonce = read_json(root / "run.json")["nonce"]
    for path in sorted((root / "records").glob("*@*.json")):
        if dead in read_json(path)["nodes"]:
            path.unlink()
            workload, placement = path.stem.split("@")
            lines.append({
                "schema": 1, "workload": workload, "placement": placement, "attempt": 1,
                "kind": "node lost", "reason": f"{dead} went down", "job": "7", "node": dead,
                "nonce": nonce, "time": 1795198745.0,
            })  # fmt: skip
    append_lines(root / "jobs" / "missing.jsonl", lines)
    return root


@pytest.mark.parametrize(
    ("nodes", "most"), [(2, 40), pytest.param(512, 60, marks=pytest.mark.slow)]
)
def test_a_dead_node_is_told_once_and_not_once_a_check(tmp_path, nodes, most):
    run = without_a_node(tmp_path / "run", nodes)
    done = run_pytest("--cluster", "replay", f"--from={run}", f"--run-dir={tmp_path / 'judged'}")
    dead = f"gpu{nodes:04d}"
    lines = done.stdout.splitlines()
    # The dots of the tests are there without a dead node too.
    begun = next(k for k, line in enumerate(lines) if "NOT MEASURED" in line)
    assert len(lines) - begun <= most
    reason = f"node lost: {dead} went down"
    assert sum(reason in line for line in lines) <= 3, "this section, the reasons, the last screen"
    assert not any("ERROR at setup" in line or line.startswith("ERROR ") for line in lines)
    assert re.search(r"\d+ errors in ", done.stdout), "pytest's own count stays"


# --- compare, tables, commands


def test_tables_have_the_trainings_with_their_losses():
    records = {r.workload: r for r in tables.records_of(RunDirectory(DATA / "h200-1x4"))}
    text = tables.table(records["training_single"])
    assert "# single 1b, 1 GPU, node0" in text
    assert "# tokens/s per GPU 54897" in text
    first, *_, last = [line.split() for line in text.splitlines() if line.startswith("   ")][1:]
    assert first[:2] == ["1", "12.18"]
    assert last[0] == "40"
    assert "fine-tuning default" in tables.table(records["training_finetune"])


def test_the_command_that_make_accept_prints_can_be_pasted(monkeypatch, capsys):
    ran: list[list[str]] = []
    monkeypatch.setattr(
        accept, "run_to_its_end", lambda command, cwd: (ran.append(command), (0, False))[1]
    )
    accept.main(["--cluster", "local", "-k", "a or b", "-m", ""])
    assert shlex.split(capsys.readouterr().out.removeprefix("$ "))[1:] == ran[0][3:]


def test_a_command_that_is_waited_for_ends_by_itself_after_ctrl_c():
    """Python kills a child that it waits for a quarter of a second after Ctrl-C."""
    script = (
        "import os, signal, sys, time\n"
        "def end(*_): time.sleep(1); sys.exit(2)\n"
        "signal.signal(signal.SIGINT, end)\n"
        "os.kill(os.getppid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    assert run_to_its_end([sys.executable, "-c", script], cwd=CHECKOUT) == (2, True)
    assert run_to_its_end([sys.executable, "-c", "raise SystemExit(1)"], cwd=CHECKOUT) == (1, False)
