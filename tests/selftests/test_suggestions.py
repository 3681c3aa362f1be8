"""What is mistyped gets the name that was meant; what cannot be done, what to do instead."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.backends import choose as backends
from fixtures.errors import ConfigError, RunError
from fixtures.plan.items import planned_list
from fixtures.plugin import invocation, session
from fixtures.plugin.state import SESSION_STATE, SessionState
from fixtures.records.run_directory import RunDirectory
from fixtures.run.options import RunOptions
from fixtures.sandbox import __main__ as sandbox
from fixtures.sandbox import platforms
from fixtures.sandbox.errors import SandboxError
from fixtures.slurm import client
from fixtures.suggestions import MOST_LISTED, closest, did_you_mean
from fixtures.thresholds import loader
from reports import __main__ as reports
from tests.selftests import support
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu


def test_the_nearest_name_is_suggested_whatever_its_case():
    known = ["H200 SXM", "H200 NVL", "B200", "gemm.bf16"]
    assert closest("h200 sxm", known) == ["H200 SXM"]
    assert closest("H200", known) == ["H200 SXM", "H200 NVL"]
    assert closest("gemm.bf61", known) == ["gemm.bf16"]
    assert closest("quite another", known) == []
    assert did_you_mean("quite another", known) == f" (known: {', '.join(known)})"
    assert did_you_mean("quite another", map(str, range(MOST_LISTED + 1))) == ""


# --- commands


@pytest.mark.parametrize(
    ("main", "arguments", "meant"),
    [
        (reports.main, ["dosier", "RUN"], "dossier"),
        (reports.main, ["verifi", "RUN"], "verify"),
        (reports.main, ["judge", "RUN", "--thershold", "t.yaml", "--thresholds=t"], "--thresholds"),
        (sandbox.main, ["kil-node", "worker0"], "kill-node"),
        (sandbox.main, ["up", "--platfrom", "hgx-h100"], "--platform"),
    ],
)
def test_a_mistyped_command_or_option_of_one(capsys, main, arguments, meant):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err


def test_a_mistyped_platform():
    with pytest.raises(SandboxError, match="no platform 'hgx-h10', did you mean 'hgx-h100'"):
        platforms.find("hgx-h10")


# --- the command line of pytest

MARKERS = tomllib.loads((support.CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"][
    "ini_options"
]["markers"]


def configuration(marks: str = "", keyword: str = "", **more: Any) -> Any:
    return SimpleNamespace(
        getini={"markers": MARKERS}.__getitem__,
        getoption=lambda name: more.get(name, False),
        option=SimpleNamespace(markexpr=marks, keyword=keyword, collectonly=False),
    )


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("mutlinode", "no test has the mark 'mutlinode', did you mean 'multinode'?"),
        ("multinode and not trainning", "'trainning', did you mean 'training'?"),
        ("not (cpu or gpus)", "'gpus', did you mean 'gpu'?"),
        ("everything", r"'everything' \(known: .*multinode"),
    ],
)
def test_a_mark_that_no_test_has(expression, said):
    with pytest.raises(pytest.UsageError, match=said):
        invocation.pytest_configure(configuration(expression))


@pytest.mark.parametrize("expression", ["", "multinode and not training", "cpu or", "criterion()"])
def test_marks_that_there_are_and_what_pytest_itself_refuses(expression):
    invocation.pytest_configure(configuration(expression))


def test_a_mistyped_node_plans_nothing_and_promises_nothing(tmp_path, monkeypatch):
    """`--plan -k dgx-h200-09`, on a cluster whose order could be ACCEPTED."""
    limits = support.load(tmp_path)
    fleet = support.population()
    fleet = type(fleet)(**{**vars(fleet), "origin": "cluster", "gpu_model": "H200 SXM"})
    config = configuration("multinode", "worker9")
    run = SimpleNamespace(
        select=lambda keys: None, jobs=[], scope=[], tier="standard", budgeted=None,
        items=[], thresholds=limits,
    )  # fmt: skip
    state = SessionState(
        options=RunOptions(plan=True), thresholds=limits, items=planned_list(limits, fleet),
        population=fleet, directory=RunDirectory(tmp_path), nonce=support.NONCE,
        run=run,  # type: ignore[arg-type]
    )  # fmt: skip
    config.stash = {SESSION_STATE: state}
    config.pluginmanager = SimpleNamespace(hasplugin=lambda name: False)
    lines: list[str] = []
    monkeypatch.setattr(session, "_write_lines", lambda _config, said: lines.extend(said))
    assert session.pytest_runtestloop(SimpleNamespace(config=config, items=[], testsfailed=0))
    said = "\n".join(lines)
    assert "ACCEPTED" not in said
    assert "-k worker9: did you mean worker0" in said or "-k worker9: did you mean worker1" in said


def test_a_budget_without_a_unit_is_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="--budget '20': expected a duration, as 20m"):
        backends.choose(RunOptions(budget="20", cluster="local"))


def test_an_optional_criterion_that_is_none():
    limits = loader.load(support.SHIPPED)
    with pytest.raises(ConfigError, match=r"finetune\.zero3\.los.* did you mean 'finetune\.zero3"):
        planned_list(limits, support.population(), optional=["finetune.zero3.los"])


# --- GPU models


def ordered(folder: Path, model: str) -> str:
    """The model of an order that calls it so."""
    text = support.LIMITS.replace("gpu_model: H200 SXM}", f"gpu_model: {model}}}")
    assert text != support.LIMITS or model == "H200 SXM"
    contract = support.load(folder, text).cluster
    assert contract is not None
    return contract.gpu_model


@pytest.mark.parametrize(
    ("printed", "model"),
    [
        ("NVIDIA H200", "H200 SXM"), ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h200 sxm", "H200 SXM"), ("NVIDIA A100-SXM4-80GB", "A100 SXM 80"),
        ("nvidia b200", "B200"), ("H200 NVL", "H200 NVL"),
        ("H100 PCIe", "H100 PCIe"), ("NVIDIA GH200 480GB", "GH200 96"), ("L40S", "L40S"),
    ],
)  # fmt: skip
def test_a_gpu_model_may_be_ordered_as_nvidia_smi_prints_it(tmp_path, printed, model):
    assert ordered(tmp_path, printed) == model


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("H200", "did you mean 'H200 SXM' or 'H200 NVL'"),
        ("NVIDIA H100", "did you mean 'H100 SXM' or 'H100 PCIe' or 'H100 NVL'"),
        ("NVIDIA H200 SMX", "did you mean 'H200 SXM'"),
        ("h200-sxm", "did you mean 'H200 SXM'"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "a MIG instance"),
        ("Abacus 3000", "known: A100 SXM 40"),
    ],
)
def test_another_gpu_model_gets_a_suggestion(tmp_path, typed, said):
    with pytest.raises(ConfigError, match=said):
        ordered(tmp_path, typed)


def test_a_row_of_limits_keeps_to_the_models_own_names(tmp_path):
    """By these names a file with a `base:` replaces rows."""
    text = support.LIMITS.replace(
        "{model: B200, calibrate", "{model: NVIDIA H100 NVL, calibrate", 1
    )
    with pytest.raises(ConfigError, match="did you mean 'H100 NVL'"):
        support.load(tmp_path, text)


# --- files of limits


def test_a_mistyped_criterion_is_no_new_one_without_a_definition(tmp_path):
    text = support.SHIPPED.read_text(encoding="utf-8").replace("\n  gemm.bf16:", "\n  gemm.bf61:")
    with pytest.raises(ConfigError, match=r"yaml:\d+: criteria\.gemm\.bf61: no criterion 'gemm\.bf"
                       r"61', did you mean 'gemm\.bf16'\? A new one has a `per:`"):  # fmt: skip
        support.load(tmp_path, text)


@pytest.mark.parametrize("schema", ["", "schema: 1\n"])
def test_an_order_alone_is_told_of_its_base(tmp_path, schema):
    (order := tmp_path / "order.yaml").write_text(
        f"{schema}cluster: {{nodes: 2, gpus_per_node: 8, gpu_model: H200 SXM}}\n"
    )
    with pytest.raises(
        ConfigError, match=r"^order\.yaml:1: .*add `base: thresholds\.yaml`"
    ) as error:
        loader.load(order)
    # What it says can be done as it stands.
    (base,) = [part for part in str(error.value).split("`") if part.startswith("base: ../")]
    order.write_text(f"{base}\n{order.read_text()}")
    cluster = loader.load(order).cluster
    assert cluster is not None
    assert cluster.nodes == 2


def test_a_base_that_is_not_there_says_from_where_it_is_looked_for(tmp_path):
    (order := tmp_path / "order.yaml").write_text("base: thresholds.yaml\ncluster: {nodes: 2}\n")
    with pytest.raises(ConfigError, match=r"order\.yaml:1: base: ") as error:
        loader.load(order)
    assert str(tmp_path / "thresholds.yaml") in str(error.value)
    assert "a relative path is taken from the folder of order.yaml" in str(error.value)


# --- programs that are not there


def test_a_host_of_no_cluster_says_where_to_run(command):
    command("scontrol", err="scontrol: fatal: Could not establish a configuration source", status=1)
    with pytest.raises(
        RunError, match=r"belongs to no Slurm cluster: run on a login node"
    ) as error:
        client.slurm_query("scontrol", "show", "node", "-o")
    assert "\n" not in str(error.value)


def test_signing_without_ssh_keygen_names_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert reports.main(["sign", str(tmp_path), "--key", str(tmp_path / "key")]) == 4
    said = capsys.readouterr().err
    assert "openssh-client" in said
    assert len(said.splitlines()) == 1
