"""A run whose attempts are made by hand: what its records show, and what its ledger says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixtures.records.model import Record
from fixtures.run.batch_judging import BatchJudge, judge_many
from fixtures.run.evidence import Evidence
from fixtures.run.run import Run
from fixtures.verdict.model import Verdict
from reports.evidence import rejudge
from reports.second_judge.physics import Unknown
from tests.selftests.run.small_run import small_run
from tests.selftests.support import later, node_record, rank, record, save

GEMM = ("gemm.bf16", "worker0")


class Story:
    """One run; `node` is the place of its records."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.run: Run = small_run(folder, **more)
        self.run.open(command=["pytest"])
        self.run.scope = list(self.run.items)
        self.run.write_heartbeat()
        self.root = self.run.directory.root

    def measured(self, attempt: int, *rates: float, ledger: bool = True, **device: Any) -> Record:
        """An attempt at gemm on worker0, which is judged and stands in the ledger."""
        made = node_record(*(rates or (650, 650)), attempt=attempt)
        made = replace(made, job={"name": "node-worker0", "id": str(attempt)}, ranks=[
            later(r, 100.0 * attempt - r.start) for r in made.ranks
        ])  # fmt: skip
        for r in made.ranks:
            r.device.update(device)
        save(made, self.run.directory)
        if ledger:
            self.run.record_verdicts(self.first())
        return made

    def inventory(self, attempt: int, *uuids: str, at: float, **device: Any) -> None:
        """What devices worker0 has from a time on."""
        ranks = [replace(rank(k, "worker0", uuid=uuid, **device), start=at, end=at)
                 for k, uuid in enumerate(uuids)]  # fmt: skip
        save(record(*ranks, workload="inventory", attempt=attempt), self.run.directory)

    def path(self, attempt: int) -> Path:
        return self.run.directory.record("gemm", "worker0", attempt)

    def first(self, key: tuple[str, str] = GEMM) -> Verdict:
        """The verdict of the first judge, as a replay reads the records."""
        evidence = Evidence(self.run.directory, self.run.nonce, devices=self.run.devices)
        judge = BatchJudge(evidence.for_batch(), self.run.thresholds, self.run.population)
        return judge_many(judge, self.run.items, [key]).verdicts[key]

    def judged(self, key: tuple[str, str] = GEMM) -> Verdict:
        """The verdict, on which both judges agree."""
        first = self.first(key)
        with suppress(Unknown):  # what only the ledger has, it does not cover
            second = rejudge.judges_of(self.root, self.run.thresholds).outcome(key)[0]
            assert second == first.outcome, (second, first.line)
        return first

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run.directory.ledger.read_text().splitlines()]

    def rewrite(self, *lines: Mapping[str, Any]) -> None:
        self.run.directory.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
