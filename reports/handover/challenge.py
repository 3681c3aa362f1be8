"""`python -m reports challenge new | answer | open | verify`: work that a supplier cannot fake.

The protocol, and what it proves, is docs/challenge.md. A customer's folder holds the messages and
the two instants that count; one challenge is opened once.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
import time
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
    Parameters,
)
from fixtures.errors import EvidenceError
from fixtures.records.files import in_real_folder, replace_file, write_json
from fixtures.records.foreign_files import read_bytes
from fixtures.records.run_directory import RunDirectory
from fixtures.wording import counted
from reports.evidence import proof
from reports.evidence.run_files import CommandError

NOT_PROVEN = 1


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
    verify_.add_argument(
        "--run", type=Path, metavar="RUN", help="attach it to the run that answered, and its pages"
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
    return verify(folder, options.response, options.peak_tops, options.run)


# --- the customer


def new(folder: Path, parameters: Parameters) -> int:
    """Make a challenge; the first instant is taken before it can be read."""
    if (folder / CHALLENGE).exists():
        raise CommandError(f"{folder} has a challenge already: give another folder")
    fields = messages.challenge_fields(parameters, secrets.token_bytes(32))
    write_json(folder / proof.CUSTOMER, {"disclosed": time.time()})
    write_json(folder / CHALLENGE, fields)
    print(f"send {folder / CHALLENGE}; then: challenge open {folder} COMMITMENT")
    return 0


def open_units(folder: Path, path: Path) -> int:
    """Take a commitment, with the second instant, and draw what to open: once."""
    challenge = messages.read_challenge(folder / CHALLENGE)
    own = proof.instants(folder)
    if "received" in own or (folder / OPENING).exists():
        raise EvidenceError(
            f"{folder} was opened already: who sees several draws can choose; make a new challenge"
        )
    commitment = messages.read_commitment(path, challenge)
    received = time.time()
    write_json(folder / proof.CUSTOMER, own | {"received": received})
    write_json(folder / COMMITMENT, messages.commitment_fields(commitment))
    opening = messages.Opening(challenge.digest, commitment.root, secrets.token_bytes(32))
    write_json(folder / OPENING, messages.opening_fields(opening))
    print(f"the commitment came {received - own['disclosed']:.1f} s after the nonce was disclosed")
    print(f"send {folder / OPENING}; then: challenge verify {folder} RESPONSE")
    return 0


def verify(folder: Path, path: Path, peak_tops: float | None, run: Path | None) -> int:
    """Check an answer by both verifiers, print what it proves, and attach it to the run."""
    seconds = proof.seconds_of(folder)
    texts = proof.read_texts(folder, path)
    found = proof.finding_of(texts, seconds, peak_tops)
    print("\n".join((found.head, *found.lines)))
    if run is not None:
        attach(RunDirectory(run.resolve()), folder, texts)
    return 0 if found.proven else NOT_PROVEN


def attach(run: RunDirectory, folder: Path, texts: list[bytes]) -> None:
    """Put messages and instants of the customer into a run; EvidenceError unless it answered."""
    if proof.of_texts(texts) != proof.answered(run):
        raise EvidenceError(f"{run.root} did not answer this challenge: see its folder challenge/")
    own = read_bytes(folder / proof.CUSTOMER, bound=SMALL)
    for name, text in zip((*proof.TEXTS, proof.CUSTOMER), (*texts, own), strict=True):
        replace_file(run.proof / name, (text,), root=run.root)
    print(f"attached to {run.root}; then: python -m reports render {shlex.quote(str(run.root))}")


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
