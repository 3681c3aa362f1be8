"""Text of a certificate on a return to service, and its check against the evidence (login side).

The run directory holds the whole evidence of the runs that it recertifies: their records beside its
own, the rest in `recertified/ID/`, with the manifest that each of them had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fixtures.records.files import RecordError, read_json
from fixtures.records.foreign_files import sha256_of
from fixtures.records.foreign_folders import folders_in
from fixtures.records.inert import inert
from fixtures.records.model import Record
from fixtures.records.run_directory import RunDirectory, changed_file
from fixtures.run.reader import RunReader
from fixtures.wording import counted

TOLD = {"cable": "a moved cable", "firmware": "new firmware"}
MAX_ROWS = 200
"""Most rows that are named one by one; run.json has all."""


@dataclass(frozen=True)
class Return:
    """One return to service, as people read it."""

    run: str
    manifest_sha256: str
    verdict: str
    created: str
    nodes: str
    told: str
    measured: Sequence[str]
    """What was measured again, as "gemm on worker1"."""
    not_repeated: Sequence[tuple[str, str, str]]

    @property
    def sentence(self) -> str:
        again = counted(len(self.measured), "record")
        left = counted(len(self.not_repeated), "row")
        return (
            f"Returned to service: {self.nodes}, after {self.told}. Run {self.run} was "
            f"{self.verdict}; {again} measured again, {left} not repeated; everything else is "
            "from that run."
        )


def returns(directory: RunDirectory, run: Mapping[str, Any]) -> list[Return]:
    """Return a run's returns to service, oldest first; [] for all other runs."""
    repairs = run.get("recertifies") or []
    measured = _measured_by_run(directory, run) if repairs else {}
    runs = [str(repair["run"]) for repair in repairs]
    found = []
    for k, repair in enumerate(repairs):
        of_run = [*runs, str(run["id"])][k + 1]
        told = [TOLD[kind] for kind in repair["told"]]
        found.append(
            Return(
                run=runs[k],
                manifest_sha256=str(repair["manifest_sha256"]),
                verdict=str(repair["verdict"]),
                created=str(repair["created"]),
                nodes=", ".join(repair["nodes"]),
                told=" and ".join(told) or "a repair that the inventory shows",
                measured=measured.get(of_run, []),
                not_repeated=[(str(c), str(s), str(why)) for c, s, why in repair["not_repeated"]],
            )
        )
    return found


def _measured_by_run(directory: RunDirectory, run: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return run -> its records, without those of the runs that it recertifies.

    Of the last one those that count; of the others all, also what a later repair has voided.
    """
    read: list[Record] = []
    stated = RunReader.of(directory, run)
    reader = RunReader(directory, stated.devices, run, unchecked=read.append)
    later = [key for key in reader.record_keys() if key[2] > 1]
    own = [record for record in reader.every(later) if record.run_id == run["id"]]
    others = [r for r in read if r.attempt > 1 and r.run_id != run["id"]]
    found: dict[str, set[str]] = {}
    for record in (*own, *others):
        found.setdefault(record.run_id, set()).add(f"{record.workload} on {record.placement}")
    return {of_run: sorted(names) for of_run, names in found.items()}


def differences(directory: RunDirectory, run: Mapping[str, Any]) -> Iterator[str]:
    """Yield what does not follow from the evidence of the runs that this one recertifies.

    `run`: all that is in its run.json.
    """
    dropped: set[tuple[str, str]] = set()
    named = {str(repair["run"]) for repair in run.get("recertifies") or []}
    for folder in folders_in(directory.recertified):
        if folder.name not in named:
            yield f"recertified/{inert(folder.name)}: run.json names no such run"
    for repair in reversed(run.get("recertifies") or []):
        name = f"recertified/{repair['run']}"
        kept = directory.recertified / str(repair["run"])
        before = RunDirectory(kept)
        try:
            digest = sha256_of(before.manifest, below=directory.root)
            earlier, verdict = read_json(before.run_json), read_json(before.verdict)
        except (OSError, RecordError) as error:
            yield f"{name}: the recertified run cannot be read: {error}"
            continue
        if digest != repair["manifest_sha256"]:
            yield f"{name}/manifest.sha256: not the file that run.json names"
        elif changed := changed_file(before.manifest, kept, directory.root):
            yield f"{name}: {changed}"
        stated = {"verdict": verdict.get("verdict"), "run": earlier.get("id"),
                  "created": earlier.get("created")}  # fmt: skip
        for key, value in stated.items():
            if repair[key] != value:
                yield f"run.json: recertifies: {key} is {repair[key]}, that run says {value}"
        for key in ("contract", "tier", "nonce"):
            if earlier.get(key) != run.get(key):
                yield f"run.json: {key} is not that of the recertified run {repair['run']}"
        limits = [(r.get("thresholds") or {}).get("sha256") for r in (earlier, run)]
        if limits[0] != limits[1]:
            yield f"run.json: judged by other limits than the recertified run {repair['run']}"
        dropped |= {(row[0], row[1]) for row in repair["not_repeated"]}
        scope = {(key[0], key[1]) for key in earlier.get("scope", ())}
        missing = scope - {(key[0], key[1]) for key in run["scope"]} - dropped
        if missing:
            yield (
                f"run.json: {counted(len(missing), 'row')} of run {repair['run']} missing without "
                f"a reason, such as {' '.join(sorted(missing)[0])}"
            )
