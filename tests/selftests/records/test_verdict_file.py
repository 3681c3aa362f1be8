"""A verdict in two files: every reader sees what it sees of one file; what is changed is found."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest

from fixtures.records import verdict_file
from fixtures.records.files import RecordError, json_lines, read_json
from fixtures.records.run_directory import RunDirectory
from fixtures.records.verdict_file import SPLIT_SCHEMA, read_verdict, write_verdict
from fixtures.thresholds import loader
from fixtures.verdict.model import Outcome, Verdict
from reports import __main__ as command
from reports.evidence import differences, rejudge, statement
from reports.exports import compare, export, junit
from reports.exports.tables import recorded_table
from reports.handover import verify
from reports.pages import page
from reports.pages.artefacts import Artefacts
from tests.selftests import derive_runs, support
from tests.tools import schemas

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records judged into one file, and into two."""
    root = tmp_path_factory.mktemp("split")
    derive_runs.derive(support.DATA / "h200-2x2", root / "source", "slow-gpu")
    support.replay(root / "source", root / "one")
    support.replay(root / "source", root / "two", "-p", "tests.selftests.split")
    return root


@pytest.fixture
def two(both: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(both / "two", tmp_path / "two")))


def rows(path: Path) -> list[dict[str, object]]:
    verdict = read_verdict(RunDirectory(path))
    return list(verdict["criteria"])


def test_a_large_run_shows_what_did_not_pass_and_has_the_rest_in_columns(both: Path) -> None:
    shown = json.loads((both / "two" / "verdict.json").read_text())
    assert shown["schema"] == SPLIT_SCHEMA
    assert {v["outcome"] for v in shown["criteria"]} <= {"FAIL", "NOT_MEASURED", "WAIVED"}
    assert [v["criterion"] for v in shown["criteria"] if v["outcome"] == "FAIL"] == ["gemm.fp32"]
    whole = json.loads((both / "one" / "verdict.json").read_text())
    assert shown["rest"]["rows"] + len(shown["criteria"]) == len(whole["criteria"])
    assert not (both / "one" / "verdict-rest.parquet").exists()


def test_every_row_comes_back_in_its_place_with_its_types(both: Path) -> None:
    one, two = rows(both / "one"), rows(both / "two")
    assert [json.dumps(row) for row in two] == [json.dumps(row) for row in one]


def test_verdicts_that_another_process_sends_are_equal_and_share_what_is_alike(both: Path) -> None:
    """A large cluster has a hundred thousand, and they take a third of the memory then."""
    found = [Verdict.from_json(row) for row in rows(both / "one")]
    sent = pickle.loads(pickle.dumps(found))
    assert sent == found
    assert [list(vars(v).items()) for v in sent] == [list(vars(v).items()) for v in found]
    passed = [v for v in sent if v.outcome is Outcome.PASS]
    assert len(passed) > 50
    empty = {id(v.notes) for v in passed if not v.notes}
    assert len(empty) == 1
    assert len({id(v.limit) for v in passed}) == len({v.limit for v in passed})
    assert len({id(v.devices) for v in passed}) == len({str(v.devices) for v in passed})


def test_a_list_that_a_reader_does_not_want_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    data = {"a": [], "scope": [["x", "\n ]"], ["y", "z"]], "b": [[1], [2]], "c": {"scope": [3]}}
    path.write_text("".join(json_lines(data)))
    inert = {**data, "scope": [["x", r"\n ]"], ["y", "z"]]}
    assert read_json(path) == inert
    assert read_json(path, without="scope") == {**data, "scope": []}
    assert read_json(path, without="a") == inert
    path.write_text(json.dumps(data, indent=1))
    assert read_json(path, without="c") == inert


def test_what_is_made_of_it_is_the_same(both: Path) -> None:
    for name in ("results.csv", "good-nodes.txt", "bad-nodes.txt", "node-reasons.txt"):
        assert (both / "two" / name).read_bytes() == (both / "one" / name).read_bytes()
    one, two = (read_verdict(RunDirectory(both / name)) for name in ("one", "two"))
    for make in (export.results, export.prometheus, recorded_table):
        assert make(two) == make(one)
    assert (
        junit.text(two, []).partition("<testcase")[2]
        == (junit.text(one, []).partition("<testcase")[2])
    )


def test_the_pages_of_a_run_are_made_again_from_both_files(both: Path) -> None:
    directory = RunDirectory(both / "two")
    artefacts = Artefacts(directory, read_verdict(directory))
    for name in artefacts.names:
        assert artefacts.make(name) == (directory.root / name).read_bytes(), name
    assert page.page(directory) == (directory.root / "report.html").read_text()
    assert statement.page(directory, artefacts.verdict)


def test_it_is_compared_and_judged_a_second_time(
    both: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = RunDirectory(both / "one"), RunDirectory(both / "two")
    shown = []
    for other in (one, two):
        compare.show(one.root, other.root, support.SHIPPED, include_unchanged=False)
        shown.append([n for n in capsys.readouterr().out.splitlines() if "worker" in n])
    assert shown[0] == shown[1] != []
    limits = loader.load_with_contract(
        support.SHIPPED, json.loads(two.run_json.read_text())["contract"]
    )
    assert rejudge.compare(two.root, limits) == rejudge.compare(one.root, limits)
    # The export judges again: by the lower number of rows that this run was split at.
    replay = command._replay
    monkeypatch.setattr(
        command, "_replay", lambda *given: replay(*given, "-p", "tests.selftests.split")
    )
    assert command.main(["export", str(two.root), "--json", "--out", str(both / "j")]) == 0
    assert len(json.loads((both / "j").read_text())) == len(rows(one.root))


def test_both_files_fit_their_schema(both: Path) -> None:
    assert [p for p in schemas.problems(both / "two") if p.startswith("verdict")] == []


def wrong(directory: RunDirectory, sound: object) -> list[str]:
    again = differences.Rejudged(sound, directory.limits.read_bytes())  # type: ignore[arg-type]
    return verify.check_verdict(directory, lambda: again).wrong


def test_verify_finds_nothing_in_a_run_as_it_was(two: RunDirectory) -> None:
    assert wrong(two, read_verdict(two)) == []


def test_verify_takes_a_large_run_in_one_file_of_before(two: RunDirectory) -> None:
    sound = read_verdict(two)
    verdict_file.remove_verdict(two)
    two.verdict.write_text("".join(json_lines({**sound, "schema": 2})))
    assert wrong(two, sound) == []


def test_a_changed_or_missing_second_file_is_found(two: RunDirectory) -> None:
    sound = read_verdict(two)
    content = two.verdict_rest.read_bytes()
    two.verdict_rest.write_bytes(content[:-1] + b"x")
    assert any("verdict-rest.parquet: changed" in line for line in wrong(two, sound))
    two.verdict_rest.unlink()
    with pytest.raises(RecordError, match=r"verdict-rest\.parquet"):
        read_verdict(two)
    assert any("verdict-rest.parquet" in line for line in wrong(two, sound))


def test_a_row_made_to_pass_in_the_second_file_is_found(two: RunDirectory) -> None:
    sound = read_verdict(two)
    forged = [
        {**row, "outcome": "PASS"} if row["outcome"] == "FAIL" else row for row in sound["criteria"]
    ]
    write_verdict(two, {**sound, "criteria": forged})
    assert any("gemm.fp32" in line for line in wrong(two, sound))


def test_rows_that_share_a_place_are_refused(two: RunDirectory) -> None:
    with pytest.raises(RecordError, match="place 1"):
        verdict_file._merged([], [(0, {}), (1, {}), (1, {})])


def test_a_file_of_a_run_in_one_piece_is_not_the_suites(both: Path, two: RunDirectory) -> None:
    shutil.copy(both / "one" / "verdict.json", two.verdict)
    now = statement.listing(two.root)
    unknown = verify._unknown_files(Artefacts(two, read_verdict(two)), now.files)
    assert any(line.startswith("verdict-rest.parquet") for line in unknown)
