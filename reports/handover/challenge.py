"""`python -m reports challenge new | answer | open | verify`: work that a supplier cannot fake.

The protocol, and what it proves, is docs/challenge.md. A customer's folder holds the messages and
the two instants that count; one challenge is opened once.
"""

from __future__ import annotations

import argparse
import math
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixtures.challenge import messages
from fixtures.challenge.messages import (
    CHALLENGE,
    COMMITMENT,
    FULL,
    OPENING,
    RANGES,
    SMALL,
    Challenge,
    Commitment,
    Parameters,
)
from fixtures.errors import EvidenceError
from fixtures.records.files import in_real_folder, replace_file, write_json
from fixtures.records.foreign_files import RecordError, parse_json, read_bytes
from fixtures.wording import counted
from reports import second_verifier
from reports.evidence import challenge as first_verifier
from reports.evidence.run_files import CommandError

CUSTOMER = "customer.json"
NOT_PROVEN = 1
CERTAIN = 1e-4
"""The chance that a machine which did less is missed."""
LEAST_SHARE = 0.9
"""Of the work, that has to be proved with that chance: what saves a tenth is found."""

Json = Any


def add_to(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("challenge", help="prove work and memory to a customer")
    steps = parser.add_subparsers(dest="step", required=True, metavar="STEP")
    new_ = steps.add_parser("new", help="customer: make a challenge in DIR")
    for name, (least, most) in RANGES.items():
        new_.add_argument(
            f"--{name.replace('_', '-')}", type=int, metavar="N", default=getattr(FULL, name),
            help=f"{least} to {most} (default: {getattr(FULL, name)})",
        )  # fmt: skip
    answer_ = steps.add_parser("answer", help="supplier: compute the chains, or open them")
    answer_.add_argument("challenge", type=Path, metavar="CHALLENGE")
    answer_.add_argument("--opening", type=Path, metavar="FILE", help="what to open")
    answer_.add_argument("--out", type=Path, required=True, metavar="FILE", help="where to write")
    answer_.add_argument(
        "--work", type=Path, metavar="FOLDER", help="keep states; go on from there"
    )
    answer_.add_argument(
        "--without-rank", type=int, action="append", default=[], metavar="K",
        help="a rank that is dead; may be repeated",
    )  # fmt: skip
    answer_.add_argument(
        "--devices",
        nargs="+",
        default=["cpu"],
        metavar="DEVICE",
        help="of torch, taken in turn: cuda:0 cuda:1 ... (default: cpu)",
    )
    open_ = steps.add_parser("open", help="customer: take the commitment, draw what to open")
    verify_ = steps.add_parser("verify", help="customer: check the opened rows")
    for step in (new_, open_, verify_):
        step.add_argument("folder", type=Path, metavar="DIR", help="the customer's folder")
    open_.add_argument("commitment", type=Path, metavar="COMMITMENT")
    verify_.add_argument("response", type=Path, metavar="RESPONSE")
    verify_.add_argument(
        "--peak-tops",
        type=float,
        metavar="P",
        help="the datasheet's dense int8 peak of the ordered GPU: how many that needs at least",
    )


def main(options: argparse.Namespace) -> int:
    """Carry out a step, and return its exit status."""
    if options.step == "answer":
        return answer(options)
    folder = options.folder.absolute()
    if options.step == "new":
        parameters = Parameters(**{name: getattr(options, name) for name in RANGES})
        return new(folder, parameters)
    if options.step == "open":
        return open_units(folder, options.commitment)
    return verify(folder, options.response, options.peak_tops)


# --- the customer


def new(folder: Path, parameters: Parameters) -> int:
    """Make a challenge; the first instant is taken before it can be read."""
    if (folder / CHALLENGE).exists():
        raise CommandError(f"{folder} has a challenge already: give another folder")
    fields = messages.challenge_fields(parameters, secrets.token_bytes(32))
    write_json(folder / CUSTOMER, {"disclosed": time.time()})
    write_json(folder / CHALLENGE, fields)
    print(f"send {folder / CHALLENGE}; then: challenge open {folder} COMMITMENT")
    return 0


def open_units(folder: Path, path: Path) -> int:
    """Take a commitment, with the second instant, and draw what to open: once."""
    challenge = messages.read_challenge(folder / CHALLENGE)
    own = _own(folder)
    if "received" in own or (folder / OPENING).exists():
        raise EvidenceError(
            f"{folder} was opened already: who sees several draws can choose; make a new challenge"
        )
    commitment = messages.read_commitment(path, challenge)
    received = time.time()
    write_json(folder / CUSTOMER, own | {"received": received})
    write_json(folder / COMMITMENT, messages.commitment_fields(commitment))
    opening = messages.Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    write_json(folder / OPENING, messages.opening_fields(opening))
    print(f"the commitment came {received - own['disclosed']:.1f} s after the nonce was disclosed")
    print(f"send {folder / OPENING}; then: challenge verify {folder} RESPONSE")
    return 0


def _own(folder: Path) -> dict[str, float]:
    """Return the instants that this customer took."""
    path = folder / CUSTOMER
    data = parse_json(path, read_bytes(path, bound=SMALL), bound=SMALL)
    if not isinstance(data, Mapping) or not all(
        isinstance(value, float) and math.isfinite(value) for value in data.values()
    ):
        raise RecordError(f"{CUSTOMER}: expected the instants of `new` and `open`")
    if "disclosed" not in data or data.keys() - {"disclosed", "received"}:
        raise RecordError(f"{CUSTOMER}: expected disclosed and received")
    return dict(data)


def verify(folder: Path, path: Path, peak_tops: float | None) -> int:
    """Check an answer by both verifiers, and print what it proves."""
    challenge = messages.read_challenge(folder / CHALLENGE)
    own = _own(folder)
    if "received" not in own:
        raise EvidenceError(f"{folder} was not opened: see `challenge open`")
    commitment = messages.read_commitment(folder / COMMITMENT, challenge)
    seconds = own["received"] - own["disclosed"]
    reason = refusal(folder, challenge, commitment, path, seconds)
    if reason is not None:
        print(f"NOT PROVEN: {reason}")
        return NOT_PROVEN
    for line in lines_of(challenge, commitment, seconds, peak_tops):
        print(line)
    missing = sorted({*range(challenge.parameters.ranks)} - {*commitment.ranks})
    return NOT_PROVEN if missing else 0


def refusal(
    folder: Path, challenge: Challenge, commitment: Commitment, path: Path, seconds: float
) -> str | None:
    """Return why an answer proves nothing, or None; both verifiers are asked."""
    p = challenge.parameters
    if (why := late(p, seconds)) is not None:
        return why
    if (share := proven_share(p)) < LEAST_SHARE:
        return (
            f"openings: {p.openings} prove {share:.3f} of the work, expected {LEAST_SHARE}: make a "
            "challenge with more"
        )
    opening = messages.read_opening(folder / OPENING, challenge)
    content = read_bytes(path, bound=messages.ROWS)
    found = first_verifier.refusal_of(challenge, commitment, opening, content)
    asked, committed, opened = (
        read_bytes(folder / name, bound=SMALL) for name in (CHALLENGE, COMMITMENT, OPENING)
    )
    second = second_verifier.why_not(asked, committed, opened, content)
    if (found is None) != (second is None):
        return (
            "the two verifiers differ, an error of the suite: the first says "
            f"{found.why if found else 'proven'}, the second {second or 'proven'}"
        )
    return found.why if found else None


def late(parameters: Parameters, seconds: float) -> str | None:
    """Return that an answer took too long between the customer's two instants, or None."""
    if 0 < seconds <= parameters.deadline_s:
        return None
    return f"late: {seconds:.1f} s, expected at most {parameters.deadline_s} s"


def lines_of(
    challenge: Challenge, commitment: Commitment, seconds: float, peak_tops: float | None
) -> list[str]:
    """Return what an answer proves, in words and numbers."""
    p, ranks = challenge.parameters, len(commitment.ranks)
    missing = sorted({*range(p.ranks)} - {*commitment.ranks})
    of = f" FOR {ranks} OF {p.ranks} CHAINS" if missing else ""
    share = proven_share(p)
    work = share * p.operations(ranks)
    memory, moved = p.states * p.n**2 * ranks, p.segments * p.n**2 * ranks * (ranks > 1)
    lines = [f"PROVEN{of}"]
    if missing:
        lines.append(f"no chain of rank {', '.join(map(str, missing))}")
    lines += [
        f"at least {work:.3g} operations in {seconds:.1f} s ({share:.3f} of the chain's, "
        f"{work / seconds / 1e12:.4g} TOPS)",
        f"memory of {memory / 1e9:.4g} GB held, unless more work was done (see docs/challenge.md)",
        f"{moved / 1e9:.4g} GB exchanged between {counted(ranks, 'chain')}",
        f"a machine that did less is missed with a chance below {CERTAIN:g}",
    ]
    if peak_tops:
        needed = math.ceil(work / seconds / 1e12 / peak_tops)
        lines.append(
            f"at a peak of {peak_tops:g} TOPS that needs at least {counted(needed, 'GPU')}"
        )
    lines.append("not proven: which chips did it, that they stay, or where they stand")
    return lines


def proven_share(parameters: Parameters) -> float:
    """Return the share of the work that was done, but for a chance of CERTAIN.

    A false unit saves its own steps, and at the most the product after them.
    """
    false: float = 1 - CERTAIN ** (1 / parameters.openings)
    return max(0.0, 1 - false * (parameters.steps + 1) / parameters.steps)


# --- the supplier


def answer(options: argparse.Namespace) -> int:
    """Compute the chains of a challenge; write the commitment, or the rows of an opening."""
    from fixtures.challenge.answer import Answer  # torch is not needed to verify

    challenge = messages.read_challenge(options.challenge)
    ranks = [k for k in range(challenge.parameters.ranks) if k not in options.without_rank]
    if not ranks:
        raise CommandError("--without-rank leaves no rank")
    opening = options.opening and messages.read_opening(options.opening, challenge)
    found = Answer(challenge, ranks, devices=options.devices, work=options.work)
    commitment = found.compute()
    out = in_real_folder(options.out)
    if opening is None:
        write_json(out, messages.commitment_fields(commitment))
    else:
        replace_file(out, found.response(opening))
    print(f"wrote {out}: {counted(len(ranks), 'chain')} of {challenge.parameters.ranks}")
    return 0
