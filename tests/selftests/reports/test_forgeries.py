"""Nobody gains by changing one source of the evidence and making all else anew.

The forger has the suite and no key. What he can do by changing several sources alike is listed in
docs/reading-a-report.md: only a signature shows it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.selftests import forgeries
from tests.selftests.judged_runs import key_of

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


@pytest.mark.parametrize("base", forgeries.ALIKE)
def test_what_several_sources_say_alike_only_a_signature_shows(base: str, tmp_path: Path) -> None:
    key, signers = key_of(tmp_path), tmp_path / "signers"
    signers.write_text(f"owner {key.with_suffix('.pub').read_text()}")
    with forgeries.tools(tmp_path):
        genuine = forgeries.Genuine.make(base, tmp_path / "genuine")
        assert genuine.signed(key) == 0
        known = f"--allowed-signers={signers}"
        assert genuine.verified(genuine.root, known)[0] == 0
        forged = Path(shutil.copytree(genuine.root, tmp_path / "forged"))
        forgeries.ALIKE[base](forged, genuine.healthy)
        genuine.made_anew(forged)
        shutil.copytree(genuine.root / "signatures", forged / "signatures", dirs_exist_ok=True)
        assert genuine.verified(forged, known)[0] == 1
        shutil.rmtree(forged / "signatures")
        assert genuine.verified(forged, known)[0] == 1, "whoever asks for a signer gets one"
        genuine.status = genuine.verified(forged)[0]
        assert genuine.status == 0, "nothing else shows it"
        assert genuine.gained(forged)[0]
