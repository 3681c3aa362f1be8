"""Nobody gains by changing one source of the evidence and making all else anew: of a run, of units
that were joined, of the visits of a patrol.

The forger has the suite and no key. What he can do by changing several sources alike is listed in
docs/reading-a-report.md: only a signature shows it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import forged_units, forged_visits, forgeries
from tests.selftests.genuine_runs import HEALTHY
from tests.selftests.judged_runs import key_of

pytestmark = pytest.mark.cpu


def drawn(few: int, many: int) -> pytest.MarkDecorator:
    """The few of `make test` (150 in all kinds together), and the many of `make soak`."""
    return pytest.mark.parametrize("drawn", [few, pytest.param(many, marks=pytest.mark.slow)])


def first_of(bases: Iterable[str], base: str, drawn: int) -> int:
    """Other numbers for each base, and none of those of the short test in the long one."""
    return 10_000 * [*bases].index(base) + (0 if drawn < 100 else 50)


def gains(
    attempt: Callable[[Any, int, Path], tuple[Any, Any, str]], genuine: Any, base: str, drawn: int,
    folder: Path,
) -> dict[int, Any]:  # fmt: skip
    """Number -> forgery, rows that it gains, and what was said, of so many forgeries of a base."""
    first, gained = first_of(forgeries.BASES, base, drawn), {}
    for number in range(first, first + drawn):
        forgery, rows, said = attempt(genuine, number, folder)
        if rows:
            gained[number] = (str(forgery), rows, said)
    return gained


@drawn(24, 1250)
@pytest.mark.parametrize("base", forgeries.BASES)
def test_a_forged_source_makes_nothing_green(base: str, drawn: int, tmp_path: Path) -> None:
    with forgeries.tools(tmp_path):
        genuine = forgeries.Genuine.make(base, tmp_path / "genuine")
        assert gains(forgeries.attempt, genuine, base, drawn, tmp_path) == {}


@drawn(10, 250)
@pytest.mark.parametrize("base", ["failed once", "not measured"])
def test_a_forgery_of_a_unit_or_between_units_makes_nothing_green(
    base: str, drawn: int, tmp_path: Path
) -> None:
    with forgeries.tools(tmp_path):
        joined = forged_units.Joined.make(base, tmp_path / "genuine")
        assert gains(forged_units.attempt, joined, base, drawn, tmp_path) == {}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    with forgeries.tools(folder):
        return forgeries.Genuine.made(*HEALTHY, folder / "run", folder / "none").root


@drawn(12, 400)
@pytest.mark.parametrize("base", forged_visits.BASES)
def test_a_forged_log_of_visits_ends_with_no_zero(
    base: str, drawn: int, certificate: Path, tmp_path: Path
) -> None:
    with forged_visits.tools():
        patrolled = forged_visits.Patrolled.make(base, certificate, tmp_path)
        first, well = first_of(forged_visits.BASES, base, drawn), {}
        for number in range(first, first + drawn):
            forgery, status, said = forged_visits.attempt(patrolled, number, tmp_path)
            if status == 0:
                well[number] = (str(forgery), said)
    assert well == {}


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


def test_sources_of_a_unit_or_a_visit_that_agree_are_not_seen_either(
    certificate: Path, tmp_path: Path
) -> None:
    with forgeries.tools(tmp_path):
        joined = forged_units.Joined.make("failed once", tmp_path / "genuine")
        unit = joined.root / "units" / joined.names[0]
        forgeries.ALIKE["failed once"](unit, joined.units[0].healthy)
        joined.units[0].made_anew(unit)
        joined.made_anew(joined.root)
        assert joined.units[0].verified(joined.root)[0] == 0
        assert joined.rows is not None
        assert joined.red(joined.root)[0].total() < joined.rows.total(), "gains are measured"
    with forged_visits.tools():
        patrolled = forged_visits.Patrolled.make("drifting", certificate, tmp_path)
        shutil.copy(patrolled.healthy, patrolled.root)
        shutil.rmtree(patrolled.root / "visits")
        assert patrolled.reported(patrolled.root)[0] == 0
