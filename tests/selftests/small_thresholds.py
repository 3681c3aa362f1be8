"""A small thresholds.yaml that is correct, for tests that change one thing in it."""

from __future__ import annotations

from pathlib import Path

from fixtures.thresholds import loader
from fixtures.thresholds.loader import Thresholds

SMALL = """\
schema: 1
cluster: {}
criteria:
  gemm.bf16:
    red: look at it
    title: Fast
    per: node
    unit: TFLOPS
    ceiling: gemm
    loose: a small test
    valid: {overlap: [0.8, null]}
    spread: gemm
    limits:
      - {model: H200 SXM, expect: 660, fail_below: 605, source: measured}
  inventory.gpus:
    red: look at it
    title: All there
    per: node
    unit: GPUs
    statistic: value
    when: order
    limits:
      - {equals: cluster.gpus_per_node, source: the order}
  allreduce.node:
    red: look at it
    title: Fast at {size}
    per: node
    unit: GB/s
    measure: allreduce.busbw
    at: {size: [256MiB, 1GiB]}
    over: ranks
    ceiling: all_reduce
    loose: a small test
    limits:
      - {expect: 0.72 of ceiling, fail_below: 0.60 of ceiling, source: published}
      - {model: H200 SXM, when: {gpus: 8, nvls: true}, expect: 475, fail_below: 445, source: x}
  allreduce.latency:
    red: look at it
    title: Quick
    per: node
    unit: us
    ceiling: latency
    loose: a small test
    limits:
      - {model: H200 SXM, when: {gpus: 4}, expect: 42, fail_above: 84, source: measured}
not_applicable:
  - {criteria: [gemm.bf16], when: {model: cpu}, reason: no such unit}
waivers:
  - {criterion: gemm.bf16, node: n1, owner: A. Name, reason: RMA, expires: "2026-12-31"}
spread:
  gemm: {delta: 0.08, device_sigma: 0.03, run_sigma: 0.003, source: x,
    models: {cpu: {delta: 0.67, loose: x}}}
"""


def write(path: Path, text: str) -> Path:
    file = path / "thresholds.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def load(path: Path, text: str = SMALL) -> Thresholds:
    return loader.load(write(path, text))
