"""The loss in chunks: its value and its gradients."""

from __future__ import annotations

import functools

import pytest

pytestmark = pytest.mark.cpu


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what compiles
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("elements", [1 << 29, 256 * 3, 1])
def test_the_loss_in_pieces_has_the_value_and_gradients_of_the_whole(
    elements, compiled, monkeypatch, request
):
    import torch
    from torch.nn import functional

    from training import loss

    monkeypatch.setattr(loss, "MAX_CHUNK_LOGITS", elements)
    monkeypatch.setattr(loss, "MAX_FUSED_LOGITS", elements)
    # No compiler of C++ is needed for what changes values: the place that gradients are put into.
    whole_function = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", whole_function)
    loss._compiled_chunk_loss.cache_clear()
    request.addfinalizer(loss._compiled_chunk_loss.cache_clear)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(10, 16, generator=generator).requires_grad_()
    weight = torch.randn(256, 16, generator=generator).requires_grad_()
    targets = torch.randint(0, 256, (10,), generator=generator)
    for _ in range(2):  # on some CPUs a process's first products are off by 2e-5
        whole = functional.cross_entropy(hidden @ weight.t(), targets)
        expected = torch.autograd.grad(3 * whole, (hidden, weight))
        pieces = loss.head_loss(hidden, weight, targets, compiled=compiled)
        found = torch.autograd.grad(3 * pieces, (hidden, weight))
    torch.testing.assert_close(pieces, whole)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
