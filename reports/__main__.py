"""Pages and tables of runs: `python -m reports COMMAND RUN`.

render, judge, verify and calibrate start `pytest --cluster replay --from RUN` in a process of its
own: the acceptance tests themselves judge the records, so there is one way to a verdict, not two.
"""

# Length: one command line, whose commands are a table and a function each

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fixtures.conclusion.run_verdict import judged_of
from fixtures.errors import AcceptanceError, EvidenceError
from fixtures.paths import CHECKOUT, RUNS, THRESHOLDS, commit
from fixtures.records import verdict_file
from fixtures.records.files import RecordError, in_real_folder, read_json, replace_file
from fixtures.records.inert import inert_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.suggestions import ArgumentParser
from fixtures.thresholds import loader
from reports import (
    certificate,
    compare,
    dossier,
    energy,
    export,
    github,
    join,
    limits,
    patrol,
    predict,
    rejudge,
    signature,
    statement,
    verify,
    watch,
)
from reports.artefacts import CERTIFIED_ORIGINS, Artefacts
from reports.differences import Rejudged, differences
from reports.run_files import (
    BROKEN,
    INCOMPLETE,
    USAGE,
    CommandError,
    is_of_schema_1,
    limits_file,
    read_run,
    read_verdict,
    require_same_limits,
)
from reports.tables import recorded_table, records_of, table

PROPOSAL = "proposal.yaml"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status, which for render and judge is the verdict's."""
    parser: argparse.ArgumentParser = ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    render_ = commands.add_parser("render", help="write report, JUnit and CSV into RUN again")
    judge_ = commands.add_parser("judge", help="judge RUN by other limits, in a new run directory")
    tables_ = commands.add_parser("tables", help="print RUN's figures in the form of other tools")
    for command in (render_, judge_, tables_):
        command.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    judge_.add_argument(
        "--thresholds", type=Path, required=True, metavar="T", help="the limits to judge by"
    )
    judge_.add_argument("--run-dir", type=Path, metavar="DIR", help="where to write")
    sign_ = commands.add_parser("sign", help="verify RUN, then sign its certificate by an SSH key")
    sign_.add_argument("--key", type=Path, required=True, help="private key, or the public one")
    sign_.add_argument(
        "--dsse", action="store_true", help="sign the in-toto statement too, by DSSE"
    )
    verify_ = commands.add_parser("verify", help="check evidence, verdict, certificate, signature")
    verify_.add_argument("--allowed-signers", type=Path, metavar="FILE", help="see ssh-keygen(1)")
    verify_.add_argument(
        "--dsse-key", type=Path, metavar="FILE", help="public key of the statement"
    )
    export_ = commands.add_parser("export", help="write RUN's verdicts for other tools")
    kinds = export_.add_mutually_exclusive_group(required=True)
    for name in export.FORMATS:
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=name)
    export_.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    energy_ = commands.add_parser("energy", help="cost of RUN's trainings: tokens, PFLOP, joules")
    energy_.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    rejudge_ = commands.add_parser("rejudge", help="judge RUN again by an independent second judge")
    for command in (sign_, verify_, export_, rejudge_):
        command.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    compare_ = commands.add_parser("compare", help="two runs side by side, what changed first")
    for name in ("run", "other"):
        compare_.add_argument(name, type=Path, metavar="RUN", help="a run directory")
    compare_.add_argument(
        "--thresholds", type=Path, metavar="T", help="for the spread between runs"
    )
    compare_.add_argument("--all", action="store_true", help="also unchanged values")
    watch.add_to(commands)
    limits.add_to(commands)
    join.add_to(commands)
    patrol.add_to(commands)
    predict.add_to(commands)
    summary_ = github.add_to(commands)
    dossier_ = dossier.add_to(commands)
    for command in (render_, sign_, verify_, export_, rejudge_, dossier_, summary_):
        command.add_argument(
            "--thresholds", type=Path, metavar="T",
            help="the limits of that run, if it does not use the shipped file",
        )  # fmt: skip
    calibrate_ = commands.add_parser("calibrate", help="propose limits from runs of one fleet")
    calibrate_.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    calibrate_.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: standard output)"
    )
    options = parser.parse_args(argv)
    try:
        return _carry_out(options)
    except CommandError as error:
        print(f"reports: {inert_lines(str(error))}", file=sys.stderr)
        return error.status
    except (AcceptanceError, RecordError, OSError) as error:
        print(f"reports: {inert_lines(str(error))}", file=sys.stderr)
        return USAGE


def _carry_out(options: argparse.Namespace) -> int:
    if options.command == "watch":
        if (options.run / "run.json").exists():
            read_run(options.run.resolve())
        return watch.main(options)
    if options.command == "limits":
        return limits.main(options)
    if options.command == "calibrate":
        return calibrate([run.resolve() for run in options.runs], options.out)
    if options.command == "patrol":
        return patrol.main(options)
    if options.command == "join":
        return join.main(options, check_run)
    if options.command == "sign":
        signature.require_ssh_keygen()
    source = options.run.resolve()
    if join.is_joined(source):
        return join.verify_or_sign(source, options, check_run)
    if options.command == "summary":
        return summary(source, options.thresholds)
    if options.command == "verify" and is_of_schema_1(source):
        signers, key = options.allowed_signers, options.dsse_key
        return verify.show(source, verify.check_hashes(RunDirectory(source), signers, dsse_key=key))
    run = read_run(source)
    if options.command == "render":
        return render(source, run, options.thresholds)
    if options.command == "predict":
        return predict.show(source, options)
    if options.command == "energy":
        return energy.show(source)
    if options.command == "tables":
        return tables(source)
    if options.command == "sign":
        return sign(source, run, options)
    if options.command == "verify":
        return check(source, run, options)
    if options.command == "rejudge":
        read_verdict(source)
        return rejudge.main(source, run, limits_file(run, options.thresholds))
    if options.command == "export":
        return export.write(
            confirmed_verdict(source, run, options.thresholds), options.kind, options.out
        )
    if options.command == "dossier":
        thresholds = loader.load_with_contract(
            limits_file(run, options.thresholds) or THRESHOLDS, run.get("contract")
        )
        return dossier.write(
            source, confirmed_verdict(source, run, options.thresholds), thresholds, options
        )
    if options.command == "compare":
        other = options.other.resolve()
        for each in (source, other):
            read_run(each)
            read_verdict(each)
        file = options.thresholds or CHECKOUT / "thresholds.yaml"
        return compare.show(source, other, file, include_unchanged=options.all)
    return judge(source, thresholds=options.thresholds, into=options.run_dir)


def tables(source: Path) -> int:
    """Print collectives in the form of nccl-tests, memory and copies in that of nvbandwidth.

    Then, for a run that has ended, the values recorded without a limit.
    """
    directory = RunDirectory(source)
    texts = [table(record) for record in records_of(directory)]
    if directory.verdict.exists():
        texts.append(recorded_table(read_verdict(source)))
    print("\n\n".join(filter(None, texts)) or "no collectives, memory or copies in this run")
    return 0


def render(source: Path, run: dict[str, Any], thresholds: Path | None = None) -> int:
    """Make all pages and lists again; for a run that was killed also its verdict.

    A run that ended has its own verdict: EvidenceError where its records give another one.
    """
    directory = RunDirectory(source)
    rejudged = _rejudge(source, run, thresholds)
    if run.get("ended") and directory.verdict.exists():
        verdict = read_verdict(source)
        if wrong := differences(directory, run, verdict, rejudged.verdict).wrong:
            raise EvidenceError(f"no report is made of {source}: {_first(wrong, source)}")
    else:
        verdict = {k: v for k, v in rejudged.verdict.items() if k != "replay"} | {
            "run_id": run["id"]
        }
        verdict_file.write_verdict(directory, verdict)
        if not (run.get("ended") and directory.manifest.exists()):
            directory.write_manifest()
    artefacts = Artefacts(directory, verdict, limits_file(run, thresholds))
    for name in artefacts.names:
        artefacts.write(name)
    return _print_verdict(verdict, source / "report.html")


def confirmed_verdict(
    source: Path, run: dict[str, Any], thresholds: Path | None = None
) -> dict[str, Any]:
    """Return verdict.json; EvidenceError where evidence, manifest and it do not agree."""
    verdict = read_verdict(source)
    found = verify.check_verdict(RunDirectory(source), lambda: _rejudge(source, run, thresholds))
    if found.wrong:
        raise EvidenceError(
            f"the verdict of {source} is not confirmed: {_first(found.wrong, source)}"
        )
    return verdict


def summary(source: Path, thresholds: Path | None) -> int:
    """Print what GitHub Actions shows; 0 for every verdict, 2 where there is none."""
    if not RunDirectory(source).verdict.exists():
        return github.print_error("INCOMPLETE", f"{source} has no verdict", INCOMPLETE)
    try:
        verdict = confirmed_verdict(source, read_run(source), thresholds)
    except CommandError as error:
        return github.print_error("NO VERDICT", str(error), error.status)
    except AcceptanceError as error:
        return github.print_error("NO VERDICT", str(error), USAGE)
    return github.show(verdict)


def sign(source: Path, run: dict[str, Any], options: argparse.Namespace) -> int:
    """Sign the certificate with ssh-keygen, which decides which keys are trusted on verify.

    With --dsse the in-toto statement too, with the same key.

    EvidenceError unless verify finds nothing wrong: a signature states that the signer checked
    this.
    """
    directory = RunDirectory(source)
    if not (source / certificate.NAME).exists():
        remedy = f"`python -m reports render {shlex.quote(str(source))}`"
        if run.get("origin") not in CERTIFIED_ORIGINS:
            remedy = "only runs of the suite are signed; this is a replay, or was started by hand"
        raise CommandError(f"{source} has no {certificate.NAME}: {remedy}")
    found = verify.check(
        directory, lambda: _rejudge(source, run, options.thresholds), None,
        thresholds=limits_file(run, options.thresholds), with_signature=False,
    )  # fmt: skip
    if found.wrong:
        raise EvidenceError(f"{source} is not signed: {_first(found.wrong, source)}")
    for line in found.unchecked:
        print(f"not checked: {line}")
    key = options.key
    try:
        envelope = statement.sign(directory, key) if options.dsse else None
        path = signature.sign(directory, key)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", None) or str(error)
        raise CommandError(f"ssh-keygen -Y sign with {key}: {message.strip()}") from None
    verdict = read_verdict(source)["verdict"]
    if verdict != "ACCEPTED":
        print(f"the signed certificate says NOT ACCEPTED: {verdict}")
    print(f"signature {path}")
    if envelope is not None:
        print(f"envelope {envelope}")
    return 0


def check_run(source: Path) -> verify.Findings:
    """Check a run directory by the limits that it names."""
    run = read_run(source)
    return verify.check(
        RunDirectory(source), lambda: _rejudge(source, run, None), None,
        thresholds=limits_file(run, None),
    )  # fmt: skip


def check(source: Path, run: dict[str, Any], options: argparse.Namespace) -> int:
    """Print every difference found by verify.check; 0 only where there is none."""
    found = verify.check(
        RunDirectory(source), lambda: _rejudge(source, run, options.thresholds),
        options.allowed_signers, thresholds=limits_file(run, options.thresholds),
        dsse_key=options.dsse_key,
    )  # fmt: skip
    current = commit() or "not in git"
    if run.get("commit") and run["commit"] != current:
        print(f"note   the run was made by suite {run['commit']}, this one is {current}")
    return verify.show(source, found)


def judge(source: Path, *, thresholds: Path, into: Path | None) -> int:
    """Replay a run by other limits into a new run directory."""
    if not thresholds.is_file():
        raise CommandError(f"--thresholds {thresholds}: no such file")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    replay_dir = into or RUNS / f"{source.name}-judged-{stamp}-{secrets.token_hex(2)}"
    replay_dir = replay_dir.absolute()
    verdict = _replay(source, replay_dir, f"--thresholds={thresholds.resolve()}")
    return _print_verdict(verdict, replay_dir / "report.html")


def calibrate(runs: Sequence[Path], out: Path | None) -> int:
    """Propose limits from runs: replay the newest one, with the others for comparison.

    Writes the proposal to `out`, and what it says first to standard output; without `out` all of it
    goes there, and no file is made.
    """
    started = {run: str(read_run(run).get("created")) for run in runs}
    newest = max(started, key=lambda run: started[run])
    others = [f"--calibrate-with={run}" for run in started if run != newest]
    with tempfile.TemporaryDirectory(prefix="acceptance-calibrate-") as temporary:
        replay_dir = Path(temporary) / "run"
        # Always given, because without it other runs beside the newest would be searched.
        _replay(newest, replay_dir, "--calibrate", *(others or [f"--calibrate-with={newest}"]))
        if not (replay_dir / PROPOSAL).exists():
            raise CommandError("the replay left no proposal", BROKEN)
        text = (replay_dir / PROPOSAL).read_text(encoding="utf-8")
    if out is None:
        print(text, end="")
    else:
        replace_file(in_real_folder(out), (text.encode(),), durable=False)
        print(f"proposal {out}")
        for line in text.split("#\n")[0].splitlines()[1:]:
            print(f"  {line.removeprefix('# ')}")
    return 0 if yaml.safe_load(text)["proposal"]["limits"] else INCOMPLETE


def _first(wrong: Sequence[str], source: Path) -> str:
    """Return the first finding of verify, and the command that prints all."""
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more}; see `python -m reports verify {shlex.quote(str(source))}`"


def _rejudge(source: Path, run: dict[str, Any], thresholds: Path | None) -> Rejudged:
    """Judge the records of a run again, by its own limits."""
    file = limits_file(run, thresholds)
    options = [f"--thresholds={file}"] if file else []
    with tempfile.TemporaryDirectory(prefix="acceptance-verify-") as temporary:
        replay_dir = RunDirectory(Path(temporary) / "run")
        verdict = _replay(source, replay_dir.root, *options, "-p", "no:html")
        require_same_limits(run, read_json(replay_dir.run_json))
        limits_csv = replay_dir.limits.read_bytes() if replay_dir.limits.exists() else b""
        return Rejudged(verdict, limits_csv)


def _replay(source: Path, run_dir: Path, *options: str) -> dict[str, Any]:
    """Run the acceptance tests on the records of a run; return verdict.json of the replay."""
    command = [
        sys.executable, "-m", "pytest", "--cluster=replay", f"--from={source}",
        f"--run-dir={run_dir}", "-p", "no:cacheprovider", "-q", *options,
    ]  # fmt: skip
    # A -k or -m in PYTEST_ADDOPTS of the caller would silently judge only a part.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    verdict_json = RunDirectory(run_dir).verdict
    if done.returncode in (0, 1, 2) and verdict_json.exists():
        verdict: dict[str, Any] = verdict_file.read_verdict(RunDirectory(run_dir))
        return verdict
    output = (done.stdout + done.stderr).strip()
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    # 0, 1 and 2 are exit statuses of verdicts, and there is none.
    status = done.returncode if done.returncode in (USAGE, 5) else BROKEN
    raise CommandError("\n".join(errors).replace("ERROR: ", "") or output, status)


def _print_verdict(verdict: dict[str, Any], report: Path) -> int:
    """Print the verdict and the path of the report; return the verdict's exit status."""
    judged, to_judge = judged_of(verdict["counts"])
    print(f"{verdict['verdict']}: {judged} of {to_judge} judged")
    for reason in verdict.get("reasons", []):
        print(f"  {reason}")
    print(f"report   {report}")
    return int(verdict["exit_status"])


if __name__ == "__main__":
    sys.exit(main())
