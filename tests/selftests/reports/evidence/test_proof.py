"""What a run says of a customer's challenge: only what can be found again from the messages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.challenge import messages
from fixtures.records.files import write_json
from fixtures.records.run_directory import RunDirectory
from reports import second_verifier
from reports.evidence import proof
from tests.selftests.challenged import SMALL, honest
from tests.selftests.reports.evidence.test_challenge import JSON

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

JSON_FILES = (messages.CHALLENGE, messages.COMMITMENT, messages.OPENING)
PARAMETERS = messages.Parameters(
    n=32, steps=2, segments=3, reads=2, ranks=3, openings=160, deadline_s=60
)  # fmt: skip


def made(root: Path, ranks: tuple[int, ...] = (0, 1, 2)) -> RunDirectory:
    """Return a run that answered a challenge, with what the customer attached."""
    whole, run = honest(PARAMETERS, ranks), RunDirectory(root)
    texts = dict(zip(proof.TEXTS, (whole.first, *whole.texts(), whole.response), strict=True))
    run.challenge.mkdir(parents=True)
    run.proof.mkdir()
    for name, text in texts.items():
        (run.proof / name).write_bytes(text)
    for name in (messages.CHALLENGE, messages.COMMITMENT):
        shutil.copy(run.proof / name, run.challenge)
    write_json(run.proof / proof.CUSTOMER, {"disclosed": 1000.0, "received": 1030.0})
    return run


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("proof") / "run").root


@pytest.fixture
def run(once: Path, tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(once, tmp_path / "run")))


def test_a_run_says_what_its_messages_prove_and_whose_word_that_is(run):
    found = proof.of_run(run)
    assert found.proven
    assert found.sentence.startswith("PROVEN: at least ")
    assert proof.CUSTOMERS_WORD in found.lines
    assert "e+" not in found.sentence
    assert "e-" not in found.sentence
    assert list(found.digests) == [f"proof/{name}" for name in proof.TEXTS]


def test_what_was_not_verified_proves_nothing(run):
    shutil.rmtree(run.proof)
    found = proof.of_run(run)
    assert (found.head, found.lines[1:]) == (
        "ANSWERED, NOT VERIFIED", ["3 of 3 chains committed", proof.NOTHING],
    )  # fmt: skip
    (run.challenge / messages.COMMITMENT).unlink()
    assert proof.of_run(run).head == "NOT ANSWERED"
    shutil.rmtree(run.challenge)
    assert proof.of_run(run) is None


def test_a_dead_rank_is_named_and_not_all_is_proven(tmp_path):
    found = proof.of_run(made(tmp_path / "run", (0, 2)))
    assert (found.head, found.proven) == ("PROVEN FOR 2 OF 3 CHAINS", False)
    assert found.lines[0] == "no chain of rank 1"


@pytest.mark.parametrize("name", [*proof.TEXTS, proof.CUSTOMER])
@pytest.mark.parametrize("way", ["missing", "empty", "link", "folder", "of another"])
def test_what_cannot_be_found_again_is_not_proven(run, name, way, tmp_path):
    path = run.proof / name
    content = path.read_bytes()
    path.unlink()
    if way == "empty":
        path.touch()
    elif way == "link":
        (tmp_path / "there").write_bytes(content)
        path.symlink_to(tmp_path / "there")
    elif way == "folder":
        path.mkdir()
    elif way == "of another":
        path.write_bytes((made(tmp_path / "other").proof / name).read_bytes())
        if name == proof.CUSTOMER:
            write_json(path, {"disclosed": 1000.0, "received": 1061.0})
    found = proof.of_run(run)
    assert found.head.startswith("NOT PROVEN: ")
    assert not found.proven


def test_a_proof_that_this_run_did_not_answer_is_none(run, tmp_path):
    other = made(tmp_path / "other")
    shutil.rmtree(run.proof)
    shutil.copytree(other.proof, run.proof)
    assert proof.of_run(run).head == (
        "NOT PROVEN: proof/ is not of the challenge that this run answered"
    )
    shutil.rmtree(run.challenge)
    assert proof.of_run(run).head.startswith("NOT PROVEN: ")


def test_verifiers_that_differ_prove_nothing(run, monkeypatch):
    proof.refusal.cache_clear()
    monkeypatch.setattr(second_verifier, "why_not", lambda *_: "a doubt")
    assert proof.of_run(run).head.startswith("NOT PROVEN: the two verifiers differ")
    proof.refusal.cache_clear()


def test_hours_of_verifying_are_not_spent_on_a_page(run, monkeypatch):
    monkeypatch.setattr(proof, "MOST_PRODUCTS", 160 * 2 * 32**2 - 1)
    assert proof.of_run(run).head.startswith("NOT PROVEN: too large for the pages of a run")
    full = messages.FULL
    monkeypatch.undo()
    assert full.openings * full.steps * full.n**2 * 5 < proof.MOST_PRODUCTS


def test_minutes_of_verifying_are_spent_once(run, monkeypatch):
    assert proof.of_run(run).proven
    monkeypatch.setattr(second_verifier, "why_not", lambda *_: pytest.fail("asked again"))
    assert proof.of_run(run).proven


ANYWHERE = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANYWHERE
@given(
    which=st.sampled_from(JSON_FILES),
    folders=st.sampled_from([("proof",), ("proof", "challenge")]),
    data=st.data(),
    value=JSON,
)
def test_no_changed_field_of_a_message_is_proven_or_raises(once, which, folders, data, value):
    run, before = RunDirectory(once), {}
    message = json.loads((run.proof / which).read_text())
    name = data.draw(st.sampled_from([*sorted(message), "more"]))
    if json.dumps(message.get(name)) == json.dumps(value):
        return
    for folder in folders:
        path = run.root / folder / which
        before[path] = path.read_bytes() if path.exists() else None
        path.write_text(json.dumps(message | {name: value}))
    try:
        assert not proof.of_run(run).proven
    finally:
        for path, content in before.items():
            path.unlink() if content is None else path.write_bytes(content)


@ANYWHERE
@given(
    which=st.sampled_from([*proof.TEXTS, proof.CUSTOMER]),
    content=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_no_other_content_is_proven_or_raises(once, which, content):
    run = RunDirectory(once)
    path = run.proof / which
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        assert not proof.of_run(run).proven
    finally:
        path.write_bytes(before)


@ANYWHERE
@given(name=st.sampled_from(["disclosed", "received", "more"]), value=JSON)
def test_no_instant_but_a_time_before_the_deadline_is_proven(once, name, value):
    own = {"disclosed": 1000.0, "received": 1030.0, name: value}
    run = RunDirectory(once)
    before = (run.proof / proof.CUSTOMER).read_bytes()
    (run.proof / proof.CUSTOMER).write_text(json.dumps(own))
    try:
        found = proof.of_run(run)
    finally:
        (run.proof / proof.CUSTOMER).write_bytes(before)
    floats = all(type(own[n]) is float for n in ("disclosed", "received"))
    in_time = floats and 0 < own["received"] - own["disclosed"] <= 60
    assert found.proven == (in_time and name != "more")


def test_a_share_of_the_work_follows_from_the_openings():
    assert proof.too_few(PARAMETERS) is None
    assert proof.too_few(SMALL).startswith("openings: 4 prove 0.000 of the work")
    assert proof.late(SMALL, 60.0) is None
    assert proof.late(SMALL, 0.0) == "late: 0.0 s, expected at most 60 s"
