"""The prediction of a run: the rates that it rests on, its lines and its goodput."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fixtures.records.model import Measurement
from fixtures.records.run_directory import RunDirectory
from fixtures.shapes import PRESETS
from reports import __main__ as command
from reports.evidence.run_files import CommandError
from reports.exports import predict
from reports.exports.throughput import Rates, Training
from tests.selftests import support

pytestmark = pytest.mark.cpu


def test_the_command_prints_the_interval_and_what_it_is_made_of(capsys):
    run = str(support.DATA / "h200-1x4")
    assert command.main(["predict", run, "--preset", "8b", "--gpus", "4"]) == 0
    said = capsys.readouterr().out
    assert "[M] products" in said
    assert "[C] fsdp on 4 GPUs: " in said
    assert "half width" in said
    assert "no goodput: neither measured nor given: --mtbf-node-days" in said
    assert command.main(["predict", run, "--preset", "8b", "--nodes", "64"]) == 4
    assert "not measured" in capsys.readouterr().err
    given = ["--mtbf-node-days=40", "--checkpoint-s=30", "--detect-s=20", "--restart-s=180"]
    assert command.main(["predict", run, "--preset", "1b", "--gpus=1", *given]) == 0
    assert "[C] goodput" in capsys.readouterr().out


def test_the_slowest_gpu_counts_where_gpus_work_together():
    directory = RunDirectory(support.DATA / "h200-1x4")
    alone = Training(shape=PRESETS["1b"], strategy="single", gpus=1, batch=2, sequence=8192)
    together = replace(alone, strategy="ddp", gpus=4)
    one, _ = predict.rates_of(directory, alone)
    all_of_them, notes = predict.rates_of(directory, together)
    assert all_of_them.tflops < one.tflops
    assert (one.bus_gb_s, notes) == ({}, [])
    assert 300 < all_of_them.bus_gb_s["allreduce"] < 370
    assert one.gpu_model == "H200 SXM"


def test_options_of_the_command_have_the_names_of_their_figures():
    parser = argparse.ArgumentParser()
    predict.add_to(parser.add_subparsers())
    options = parser.parse_args(["predict", "RUN", "--preset", "8b", "--nodes", "64"])
    assert (options.run, options.nodes, options.preset) == (Path("RUN"), 64, "8b")
    assert all(hasattr(options, name) for name in predict.GOODPUT_OPTIONS)


# --- parts of it


def busbw(size: int, *rates: float, **more: object) -> Measurement:
    return Measurement(metric="busbw", unit="GB/s", samples=list(rates), at={"size": size}, **more)


def test_of_a_sweep_the_largest_size_up_to_the_message_counts():
    record = support.record(
        support.rank(0, "a", busbw(8, 1.0), busbw(16, 2.0, 4.0, 3.0), busbw(64)),
        support.rank(1, "a", busbw(16, 5.0), support.bf16()),
    )
    assert predict._bus(record, 20) == [3.0, 5.0]
    assert predict._bus(record, 16) == [3.0, 5.0]
    assert predict._bus(record, 15) == [1.0]
    assert predict._bus(record, 4) == [1.0]
    assert predict._bus(support.record(support.rank(0, "a", support.bf16())), 4) == []


def test_medians_are_of_a_metric_without_a_sweep():
    swept = Measurement(metric="bf16", unit="TFLOPS", samples=[9.0], at={"size": 1})
    record = support.record(
        support.rank(0, "a", support.bf16([1.0, 3.0, 2.0]), swept, support.latency(7.0)),
        support.rank(1, "a", support.bf16([])),
    )
    assert predict._medians(record, "bf16") == [2.0]
    assert predict._model(record) == "H200 SXM"
    unknown = support.record(support.rank(0, "a", name="Another GPU"))
    assert predict._model(unknown) == "Another GPU"
    assert predict._model(support.record(nodes=["a"])) == ""


def test_ddp_sends_buckets_of_a_gibibyte_and_fsdp_a_block():
    shape = PRESETS["8b"]
    training = Training(shape=shape, strategy="ddp", gpus=2, batch=1, sequence=8192)
    assert predict._messages(training) == {"allreduce": 1 << 30}
    small = replace(training, shape=PRESETS["tiny"])
    assert predict._messages(small) == {"allreduce": 4 * PRESETS["tiny"].parameters}
    assert predict._messages(replace(training, strategy="fsdp")) == {
        "allgather": 2 * shape.block_parameters, "reducescatter": 4 * shape.block_parameters,
    }  # fmt: skip


def rates_of(monkeypatch, records, *, nodes: int = 1, **training: object):
    given = {"shape": PRESETS["1b"], "strategy": "ddp", "gpus": 2, "batch": 1, "sequence": 8192}
    monkeypatch.setattr(predict, "records_of", lambda _: records)
    return predict.rates_of(
        RunDirectory(Path("run")), Training(**{**given, **training}), nodes=nodes
    )


def test_rates_are_of_the_slowest_gpu_and_their_spread(monkeypatch):
    triad = Measurement(metric="triad", unit="GB/s", samples=[4000.0])
    gemm = support.node_record(600.0, 660.0)
    memory = support.record(support.rank(0, "a", triad), workload="memory")
    alone = support.record(support.rank(0, "a", busbw(8, 300.0)), workload="allreduce")
    both = support.record(
        support.rank(0, "a", busbw(8, 40.0)), support.rank(1, "b", busbw(8, 50.0)),
        workload="allreduce", placement="all",
    )  # fmt: skip
    records = [gemm, memory, alone, both]
    rates, notes = rates_of(monkeypatch, records)
    assert (rates.tflops, rates.memory_gb_s, rates.gpu_model) == (600.0, 4000.0, "H200 SXM")
    assert rates.tflops_spread == pytest.approx(30 / 630)
    assert (rates.bus_gb_s, notes) == ({"allreduce": 300.0}, [])
    assert rates_of(monkeypatch, records, gpus=1)[0].tflops == 630.0
    assert rates_of(monkeypatch, records, gpus=1)[0].bus_gb_s == {}
    assert rates_of(monkeypatch, records, strategy="single")[0].bus_gb_s == {}
    rates, notes = rates_of(monkeypatch, records, nodes=2)
    assert (rates.bus_gb_s, notes) == ({"allreduce": 40.0}, [])
    rates, (note,) = rates_of(monkeypatch, records, nodes=3)
    assert rates.bus_gb_s == {"allreduce": 40.0}
    assert "over 3 nodes: extrapolated, measured over 2" in note
    assert rates_of(monkeypatch, [gemm, memory])[0].bus_gb_s == {}
    for given, missing in (([memory], "products"), ([gemm], "memory bandwidth")):
        with pytest.raises(CommandError, match=missing):
            rates_of(monkeypatch, given)


def test_goodput_is_of_a_given_mtbf_or_of_the_one_that_the_burn_in_proves(tmp_path, monkeypatch):
    def told(days: float | None = None, restart: float | None = 60.0) -> list[str]:
        options = SimpleNamespace(
            mtbf_node_days=days, checkpoint_s=30.0, detect_s=20.0, restart_s=restart, nodes=2
        )
        return list(predict.goodput_lines(tmp_path, options, total_rate=1000.0))

    assert told() == ["no goodput: neither measured nor given: --mtbf-node-days"]
    assert told(restart=None)[0].endswith("--mtbf-node-days, --restart-s")
    assert told(40.0, None)[0].endswith("given: --restart-s")
    first, second = told(40.0)
    assert first == "[G] MTBF of a node 40 days: of the job 480 hours"
    assert second.startswith("[C] goodput 99.")
    (tmp_path / "verdict.json").write_text("{}")
    proved = {"basis": {"mtbf": {"bound_days": 10.0}}}
    monkeypatch.setattr(predict, "read_verdict", lambda _: proved)
    assert told()[0] == "[M] MTBF of a node 10 days: of the job 120 hours"
    assert told(40.0)[0].startswith("[G] MTBF of a node 40 days")
    monkeypatch.setattr(predict, "read_verdict", lambda _: {"basis": None})
    assert told() == ["no goodput: neither measured nor given: --mtbf-node-days"]


def test_the_status_says_whether_the_prediction_was_checked(monkeypatch, capsys):
    rates = Rates(tflops=660, tflops_spread=0.0, memory_gb_s=4370,
                  bus_gb_s={"allgather": 310, "reducescatter": 317})  # fmt: skip
    monkeypatch.setattr(predict, "rates_of", lambda *_, **__: (rates, ["a note"]))
    monkeypatch.setattr(predict, "read_run", lambda _: {"population": {"gpus_per_node": 4}})
    given = {"preset": "8b", "nodes": 1, "gpus": None, "strategy": None, "batch": 2, "passes": 1,
             "sequence": None, "mtbf_node_days": 1.0, "checkpoint_s": None, "detect_s": 1.0,
             "restart_s": 1.0}  # fmt: skip
    for more, status, said in (
        ({}, 0, "fsdp on 4 GPUs"), ({"gpus": 1}, 0, "single on 1 GPU"),
        ({"gpus": 2}, 0, "fsdp on 2 GPUs"),
        ({"preset": "160m", "gpus": 1, "batch": 1}, 2, "outside the range"),
    ):  # fmt: skip
        options = argparse.Namespace(**{**given, **more})
        assert predict.show(Path("run"), options) == status
        out = capsys.readouterr().out
        assert said in out
        assert "a note" in out
        assert ("outside the range" in out) is (status == 2)
