"""The choice of the attention kernel: which are timed, and which is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend

from training import attention
from training.attention import Kernel
from training.settings import Settings

pytestmark = pytest.mark.cpu

CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION


def test_a_kernel_is_named_by_what_it_does():
    assert Kernel().name == "any"
    assert Kernel(backend=FLASH).name == "flash"
    assert Kernel(backend=CUDNN, repeat_kv=True).name == "cudnn, repeated keys and values"


@pytest.mark.parametrize(
    ("device", "dtype", "seconds", "taken"),
    [
        ("cuda", "bf16", {(FLASH, True): 2.0, (CUDNN, False): 3.0}, (FLASH, True)),
        ("cuda", "bf16", {(FLASH, False): 2.0, (CUDNN, True): 1.0}, (CUDNN, True)),
        ("cuda", "bf16", {}, (None, False)),
        ("cuda", "fp32", {(FLASH, True): 2.0}, (None, False)),
        ("cpu", "bf16", {(FLASH, True): 2.0}, (None, False)),
    ],
)
def test_the_fastest_kernel_that_works_is_taken(device, dtype, seconds, taken, monkeypatch):
    def timed(settings: Any, place: Any, backend: Any, repeat_kv: bool) -> Kernel:
        if (backend, repeat_kv) not in seconds:
            raise RuntimeError("no such kernel")
        taken_s = seconds[backend, repeat_kv]
        return Kernel(backend=backend, repeat_kv=repeat_kv, seconds=taken_s)

    monkeypatch.setattr(attention, "_time_kernel", timed)
    found = attention.fastest_kernel(Settings(dtype=dtype), torch.device(device))
    assert (found.backend, found.repeat_kv) == taken


@pytest.mark.parametrize("repeat_kv", [False, True])
def test_a_kernel_is_timed_over_five_calls_after_three(repeat_kv, monkeypatch):
    honest, calls = functional.scaled_dot_product_attention, []

    def counted(q: Any, k: Any, v: Any, **how: Any) -> Any:
        calls.append((q.shape[1], k.shape[1], how["enable_gqa"]))
        return honest(q, k, v, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(attention.time, "perf_counter", lambda: float(len(calls)))
    settings = Settings(sequence=8, batch=1)  # 4 heads, 2 of keys and values
    found = attention._time_kernel(settings, torch.device("cpu"), SDPBackend.MATH, repeat_kv)
    assert (found.backend, found.repeat_kv, found.seconds) == (SDPBackend.MATH, repeat_kv, 1.0)
    assert calls == [(4, 4, False) if repeat_kv else (4, 2, True)] * 8
