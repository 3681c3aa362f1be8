"""Records for tests of readers, made of the few fields that a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fixtures.records.absence import Absence
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.records.run_directory import RunDirectory, attempt_of
from fixtures.run.reader import RunReader
from tests.selftests import support

RUN = {"id": support.RUN_ID, "nonce": support.NONCE}
"""A run.json with which records are checked against each other alone: no nodes are planned."""


def plain_record(name: str, *ranks: Mapping[str, Any], **more: Any) -> Record:
    """Return the record of this file name; a rank is of the node of its placement, else said."""
    workload, placement, attempt = attempt_of(name) or ("", "", 1)
    made = [
        RankResult(
            rank=k, local_rank=said.get("local_rank", k), node=said.get("node", placement),
            device={"index": k, "name": None, "model": None, "uuid": None, "pci": None,
                    **said.get("device", {})},
            start=100.0 + 20 * attempt, end=110.0 + 20 * attempt, facts=said.get("facts", {}),
            measurements=[Measurement(**m) for m in said.get("measurements", ())],
            absent=[Absence.from_json(a) for a in said.get("absent", ())],
        )
        for k, said in enumerate(ranks)
    ]  # fmt: skip
    given: dict[str, Any] = {
        "run_id": support.RUN_ID, "nonce": support.NONCE, "workload": workload,
        "placement": placement, "attempt": attempt, "world_size": len(made), "job": {},
        "nodes": [*dict.fromkeys(r.node for r in made)], "ranks": made, "provenance": {},
    }  # fmt: skip
    return Record(**(given | more))


def reader_of(directory: RunDirectory) -> RunReader:
    """Return a reader of the records in a directory that are of RUN."""
    return RunReader.of(directory, RUN)
