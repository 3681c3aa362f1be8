"""`make soak`: is anybody accused where nothing is wrong?

python -m tests.tools.soak [--runs 20] [--json FILE] [-- --cluster slurm --partition gpu ...]

Whole acceptance runs, one after another, of a healthy cluster: a sandbox of this machine where no
other is asked for. A line per run, with the hash of the limits that it was judged by; the exit
status is 0 where no row of any run was red or not measured, and all had the same limits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fixtures.records.files import read_json
from tests.tools.bench import machine, run_pytest, save

SANDBOX = ("--cluster", "sandbox")
RED_OUTCOMES = ("FAIL", "NOT_MEASURED")


@dataclass(frozen=True, kw_only=True)
class Round:
    """The result of one run."""

    verdict: str
    passed: int
    red: tuple[str, ...]
    """Rows that failed or were not measured: outcome, criterion, subject and reason."""
    limits: str
    """SHA-256 of thresholds.yaml."""
    seconds: float

    def __str__(self) -> str:
        failures = "; ".join(self.red) or "nobody accused"
        return (
            f"{self.verdict}, {self.passed} pass, {failures}; limits {self.limits[:12]}, "
            f"{self.seconds:.0f} s"
        )


def one_run(into: Path, arguments: Sequence[str] = SANDBOX) -> Round:
    """Start one complete run as a user would, and return its result."""
    began = time.monotonic()
    done = run_pytest("-q", "-m", "multinode", f"--run-dir={into}", *arguments, timeout_s=None)
    verdict = into / "verdict.json"
    if not verdict.exists():
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    data = read_json(verdict)
    red = [r for r in data["criteria"] if r["outcome"] in RED_OUTCOMES]
    return Round(
        verdict=data["verdict"],
        passed=data["counts"]["pass"],
        red=tuple(f"{r['outcome']} {r['criterion']} {r['subject']}: {r['reason']}" for r in red),
        limits=read_json(into / "run.json")["thresholds"]["sha256"],
        seconds=time.monotonic() - began,
    )


def main() -> int:
    """Run all rounds; return 0 if no row was red and all had the same limits."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("pytest", nargs="*", default=SANDBOX, help="after --: where to run")
    options = parser.parse_args()
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="acceptance-soak-") as folder:
        for k in range(1, options.runs + 1):
            rounds.append(one_run(Path(folder) / str(k), options.pytest))
            print(f"run {k} of {options.runs}: {rounds[-1]}", flush=True)
    bad = sum(bool(r.red) for r in rounds)
    limits = {r.limits for r in rounds}
    judged_by = ", ".join(sorted(known[:12] for known in limits))
    print(f"{len(rounds) - bad} of {len(rounds)} healthy runs accused nobody; limits {judged_by}")
    save("soak", [asdict(r) for r in rounds], machine(), options.json)
    return int(bool(bad) or len(limits) != 1)


if __name__ == "__main__":
    sys.exit(main())
