"""The files of a run that a command is about, and the limits that it was judged by (login side)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures.errors import AcceptanceError, ConfigError
from fixtures.paths import THRESHOLDS
from fixtures.records import verdict_file
from fixtures.records.files import RecordError, read_json
from fixtures.records.foreign_types import refused_run
from fixtures.records.run_directory import RunDirectory
from fixtures.records.run_schema import refused_schema
from fixtures.thresholds import loader
from reports.evidence.differences import is_of_this_version, malformed

INCOMPLETE, BROKEN, USAGE = 2, 3, 4
"""Exit status for too little evidence, for an internal error, and for a usage error."""


class CommandError(AcceptanceError):
    """The command cannot be carried out: a message in one line, and an exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


def read_run(source: Path) -> dict[str, Any]:
    """Return run.json, checked as far as it is needed here; the replay checks the rest."""
    try:
        run = read_json(RunDirectory(source).run_json)
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError(f"{source} is not a run directory: it has no run.json") from None
    except (OSError, RecordError) as error:
        raise CommandError(f"{source / 'run.json'}: {error}") from None
    if why := refused_run(run):
        raise CommandError(f"{source / 'run.json'}: {why}")
    if "id" not in run:
        raise CommandError(f"{source / 'run.json'}: id is missing")
    return dict(run)


def is_of_schema_1(source: Path) -> bool:
    """Whether a run directory has a run.json that is read no longer."""
    with suppress(OSError, RecordError):
        run = read_json(RunDirectory(source).run_json)
        return isinstance(run, dict) and refused_schema(run) == refused_schema({"schema": 1})
    return False


def read_verdict(source: Path) -> dict[str, Any]:
    """Return verdict.json, checked as far as everything here relies on it."""
    path = RunDirectory(source).verdict
    try:
        verdict = verdict_file.read_verdict(RunDirectory(source))
    except FileNotFoundError:
        command = f"`python -m reports render {shlex.quote(str(source))}`"
        raise CommandError(f"{source} has no verdict.json: {command}") from None
    except (OSError, RecordError) as error:
        raise CommandError(f"{path}: {error}") from None
    if why := malformed(verdict):
        raise CommandError(f"{path}: {why}")
    return dict(verdict)


def limits_file(run: dict[str, Any], given: Path | None) -> Path | None:
    """Return the file of limits that a run was judged by; None is the shipped one."""
    if given is not None:
        if not given.is_file():
            raise CommandError(f"--thresholds {given}: no such file")
        return given.resolve()
    recorded = run.get("thresholds") or {}
    path = Path(str(recorded.get("path") or ""))
    if path == THRESHOLDS:  # the replay compares its hash
        return None
    with suppress(ConfigError, OSError):
        if path.is_file() and loader.load(path).sha256 == recorded.get("sha256"):
            return path.resolve()
    return None


@dataclass(frozen=True)
class Limits:
    """The limits by which a run is checked."""

    file: Path | None = None
    """None is the shipped one."""
    foreign: str = ""
    """Why they are the supplier's and not the user's, "" if they are the user's."""


def agreed_limits(run: dict[str, Any], given: Path | None) -> Limits:
    """Return the limits that the user confirms: those given, or the checkout's own.

    A file that only run.json names is of whoever made the run, and so is an order that is in none.
    CommandError where the given ones are not those of the run.
    """
    recorded = (run.get("thresholds") or {}).get("sha256")
    loaded = loader.load(given or THRESHOLDS)
    file = limits_file(run, given)
    if recorded != loaded.sha256 and not (recorded is None and is_of_this_version(run)):
        if given is not None:
            raise CommandError(
                f"--thresholds {given}: not the limits of run {run['id']}, whose SHA-256 is "
                f"{str(recorded)[:12]}...: judge by others with `python -m reports judge RUN`"
            )
        of_run = file or (run.get("thresholds") or {}).get("path") or "no file"
        return Limits(file, f"limits: those of {of_run}, as run.json says: {_GIVE}")
    order = None if loaded.cluster is None else loaded.cluster.model_dump(mode="json")
    if not _is_sandbox(run) and order != run.get("contract"):
        if given is not None:
            raise CommandError(f"--thresholds {given}: run {run['id']} is of another order")
        return Limits(None, f"order: it stands in run.json alone: {_GIVE}")
    return Limits(file if given is not None else None)


_GIVE = "give --thresholds FILE with what was agreed"


def _is_sandbox(run: Mapping[str, Any]) -> bool:
    """Whether a run is of virtual nodes, whose order is made up: it is never an acceptance."""
    population = run.get("population")
    return isinstance(population, dict) and population.get("origin") == "sandbox"


def require_same_limits(run: dict[str, Any], replayed: dict[str, Any]) -> None:
    """Raise CommandError unless a replay used the limits of the run.

    A report in the run's own directory must not be made by other limits.
    """
    recorded, current = (r.get("thresholds", {}).get("sha256") for r in (run, replayed))
    if recorded is not None and recorded != current:
        raise CommandError(
            f"thresholds.yaml has changed since run {run['id']} (SHA-256 {str(recorded)[:12]}, now "
            f"{str(current)[:12]}): judge it with `python -m reports judge RUN --thresholds FILE`"
        )
