"""Nobody gains by changing one source of the evidence and making all else anew.

The forger has the suite and no key. What he could do by changing several sources alike is listed
in docs/reading-a-report.md: only a signature shows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.selftests import forgeries

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("drawn", [50, pytest.param(1667, marks=pytest.mark.slow)])
@pytest.mark.parametrize("base", forgeries.BASES)
def test_a_forged_source_makes_nothing_green(base: str, drawn: int, tmp_path: Path) -> None:
    with forgeries.tools(tmp_path):
        genuine = forgeries.Genuine.make(base, tmp_path / "genuine")
        # Other numbers for each base, and none of those of the short test in the long one.
        first = 10_000 * [*forgeries.BASES].index(base) + (0 if drawn < 1000 else 50)
        gained = {}
        for number in range(first, first + drawn):
            forgery, rows, said = forgeries.attempt(genuine, number, tmp_path)
            if rows:
                gained[number] = (str(forgery), rows, said)
    assert gained == {}
