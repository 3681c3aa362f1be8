"""Nobody gains by changing one source of the evidence and making all else anew: of a run, of units
that were joined, of the visits of a patrol.

The forger has the suite and no key. What he can do by changing several sources alike is listed in
docs/reading-a-report.md: only a signature shows it.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.selftests import forged_units, forged_visits, forgeries
from tests.selftests.genuine_runs import Genuine
from tests.selftests.judged_runs import key_of

pytestmark = pytest.mark.cpu


def drawn(few: int, many: int) -> pytest.MarkDecorator:
    """The few of `make test` (76 in all kinds together), and the many of `make soak`."""
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


@pytest.fixture(scope="module")
def of_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Genuine]:
    """The genuine run of a base, made once: a test forges copies of it."""
    folder = tmp_path_factory.mktemp("genuine")

    @functools.cache
    def made(base: str) -> Genuine:
        with forgeries.tools(folder / "judged"):
            return Genuine.make(base, folder)

    return made


@pytest.fixture(scope="module")
def joined(
    of_base: Callable[[str], Genuine], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], forged_units.Joined]:
    """The genuine run of a base joined with a healthy unit, made once."""
    folder = tmp_path_factory.mktemp("joined")

    @functools.cache
    def made(base: str) -> forged_units.Joined:
        with forgeries.tools(folder / "judged"):
            return forged_units.Joined.make(base, of_base(base), folder / base)

    return made


@drawn(12, 1250)
@pytest.mark.parametrize("base", forgeries.BASES)
def test_a_forged_source_makes_nothing_green(
    base: str, drawn: int, of_base: Callable[[str], Genuine], tmp_path: Path
) -> None:
    with forgeries.tools(tmp_path):
        assert gains(forgeries.attempt, of_base(base), base, drawn, tmp_path) == {}


@drawn(5, 250)
@pytest.mark.parametrize("base", ["failed once", "not measured"])
def test_a_forgery_of_a_unit_or_between_units_makes_nothing_green(
    base: str, drawn: int, joined: Callable[[str], forged_units.Joined], tmp_path: Path
) -> None:
    with forgeries.tools(tmp_path):
        assert gains(forged_units.attempt, joined(base), base, drawn, tmp_path) == {}


@pytest.fixture(scope="module")
def certificate(of_base: Callable[[str], Genuine]) -> Path:
    """That of a healthy run."""
    return of_base("failed once").healthy


@drawn(6, 400)
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
def test_what_several_sources_say_alike_only_a_signature_shows(
    base: str, of_base: Callable[[str], Genuine], tmp_path: Path
) -> None:
    key, signers = key_of(tmp_path), tmp_path / "signers"
    signers.write_text(f"owner {key.with_suffix('.pub').read_text()}")
    with forgeries.tools(tmp_path):
        genuine = of_base(base).copied(tmp_path / "genuine")
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
    certificate: Path, joined: Callable[[str], forged_units.Joined], tmp_path: Path
) -> None:
    with forgeries.tools(tmp_path):
        genuine = joined("failed once")
        root = Path(shutil.copytree(genuine.root, tmp_path / "forged", symlinks=True))
        unit = root / "units" / genuine.names[0]
        forgeries.ALIKE["failed once"](unit, genuine.units[0].healthy)
        genuine.units[0].made_anew(unit)
        genuine.made_anew(root)
        assert genuine.units[0].verified(root)[0] == 0
        assert genuine.rows is not None
        assert genuine.red(root)[0].total() < genuine.rows.total(), "gains are measured"
    with forged_visits.tools():
        patrolled = forged_visits.Patrolled.make("drifting", certificate, tmp_path)
        shutil.copy(patrolled.healthy, patrolled.root)
        shutil.rmtree(patrolled.root / "visits")
        assert patrolled.reported(patrolled.root)[0] == 0
