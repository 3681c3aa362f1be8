"""The files of a run that a command is about: what is read, and what is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.cluster.population import contract_json
from fixtures.paths import THRESHOLDS, version
from fixtures.records.run_schema import RUN_SCHEMA
from fixtures.thresholds import loader
from reports.evidence import run_files
from reports.evidence.run_files import CommandError
from tests.selftests import support

pytestmark = pytest.mark.cpu


def written(root: Path, name: str, data: Any) -> Path:
    root.mkdir(exist_ok=True)
    (root / name).write_text(data if isinstance(data, str) else json.dumps(data))
    return root


def test_a_run_is_read_and_what_is_none_is_refused(tmp_path):
    run = {"schema": RUN_SCHEMA, "id": "r"}
    assert run_files.read_run(written(tmp_path / "run", "run.json", run)) == run
    for data, why in (
        ({"schema": RUN_SCHEMA}, "id is missing"), ({"schema": 1, "id": "r"}, "run.json: "),
        ("{", "run.json: "),
    ):  # fmt: skip
        with pytest.raises(CommandError, match=why) as error:
            run_files.read_run(written(tmp_path / "bad", "run.json", data))
        assert error.value.status == 4
    with pytest.raises(CommandError, match="is not a run directory"):
        run_files.read_run(tmp_path / "nowhere")


def test_a_run_of_the_first_schema_is_told_from_any_other(tmp_path):
    for name, data, expected in (
        ("a", {"schema": 1}, True), ("b", {"schema": RUN_SCHEMA}, False), ("c", [], False),
        ("d", "{", False),
    ):  # fmt: skip
        root = written(tmp_path / name, "run.json", data)
        assert run_files.is_of_schema_1(root) is expected, name
    assert run_files.is_of_schema_1(tmp_path / "nowhere") is False


def test_a_verdict_is_read_and_what_is_none_is_refused(tmp_path):
    support.judged(support.DATA / "sandbox-2x2-cpu", tmp_path / "run")
    assert run_files.read_verdict(tmp_path / "run")["verdict"] == "DEMONSTRATION"
    with pytest.raises(CommandError, match="python -m reports render"):
        run_files.read_verdict(tmp_path)
    for data in ("{", {"schema": 1, "verdict": 5}):
        with pytest.raises(CommandError, match=r"verdict\.json: "):
            run_files.read_verdict(written(tmp_path / "bad", "verdict.json", data))


def test_the_limits_of_a_run_are_those_that_are_given_or_still_as_they_were(tmp_path):
    own = tmp_path / "limits.yaml"
    digest = support.load(tmp_path).sha256
    (tmp_path / "thresholds.yaml").rename(own)

    def of_run(**recorded: Any) -> Path | None:
        return run_files.limits_file({"thresholds": recorded}, None)

    assert run_files.limits_file({}, own) == own.resolve()
    with pytest.raises(CommandError, match="no such file"):
        run_files.limits_file({}, tmp_path / "none")
    assert of_run(path=str(own), sha256=digest) == own.resolve()
    assert of_run(path=str(own), sha256="another") is None
    assert of_run(path=str(tmp_path / "none"), sha256=digest) is None
    shipped = loader.load(THRESHOLDS).sha256
    assert of_run(path=str(THRESHOLDS), sha256=shipped) is None
    assert run_files.limits_file({}, None) is None


def test_agreed_are_the_limits_of_the_checkout_and_those_that_the_user_gives(tmp_path):
    own = tmp_path / "limits.yaml"
    digest = support.load(tmp_path).sha256
    (tmp_path / "thresholds.yaml").rename(own)
    shipped = loader.load(THRESHOLDS).sha256

    def of_run(given: Path | None, /, **recorded: Any) -> run_files.Limits:
        order = contract_json(loader.load(given).cluster) if given else None
        run = {"id": "r", "suite_version": version(), "thresholds": recorded, "contract": order}
        return run_files.agreed_limits(run, given)

    elsewhere = {"path": "/of/the/supplier/thresholds.yaml", "sha256": shipped}
    for recorded in (elsewhere, {}):
        assert of_run(None, **recorded) == run_files.Limits()
    assert of_run(own, path="x", sha256=digest) == run_files.Limits(own.resolve())
    for where in (str(own), str(THRESHOLDS), "none"):
        foreign = of_run(None, path=where, sha256=digest)
        assert foreign.foreign == (
            f"limits: those of {where}, as run.json says: give --thresholds FILE with what was "
            "agreed"
        )
        assert foreign.file == (own.resolve() if where == str(own) else None)
    with pytest.raises(CommandError, match="not the limits of run r, whose SHA-256 is another"):
        of_run(own, path=str(own), sha256="another")
    unnamed = run_files.agreed_limits({"id": "r", "suite_version": "0.1.9"}, None)
    assert "no file" in unnamed.foreign


def test_the_order_in_the_agreed_file_is_that_of_the_run(tmp_path):
    own = tmp_path / "order.yaml"
    own.write_text(
        f"base: {THRESHOLDS}\ncluster: {{nodes: 2, gpus_per_node: 8, gpu_model: H200 SXM}}\n"
    )
    loaded = loader.load(own)
    run = {"id": "r", "thresholds": {"sha256": loaded.sha256}}
    run |= {"contract": contract_json(loaded.cluster)}
    assert run_files.agreed_limits(run, own).foreign == ""
    for other in (None, run["contract"] | {"nodes": 1}):
        with pytest.raises(CommandError, match=r"order\.yaml: run r is of another order"):
            run_files.agreed_limits(run | {"contract": other}, own)
        made_up = run | {"contract": other, "population": {"origin": "sandbox"}}
        assert run_files.agreed_limits(made_up, own).foreign == "", "a demonstration at most"
    run["thresholds"] = {"sha256": loader.load(THRESHOLDS).sha256}
    alone = run_files.agreed_limits(run | {"origin": "sandbox", "population": {}}, None)
    assert alone.foreign.startswith("order: it stands in run.json alone: ")
    assert run_files.agreed_limits(run | {"contract": None}, None).foreign == ""


def test_a_report_is_not_made_by_other_limits_than_the_run(tmp_path):
    def required(recorded: str | None, now: str) -> None:
        run = {"id": "r", "thresholds": {"sha256": recorded} if recorded else {}}
        run_files.require_same_limits(run, {"thresholds": {"sha256": now}})

    required("a", "a")
    required(None, "a")
    with pytest.raises(CommandError, match=r"has changed since run r \(SHA-256 a, now b\)"):
        required("a", "b")
