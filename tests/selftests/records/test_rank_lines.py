"""Lines of ranks are typed by their schema before anything is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.records.files import RecordError, read_lines
from fixtures.records.rank_lines import check_line, checked_lines, is_reason
from tests.selftests import support
from tests.selftests.support import NONCE, line, result_line, value

pytestmark = pytest.mark.cpu


def test_every_kind_of_line_of_the_suite_is_taken() -> None:
    for event in ("started", "alive", "end", "place", "fault"):
        assert check_line(line(event, 1), rank=1, world_size=2)
    said = result_line(0, value("bf16", "TFLOPS", 700.0), absent=[])
    assert check_line(said, rank=0, world_size=2) is said
    assert check_line(line("error", 0, kind="raised", error="text", stack="stack"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"time": "soon"}, "a line whose time: Input should be a valid number, not 'soon'"),
        ({"time": True}, "a line whose time: Input should be a valid number, not True"),
        ({"time": float("nan")}, "a line whose time is nan"),
        ({"rank": "0"}, "a line whose rank: Input should be a valid integer, not '0'"),
        ({"rank": True}, "a line whose rank: "),
        ({"node": 7}, "a line whose node: Input should be a valid string, not 7"),
        ({"workload": ["gemm"]}, "a line whose workload: "),
        ({"world_size": 10**9}, "a result line of world size 1000000000, that of the job is 2"),
        ({"rank": 3}, "a line of rank 3, in the file of rank 0"),
        ({"measurements": [{"metric": "x", "unit": "s", "samples": ["a"]}]},
         "a line whose measurements.0.samples.0: "),
        ({"absent": [{"metric": "x", "kind": "tired", "why": "w"}]}, "a line whose absent.0.kind"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_of_its_schema_is_an_error_that_says_where(
    changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecordError) as refused:
        check_line({**result_line(0), **changed}, rank=0, world_size=2)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize("name", ["time", "rank", "world_size", "node", "event", "local_rank"])
def test_a_line_without_a_field_that_every_line_has_is_an_error(name: str) -> None:
    said = line("started", 0)
    del said[name]
    with pytest.raises(RecordError, match=f"a line whose {name}: Field required"):
        check_line(said)


@pytest.mark.parametrize("name", ["workload", "placement"])
def test_a_result_says_what_it_is_of(name: str) -> None:
    said = result_line(0)
    del said[name]
    with pytest.raises(RecordError, match="a result line without workload and placement"):
        check_line(said)


def test_another_world_size_is_an_error_of_results_alone() -> None:
    """A rank that was started with others than planned says so, and measures nothing."""
    assert check_line(line("error", 0, kind="raised", error="2 ranks started"), world_size=4)


def test_the_lines_of_a_run_are_taken_up_to_the_first_that_is_malformed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    foreign = {"schema": 1, "nonce": "f" * 32, "time": "soon"}
    said = [line("started", 0), foreign, {"a": 1}, line("end", 0), {**line("end", 0), "time": ""}]
    path.write_text("".join(json.dumps(one) + "\n" for one in said))
    taken = checked_lines(path, NONCE)
    assert [next(taken)["event"], next(taken)["event"]] == ["started", "end"]
    with pytest.raises(RecordError, match="a line whose time"):
        next(taken)


def test_every_line_of_recorded_runs_is_taken() -> None:
    paths = sorted(support.DATA.glob("*/jobs/*/rank*.jsonl"))
    for path in paths:
        assert list(checked_lines(path)) == list(read_lines(path))


@pytest.mark.parametrize(
    "changed",
    [{"nonce": "f"}, {"workload": None}, {"placement": []}, {"attempt": "1"}, {"time": "soon"},
     {"attempt": True}],
)  # fmt: skip
def test_a_reason_is_one_of_this_run_with_the_types_of_its_fields(changed: dict[str, Any]) -> None:
    reason = {"nonce": NONCE, "workload": "gemm", "placement": "n0", "attempt": 1, "time": 1.0}
    assert is_reason(reason, NONCE)
    assert not is_reason({**reason, **changed}, NONCE)
