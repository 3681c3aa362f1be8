"""What was checked of a run directory: the lines, and the exit status that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.evidence.findings import Findings, show

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("found", "status", "word"),
    [
        (Findings(confirmed=["a"], notes=["unsigned: b"]), 0, "VERIFIED"),
        (
            Findings(notes=["not judged again: b"], judged=False),
            0,
            "VERIFIED, BUT NOT JUDGED AGAIN",
        ),
        (Findings(unchecked=["a"]), 2, "NOT VERIFIED"),
        (Findings(strangers=["a"]), 2, "NOT VERIFIED"),
        (Findings(wrong=["a"], unchecked=["b"], strangers=["c"]), 1, "CHANGED SINCE THE RUN"),
    ],
)
def test_the_status_is_0_only_where_nothing_is_wrong_or_left_open(found, status, word, capsys):
    assert show(Path("RUN"), found) == found.status == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{word}: RUN"
    assert lines[:-1] == [
        *(f"ok     {line}" for line in found.confirmed), *found.notes,
        *(f"not checked: {line}" for line in found.unchecked + found.strangers),
        *(f"WRONG  {line}" for line in found.wrong),
    ]  # fmt: skip


def test_a_text_of_the_run_stays_within_its_line(capsys):
    show(Path("RUN"), Findings(confirmed=["says X\nVERIFIED: \x1b[2J"], wrong=["a\u202eb"]))
    assert capsys.readouterr().out.splitlines() == [
        r"ok     says X\nVERIFIED: \x1b[2J", r"WRONG  a\u202eb", "CHANGED SINCE THE RUN: RUN",
    ]  # fmt: skip


def test_what_is_not_made_again_rests_on_a_known_signer():
    for covered, status in ((True, 0), (False, 2)):
        found = Findings(covered=covered)
        found.leave("the pages")
        assert (found.status, found.judged) == (status, False)
        assert found.notes + found.unchecked == ["not judged again: the pages" if covered else
                                                 "the pages"]  # fmt: skip


def test_another_signature_is_refused_for_all_but_unknown_signers():
    assert Findings(wrong=["a"], unchecked=["b"], strangers=["c"]).unconfirmed == ["a", "b"]
