"""Whatever is forged in a run directory is found, or named as not checked; nothing is made of it.

The forger may write a new manifest, and may use the suite itself to make all pages of a rewritten
verdict: what gives him away is that the records are judged again.
"""

# Length: one line for each attack on each file.

from __future__ import annotations

import copy
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.conclusion.run_verdict import conclude
from fixtures.records.files import json_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.run import run as run_module
from fixtures.verdict.model import Verdict
from reports import __main__ as command
from reports.evidence import statement
from reports.pages import artefacts, page
from reports.plots import charts
from tests.selftests import derive_runs, judged_runs, support
from tests.selftests.judged_runs import made_whole

pytestmark = pytest.mark.cpu

BAD_NODE = re.compile(r"^bad-nodes: (\S+)", re.MULTILINE)
NOT_IN_PAGES = ("commands", "durations", "owner", "session", "plan")


def digest(*paths: Path) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.read_bytes() if path.exists() else b"missing")
    return found.hexdigest()


def evidence_of(root: Path) -> list[Path]:
    return [root / "run.json", *sorted((root / "records").iterdir())]


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The replay in this process, and each page made once from the same files."""
    made: dict[tuple[str, str], bytes] = {}
    make = artefacts.Artefacts.make

    def make_once(self: artefacts.Artefacts, name: str, now: Any = None) -> bytes:
        if name == statement.NAME:  # it lists whatever is there
            return make(self, name, now)
        files = [*evidence_of(self.directory.root), self.directory.verdict, self.directory.ledger]
        if name == "certificate.html":
            files += [self.directory.manifest, self.directory.limits]
        key = name, digest(*files)
        if key not in made:
            made[key] = make(self, name)
        return made[key]

    folder = tmp_path_factory.mktemp("judged")
    with judged_runs.tools(folder, lambda root: digest(*evidence_of(root))) as patch:
        patch.setattr(artefacts.Artefacts, "make", make_once)
        yield


@pytest.fixture(scope="module")
def genuine(tools, tmp_path_factory) -> Path:
    """A run that is REJECTED for one GPU of worker1, with every file that a run leaves."""
    root = tmp_path_factory.mktemp("genuine") / "run"
    derive_runs.derive(support.DATA / "sandbox-2x2-cpu", root, "slow-gpu")
    (root / "jobs").mkdir()
    # As submitit does: an absolute link, which breaks where the run is moved.
    (root / "jobs" / "link.sh").symlink_to("/no longer here/out.txt")
    assert made_whole(root, path=str(root), options=["--partition=gpu"]) == 1
    return root


@pytest.fixture
def without_charts(monkeypatch):
    """They take most of a second for each verdict, and say nothing that is asked here."""
    monkeypatch.setattr(charts, "charts", lambda *_: [])
    monkeypatch.setattr(artefacts.Artefacts, "make", MAKE)


MAKE = artefacts.Artefacts.make


@pytest.fixture
def run(genuine, tmp_path) -> Path:
    return Path(shutil.copytree(genuine, tmp_path / "moved", symlinks=True))


def said_by_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    capsys.readouterr()
    status = command.main(["verify", str(root)])
    return status, capsys.readouterr().out.splitlines()


def test_a_genuine_run_is_verified_whole_wherever_it_lies_now(run, genuine, capsys):
    assert str(genuine) in (run / "results.csv").read_text(), "the path that it had"
    status, lines = said_by_verify(run, capsys)
    assert status == 0, lines
    assert lines[-1] == f"VERIFIED: {run}"
    checked = " ".join(line for line in lines if line.startswith("ok "))
    assert [name for name in artefacts.NAMES if name not in checked] == []


# --- one file is changed

Forge = Callable[[str], str]


def once(pattern: str, new: str) -> Forge:
    def forge(text: str) -> str:
        changed, count = re.subn(pattern, new, text, count=1, flags=re.DOTALL)
        assert count == 1, pattern
        return changed

    return forge


def swapped_charts(text: str) -> str:
    first, second = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)[:2]
    assert first != second
    return text.replace(first, "\0").replace(second, first).replace("\0", second)


ATTACKS: list[tuple[str, str, Forge]] = [
    ("report.html", "the verdict's word", lambda t: t.replace("REJECTED", "ACCEPTED")),
    ("report.html", "the title", once('<title id="head-title">[^<]*', "<title>fine")),
    ("report.html", "a number", once(r"(&lt;b&gt;)(\d)", r"\g<1>9\g<2>")),
    ("report.html", "a word", once("check ", "ignore ")),
    ("report.html", "a row's colour", once("badge fail", "badge pass")),
    ("report.html", "a row's outcome", once("&gt;FAIL&lt;", "&gt;PASS&lt;")),
    ("report.html", "a swapped chart", swapped_charts),
    ("report.html", "a chart's text", once(r"(<svg.*?>)(\d+)", r"\g<1>1\g<2>")),
    ("report.html", "a style", once("</style>", ".fail { display: none }</style>")),
    ("report.html", "a script", once("</script>", "document.title='ACCEPTED'</script>")),
    ("report.html", "a time", once("Report generated on ", "Report generated on 1-")),
    ("certificate.html", "the verdict's word", once("NOT ACCEPTED: REJECTED", "ACCEPTED")),
    ("certificate.html", "a number", once(r"\d+ failed", "0 failed")),
    ("certificate.html", "a hash", once("<code>[0-9a-f]{8}", "<code>00000000")),
    ("certificate.html", "the annex", once(r"&gt;= \d", "&gt;= 9")),
    ("certificate.html", "a style", once("</style>", ".fail { color: green }</style>")),
    ("junit.xml", "an outcome", once("<failure.*?</failure>", "")),
    ("junit.xml", "a count", once('failures="[0-9]+"', 'failures="0"')),
    ("junit.xml", "a word", once("limit", "floor")),
    ("results.csv", "an outcome", once(",FAIL,", ",PASS,")),
    ("results.csv", "a number", once(r"(,FAIL,)(\d)", r"\g<1>9\g<2>")),
    ("results.csv", "a word", once("check ", "ignore ")),
    ("results.csv", "a row less", once(r"\n[^\n]*,FAIL,[^\n]*", "")),
    ("limits.csv", "a limit", once(r">= \d", ">= 9")),
    ("limits.csv", "a source", once("measured", "guessed")),
    ("good-nodes.txt", "a node more", lambda t: f"worker0\nworker1\n{t}"),
    ("bad-nodes.txt", "no node", lambda t: ""),
    ("bad-nodes.txt", "another node", once("worker(.)", r"worker\g<1>9")),
    ("node-reasons.txt", "another reason", once("failed", "was slow")),
    ("node-reasons.txt", "no reason", lambda t: ""),
    *((name, "a space", lambda t: f"{t} ") for name in (*artefacts.NAMES, "limits.csv")),
]


@pytest.mark.parametrize("new_hashes", [False, True], ids=["", "with new hashes"])
@pytest.mark.parametrize(
    ("name", "what", "forge"), ATTACKS, ids=[f"{n}: {w}" for n, w, _ in ATTACKS]
)
def test_a_forged_file_is_found(run, name, what, forge, new_hashes, capsys):
    path = run / name
    before = path.read_text(encoding="utf-8")
    path.write_text(forge(before), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    if new_hashes and name != statement.NAME:
        with_new_hashes(run)
    status, lines = said_by_verify(run, capsys)
    assert status == 1, lines
    assert any(line.startswith(f"WRONG  {name}: ") for line in lines), lines
    assert lines[-1] == f"CHANGED SINCE THE RUN: {run}"


def with_new_hashes(root: Path) -> None:
    """Write manifest and statement anew, as whoever forges a file of an unsigned run can."""
    directory = RunDirectory(root)
    listed = directory.manifest.read_bytes()
    directory.write_manifest()
    if directory.manifest.read_bytes() != listed:
        made = artefacts.Artefacts(directory, json.loads(directory.verdict.read_text()))
        made.write("certificate.html")  # which states the manifest's
    statement.write(directory, json.loads(directory.verdict.read_text()))


@pytest.mark.parametrize(
    "name", [*artefacts.NAMES, "limits.csv", "verdict.json", "manifest.sha256"]
)
def test_a_removed_file_is_found(run, name, capsys):
    (run / name).unlink()
    status, lines = said_by_verify(run, capsys)
    assert status == 1, lines
    assert any(line.startswith(f"WRONG  {name}: ") for line in lines), lines


def test_a_page_of_other_tools_gives_no_cover_to_its_words(run, capsys):
    """Of the run's own tools: whoever only claims others has changed the page."""
    path = run / "report.html"
    path.write_text(path.read_text().replace(page.generator(), "gpu-cluster-acceptance 0.1"))
    with_new_hashes(run)
    assert said_by_verify(run, capsys)[0] == 1

    with support.edited(run / "run.json") as data:
        data["versions"] |= {"pytest-html": "3.0"}
    forged_by_the_suite(run, lambda verdict: None)
    for forge in (swapped_charts, lambda text: text.replace("badge fail", "badge pass")):
        path.write_text(forge(path.read_text()))
        with_new_hashes(run)
        status, lines = said_by_verify(run, capsys)
        assert status == 2, lines
        assert any(n.startswith("not checked: report.html: made by ") for n in lines), lines
        assert lines[-1] == f"NOT VERIFIED: {run}"


def test_a_run_says_which_tools_make_its_page(genuine):
    assert set(run_module.PAGE_VERSIONS) == set(page.TOOLS)


def test_a_verdict_that_says_two_things_is_found(run, capsys):
    """Of a key that stands twice, Python takes the last, and a reader the first."""
    path = run / "verdict.json"
    path.write_text(path.read_text().replace("{", '{ "verdict": "ACCEPTED",', 1))
    made = artefacts.Artefacts(RunDirectory(run), json.loads(path.read_text()))
    for name in ("certificate.html", statement.NAME):  # with the hash of what it is now
        made.write(name)
    _, lines = said_by_verify(run, capsys)
    assert "WRONG  verdict.json: is not in the format that the suite writes" in lines


@pytest.mark.parametrize("name", ["report.html", "records/elsewhere@worker0.json"])
def test_a_link_is_named(run, name, tmp_path, capsys):
    (tmp_path / "elsewhere").write_bytes(
        (run / name).read_bytes() if (run / name).exists() else b""
    )
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        status, lines = said_by_verify(run, capsys)
        assert status != 0
        assert any(f"{name}: is a link to {tmp_path / 'elsewhere'}" in line for line in lines), (
            lines
        )
        with_new_hashes(run)


@pytest.mark.parametrize("folder", ["records", "jobs/outside"])
def test_a_linked_folder_is_named(run, folder, tmp_path, capsys):
    """Readers would look through it, and what it shows can change without any hash."""
    if (run / folder).exists():
        (run / folder).rename(tmp_path / "outside")
    else:
        (tmp_path / "outside").mkdir()
    (run / folder).symlink_to(tmp_path / "outside")
    status, lines = said_by_verify(run, capsys)
    assert status == 1
    assert any(f"{folder}: a linked folder" in line for line in lines), lines


@pytest.mark.parametrize(
    "name",
    ["report-final.html", "acceptance.pdf", "good-nodes.txt.bak", "notes", "jobs/report.html",
     "records/certificate.pdf"],
)  # fmt: skip
def test_a_file_that_nobody_knows_is_not_verified(run, name, capsys):
    (run / name).write_text("ACCEPTED")
    status, lines = said_by_verify(run, capsys)
    assert (status, any(n.startswith(f"WRONG  {name}: added: ") for n in lines)) == (1, True)
    with_new_hashes(run)
    status, lines = said_by_verify(run, capsys)
    assert any(line.startswith(f"not checked: {name}: ") for line in lines), lines
    assert (status, lines[-1]) == (2, f"NOT VERIFIED: {run}")


def test_a_file_beside_the_evidence_is_said_to_be_as_it_was_given(run, capsys):
    (run / "proposal.yaml").write_text("limits")
    with_new_hashes(run)
    status, lines = said_by_verify(run, capsys)
    assert (status, lines[-1]) == (0, f"VERIFIED: {run}")
    assert "not judged again: proposal.yaml: the records do not give it" in lines


# --- the verdict is rewritten, and all else made of it


def forged_by_the_suite(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite verdict.json, its ledger, and with the suite's own tools all that is made of it."""
    directory = RunDirectory(root)
    verdict = json.loads(directory.verdict.read_text())
    change(verdict)
    directory.verdict.write_text("".join(json_lines(verdict)))
    lines = [{"schema": 1, "event": "verdict", "time": 1.0, **v} for v in verdict["criteria"]]
    lines.append({"schema": 1, "event": "end", "interrupted": ""})
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    directory.write_manifest()
    made = artefacts.Artefacts(directory, verdict)
    for name in made.names:
        made.write(name)


def failed(verdict: dict[str, Any]) -> dict[str, Any]:
    return next(v for v in verdict["criteria"] if v["outcome"] == "FAIL")


def conclude_again(verdict: dict[str, Any], **basis: Any) -> None:
    rows = [Verdict.from_json(v) for v in verdict["criteria"]]
    verdict["basis"] |= basis
    verdict |= vars(conclude(rows, planned=len(rows), **verdict["basis"]))


def pass_all(verdict: dict[str, Any]) -> None:
    for v in verdict["criteria"]:
        if v["outcome"] == "FAIL":
            v.update(outcome="PASS", next_step="", reason="")
    conclude_again(verdict)


def never_judged(verdict: dict[str, Any], outcome: str) -> None:
    next_step = command_of(verdict)
    for v in verdict["criteria"]:
        if v["outcome"] == outcome:
            v.update(
                outcome="NOT_MEASURED", value=None, limit="", ceiling=None, margin=None, worst=None,
                devices={"planned": 0, "measured": 0}, reason="interrupted", cause="interrupted",
                next_step=next_step, record=None, job=None, notes=[],
            )  # fmt: skip
    conclude_again(verdict, interrupted="interrupted")


def command_of(verdict: dict[str, Any]) -> str:
    """The next step of a run that was interrupted, with the path that the run had."""
    printed = re.search(r"--retest=(\S+) (\S+)", failed(verdict)["next_step"])
    assert printed is not None
    return f"run again: `pytest -m multinode --resume={printed[1]} {printed[2]}`"


def set_in_row(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda verdict: failed(verdict).update(fields)


REWRITTEN: dict[str, Callable[[dict[str, Any]], None]] = {
    "the run's verdict": lambda v: v.update(verdict="ACCEPTED", exit_status=0),
    "every outcome": pass_all,
    "no demonstration": lambda v: conclude_again(v, demonstration=False),
    "a failure was not judged": lambda v: never_judged(v, "FAIL"),
    "a row's value": set_in_row(value=1e6),
    "a row's title": set_in_row(title="It is fast"),
    "a row's reason": set_in_row(reason="the room was warm"),
    "a row's next step": set_in_row(next_step="nothing"),
    "a row's notes": set_in_row(notes=["as agreed"]),
    "a row's node": set_in_row(worst={"node": "worker0", "gpu": 0, "uuid": "x", "value": 1.0}),
    "a row's job": set_in_row(job="1"),
    "a row's id": set_in_row(id="Z9"),
    "other words": lambda v: v.update(schema=1),
    "a row less": lambda v: v["criteria"].remove(failed(v)),
    "a row twice": lambda v: v["criteria"].append(dict(failed(v))),
    "a row more": lambda v: v["criteria"].append({**failed(v), "criterion": "gemm.speed"}),
    "the reasons": lambda v: v.update(reasons=["all is well"]),
    "the counts": lambda v: v["counts"].update(fail=0),
    "the scope": lambda v: v["scope"].update(whole=True),
    "the nodes": lambda v: v["scope"].update(nodes=["worker0"]),
    "the run": lambda v: v.update(run_id="20200101-000000-0000"),
    "a replay of another": lambda v: v.update(replay={"run": "x", "thresholds_sha256": "y"}),
    "something more": lambda v: v.update(signed="by Kim"),
}


def test_a_field_that_no_suite_writes_is_found(run, capsys):
    with support.edited(run / "verdict.json") as verdict:
        set_in_row(comment="fine")(verdict)
    with_new_hashes(run)
    _, lines = said_by_verify(run, capsys)
    assert any("has the unknown field comment" in line for line in lines), lines


@pytest.mark.parametrize("what", REWRITTEN)
def test_a_rewritten_verdict_is_found_and_its_pages_are_not(run, what, without_charts, capsys):
    forged_by_the_suite(run, REWRITTEN[what])
    status, lines = said_by_verify(run, capsys)
    assert status == 1, lines
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert wrong, lines
    assert all(line.startswith("WRONG  verdict.json: ") for line in wrong), wrong


@pytest.mark.parametrize("what", ["every outcome", "a row's reason", "the counts"])
def test_nothing_is_made_of_a_rewritten_verdict(run, what, without_charts, capsys):
    forged_by_the_suite(run, REWRITTEN[what])
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for arguments in (["render"], ["sign", "--key", "no-key"], ["export", "--csv"]):
        assert command.main([*arguments, str(run)]) == command.USAGE
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert said.err.startswith("reports: ")
        assert "verdict.json: " in said.err
        assert f"see `python -m reports verify {run}`" in said.err
    assert command.main(["summary", "--github", str(run)]) == command.USAGE
    assert capsys.readouterr().out.startswith("::error title=NO VERDICT::")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("hidden", [False, True], ids=["", "but the ledger has judged them"])
def test_what_an_interrupted_run_did_not_judge_is_said_and_is_not_wrong(
    run, hidden, without_charts, capsys
):
    """Its records are there, and pass: somebody pressed Ctrl-C before they were judged."""
    judged = (run / "ledger.jsonl").read_text()
    forged_by_the_suite(run, lambda v: never_judged(v, "PASS"))
    if hidden:
        (run / "ledger.jsonl").write_text(judged)
        with_new_hashes(run)
    status, lines = said_by_verify(run, capsys)
    unchecked = [line for line in lines if line.startswith("not judged again: verdict.json: ")]
    assert "rows not judged by the run" in unchecked[0]
    assert unchecked[1].endswith("that the run was interrupted: interrupted")
    assert status == int(hidden), lines
    assert hidden == any("ledger.jsonl has 'PASS'" in line for line in lines)


def test_evidence_that_was_changed_with_its_manifest_is_judged_again(run, capsys):
    with support.edited(next(iter(sorted((run / "records").glob("gemm@*"))))) as data:
        for m in data["ranks"][0]["measurements"]:
            m["samples"] = [s / 50 for s in m.get("samples", [])]
    with_new_hashes(run)
    status, lines = said_by_verify(run, capsys)
    assert status == 1
    assert any("from the records 'FAIL'" in line for line in lines)


def test_sign_refuses_what_verify_finds_in_any_page(run, capsys):
    path = run / "junit.xml"
    path.write_text(path.read_text().replace("<failure", "<skipped"))
    assert command.main(["sign", str(run), "--key", "no-key"]) == command.USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"reports: {run} is not signed: junit.xml: ")
    assert said.count("\n") == 1


def test_a_page_is_the_same_whenever_and_wherever_it_is_made(run, genuine):
    verdict = json.loads((run / "verdict.json").read_text())
    one, other = (artefacts.Artefacts(RunDirectory(root), verdict) for root in (run, genuine))
    for name in one.names:
        assert one.make(name) == other.make(name) == (genuine / name).read_bytes(), name


def test_a_change_of_what_a_page_does_not_show_is_still_a_change_of_the_evidence(run, capsys):
    with support.edited(run / "run.json") as data:
        data["owner"] = copy.deepcopy(data.get("owner") or {}) | {"host": "elsewhere"}
    assert any(n.startswith("WRONG  run.json: changed") for n in said_by_verify(run, capsys)[1])


def test_verify_itself_makes_nothing(run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    said_by_verify(run, capsys)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
