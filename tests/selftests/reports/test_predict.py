"""Tokens/s, goodput and energy: computed of what was measured, with intervals that hold."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.shapes import PRESETS
from reports import __main__ as command
from reports import predict
from reports.throughput import Training
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
