"""Pages and tables of runs: `python -m reports COMMAND RUN`.

render, judge, verify and calibrate start `pytest --cluster replay --from RUN` in a process of its
own: the acceptance tests themselves judge the records, so there is one way to a verdict, not two.
"""

# Length: one command line, whose commands are a table and a function each

from __future__ import annotations

import argparse
import functools
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fixtures.conclusion.run_verdict import judged_of
from fixtures.errors import AcceptanceError, EvidenceError
from fixtures.paths import CHECKOUT, RUNS, THRESHOLDS, commit
from fixtures.records import verdict_file
from fixtures.records.files import RecordError, in_real_folder, read_json, replace_file
from fixtures.records.foreign_files import read_bytes, read_text
from fixtures.records.inert import inert, inert_lines
from fixtures.records.run_directory import RunDirectory
from fixtures.suggestions import ArgumentParser
from fixtures.thresholds import loader
from fixtures.thresholds.order import order_of
from fixtures.thresholds.published import OWN_LIMITS
from reports.console import watch
from reports.evidence import rejudge, statement, third_parties
from reports.evidence.differences import Rejudged, differences, is_of_this_version
from reports.evidence.findings import Findings, show
from reports.evidence.run_files import (
    BROKEN,
    INCOMPLETE,
    USAGE,
    CommandError,
    agreed_limits,
    is_of_schema_1,
    limits_file,
    read_run,
    read_verdict,
    require_same_limits,
)
from reports.exports import compare, energy, export, github, limits, predict
from reports.exports.tables import recorded_table, records_of, table
from reports.handover import (
    challenge,
    join,
    own_limits,
    patrol,
    ready,
    reference,
    signature,
    verify,
)
from reports.pages import certificate, dossier
from reports.pages.artefacts import CERTIFIED_ORIGINS, Artefacts

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
    sign_ = commands.add_parser("sign", help="verify RUN, then sign all its files by an SSH key")
    sign_.add_argument("--key", type=Path, required=True, help="private key, or the public one")
    sign_.add_argument("--expect", metavar="WORD", help="sign this verdict and no other")
    sign_.add_argument("--dsse", action="store_true", help="sign by DSSE too")
    verify_ = commands.add_parser("verify", help="check signatures, files, verdict and pages")
    verify_.add_argument(
        "--signed-by", action="append", default=[], metavar="WHO",
        help="who has to have signed, by the name in --allowed-signers",
    )  # fmt: skip
    verify_.add_argument("--dsse-key", type=Path, metavar="FILE", help="public key of a signer")
    export_ = commands.add_parser("export", help="write RUN's verdicts for other tools")
    kinds = export_.add_mutually_exclusive_group(required=True)
    for name in export.FORMATS:
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=name)
    export_.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    audiences = export_.add_mutually_exclusive_group()
    for audience in (third_parties.CUSTOMER, third_parties.VENDOR):
        audiences.add_argument(
            f"--for-{audience}", dest="audience", action="store_const", const=audience,
            help="without user names, homes and addresses; lists what was removed",
        )  # fmt: skip
    export_.add_argument(
        "--without-host-names", action="store_true", help="with --for-...: node-1, node-2, ..."
    )
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
    join_ = join.add_to(commands)
    ready_ = ready.add_to(commands)
    for command in (sign_, verify_, join_, ready_):
        command.add_argument(
            "--allowed-signers", type=Path, metavar="FILE", help="known keys: see ssh-keygen(1)"
        )
    patrol.add_to(commands)
    challenge.add_to(commands)
    predict.add_to(commands)
    summary_ = github.add_to(commands)
    dossier_ = dossier.add_to(commands)
    for command in (
        render_, sign_, verify_, join_, ready_, export_, rejudge_, dossier_, summary_,
    ):  # fmt: skip
        command.add_argument(
            "--thresholds", type=Path, metavar="T",
            help="the limits of that run, if it does not use the shipped file",
        )  # fmt: skip
    calibrate_ = commands.add_parser("calibrate", help="propose limits from runs of one fleet")
    calibrate_.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    calibrate_.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write (default: standard output)"
    )
    calibrate_.add_argument(
        "--replace", type=Path, metavar="FILE",
        help="write a file of limits in which this fleet's own replace published figures",
    )  # fmt: skip
    options = parser.parse_args(argv)
    try:
        return _carry_out(options)
    except CommandError as error:
        print(f"reports: {inert_lines(str(error))}", file=sys.stderr)
        return error.status
    except (AcceptanceError, RecordError, OSError) as error:
        print(f"reports: {inert_lines(str(error))}", file=sys.stderr)
        return USAGE
    except Exception as error:
        # Last of all: whatever a received directory holds, it is answered in one line.
        if sys.flags.dev_mode:
            raise
        name = getattr(options, "run", None) or "the run directory"
        print(
            f"reports {options.command}: {name} holds what no run has, or the suite has an error "
            f"(`python -X dev -m reports ...` shows where): {error!r:.300}", file=sys.stderr,
        )  # fmt: skip
        return BROKEN


def _carry_out(options: argparse.Namespace) -> int:
    if options.command == "watch":
        if (options.run / "run.json").exists():
            read_run(options.run.resolve())
        return watch.main(options)
    if options.command == "limits":
        return limits.main(options)
    if options.command == "calibrate":
        return calibrate([run.resolve() for run in options.runs], options.out, options.replace)
    if options.command == "patrol":
        return patrol.main(options, confirmer(options.thresholds))
    if options.command == "challenge":
        return challenge.main(options)
    if options.command == "join":
        return join.main(options, checker(options))
    if options.command == "ready":
        return ready.main(options, checker(options))
    if options.command == "sign":
        signature.require_ssh_keygen()
    source = options.run.resolve()
    if join.is_joined(source):
        if options.command not in ("verify", "sign"):
            raise CommandError(f"{source} joins several runs: give one of {source / join.UNITS}")
        demanded = options.signed_by if options.command == "verify" else ()
        found = join.check(source, checker(options), options.allowed_signers, demanded)
        return show(source, found) if options.command == "verify" else sign(source, found, options)
    if options.command == "summary":
        return summary(source, options.thresholds)
    if options.command == "verify" and is_of_schema_1(source):
        signers, key = options.allowed_signers, options.dsse_key
        return show(source, verify.check_hashes(RunDirectory(source), signers, dsse_key=key))
    run = read_run(source)
    if options.command == "render":
        return render(source, run, options.thresholds)
    if options.command == "predict":
        _print_remark(source)
        return predict.show(source, options)
    if options.command == "energy":
        return energy.show(source)
    if options.command == "tables":
        return tables(source)
    if options.command == "sign":
        return sign_run(source, run, options)
    if options.command == "verify":
        return check(source, run, options)
    if options.command == "rejudge":
        read_verdict(source)
        return rejudge.main(source, run, limits_file(run, options.thresholds))
    if options.command == "export":
        verdict = confirmed_verdict(source, run, options.thresholds)
        if options.audience is None:
            if options.without_host_names:
                raise CommandError("--without-host-names is for --for-customer and --for-vendor")
            return export.write(verdict, options.kind, options.out)
        cleaned = third_parties.Cleaned(
            options.audience, run, verdict["scope"].get("nodes") or (), source,
            without_host_names=options.without_host_names,
        )  # fmt: skip
        return export.write_for(cleaned, verdict, options.kind, options.out)
    if options.command == "dossier":
        file = limits_file(run, options.thresholds) or THRESHOLDS
        thresholds = order_of(loader.load(file), run).limits
        return dossier.write(
            source, confirmed_verdict(source, run, options.thresholds), thresholds, options
        )
    if options.command == "compare":
        other = options.other.resolve()
        for each in (source, other):
            read_run(each)
            read_verdict(each)
            _print_remark(each)
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
        if not is_of_this_version(run):  # its texts are compared with nothing
            verdict = _as_of_the_run(run, rejudged)
    else:
        verdict = _as_of_the_run(run, rejudged)
        verdict_file.write_verdict(directory, verdict)
        if not (run.get("ended") and directory.manifest.exists()):
            directory.write_manifest()
    artefacts = Artefacts(directory, verdict, limits_file(run, thresholds))
    for name in artefacts.names:
        artefacts.write(name)
    return _print_verdict(verdict, source / "report.html")


def confirmed_verdict(
    source: Path,
    run: dict[str, Any],
    thresholds: Path | None = None,
    rejudge: Callable[[], Rejudged] | None = None,
) -> dict[str, Any]:
    """Return verdict.json; EvidenceError where evidence, manifest and it do not agree.

    `rejudge`: returns what its records give by its own limits, where they are judged anyway.
    """
    verdict = read_verdict(source)
    judged = functools.cache(rejudge or (lambda: _rejudge(source, run, thresholds)))
    found = verify.check_verdict(RunDirectory(source), judged)
    if found.wrong:
        raise EvidenceError(
            f"the verdict of {source} is not confirmed: {_first(found.wrong, source)}"
        )
    return verdict if is_of_this_version(run) else _as_of_the_run(run, judged())


def _as_of_the_run(run: dict[str, Any], rejudged: Rejudged) -> dict[str, Any]:
    """Return what the records of a run give here, as the verdict of that run."""
    verdict = {k: v for k, v in rejudged.verdict.items() if k != "replay"}
    return verdict | {"run_id": run["id"]}


def confirmer(thresholds: Path | None = None) -> reference.Confirm:
    """Return what confirms the verdict of a run that a command rests on."""
    return lambda source: confirmed_verdict(source, read_run(source), thresholds)


def _print_remark(source: Path) -> None:
    """Say how a run ended whose figures are used; its verdict is confirmed first."""
    if said := reference.remark(source, confirmer()):
        print(said)


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


def sign_run(source: Path, run: dict[str, Any], options: argparse.Namespace) -> int:
    """Sign a run, if verify confirms it: a signature states that the signer has checked this."""
    if not (source / certificate.NAME).exists():
        remedy = f"`python -m reports render {shlex.quote(str(source))}`"
        if run.get("origin") not in CERTIFIED_ORIGINS:
            remedy = "only runs of the suite are signed; this is a replay, or was started by hand"
        raise CommandError(f"{source} has no {certificate.NAME}: {remedy}")
    return sign(source, checker(options)(source), options)


def sign(source: Path, found: Findings, options: argparse.Namespace) -> int:
    """Sign the statement that was checked, with ssh-keygen and, with --dsse, by DSSE too.

    EvidenceError unless verify confirms all but the keys of those who have signed it already.
    """
    if found.unconfirmed:
        raise EvidenceError(f"{source} is not signed: {_first(found.unconfirmed, source)}")
    if options.expect not in (None, found.word):
        raise EvidenceError(
            f"{source} is not signed: its verdict is {found.word}, expected {options.expect}"
        )
    for line in (*found.notes, *found.strangers, f"verdict   {found.word}"):
        print(inert(line))
    envelope = statement.sign(source, options.key, found.statement) if options.dsse else None
    path, key = signature.sign(source, options.key, found.statement)
    print(f"signature {path} by {key}")
    if envelope is not None:
        print(f"envelope  {envelope}")
    return 0


def checker(options: argparse.Namespace) -> Callable[..., Findings]:
    """Return what checks a run directory by the limits and keys that the user gives."""

    def check(source: Path, **more: Any) -> Findings:
        run = read_run(source)
        limits = agreed_limits(run, options.thresholds)
        return verify.check(
            RunDirectory(source), lambda: _rejudge(source, run, limits.file), limits,
            signers=options.allowed_signers, **more,
        )  # fmt: skip

    return check


def check(source: Path, run: dict[str, Any], options: argparse.Namespace) -> int:
    """Print what verify.check found; 0 only where everything is confirmed."""
    found = checker(options)(source, demanded=options.signed_by, dsse_key=options.dsse_key)
    current = commit() or "not in git"
    if run.get("commit") and run["commit"] != current:
        print(f"note   the run was made by suite {run['commit']}, this one is {current}")
    return show(source, found)


def judge(source: Path, *, thresholds: Path, into: Path | None) -> int:
    """Replay a run by other limits into a new run directory."""
    if not thresholds.is_file():
        raise CommandError(f"--thresholds {thresholds}: no such file")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    replay_dir = into or RUNS / f"{source.name}-judged-{stamp}-{secrets.token_hex(2)}"
    replay_dir = replay_dir.absolute()
    verdict = _replay(source, replay_dir, f"--thresholds={thresholds.resolve()}")
    return _print_verdict(verdict, replay_dir / "report.html")


def calibrate(runs: Sequence[Path], out: Path | None, replace: Path | None = None) -> int:
    """Propose limits from runs: replay the newest one, with the others for comparison.

    Writes the proposal to `out`, and what it says first to standard output; without `out` all of it
    goes there, and no file is made. `replace` takes the limits in place of published figures; 1
    where a published figure contradicts what was measured.
    """
    started = {run: str(read_run(run).get("created")) for run in runs}
    newest = max(started, key=lambda run: started[run])
    others = [f"--calibrate-with={run}" for run in started if run != newest]
    remarks = [reference.remark(run, confirmer()) for run in started if run != newest]
    with tempfile.TemporaryDirectory(prefix="acceptance-calibrate-") as temporary:
        replay_dir = Path(temporary) / "run"
        # Always given, because without it other runs beside the newest would be searched.
        given = others or [f"--calibrate-with={newest}"]
        verdict = _replay(newest, replay_dir, "--calibrate", *given)
        remarks.append(reference.remark(newest, _confirmed_by(verdict, RunDirectory(replay_dir))))
        if not (replay_dir / PROPOSAL).exists():
            raise CommandError("the replay left no proposal", BROKEN)
        text = read_text(replay_dir / PROPOSAL)
        own = replay_dir / OWN_LIMITS
        replacing = read_text(own) if replace and own.exists() else ""
    for said in filter(None, remarks):
        print(f"# {said}", file=sys.stderr)
    if out is None and replace is None:
        print(text, end="")
    elif out is not None:
        replace_file(in_real_folder(out), (text.encode(),), durable=False)
        print(f"proposal {out}")
        for line in text.split("#\n")[0].splitlines()[1:]:
            print(f"  {line.removeprefix('# ')}")
    if replace is not None:
        if not replacing:
            raise CommandError("no limit of these runs is a published figure: nothing to replace")
        used = limits_file(read_run(newest), None) or THRESHOLDS
        own_limits.write(replacing, used, in_real_folder(replace))
        print(f"limits {replace}")
        for line in own_limits.remarks(replacing):
            print(f"  {line}")
        if own_limits.contradicts(replacing):
            return 1
    return 0 if yaml.safe_load(text)["proposal"]["limits"] else INCOMPLETE


def _confirmed_by(verdict: dict[str, Any], replayed: RunDirectory) -> reference.Confirm:
    """Return what confirms a run by a replay that was made by the shipped limits, if they are its
    own; else it is judged again by those."""

    def confirm(source: Path) -> Mapping[str, Any]:
        run = read_run(source)
        same = limits_file(run, None) is None
        return confirmed_verdict(
            source, run, None, (lambda: _rejudged(run, verdict, replayed)) if same else None
        )

    return confirm


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
        return _rejudged(run, verdict, replay_dir)


def _rejudged(run: dict[str, Any], verdict: dict[str, Any], replayed: RunDirectory) -> Rejudged:
    """Return what a replay came to; CommandError where it was made by other limits."""
    require_same_limits(run, read_json(replayed.run_json))
    limits_csv = read_bytes(replayed.limits) if replayed.limits.exists() else b""
    return Rejudged(verdict, limits_csv)


def _replay(source: Path, run_dir: Path, *options: str) -> dict[str, Any]:
    """Run the acceptance tests on the records of a run; return verdict.json of the replay."""
    command = [
        sys.executable, "-m", "pytest", "--cluster=replay", f"--from={source}",
        f"--run-dir={run_dir}", "-p", "no:cacheprovider", "-q", *options,
    ]  # fmt: skip
    # A -k or -m in PYTEST_ADDOPTS of the caller would silently judge only a part.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = _started(command, env)
    verdict_json = RunDirectory(run_dir).verdict
    if done.returncode in (0, 1, 2) and verdict_json.exists():
        verdict: dict[str, Any] = verdict_file.read_verdict(RunDirectory(run_dir))
        return verdict
    output = (done.stdout + done.stderr).strip()
    errors = [line for line in output.splitlines() if line.startswith("ERROR: ")]
    # 0, 1 and 2 are exit statuses of verdicts, and there is none.
    status = done.returncode if done.returncode in (USAGE, 5) else BROKEN
    raise CommandError("\n".join(errors).replace("ERROR: ", "") or output, status)


def _started(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)


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
