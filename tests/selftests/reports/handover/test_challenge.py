"""`python -m reports challenge`: four messages between two machines."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.challenge.messages import FULL
from fixtures.records.run_directory import RunDirectory
from reports import __main__ as reports
from reports import second_verifier
from reports.evidence import proof
from reports.handover import challenge

pytestmark = pytest.mark.cpu

SIZE = (
    "--n", "32", "--steps", "2", "--segments", "3", "--reads", "2", "--ranks", "3",
    "--deadline-s", "60", "--openings", "160",
)  # fmt: skip


def run(*words: object) -> int:
    return reports.main(["challenge", *map(str, words)])


def answered(tmp_path: Path, *words: str) -> tuple[Path, Path]:
    """Return the customer's folder and the response, after all four messages."""
    folder, supplier = tmp_path / "customer", tmp_path / "supplier"
    supplier.mkdir()
    assert run("new", folder, *SIZE) == 0
    sent, commitment = folder / "challenge.json", supplier / "commitment.json"
    assert run("answer", sent, "--out", commitment, *words) == 0
    assert run("open", folder, commitment) == 0
    response = supplier / "response.bin"
    opening = folder / "opening.json"
    assert run("answer", sent, "--opening", opening, "--out", response, *words) == 0
    return folder, response


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("honest")
    answered(tmp_path)
    return tmp_path


@pytest.fixture
def honest(once: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An honest answer of a test's own."""
    shutil.copytree(once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "customer", tmp_path / "supplier" / "response.bin"


def test_an_honest_supplier_proves_its_work(honest, capsys):
    folder, response = honest
    assert run("verify", folder, response, "--peak-tops", "1979") == 0
    text = capsys.readouterr().out
    assert text.startswith("PROVEN\n")
    assert "exchanged between 3 chains" in text
    assert "at a peak of 1979 TOPS that needs at least 1 GPU" in text
    assert "not proven: which chips did it" in text


def test_a_dead_rank_is_named_and_is_not_a_pass(tmp_path, capsys):
    folder, response = answered(tmp_path, "--without-rank", "1")
    capsys.readouterr()
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    text = capsys.readouterr().out
    assert text.startswith("PROVEN FOR 2 OF 3 CHAINS\nno chain of rank 1\n")


def test_what_was_verified_is_attached_to_the_run_that_answered_and_to_no_other(
    honest, tmp_path, capsys
):
    folder, response = honest
    run_ = RunDirectory(tmp_path / "run")
    run_.make()
    assert run("verify", folder, response, "--run", run_.root) != 0
    run_.challenge.mkdir()
    shutil.copy(folder / "challenge.json", run_.challenge)
    shutil.copy(response.with_name("commitment.json"), run_.challenge)
    capsys.readouterr()
    assert run("verify", folder, response, "--run", run_.root) == 0
    assert "python -m reports render" in capsys.readouterr().out
    assert proof.of_run(run_).proven
    other = (run_.challenge / "commitment.json").read_text().replace('"root": "', '"root": "0')
    (run_.challenge / "commitment.json").write_text(other[: other.rindex('"') - 1] + '"\n}')
    shutil.rmtree(run_.proof)
    assert run("verify", folder, response, "--run", run_.root) != 0
    assert "did not answer this challenge" in capsys.readouterr().err
    assert not run_.proof.exists()


def test_a_challenge_is_opened_once(honest, capsys):
    folder, response = honest
    assert run("open", folder, response.with_name("commitment.json")) != 0
    assert "who sees several draws can choose" in capsys.readouterr().err
    assert run("new", folder, *SIZE) != 0


def test_what_came_late_proves_nothing(honest, capsys):
    folder, response = honest
    own = json.loads((folder / "customer.json").read_text())
    for disclosed, words in (
        (own["received"] - 61, "late: 61.0 s"), (own["received"] + 1, "late"),
    ):  # fmt: skip
        (folder / "customer.json").write_text(json.dumps(own | {"disclosed": disclosed}))
        assert run("verify", folder, response) == challenge.NOT_PROVEN
        assert f"NOT PROVEN: {words}" in capsys.readouterr().out


def test_too_few_openings_prove_nothing(tmp_path, capsys):
    folder, response = tmp_path / "customer", tmp_path / "response"
    response.touch()
    few = [*SIZE[:-1], "144"]
    assert run("new", folder, *few) == 0
    fields = {
        "schema": 1, "kind": "commitment", "ranks": [0], "root": "0" * 64,
        "challenge": hashlib.sha256((folder / "challenge.json").read_bytes()).hexdigest(),
    }  # fmt: skip
    (tmp_path / "commitment").write_text(json.dumps(fields))
    assert run("open", folder, tmp_path / "commitment") == 0
    capsys.readouterr()
    parameters = replace(FULL, steps=2, openings=128)
    assert proof.proven_share(parameters) < 0.9 < proof.proven_share(FULL)
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    assert "the response has 0 bytes" in capsys.readouterr().out
    path = folder / "challenge.json"
    text = path.read_text().replace('"openings": 144', '"openings": 128')
    path.write_text(text)
    name = hashlib.sha256(text.encode()).hexdigest()
    for message in ("commitment.json", "opening.json"):
        data = json.loads((folder / message).read_text()) | {"challenge": name}
        (folder / message).write_text(json.dumps(data))
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    assert "NOT PROVEN: openings: 128 prove 0.896" in capsys.readouterr().out


def test_a_false_response_proves_nothing(honest, capsys):
    folder, response = honest
    content = bytearray(response.read_bytes())
    content[-1] ^= 1
    response.write_bytes(content)
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    assert "NOT PROVEN: unit 159: a row is not the one" in capsys.readouterr().out
    response.write_bytes(b"")
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    assert "NOT PROVEN: the response has 0 bytes" in capsys.readouterr().out


def test_verifiers_that_differ_prove_nothing(honest, capsys, monkeypatch):
    folder, response = honest
    monkeypatch.setattr(second_verifier, "why_not", lambda *_: "a doubt")
    assert run("verify", folder, response) == challenge.NOT_PROVEN
    assert "the two verifiers differ" in capsys.readouterr().out


def test_what_is_missing_is_said(tmp_path, capsys):
    folder = tmp_path / "customer"
    assert run("new", folder, *SIZE) == 0
    assert run("verify", folder, tmp_path / "none") != 0
    assert "was not opened" in capsys.readouterr().err
    without = [word for k in range(3) for word in ("--without-rank", k)]
    assert run("answer", folder / "challenge.json", "--out", tmp_path / "x", *without) != 0
    assert "leaves no rank" in capsys.readouterr().err


@settings(
    deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=200) | st.text(max_size=50).map(lambda t: json.dumps(t).encode()))
def test_no_message_makes_a_command_pass_or_raise(content, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "customer"
    assert run("new", folder, *SIZE) == 0
    path = folder.parent / "message"
    path.write_bytes(content)
    assert run("open", folder, path) != 0
    assert run("answer", path, "--out", folder.parent / "out") != 0
    for name in ("customer.json", "challenge.json"):
        (folder / name).write_bytes(content)
        assert run("verify", folder, path) != 0


def test_the_share_that_is_proved_is_that_of_the_page():
    assert proof.proven_share(FULL) == pytest.approx(0.92, abs=0.005)
    assert (1 - 0.1 * 10 / 11) ** FULL.openings < 1e-5
