"""The parts of the certificate: which rows, facts and limits are where, and how they read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds.overview import LimitRow, csv_text
from fixtures.verdict.model import Outcome
from reports.facts.limit_sources import LimitSources
from reports.pages import certificate
from reports.pages.cluster import Cluster, NodeFacts
from tests.selftests.fabric_loads import fabric_load
from tests.selftests.reports.pages.test_certificate import plain
from tests.selftests.reports.pages.test_page import measured
from tests.selftests.reports.test_exports import written
from tests.selftests.support import change

pytestmark = pytest.mark.cpu

Json = dict[str, Any]
MTBF = {"sentence": "70 days without a failure", "kinds": {}, "decision": ""}


def row(
    criterion: str = "gemm.bf16", subject: str = "n0", outcome: str = "PASS", **more: Any
) -> Json:
    made = measured(criterion, subject, Outcome(outcome), 641.5)
    return {**made.to_json(), "limit": ">= 605", "margin": 0.06, **more}


def changed_run(directory: RunDirectory, **more: Any) -> None:
    change(directory.run_json, **more)


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


def test_the_fabric_under_load_is_in_the_body_and_its_picture_in_annex_7(tmp_path):
    directory = written(tmp_path / "run")
    verdict = json.loads(directory.verdict.read_text())
    load = fabric_load(8, never=3, origin="wiring")
    found = sections(directory, {**verdict, "fabric_load": load})
    for text in (
        load["sentence"][1:],
        "Not covered: 3 of 56 not driven.",
        "by the distance found in",
    ):
        assert text in found["body"]
        assert text in found["7"]
    assert "More in annex 7." in found["body"]
    assert "leaf 0 leaf 1 0 this way" in found["7"]
    assert "<path" not in certificate.page(directory, verdict)
    assert {"body", "1", "3", "5"} <= sections(directory, verdict).keys() <= {*"123456", "body"}


def test_nodes_path_and_options_of_the_run_are_in_its_commands(tmp_path):
    directory = written(tmp_path / "run")
    plan = json.loads(directory.verdict.read_text())
    found = sections(directory)
    assert "worker[0-2]" in found["body"]
    assert "0 of 3 answered" in found["body"]
    assert "python -m reports verify RUN" in found["body"]
    assert "pytest -m multinode -k CRITERION-SUBJECT" in found["3"]
    nobody = {**plan, "scope": {**plan["scope"], "nodes": None}}
    assert "0 of 0 answered" in sections(directory, nobody)["body"]
    changed_run(directory, path="/my runs/1", options=["--partition=gpu", "--setup=a b"])
    found = sections(directory)
    assert "python -m reports verify '/my runs/1'" in found["body"]
    assert "pytest -m multinode --partition=gpu '--setup=a b' -k CRITERION-SUBJECT" in found["3"]


def test_each_criterion_stands_once_in_its_area(tmp_path):
    found = sections(written(tmp_path / "run"))["3"]
    table, _, not_applicable = found.partition("Not applicable to this cluster")
    for key in ("gemm.bf16", "gemm.fp16", "allreduce.cluster.1GiB"):
        assert len(re.findall(rf"{key} [^:]*? Every GPU", table)) == 1, key
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
        assert said not in found["5"]
    for said in ("Started by pytest", "Versions, login side python 3.11.7",
                 "Time of its jobs 1.5 min", "GPU-hours 1.25"):  # fmt: skip
        assert said in found["5"]
        assert said not in found["body"]
    assert "rich" not in found["5"]
    assert "Ordered" not in found["5"]


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


def test_every_row_that_applies_is_listed_by_criterion_and_limit_up_to_three_thousand(tmp_path):
    directory = RunDirectory(tmp_path)
    held = [LimitRow("gemm.bf16", "Fast", "TFLOPS", "", ">= 605", "660", "measured", "")]
    directory.limits.write_text(csv_text(held))
    others = [row(outcome="NOT_APPLICABLE")] * 2997
    rows = [row(), row(subject="n1", margin=None, limit=""), row(criterion="odd key", limit=">= 1"),
            *others]  # fmt: skip

    def of(subject: str, margin: str = "+6.0 %") -> dict[str, str]:
        return {"subject": subject, "outcome": "PASS", "measured": "641.5 TFLOPS",
                "margin": margin}  # fmt: skip

    sources = LimitSources.of(directory)
    assert certificate._limits_held([*rows, row(subject="n2")], sources, listed=True) == {
        "gemm.bf16": [
            {"limit": ">= 605", "source": "measured", "rows": [of("n0"), of("n2")]},
            {"limit": "", "source": "", "rows": [of("n1", "")]},
        ],
        "odd key": [{"limit": ">= 1", "source": "", "rows": [of("n0")]}],
    }
    # Of a large run the worst of each criterion stands there, and its usual limit.
    assert certificate._limits_held(rows, sources, listed=False) == {
        "gemm.bf16": [{"limit": ">= 605", "source": "measured", "rows": []}],
        "odd key": [{"limit": ">= 1", "source": "", "rows": []}],
    }
    many = [row(subject=f"n{k}") for k in range(3001)]
    written(tmp_path / "run")
    directory = RunDirectory(tmp_path / "run")
    verdict = json.loads(directory.verdict.read_text())
    for count, said in ((3000, False), (3001, True)):
        annex = sections(directory, {**verdict, "criteria": many[:count]})["3"]
        assert ("are too many to list here" in annex) == said
        assert ("n2999: 641.5 TFLOPS" in annex) != said
        assert ("Passed, worst value" in annex) == said


@pytest.mark.parametrize(
    "run_id", ["20261120-1-a", 'x"; } body { display: none } /*', "\\a </style>"]
)
def test_each_sheet_names_the_run_in_plain_letters(tmp_path, run_id):
    directory = written(tmp_path / "run")
    changed_run(directory, id=run_id)
    sheet = re.findall(r'@bottom-left \{ content: "([^"]*)"', certificate.page(directory))
    assert sheet == [re.sub(r"[^A-Za-z0-9 -]", "", f"run {run_id}")]


def test_three_hundred_characters_of_a_host_list_fit_the_body():
    assert certificate._shortened("n" * 300) == "n" * 300
    assert certificate._shortened("n" * 301) == f"{'n' * 300}... (annex 1)"


def test_limits_and_hashes_are_of_the_files_that_are_there(tmp_path):
    directory = RunDirectory(tmp_path)
    assert certificate._not_judged(directory) == []
    assert certificate.hashes(directory) == {}
    held = [LimitRow("gemm.bf16", "Fast", "TFLOPS", "", ">= 605", "660", "measured", "")]
    held += [replace(held[0], criterion=k, limit="", not_judged="no limit") for k in ("a", "b")]
    directory.limits.write_text(csv_text(held))
    assert certificate._not_judged(directory) == [("no limit", [("a", ""), ("b", "")])]
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
        assert found["noun"] == "bf16 rate"
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
