"""What was checked of a run directory, in lines, and the exit status that follows (login side)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fixtures.records.inert import inert
from reports.evidence.run_files import INCOMPLETE

MOST_LINES = 100
"""Lines on files that differ from one list; of a forged list all of a million could."""


def bounded(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"{more} more files differ"]


@dataclass
class Findings:
    """Lines to print, by what they mean."""

    wrong: list[str] = field(default_factory=list)
    confirmed: list[str] = field(default_factory=list)
    basis: list[str] = field(default_factory=list)
    """What the verdict rests on: order, times, devices."""
    unchecked: list[str] = field(default_factory=list)
    """What nothing confirms: neither this check nor a known signer."""
    strangers: list[str] = field(default_factory=list)
    """Signatures by keys that are not known here: no reason to refuse another signature."""
    notes: list[str] = field(default_factory=list)
    """What the reader has to know, and what changes nothing: unsigned, or not judged again."""
    judged: bool = True
    """Whether verdict and pages were made again from the records."""
    covered: bool = False
    """Whether a known signer signed the hashes of all files, and all files have them."""
    statement: bytes = b""
    """The content of the statement that was checked."""
    whole: bool = False
    """Whether it lists all files, not the evidence alone."""
    word: str = ""
    """The verdict that it states."""

    @property
    def status(self) -> int:
        """0 only if nothing is wrong and nothing is left unconfirmed."""
        return 1 if self.wrong else INCOMPLETE if self.unchecked or self.strangers else 0

    @property
    def unconfirmed(self) -> list[str]:
        """The lines for which a run is neither signed nor joined."""
        return self.wrong + self.unchecked

    def leave(self, line: str) -> None:
        """Add something that was not made again: a known signer confirms it, or it is unchecked."""
        self.judged = False
        if self.covered:
            self.notes.append(f"not judged again: {line}")
        else:
            self.unchecked.append(line)


def show(source: Path, found: Findings) -> int:
    """Print what was checked; 1 where something is wrong, 2 where something is not confirmed."""
    for line in found.confirmed:
        print(f"ok     {inert(line)}")
    for line in (*found.basis, *found.notes):
        print(inert(line))
    for line in found.unchecked + found.strangers:
        print(f"not checked: {inert(line)}")
    for line in found.wrong:
        print(f"WRONG  {inert(line)}")
    word = "VERIFIED" if found.judged else "VERIFIED, BUT NOT JUDGED AGAIN"
    words = {0: word, 1: "CHANGED SINCE THE RUN", INCOMPLETE: "NOT VERIFIED"}
    print(f"{words[found.status]}: {source}")
    return found.status
