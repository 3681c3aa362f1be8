"""The answer to a challenge as a job: one chain on each rank, on several nodes."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import torch

from fixtures.challenge import answer as answers
from fixtures.challenge import messages
from fixtures.challenge.answer import Answer
from fixtures.records.files import write_json
from fixtures.workloads.compute import challenge as module
from tests.selftests.challenged import SMALL
from tests.selftests.rank_job import TORCH, Job, rank_of
from tests.tools.bench_challenge import made_challenge

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]

NODES = ["a0", "a1", "a2"]


def answered(root: Path, first: bytes, **params: object) -> Job:
    """Run the job on three nodes with a rank each, of which the second is left out."""
    job = Job(root, nodes=NODES)
    folder = root / "challenge"
    folder.mkdir()
    (folder / messages.CHALLENGE).write_bytes(first)
    if opening := params.pop("drawn", None):
        assert isinstance(opening, messages.Opening)
        write_json(folder / messages.OPENING, messages.opening_fields(opening))
    job.add("challenge", [*module.PARTS], nodes=NODES, folder=str(folder), without=[1],
            opening=bool(opening), **params)  # fmt: skip
    assert job.run(slurm=True, warm=TORCH) == [0] * 3, job.output()
    return job


def test_the_job_answers_as_one_process_would_and_says_who_computed_what(tmp_path, monkeypatch):
    challenge, first = made_challenge(SMALL)
    (tmp_path / "run").mkdir()
    record = answered(tmp_path / "run", first).record("challenge")
    path = tmp_path / "run" / "challenge" / messages.COMMITMENT
    commitment = messages.read_commitment(path, challenge)
    alone = Answer(challenge, (0, 2))
    assert commitment == alone.compute()
    assert [(r.facts["number"], r.node) for r in record.ranks] == list(enumerate(NODES))
    assert {m.metric for m in record.ranks[2].measurements} == {*module.PARTS}
    assert record.ranks[1].absent[0].why == "an earlier try ended on this rank"
    # The opening, by another job that keeps its states.
    opening = messages.Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    other, work = tmp_path / "other", tmp_path / "work"
    other.mkdir()
    answered(other, first, drawn=opening, work=str(work))
    response = (other / "challenge" / messages.RESPONSE).read_bytes()
    assert response == b"".join(alone.response(opening))
    # One process goes on from the states that the ranks have kept.
    monkeypatch.setattr(answers, "advance", lambda *_: pytest.fail("computed again"))
    assert Answer(challenge, (0, 2), work=work).compute() == commitment


def test_who_is_not_asked_or_has_no_memory_for_a_chain_is_left_out(tmp_path, monkeypatch):
    rank = rank_of(tmp_path)
    assert module._why_not(rank, SMALL, 2, []) == ""
    assert module._why_not(rank, SMALL, 3, []) == "the challenge asks for 3 chains"

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", refuse)
    assert module._why_not(rank, SMALL, 0, []) == "CUDA out of memory"
