"""What a customer's challenge proves, computed from its messages: no stored word of it is believed.

Both verifiers are asked. A run has the messages that it was given and answered in `challenge/`, and
those that the customer attached in `proof/`; its pages say what is found again from these.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fixtures.challenge import messages
from fixtures.challenge.messages import SMALL, Challenge, Commitment, Parameters
from fixtures.errors import EvidenceError
from fixtures.records.foreign_files import RecordError, parse_json, read_bytes
from fixtures.records.inert import inert
from fixtures.records.run_directory import RunDirectory
from fixtures.wording import counted, digits
from reports import second_verifier
from reports.evidence import challenge as first_verifier

CUSTOMER = "customer.json"
"""The customer's two instants."""
TEXTS = (messages.CHALLENGE, messages.COMMITMENT, messages.OPENING, messages.RESPONSE)
CERTAIN = 1e-4
"""The chance that a machine which did less is missed."""
LEAST_SHARE = 0.9
"""Of the work, that has to be proved with that chance: what saves a tenth is found."""

MOST_PRODUCTS = 2e12
"""That the pages of a run are made with: six times those of a node of eight GPUs at full size."""


@dataclass(frozen=True)
class Finding:
    """What an answer proves, in words and numbers."""

    head: str
    """PROVEN, PROVEN FOR 7 OF 8 CHAINS, or why it is not."""
    lines: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    """Of the messages that a run has of the customer: file -> SHA-256."""

    @property
    def proven(self) -> bool:
        """Whether all that was asked for is."""
        return self.head == "PROVEN"

    @property
    def sentence(self) -> str:
        """The whole as one line."""
        return f"{self.head}: {'; '.join(self.lines)}."


def read_texts(
    folder: Path, response: Path | None = None, below: Path | None = None
) -> list[bytes]:
    """Return the bytes of the four messages; `response`: where it is not in the folder."""
    paths = [*(folder / name for name in TEXTS[:3]), response or folder / messages.RESPONSE]
    bounds = (SMALL, SMALL, SMALL, messages.ROWS)
    return [
        read_bytes(path, below=below, bound=bound)
        for path, bound in zip(paths, bounds, strict=True)
    ]


def instants(folder: Path, below: Path | None = None) -> dict[str, float]:
    """Return the instants that a customer took."""
    path = folder / CUSTOMER
    data = parse_json(path, read_bytes(path, below=below, bound=SMALL), bound=SMALL)
    if not isinstance(data, Mapping) or not all(
        isinstance(value, float) and math.isfinite(value) for value in data.values()
    ):
        raise RecordError(f"{CUSTOMER}: expected the instants of `new` and `open`")
    if "disclosed" not in data or data.keys() - {"disclosed", "received"}:
        raise RecordError(f"{CUSTOMER}: expected disclosed and received")
    return dict(data)


def seconds_of(folder: Path, below: Path | None = None) -> float:
    """Return the time between a customer's two instants; EvidenceError before the second."""
    own = instants(folder, below)
    if "received" not in own:
        raise EvidenceError(f"{folder} was not opened: see `challenge open`")
    return own["received"] - own["disclosed"]


def of_texts(texts: Sequence[bytes]) -> tuple[Challenge, Commitment]:
    """Return the challenge of messages, and the commitment to it; RecordError for what is none."""
    challenge = messages.challenge_of(texts[0])
    return challenge, messages.commitment_of(texts[1], challenge)


def finding_of(texts: list[bytes], seconds: float, peak_tops: float | None = None) -> Finding:
    """Return what messages prove that came in this time; RecordError for what is not a message."""
    challenge, commitment = of_texts(texts)
    why = late(challenge.parameters, seconds) or too_few(challenge.parameters)
    if why := why or refusal(*texts):
        return Finding(f"NOT PROVEN: {inert(why)}")
    return _proven(challenge, commitment, seconds, peak_tops)


def late(parameters: Parameters, seconds: float) -> str | None:
    """Return that an answer took too long between the customer's two instants, or None."""
    if 0 < seconds <= parameters.deadline_s:
        return None
    return f"late: {seconds:.1f} s, expected at most {parameters.deadline_s} s"


def too_few(parameters: Parameters) -> str | None:
    """Return that the openings of a challenge prove too little, or None."""
    if (share := proven_share(parameters)) >= LEAST_SHARE:
        return None
    return (
        f"openings: {parameters.openings} prove {share:.3f} of the work, expected {LEAST_SHARE}: "
        "make a challenge with more"
    )


@functools.lru_cache(maxsize=1)
def refusal(asked: bytes, committed: bytes, opened: bytes, rows: bytes) -> str | None:
    """Return why messages prove nothing, or None; it takes minutes, and pages ask for the same."""
    challenge, commitment = of_texts((asked, committed))
    opening = messages.opening_of(opened, challenge)
    found = first_verifier.refusal_of(challenge, commitment, opening, rows)
    second = second_verifier.why_not(asked, committed, opened, rows)
    if (found is None) != (second is None):
        return (
            "the two verifiers differ, an error of the suite: the first says "
            f"{found.why if found else 'proven'}, the second {second or 'proven'}"
        )
    return found.why if found else None


def _proven(
    challenge: Challenge, commitment: Commitment, seconds: float, peak_tops: float | None
) -> Finding:
    p, ranks = challenge.parameters, len(commitment.ranks)
    missing = sorted({*range(p.ranks)} - {*commitment.ranks})
    share = proven_share(p)
    work = share * p.operations(ranks)
    memory, moved = p.states * p.n**2 * ranks, p.segments * p.n**2 * ranks * (ranks > 1)
    lines = [f"no chain of rank {', '.join(map(str, missing))}"] if missing else []
    lines += [
        f"at least {digits(work / 1e12)} x 10^12 operations in {seconds:.1f} s ({share:.3f} of the "
        f"chain's, {digits(work / seconds / 1e12)} TOPS)",
        f"memory of {digits(memory / 1e9)} GB held, unless more work was done (see "
        "docs/challenge.md)",
        f"{digits(moved / 1e9)} GB exchanged between {counted(ranks, 'chain')}",
        f"a machine that did less is missed with a chance below {CERTAIN:g}",
    ]
    if peak_tops:
        needed = math.ceil(work / seconds / 1e12 / peak_tops)
        lines.append(
            f"at a peak of {digits(peak_tops)} TOPS that needs at least {counted(needed, 'GPU')}"
        )
    lines.append("not proven: which chips did it, that they stay, or where they stand")
    of = f" FOR {ranks} OF {p.ranks} CHAINS" if missing else ""
    return Finding(f"PROVEN{of}", lines)


def proven_share(parameters: Parameters) -> float:
    """Return the share of the work that was done, but for a chance of CERTAIN.

    A false unit saves its own steps, and at the most the product after them.
    """
    false: float = 1 - CERTAIN ** (1 / parameters.openings)
    return max(0.0, 1 - false * (parameters.steps + 1) / parameters.steps)


# --- of a run


def of_run(directory: RunDirectory) -> Finding | None:
    """Return what a run's messages prove, None where it was given no challenge.

    Whatever the files hold: what cannot be found again is not proven.
    """
    if not any(map(os.path.lexists, (directory.challenge, directory.proof))):
        return None
    try:
        return _of_run(directory)
    except (OSError, RecordError, EvidenceError) as error:
        return Finding(f"NOT PROVEN: {inert(str(error))}", [NOTHING])


NOTHING = "what was not verified proves nothing"


def _of_run(directory: RunDirectory) -> Finding:
    given, committed = answered(directory)
    name = f"challenge {given.digest}"
    if committed is None:
        return Finding("NOT ANSWERED", [name, NOTHING])
    if not os.path.lexists(directory.proof):
        chains = f"{len(committed.ranks)} of {counted(given.parameters.ranks, 'chain')} committed"
        return Finding("ANSWERED, NOT VERIFIED", [name, chains, NOTHING])
    texts = read_texts(directory.proof, below=directory.root)
    if of_texts(texts) != (given, committed):
        raise EvidenceError("proof/ is not of the challenge that this run answered")
    p = given.parameters
    if p.openings * p.steps * p.n**2 > MOST_PRODUCTS:
        raise EvidenceError("too large for the pages of a run: see `challenge verify`")
    found = finding_of(texts, seconds_of(directory.proof, below=directory.root))
    digests = {
        f"{directory.proof.name}/{name}": hashlib.sha256(text).hexdigest()
        for name, text in zip(TEXTS, texts, strict=True)
    }
    return Finding(found.head, [*found.lines, CUSTOMERS_WORD], digests)


CUSTOMERS_WORD = (
    "challenge and instants are the word of the customer who attached them, for others as good as "
    "the customer's signature"
)


def answered(directory: RunDirectory) -> tuple[Challenge, Commitment | None]:
    """Return the challenge that a run was given, and its commitment if it made one."""
    folder, root = directory.challenge, directory.root
    text = read_bytes(folder / messages.CHALLENGE, below=root, bound=SMALL)
    challenge = messages.challenge_of(text)
    path = folder / messages.COMMITMENT
    if not os.path.lexists(path):
        return challenge, None
    text = read_bytes(path, below=root, bound=SMALL)
    return challenge, messages.commitment_of(text, challenge)
