"""A challenge on a real Slurm of two nodes: answered by one job, opened, verified, on the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.challenge import messages
from fixtures.records.run_directory import RunDirectory
from fixtures.sandbox import Sandbox
from reports import __main__ as reports
from reports.evidence import proof
from tests.selftests.sandboxes import CHECKOUT, Suite, on, resume

pytestmark = pytest.mark.slow

SIZE = (
    "--n", "512", "--steps", "4", "--segments", "60", "--reads", "2", "--ranks", "4",
    "--deadline-s", "900", "--openings", "160",
)  # fmt: skip
PROBE = ("-m", "multinode", "--tier", "probe")


@pytest.mark.parametrize("dead", [None, 2])
def test_four_ranks_on_two_nodes_prove_their_chains(
    sandbox: Sandbox, tmp_path: Path, dead: int | None
) -> None:
    customer, run = tmp_path / "customer", RunDirectory(tmp_path / "run")
    assert reports.main(["challenge", "new", str(customer), *SIZE]) == 0
    asked = f"--challenge={customer / messages.CHALLENGE}"
    with Suite(CHECKOUT, run.root, *PROBE, asked, env=on(sandbox)) as at_work:
        if dead is not None:
            at_work.until(lambda: at_work.lines("challenge-1", event="started", rank=dead), "rank")
            for process in sandbox.processes("worker1", rank=dead):
                process.kill()
        assert at_work.wait().status == 0
    commitment = run.challenge / messages.COMMITMENT
    assert reports.main(["challenge", "open", str(customer), str(commitment)]) == 0
    opening = f"--opening={customer / messages.OPENING}"
    resume(CHECKOUT, run.root, *PROBE, asked, opening, env=on(sandbox))
    response = run.challenge / messages.RESPONSE
    verify = ["challenge", "verify", str(customer), str(response), "--run", str(run.root)]
    assert reports.main(verify) == (dead is not None)
    found = proof.of_run(run)
    assert found is not None
    assert found.head == ("PROVEN" if dead is None else "PROVEN FOR 3 OF 4 CHAINS")
    reports.main(["render", str(run.root)])
    assert reports.main(["verify", str(run.root)]) == 0
    assert found.head in (run.root / "certificate.html").read_text()
