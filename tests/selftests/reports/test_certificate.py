"""The certificate: a body on two sheets of paper, annexes behind a hash, and no broken word."""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.paths import THRESHOLDS
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader, overview
from fixtures.thresholds.overview import LimitRow, csv_text
from fixtures.verdict.model import Outcome
from reports import certificate
from reports.cluster import Cluster, NodeFacts
from tests.selftests import derive_runs, support
from tests.selftests.reports.test_exports import Page, both, written
from tests.selftests.reports.test_first_screen import KEYS, VERDICTS, made
from tests.selftests.reports.test_page import PLAN, measured
from tests.tools import browser

pytestmark = pytest.mark.cpu

BODY_SHEETS = 2
SIZES = (2, 128)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    root = tmp_path_factory.mktemp("certificates")
    return {
        (word, count): made(root / f"{word}-{count}", word, count).with_name("certificate.html")
        for word in VERDICTS
        for count in SIZES
    }


def parts(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8")
    body, _, rest = text.partition("<!-- annexes begin -->\n")
    return body, rest.partition("<!-- annexes end -->")[0]


def plain(text: str) -> str:
    without = re.sub(r"<wbr>", "", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", without)).split())


def test_the_body_has_what_is_signed(certificates):
    for word in VERDICTS:
        body = plain(parts(certificates[word, 2])[0])
        for said in ("Customer Example AG", "Supplier Example Systems", "Site Frankfurt",
                     "Order number 4711", "Scope all of the standard tier",
                     "Result by area", "SHA-256 of verdict.json", "SHA-256 of the annexes",
                     "GPU model H200 SXM"):  # fmt: skip
            assert said in body, said
        assert ("For the customer: name, date, signature" in body) == (word == "ACCEPTED")
        assert ("What is not accepted" in body) == (word != "ACCEPTED")


def test_the_body_states_the_hash_of_the_annexes(certificates):
    for path in certificates.values():
        body, annexes = parts(path)
        assert len(annexes) > 1000
        assert hashlib.sha256(annexes.encode()).hexdigest() in body
        changed = annexes.replace("641.2", "642.2", 1)
        assert hashlib.sha256(changed.encode()).hexdigest() not in body


def test_the_annexes_have_every_row_with_its_command(certificates):
    annexes = plain(parts(certificates["REJECTED", 2])[1])
    for node in ("gpu001", "gpu002"):
        for key in KEYS:
            assert f"pytest -m multinode -k {key}-{node}" in annexes
    assert "541 TFLOPS" in annexes
    assert "-10.6 %" in annexes
    numbers = re.findall(r"Annex (\d): ", annexes)
    assert numbers == sorted(numbers)


def test_a_rejected_run_gets_no_certificate_but_a_page_that_says_so(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "NOT ACCEPTED: REJECTED" in page.text
    assert "Certificate of acceptance" not in page.text
    assert "signature" not in page.text.partition("Evidence")[2].partition("Criteria")[0]
    assert "Kim" in page.text
    assert "2027-01-31" in page.text
    assert "-10.6 %" in page.text
    assert "GPU-8f1c2d-worker1" in page.text


def test_what_passed_whole_is_a_certificate_to_sign(tmp_path):
    passed = [v for v in PLAN if v.outcome in (Outcome.PASS, Outcome.NOT_APPLICABLE)]
    page = Page(certificate.page(written(tmp_path / "run", passed)))
    assert "Certificate of acceptance" in page.text
    assert "NOT ACCEPTED" not in page.text
    assert "For the customer: name, date, signature" in page.text
    for name in ("manifest.sha256", "verdict.json"):
        assert certificate.hashes(RunDirectory(tmp_path / "run"))[name] in page.text


def test_a_second_try_is_no_secret(tmp_path):
    first = measured("gemm.bf16", "worker1", Outcome.FAIL, 541.0)
    second = replace(first, outcome=Outcome.PASS, value=655.5, attempt=2)
    directory = written(tmp_path / "run", [second])
    lines = [{"event": "verdict", **v.to_json()} for v in (first, first, second)]
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(certificate.page(directory))
    said = " ".join(page.text.rpartition("Measured more than once")[2].split())
    assert said.startswith(
        "Criterion Where Before At last gemm.bf16 worker1 attempt 1: FAIL 541 TFLOPS "
        "PASS 655.5 TFLOPS"
    )


def test_what_was_measured_once_has_no_list_of_tries(tmp_path):
    page = Page(certificate.page(written(tmp_path / "run")))
    assert "Measured more than once" not in page.text


def test_every_session_of_a_run_is_named(tmp_path):
    directory = written(tmp_path / "run")
    run = json.loads(directory.run_json.read_text())
    run["commands"] = ["pytest A", "pytest --resume B"]
    directory.run_json.write_text(json.dumps(run))
    assert "pytest A; then by pytest --resume B" in Page(certificate.page(directory)).text


def test_an_interrupted_run_says_how_much_of_it_was_judged(tmp_path):
    plan = [v for v in PLAN if v.outcome is not Outcome.FAIL]
    page = Page(certificate.page(written(tmp_path / "run", plan, interrupted="it was killed")))
    assert "NOT ACCEPTED: INCOMPLETE" in page.text
    assert "3 of 5 verdicts were reached" in page.text


def test_the_certificate_s_annex_has_the_limits_that_held(tmp_path):
    directory = written(tmp_path / "run")
    assert "the limits that held" not in Page(certificate.page(directory)).text, "before 0.2.0"
    held = overview.limit_rows(
        loader.load(THRESHOLDS),
        overview.OrderedSite(gpu_model="H200 SXM", nodes=("n",)),
        sized=True,
    )
    directory.limits.write_text(overview.csv_text(held), encoding="utf-8")
    text = Page(certificate.page(directory)).text
    assert "Annex 5: the limits that held" in text
    assert [row.criterion for row in held if row.criterion not in text] == []
    assert [row.source for row in held if row.limit and row.source not in text] == []
    assert directory.limits in directory.evidence()


def test_the_certificate_lists_gpus_by_uuid_and_serial(tmp_path):
    derive_runs.derive(support.DATA / "h200-2x2", tmp_path / "run", "unchanged")
    path = tmp_path / "run" / "records" / "inventory@worker0.json"
    data = json.loads(path.read_text())
    data["ranks"][0]["device"]["serial"] = "1652023004711"
    path.write_text(json.dumps(data))
    made = written(tmp_path / "other")
    verdict, _ = both(made)
    page = Page(certificate.page(RunDirectory(tmp_path / "run"), {
        **verdict, "scope": {**verdict["scope"], "nodes": ["worker0", "worker1"]}}))  # fmt: skip
    for rank in data["ranks"]:
        assert rank["device"]["uuid"] in page.text
    assert "serial 1652023004711" in page.text
    assert "4 x NVIDIA H200" in page.text


# --- its parts


Json = dict[str, Any]
MTBF = {"sentence": "70 days without a failure", "kinds": {}, "decision": ""}


def row(
    criterion: str = "gemm.bf16", subject: str = "n0", outcome: str = "PASS", **more: Any
) -> Json:
    made = measured(criterion, subject, Outcome(outcome), 641.5)
    return {**made.to_json(), "limit": ">= 605", "margin": 0.06, **more}


def changed_run(directory: RunDirectory, **more: Any) -> None:
    run = json.loads(directory.run_json.read_text())
    directory.run_json.write_text(json.dumps({**run, **more}))


def sections(directory: RunDirectory, verdict: Json | None = None) -> dict[str, str]:
    """The body and each annex as plain text."""
    text = certificate.page(directory, verdict)
    body, _, annexes = text.partition("<!-- annexes begin -->")
    found = {"body": plain(body)}
    for part in annexes.split('aria-label="Annex ')[1:]:
        found[part[0]] = plain(f"<p {part}")
    return found


def test_a_signature_stays_as_long_as_the_page_does(tmp_path):
    directory = written(tmp_path / "run")
    path, signature = directory.root / "certificate.html", directory.root / "certificate.html.sig"
    assert certificate.write(directory) == path
    signature.write_text("signed")
    verdict = json.loads(directory.verdict.read_text())
    assert certificate.write(directory, verdict) == path
    assert signature.exists()
    changed_run(directory, commands=["pytest again"])
    assert certificate.write(directory) == path
    assert not signature.exists()
    assert "pytest again" in path.read_text()


def test_a_given_verdict_is_shown_in_place_of_that_of_the_run(tmp_path):
    directory = written(tmp_path / "run")
    verdict = json.loads(directory.verdict.read_text())
    given = {**verdict, "reasons": ["given reason"], "basis": {"mtbf": MTBF}}
    assert "given reason" in sections(directory, given)["body"]
    assert "70 days" in sections(directory, given)["body"]
    bare = {k: v for k, v in verdict.items() if k not in ("basis", "reasons")}
    assert "given reason" not in sections(directory, bare)["body"]
    assert verdict["reasons"][0] in sections(directory, verdict)["body"]


def test_nodes_path_and_options_of_the_run_are_in_its_commands(tmp_path):
    directory = written(tmp_path / "run")
    plan = json.loads(directory.verdict.read_text())
    found = sections(directory)
    assert "worker[0-2]" in found["body"]
    assert "0 of 3 answered" in found["body"]
    assert "python -m reports verify RUN" in found["body"]
    assert "pytest -m multinode -k gemm.bf16-worker0" in found["4"]
    nobody = {**plan, "scope": {**plan["scope"], "nodes": None}}
    assert "0 of 0 answered" in sections(directory, nobody)["body"]
    changed_run(directory, path="/my runs/1", options=["--partition=gpu", "--setup=a b"])
    found = sections(directory)
    assert "python -m reports verify '/my runs/1'" in found["body"]
    assert "pytest -m multinode --partition=gpu '--setup=a b' -k gemm.bf16-worker0" in found["4"]


def test_each_criterion_stands_once_in_its_area(tmp_path):
    found = sections(written(tmp_path / "run"))["3"]
    table, _, not_applicable = found.partition("Not applicable to this cluster")
    for key in ("gemm.bf16", "gemm.fp16", "allreduce.cluster.1GiB"):
        assert table.count(f"{key}Every GPU") + table.count(f"{key} Every GPU") == 1, key
    assert table.index("Compute") < table.index("gemm.bf16") < table.index("Collectives")
    assert "gemm.fp8" in not_applicable
    assert "gemm.fp8" not in table


def test_versions_and_commands_are_in_an_annex_and_the_run_in_the_body(tmp_path):
    directory = written(tmp_path / "run")
    changed_run(
        directory, suite_version="9.9.9", versions={"python": "3.11.7", "rich": None},
        durations={"union_s": 90.0, "gpu_hours": 1.25},
    )  # fmt: skip
    found = sections(directory)
    for said in ("Suite version 9.9.9", "Limits SHA-256 abab"):
        assert said in found["body"]
        assert said not in found["7"]
    for said in ("Started by pytest", "Versions, login side python 3.11.7",
                 "Time of its jobs 1.5 min", "GPU-hours 1.25"):  # fmt: skip
        assert said in found["7"]
        assert said not in found["body"]
    assert "rich" not in found["7"]
    assert "Ordered" not in found["7"]


def test_facts_that_are_not_known_are_left_out(tmp_path):
    bare = {"run_id": "r", "scope": {}}
    names = [name for name, _ in certificate._facts(bare, {}, Cluster({}, (), {}))]
    assert names == ["Run", "Suite commit"]
    nodes = {
        f"n{k}": NodeFacts(provenance={"torch": t}) for k, t in enumerate(("2.7", "2.8", "2.8"))
    }
    facts = dict(certificate._facts(bare, {}, Cluster({}, tuple(nodes), nodes)))
    assert facts["Versions, nodes"] == "torch 2.8, 2.7"


def test_eight_failures_and_waivers_are_in_the_body(tmp_path):
    directory = written(tmp_path / "run")
    verdict = json.loads(directory.verdict.read_text())
    reason = "waived by Kim, until 2027-01-31: fan"
    for outcome, more in (("FAIL", "with the reasons and next steps of all"), ("WAIVED", "")):
        for count, said in ((8, False), (9, True)):
            rows = [row(subject=f"n{k}", outcome=outcome, reason=reason) for k in range(count)]
            body = sections(directory, {**verdict, "criteria": rows})["body"]
            assert ("1 more are in annex 2" in body) == said
            assert (more in body) == said or not more


def test_two_hundred_rows_are_listed_in_annex_2(tmp_path):
    directory = written(tmp_path / "run")
    verdict = json.loads(directory.verdict.read_text())
    for count, said in ((200, False), (201, True)):
        rows = [row(subject=f"n{k}", outcome="FAIL") for k in range(count)]
        annex = sections(directory, {**verdict, "criteria": rows})["2"]
        assert ("1 more are in results.csv" in annex) == said


def test_every_row_that_applies_has_its_command_up_to_three_thousand(tmp_path):
    directory = RunDirectory(tmp_path)
    held = [LimitRow("gemm.bf16", "Fast", "TFLOPS", "", ">= 605", "660", "measured", "")]
    directory.limits.write_text(csv_text(held))
    others = [row(outcome="NOT_APPLICABLE")] * 2997
    rows = [row(), row(subject="n1", margin=None, limit=""), row(criterion="odd key", limit=">= 1"),
            *others]  # fmt: skip
    assert list(certificate._every_row(directory, rows, " --x")) == [
        {"criterion": "gemm.bf16", "subject": "n0", "limit": ">= 605", "outcome": "PASS",
         "measured": "641.5 TFLOPS", "margin": "+6.0 %", "source": "measured",
         "command": "pytest -m multinode --x -k gemm.bf16-n0"},
        {"criterion": "gemm.bf16", "subject": "n1", "limit": "", "outcome": "PASS",
         "measured": "641.5 TFLOPS", "margin": "", "source": "",
         "command": "pytest -m multinode --x -k gemm.bf16-n1"},
        {"criterion": "odd key", "subject": "n0", "limit": ">= 1", "outcome": "PASS",
         "measured": "641.5 TFLOPS", "margin": "+6.0 %", "source": "",
         "command": "pytest -m multinode --x -k 'odd key-n0'"},
    ]  # fmt: skip
    assert list(certificate._every_row(directory, [*rows, row()], "")) == []


def test_three_hundred_characters_of_a_host_list_fit_the_body():
    assert certificate._shortened("n" * 300) == "n" * 300
    assert certificate._shortened("n" * 301) == f"{'n' * 300}... (annex 1)"


def test_limits_and_hashes_are_of_the_files_that_are_there(tmp_path):
    directory = RunDirectory(tmp_path)
    assert certificate._limits(directory) == []
    assert certificate.hashes(directory) == {}
    held = [LimitRow("gemm.bf16", "Fast", "TFLOPS", "", ">= 605", "660", "measured", "")]
    directory.limits.write_text(csv_text(held))
    assert certificate._limits(directory) == held
    directory.verdict.write_text("{}")
    assert certificate.hashes(directory) == {"verdict.json": hashlib.sha256(b"{}").hexdigest()}


def test_what_is_not_accepted_has_its_place_and_value():
    gpu = {"node": "n0", "gpu": 0, "uuid": "GPU-1"}
    for worst, place in (
        (gpu, "n0 gpu0 GPU-1"), ({**gpu, "part": "mlx5_0", "uuid": None}, "n0 mlx5_0"),
        ({"gpu": None, "uuid": "GPU-1"}, "n0 GPU-1"), (None, "n0"),
    ):  # fmt: skip
        found = certificate._not_accepted(row(outcome="FAIL", worst=worst))
        assert (found["place"], found["measured"]) == (place, "641.5 TFLOPS")
        assert "heat" in found["red"]
    lost = certificate._not_accepted(row(outcome="NOT_MEASURED", value=None))
    assert (lost["red"], lost["measured"], lost["criterion"]) == ("", "not measured", "gemm.bf16")


def repeated(directory: RunDirectory, *rows: Json, ledger: Sequence[Json] = ()) -> list[Any]:
    directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in ledger))
    return list(certificate._repeated_rows(directory, rows))


def test_a_row_of_a_second_attempt_tells_the_one_before(tmp_path):
    directory = RunDirectory(tmp_path)
    line = {"event": "verdict", "criterion": "gemm.bf16", "subject": "n0"}
    failed = {**line, "attempt": 1, "outcome": "FAIL", "value": 541.0, "unit": "TFLOPS"}
    lost = {**line, "attempt": 2, "outcome": "NOT_MEASURED", "value": None}
    last = {**failed, "attempt": 3, "outcome": "PASS"}
    expected = {"criterion": "gemm.bf16", "subject": "n0", "last": "PASS 641.5 TFLOPS"}
    assert repeated(directory, row(attempt=1)) == []
    assert repeated(directory, row(attempt=2), ledger=[failed]) == [
        {**expected, "before": "attempt 1: FAIL 541 TFLOPS"}
    ]
    assert repeated(directory, row(attempt=3), ledger=[failed, lost, last]) == [
        {**expected, "before": "attempt 1: FAIL 541 TFLOPS; attempt 2: NOT MEASURED"}
    ]
    unnumbered = {name: value for name, value in failed.items() if name != "attempt"}
    assert repeated(directory, row(attempt=2), ledger=[unnumbered]) == [
        {**expected, "before": "attempt 1: FAIL 541 TFLOPS"}
    ]
    notes = ["a note", "attempt 1: FAIL 540 TFLOPS"]
    (of_notes,) = repeated(directory, row(attempt=2, notes=notes))
    assert of_notes["before"] == "attempt 1: FAIL 540 TFLOPS"
    (never,) = repeated(directory, row(attempt=2))
    assert never["before"] == "never judged"


def test_an_inventory_that_passed_each_time_is_no_second_try(tmp_path):
    directory = RunDirectory(tmp_path)

    def attempts(criterion: str, outcome: str) -> list[Any]:
        line = {"event": "verdict", "criterion": criterion, "subject": "n0", "attempt": 1,
                "outcome": outcome, "value": 8, "unit": ""}  # fmt: skip
        return repeated(directory, row(criterion=criterion, attempt=2), ledger=[line])

    assert attempts("inventory.gpus", "PASS") == []
    assert [r["before"] for r in attempts("inventory.gpus", "FAIL")] == ["attempt 1: FAIL 8"]
    assert [r["before"] for r in attempts("gemm.bf16", "PASS")] == ["attempt 1: PASS 8"]


def test_a_waiver_is_taken_apart():
    names = {"criterion": "gemm.bf16", "subject": "n0"}
    text = "slow; waived by Kim, until 2027-01-31: heat sink on order"
    assert certificate._waiver(row(reason=text)) == {
        **names, "more": "slow", "owner": "Kim", "until": "2027-01-31",
        "why": "heat sink on order",
    }  # fmt: skip
    assert certificate._waiver(row(reason="because")) == {
        **names, "owner": "", "until": "", "why": "because"
    }  # fmt: skip


def test_what_was_ordered_stands_beside_what_was_found():
    gpu, nic = {"name": "NVIDIA H200"}, {"name": "mlx5_0"}
    nodes = {
        "n0": NodeFacts({"nics": [nic], "driver": "580.1"}, [gpu] * 8),
        "n1": NodeFacts({"nics": [nic], "driver": "580.2"}, [gpu] * 7),
        "n2": NodeFacts({"driver": "580.1"}),
    }
    cluster = Cluster({}, tuple(nodes), nodes)
    contract = {"customer": "A", "nodes": 4, "driver": "580.1", "nics_per_node": 0, "cuda": "",
                "gpus_per_node": None, "nic_gbps": None}  # fmt: skip
    found = certificate._ordered_and_found(
        {"contract": contract}, ["n0", "n1", "n2", "n3"], cluster
    )
    assert found == [
        ("nodes", "4", "3 of 4 answered"), ("GPUs per node", "", "7 on 1 node, 8 on 1 node"),
        ("GPU model", "", "15 x NVIDIA H200"), ("driver", "580.1", "580.1, 580.2"),
        ("NICs per node", "0", "1 on each of 2 nodes"),
    ]  # fmt: skip
    none = certificate._ordered_and_found({}, [], Cluster({}, (), {}))
    assert [(name, wanted) for name, wanted, _ in none] == [
        ("nodes", ""), ("GPUs per node", ""), ("GPU model", "")
    ]  # fmt: skip


# --- in a browser


WORDS = """
  var broken = [];
  document.querySelectorAll("th, td, dt, li, p").forEach(function (cell) {
    var walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), node;
    while ((node = walker.nextNode())) {
      var word, words = /[A-Za-z0-9]{2,24}/g;
      while ((word = words.exec(node.data))) {
        var range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        var tops = new Set(Array.from(range.getClientRects()).map(function (box) {
          return Math.round(box.top);
        }));
        if (tops.size > 1) broken.push(word[0]);
      }
    }
  });
  return broken.slice(0, 5);
"""
needs_browser = pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL))


@needs_browser
@pytest.mark.parametrize("width", [1000, 696])
def test_no_word_is_broken(certificates, width):
    files = list(certificates.values())
    assert browser.evaluate(files, WORDS, width=width) == [[]] * len(files)


@needs_browser
def test_a_broken_word_would_be_found(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<html><body><p style='width:2em;overflow-wrap:anywhere'>availability</p>")
    page.write_text(page.read_text() + "</body></html>")
    assert browser.evaluate([page], WORDS) == [["availability"]]


@needs_browser
@pytest.mark.parametrize("word", VERDICTS)
def test_the_body_prints_on_two_sheets(certificates, tmp_path, word):
    body, _ = parts(certificates[word, 128])
    alone = tmp_path / "body.html"
    alone.write_text(body + "</body></html>", encoding="utf-8")
    printed = tmp_path / "body.pdf"
    browser.browse(alone, f"--print-to-pdf={printed}", "--no-pdf-header-footer")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes())) <= BODY_SHEETS
