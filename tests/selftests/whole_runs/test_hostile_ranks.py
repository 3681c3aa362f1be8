"""Live: what a rank writes that no rank does costs its own node, which is named, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fixtures.entry import module_of
from fixtures.records.absence import JobKind
from tests.selftests.hostile_ranks import APPENDED, KINDS, QUICK
from tests.selftests.sandboxes import NODES_ONLY, Finished, copy_checkout, machine, suite

__all__ = ["machine"]

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("machine")]

OTHERS = [kind for kind in KINDS if kind not in QUICK]
SLOW_AT_ONCE = 7


def run_with(kinds: Sequence[str], tmp_path: Path) -> Finished:
    """Run a small plan: worker0 is healthy, each further node writes one of the kinds."""
    root = tmp_path / "checkout"
    root.mkdir()
    copy_checkout(root)
    hostile = {f"worker{k}": kind for k, kind in enumerate(kinds, 1)}
    source = root / (module_of("environment").replace(".", "/") + ".py")
    with source.open("a", encoding="utf-8") as file:
        file.write(APPENDED.format(kinds=hostile, workload="environment"))
    return suite(
        root, tmp_path / "run", *NODES_ONLY, "--cluster", "sandbox", "--sandbox-nodes",
        str(len(kinds) + 1), "--sandbox-gpus", "1",
    )  # fmt: skip


def check(done: Finished, kinds: Sequence[str]) -> None:
    assert "Traceback" not in done.said
    assert not (done.directory.jobs / "suite-error.txt").exists()
    rows = done.rows.values()
    healthy = [row for row in rows if row["subject"] == "worker0"]
    assert healthy
    assert [r["criterion"] for r in healthy if r["outcome"] == "NOT_MEASURED"] == []
    for k, kind in enumerate(kinds, 1):
        own = [row for row in rows if row["subject"] == f"worker{k}"]
        assert own, kind
        for row in own:
            assert (row["outcome"], row["cause_nodes"]) == ("NOT_MEASURED", [f"worker{k}"]), kind
            assert row["reason"].startswith(f"{JobKind.MALFORMED}: "), (kind, row["reason"])


def test_a_node_whose_rank_writes_what_no_rank_does_is_named_and_no_other(tmp_path: Path) -> None:
    check(run_with(QUICK, tmp_path), QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(OTHERS), SLOW_AT_ONCE))
def test_every_kind_of_hostile_output(first: int, tmp_path: Path) -> None:
    kinds = OTHERS[first : first + SLOW_AT_ONCE]
    check(run_with(kinds, tmp_path), kinds)


def test_there_are_thirty_kinds() -> None:
    assert len(KINDS) >= 30
    assert set(QUICK) < set(KINDS)
