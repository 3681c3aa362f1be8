"""Handover in parts: runs over units of a cluster make one certificate, which verifies."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from fixtures.errors import EvidenceError
from fixtures.records.files import read_json
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as command
from reports.evidence import statement
from reports.evidence.findings import Findings
from reports.evidence.run_files import CommandError
from reports.handover import join, signature
from reports.pages import certificate
from tests.selftests import support
from tests.selftests.judged_runs import key_of, made_whole
from tests.selftests.page_texts import faults, visible

pytestmark = pytest.mark.cpu

UNITS = 3


@pytest.fixture(scope="module")
def units(tmp_path_factory) -> list[Path]:
    """Runs of three units of two nodes each."""
    folder = tmp_path_factory.mktemp("units")
    found = []
    for k in range(UNITS):
        root = folder / f"unit{k}"
        shutil.copytree(support.DATA / "sandbox-2x2-cpu", root)
        for path in [root / "run.json", *(root / "records").iterdir()]:
            text = path.read_text().replace("worker0", f"u{k}n0").replace("worker1", f"u{k}n1")
            path.write_text(text.replace('"20261', f'"{k + 1}0261'))  # every id of a run
            if "worker" in path.name:
                name = path.name.replace("worker0", f"u{k}n0").replace("worker1", f"u{k}n1")
                path.rename(path.with_name(name))
        original = read_json(support.DATA / "sandbox-2x2-cpu" / "run.json")
        times = {name: original[name] for name in ("created", "ended")}
        assert made_whole(root, **times) in (0, 2)
        found.append(root)
    return found


@pytest.fixture(scope="module")
def whole(units, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("joined") / "out"
    options = argparse.Namespace(runs=units, out=out)
    assert join.main(options, sound) == 0  # the first test verifies each of them
    return Path(out)


@pytest.fixture
def joined(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "joined"))


def sound(_run: Path, *, covered: bool = False) -> Findings:
    """Stands for verifying a unit, which the first test does in full."""
    return Findings()


def test_three_units_make_one_certificate_that_verifies(whole, units, capsys):
    page = visible((whole / certificate.NAME).read_text(encoding="utf-8"))
    assert list(faults(page)) == []
    assert "+00:00" not in page
    assert command.main(["verify", str(whole)]) == 0
    said = capsys.readouterr().out
    assert f"VERIFIED: {whole}" in said
    data = json.loads((whole / join.NAME).read_text())
    assert data["nodes"] == [f"u{k}n{n}" for k in range(UNITS) for n in range(2)]
    assert "nothing was measured between units" in " ".join(data["reasons"])
    page = (whole / "certificate.html").read_text()
    for unit in units:
        run = json.loads((unit / "run.json").read_text())["id"]
        assert f"{join.UNITS}/{run}: verified as a run of its own" in said
        assert run in page
    for key in ("allreduce.cluster.256MiB", "allreduce.pair.256MiB"):
        assert key in data["only_within_a_unit"]
        assert key in page
    assert "gemm.bf16" not in data["only_within_a_unit"]
    assert "ACCEPTED AS A WHOLE" in page
    stated = json.loads((whole / statement.NAME).read_text())
    files = {str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()}
    assert {subject["name"] for subject in stated["subject"]} == files - {statement.NAME}
    assert stated["predicate"][statement.SUMMARY]["verdict"] == data["verdict"]


def test_the_joined_verdict_is_never_better_than_partial_nor_than_the_worst_unit(joined):
    folders = sorted((joined / join.UNITS).iterdir())

    def verdict_with(*words: str) -> str:
        for folder, word in zip(folders, words, strict=True):
            support.change(folder / "verdict.json", verdict=word)
        return str(json.loads(join.made_of(joined)[join.NAME])["verdict"])

    assert verdict_with("ACCEPTED", "ACCEPTED", "ACCEPTED") == "PARTIAL"
    assert verdict_with("ACCEPTED", "PARTIAL", "ACCEPTED") == "PARTIAL"
    assert verdict_with("ACCEPTED", "DEMONSTRATION", "ACCEPTED") == "DEMONSTRATION"
    assert verdict_with("ACCEPTED", "INCOMPLETE", "DEMONSTRATION") == "INCOMPLETE"
    assert verdict_with("INCOMPLETE", "REJECTED", "ACCEPTED") == "REJECTED"


def test_units_that_do_not_belong_together_are_refused(units, tmp_path):
    other = Path(shutil.copytree(units[1], tmp_path / "other"))

    def refused(match: str, *runs: Path) -> None:
        with pytest.raises(CommandError, match=match):
            join.join(runs, tmp_path / "out", sound)

    refused("at least 2 units", units[0])
    refused("given twice", units[0], units[0])
    run = json.loads((other / "run.json").read_text())
    support.change(other / "run.json", thresholds={**run["thresholds"], "sha256": "0" * 64})
    refused("have other limits", units[0], other)
    contract = {**run["contract"], "gpus_per_node": 4}
    support.change(other / "run.json", thresholds=run["thresholds"], contract=contract)
    refused("have other orders", units[0], other)
    support.change(other / "run.json", contract=run["contract"], id="another")
    refused("u1n0 is in .* and in ", units[1], other)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "found",
    [Findings(wrong=["records/gemm@u0n0.json: changed"]), Findings(unchecked=["limits: of whom"]),
     Findings(strangers=["signatures/x.sig: by an unknown key"])],
)  # fmt: skip
def test_a_unit_that_is_not_confirmed_is_not_joined(units, tmp_path, found):
    line = (found.wrong + found.unchecked + found.strangers)[0]
    with pytest.raises(EvidenceError, match=f"is not joined: {line}; see"):
        join.join(units, tmp_path / "out", lambda run: found if run == units[0] else sound(run))


@pytest.mark.parametrize(
    ("word", "why"),
    [("ACCEPTED", "certificate.html: says ['ACCEPTED']"),
     ("NOT ACCEPTED: DEMONSTRATION", "verdict, limits, pages and lists: written by suite")],
)  # fmt: skip
def test_a_forged_unit_of_another_version_is_not_joined(units, tmp_path, capsys, word, why):
    """With every hash written anew: nothing of such a run is compared, so nobody confirms it."""
    forged = []
    for unit in units:
        root = Path(shutil.copytree(unit, tmp_path / unit.name))
        support.change(root / "run.json", suite_version="0.1.9")
        page = root / "certificate.html"
        page.write_text(page.read_text().replace("NOT ACCEPTED: DEMONSTRATION", word))
        directory = RunDirectory(root)
        directory.write_manifest()
        statement.write(directory, json.loads(directory.verdict.read_text()))
        forged.append(str(root))
    out = tmp_path / "out"
    assert command.main(["join", *forged, "--out", str(out)]) == command.USAGE
    said = capsys.readouterr().err
    assert f"is not joined: {why}" in said
    assert not out.exists()


def stated_again(root: Path) -> None:
    statement.replace(root, join._statement(root, statement.listing(root)))


def test_a_changed_page_and_a_unit_taken_away_are_found(joined):
    assert join.check(joined, sound, None).status == 0
    page = joined / "certificate.html"
    page.write_text(page.read_text().replace("NOT ACCEPTED AS A WHOLE", "ACCEPTED AS A WHOLE"))
    (line,) = join.check(joined, sound, None).wrong
    assert line.startswith("certificate.html: changed: SHA-256 ")
    stated_again(joined)
    assert "certificate.html: does not match the units" in join.check(joined, sound, None).wrong
    shutil.rmtree(sorted((joined / join.UNITS).iterdir())[0])
    wrong = join.check(joined, sound, None).wrong
    assert any("missing, though statement.intoto.json lists the file" in line for line in wrong)
    stated_again(joined)
    wrong = join.check(joined, sound, None).wrong
    assert any("joined.json: does not match the units" in line for line in wrong)


def test_what_is_found_of_a_unit_is_found_of_all_under_its_name():
    of_unit, found = Findings(), Findings()
    for lines, text in (
        (of_unit.wrong, "a"), (of_unit.unchecked, "b"), (of_unit.strangers, "c"),
        (of_unit.notes, "d"),
    ):  # fmt: skip
        lines.append(text)
    join._add_unit("units/01", of_unit, found)
    assert [found.wrong, found.unchecked, found.strangers, found.notes] == [
        [f"units/01: {text}"] for text in "abcd"
    ]


def test_what_a_unit_leaves_open_is_open_for_all(joined):
    left = Findings(unchecked=["limits: of whom"], notes=["unsigned"], judged=False)
    found = join.check(joined, lambda *_, **__: left, None)
    assert (found.status, found.judged, len(found.unchecked)) == (2, False, UNITS)
    (joined / "more.pdf").write_text("ACCEPTED")
    stated_again(joined)
    assert join.check(joined, sound, None).unchecked == [
        "more.pdf: not a file of the suite in a joined directory"
    ]


def test_a_joined_directory_is_signed_whole_and_verified_by_its_signers(
    joined, tmp_path, monkeypatch, capsys
):
    key = key_of(tmp_path)
    (tmp_path / "signers").write_text(f"kim@example.org {key.with_suffix('.pub').read_text()}")
    monkeypatch.setattr(command, "checker", lambda _: sound)
    assert command.main(["sign", str(joined), "--key", str(key), "--expect", "ACCEPTED"]) == 4
    assert command.main(["sign", str(joined), "--key", str(key)]) == 0
    assert "verdict   DEMONSTRATION" in capsys.readouterr().out
    verified = ["verify", str(joined), "--allowed-signers", str(tmp_path / "signers")]
    assert command.main(verified) == 0
    assert "signature: good, by kim@example.org, SHA256:" in capsys.readouterr().out
    for version_then in ("0.1.9", None):  # it is not made again, and a known signer confirms it
        path = joined / join.NAME
        support.change(path, suite_version=version_then)
        assert command.main(verified) == 1
        stated_again(joined)
        assert command.main(["verify", str(joined)]) == 2
        statement_text = (joined / statement.NAME).read_bytes()
        signature.sign(joined, key, statement_text)
        assert command.main(verified) == 0
    assert "VERIFIED, BUT NOT JUDGED AGAIN" in capsys.readouterr().out


def test_an_order_is_held_against_all_units_together(joined):
    folders = sorted((joined / join.UNITS).iterdir())

    def said_with(nodes: int | str) -> str:
        for folder in folders:
            with support.edited(folder / "run.json") as run:
                run["contract"]["nodes"] = nodes
        return " ".join(json.loads(join.made_of(joined)[join.NAME])["reasons"])

    assert "6 of 8 ordered nodes" in said_with(8)
    assert "6 of 6 ordered nodes" in said_with(2)  # each unit has an order of its own
    assert "though ordered: u9n0" in said_with("u[0-2]n0,u[0-2]n1,u9n0".replace("u[0-2]n0,u[0-2]n1",
        ",".join(f"u{k}n{n}" for k in range(UNITS) for n in range(2))))  # fmt: skip
