"""What is made of a run, and of several: `python -m reports COMMAND RUN`.

render, judge, verify and calibrate start `pytest --cluster replay --from RUN` in a process of its
own: the acceptance tests themselves judge the records, so there is one way to a verdict, not two.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fixtures.paths import CHECKOUT, RUNS, commit
from fixtures.records.files import RecordError, read_json, replace_file, write_json
from fixtures.records.model import SCHEMA
from fixtures.records.run_directory import RunDirectory
from reports import certificate, compare, export, github, verify, watch
from reports.tables import records_of, table

INCOMPLETE, BROKEN, USAGE = 2, 3, 4
"""Exit status for too little, for what went wrong inside, and for what the user gave."""

PROPOSAL = "proposal.yaml"

RENDERED = ("report.html", "junit.xml", "results.csv")
CERTIFIED = ("cluster", "sandbox", "local")
"""Origins that have a certificate: neither what a replay judged, nor what was started by hand."""
CONCLUDED = ("verdict.json", "good-nodes.txt", "bad-nodes.txt")
"""What a run writes when it ends; one that was killed has none, and gets them too."""


class Refused(Exception):
    """What was asked for cannot be done: one line, and an exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; the exit status is that of the verdict."""
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    render_ = commands.add_parser("render", help="write report, JUnit and CSV into RUN again")
    judge_ = commands.add_parser("judge", help="judge RUN by other limits, in a new run directory")
    tables_ = commands.add_parser("tables", help="print what RUN measured, as other tools do")
    for command in (render_, judge_, tables_):
        command.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    judge_.add_argument(
        "--thresholds", type=Path, required=True, metavar="T", help="the limits to judge by"
    )
    judge_.add_argument("--run-dir", type=Path, metavar="DIR", help="where to write")
    sign_ = commands.add_parser("sign", help="sign RUN's certificate with an SSH key")
    sign_.add_argument("--key", type=Path, required=True, help="private key, or the public one")
    verify_ = commands.add_parser("verify", help="check evidence, verdict, certificate, signature")
    verify_.add_argument("--allowed-signers", type=Path, metavar="FILE", help="see ssh-keygen(1)")
    verify_.add_argument("--thresholds", type=Path, metavar="T", help="the limits of that run")
    export_ = commands.add_parser("export", help="write RUN's verdicts for other tools")
    kinds = export_.add_mutually_exclusive_group(required=True)
    for name in export.KINDS:
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=name)
    export_.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    for command in (sign_, verify_, export_):
        command.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    compare_ = commands.add_parser("compare", help="two runs side by side, what changed first")
    for name in ("run", "other"):
        compare_.add_argument(name, type=Path, metavar="RUN", help="a run directory")
    compare_.add_argument("--thresholds", type=Path, metavar="T", help="for what runs differ by")
    compare_.add_argument("--all", action="store_true", help="also what did not change")
    watch.add_to(commands)
    github.add_to(commands)
    calibrate_ = commands.add_parser("calibrate", help="propose limits from runs of one fleet")
    calibrate_.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    calibrate_.add_argument(
        "--out", type=Path, default=Path("proposal.yaml"), metavar="FILE", help="where to write"
    )
    options = parser.parse_args(argv)
    try:
        if options.command == "watch":
            return watch.main(options)
        if options.command == "summary":
            return github.main(options)
        if options.command == "calibrate":
            return calibrate([run.resolve() for run in options.runs], options.out)
        source = options.run.resolve()
        run = _open(source)
        if options.command == "render":
            return render(source, run)
        if options.command == "tables":
            return tables(source)
        if options.command == "sign":
            return sign(source, run, options.key)
        if options.command == "verify":
            return check(source, run, options.allowed_signers, options.thresholds)
        if options.command == "export":
            return export.write(source, options.kind, options.out)
        if options.command == "compare":
            _open(options.other.resolve())
            limits = options.thresholds or CHECKOUT / "thresholds.yaml"
            return compare.show(source, options.other.resolve(), limits, every=options.all)
        return judge(source, thresholds=options.thresholds, into=options.run_dir)
    except Refused as error:
        print(f"reports: {error}", file=sys.stderr)
        return error.status


def tables(source: Path) -> int:
    """Collectives as nccl-tests prints them, memory and copies as nvbandwidth does."""
    printed = [table(record) for record in records_of(RunDirectory(source))]
    print("\n\n".join(filter(None, printed)) or "no collectives, memory or copies in this run")
    return 0


def render(source: Path, run: dict[str, Any]) -> int:
    """Replay a run aside and put the reports into it; its evidence is not touched."""
    with tempfile.TemporaryDirectory(prefix="acceptance-render-") as temporary:
        made = Path(temporary) / "run"
        verdict = _replay(source, made)
        _refuse_other_limits(run, read_json(made / "run.json"))
        if not (made / "report.html").exists():
            raise Refused("the replay left no report.html (is pytest-html disabled?)", BROKEN)
        for name in RENDERED:
            replace_file(source / name, ((made / name).read_bytes(),), durable=False)
        # A run that ended by itself has said its last word; a killed one is concluded here.
        if not (run.get("ended") and (source / "verdict.json").exists()):
            for name in CONCLUDED[1:]:
                replace_file(source / name, ((made / name).read_bytes(),), durable=False)
            own = {k: v for k, v in verdict.items() if k != "replay"}
            write_json(source / CONCLUDED[0], {**own, "run_id": run["id"]})
            RunDirectory(source).write_manifest()
        if run.get("origin") in CERTIFIED:
            certificate.write(RunDirectory(source))
    return _say(verdict, source / "report.html")


def sign(source: Path, run: dict[str, Any], key: Path) -> int:
    """Sign the certificate; who may be trusted with that is ssh-keygen's business."""
    if not (source / certificate.NAME).exists():
        remedy = f"`python -m reports render {source}`"
        if run.get("origin") not in CERTIFIED:
            remedy = "sign that of a run of the suite; this is a replay, or was started by hand"
        raise Refused(f"{source} has no {certificate.NAME}: {remedy}")
    try:
        signature = verify.sign(RunDirectory(source), key)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Refused(f"ssh-keygen -Y sign with {key}: {said.strip()}") from None
    verdict = read_json(RunDirectory(source).verdict)["verdict"]
    if verdict != "ACCEPTED":
        print(f"what you have signed says NOT ACCEPTED: {verdict}")
    print(f"signature {signature}")
    return 0


def check(source: Path, run: dict[str, Any], signers: Path | None, thresholds: Path | None) -> int:
    """Name everything that is not as it was; 0 only where there is nothing."""
    limits = [f"--thresholds={thresholds.resolve()}"] if thresholds else []

    def rejudge() -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="acceptance-verify-") as temporary:
            made = Path(temporary) / "run"
            found = _replay(source, made, *limits, "-p", "no:html")
            _refuse_other_limits(run, read_json(made / "run.json"))
            return found

    certified = run.get("origin") in CERTIFIED
    wrong, fine = verify.check(RunDirectory(source), rejudge, signers, certified=certified)
    for line in fine:
        print(f"ok     {line}")
    for line in wrong:
        print(f"WRONG  {line}")
    now = commit() or "not in git"
    if run.get("commit") and run["commit"] != now:
        print(f"note   the run's suite was {run['commit']}, this one is {now}")
    print(f"{'NOT AS IT WAS' if wrong else 'VERIFIED'}: {source}")
    return 1 if wrong else 0


def judge(source: Path, *, thresholds: Path, into: Path | None) -> int:
    """Replay a run by other limits into a run directory of its own."""
    if not thresholds.is_file():
        raise Refused(f"--thresholds {thresholds}: no such file")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    made = into or RUNS / f"{source.name}-judged-{stamp}-{secrets.token_hex(2)}"
    made = made.absolute()
    verdict = _replay(source, made, f"--thresholds={thresholds.resolve()}")
    return _say(verdict, made / "report.html")


def calibrate(runs: Sequence[Path], out: Path) -> int:
    """Propose limits from runs: replay the newest aside, with the others to compare."""
    started = {run: str(_open(run).get("created")) for run in runs}
    newest = max(started, key=lambda run: started[run])
    others = [f"--calibrate-with={run}" for run in started if run != newest]
    with tempfile.TemporaryDirectory(prefix="acceptance-calibrate-") as temporary:
        made = Path(temporary) / "run"
        # Without others it must not look for any beside the newest.
        _replay(newest, made, "--calibrate", *(others or [f"--calibrate-with={newest}"]))
        if not (made / PROPOSAL).exists():
            raise Refused("the replay left no proposal", BROKEN)
        replace_file(out, ((made / PROPOSAL).read_bytes(),), durable=False)
    print(f"proposal {out}")
    text = out.read_text(encoding="utf-8")
    for line in text.split("#\n")[0].splitlines()[1:]:
        print(f"  {line.removeprefix('# ')}")
    return 0 if yaml.safe_load(text)["proposal"]["limits"] else INCOMPLETE


def _open(source: Path) -> dict[str, Any]:
    """run.json, as far as it is needed here; the replay checks the rest."""
    try:
        run = read_json(RunDirectory(source).run_json)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(f"{source} is no run directory: it has no run.json") from None
    except (OSError, RecordError) as error:
        raise Refused(f"{source / 'run.json'}: {error}") from None
    if not isinstance(run, dict) or run.get("schema") != SCHEMA or "id" not in run:
        raise Refused(f"{source / 'run.json'} is not of a run with schema {SCHEMA}")
    return run


def _replay(source: Path, made: Path, *more: str) -> dict[str, Any]:
    """Run the acceptance tests on the records of a run; verdict.json of the replay."""
    # With "=", because before conftest.py is read pytest takes "--from DIR" for a path to collect,
    # and looks for its configuration there.
    command = [
        sys.executable, "-m", "pytest", "--cluster=replay", f"--from={source}",
        f"--run-dir={made}", "-p", "no:cacheprovider", "-q", *more,
    ]  # fmt: skip
    # A -k or -m of the caller's environment would silently judge only a part.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    verdict_json = RunDirectory(made).verdict
    if done.returncode in (0, 1, 2) and verdict_json.exists():
        verdict: dict[str, Any] = read_json(verdict_json)
        return verdict
    said = (done.stdout + done.stderr).strip()
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    # 0, 1 and 2 are verdicts, and there is none.
    status = done.returncode if done.returncode in (USAGE, 5) else BROKEN
    raise Refused("\n".join(errors).replace("ERROR: ", "") or said, status)


def _refuse_other_limits(run: dict[str, Any], replayed: dict[str, Any]) -> None:
    """A report in the run's own directory must not be by limits that the run never had."""
    then, now = (r.get("thresholds", {}).get("sha256") for r in (run, replayed))
    if then is not None and then != now:
        raise Refused(
            f"thresholds.yaml has changed since run {run['id']} (SHA-256 {str(then)[:12]}, now "
            f"{str(now)[:12]}): judge it with `python -m reports judge RUN --thresholds FILE`"
        )


def _say(verdict: dict[str, Any], report: Path) -> int:
    counts = verdict["counts"]
    judged = counts["planned"] - counts["not_measured"]
    print(f"{verdict['verdict']}: {judged} of {counts['planned']} judged")
    for reason in verdict.get("reasons", []):
        print(f"  {reason}")
    print(f"report   {report}")
    return int(verdict["exit_status"])


if __name__ == "__main__":
    sys.exit(main())
