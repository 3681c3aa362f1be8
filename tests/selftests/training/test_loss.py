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


def test_as_many_logits_are_held_as_memory_and_indexes_allow():
    """1 GiB in bf16, and compiled as many as an index of 32 bits counts."""
    import torch

    from training import loss

    assert loss.MAX_CHUNK_LOGITS * torch.bfloat16.itemsize == 2**30
    assert torch.iinfo(torch.int32).max == loss.MAX_FUSED_LOGITS


def test_of_some_tokens_the_sum_is_taken_and_the_projection_stays_frozen():
    import torch
    from torch.nn import functional

    from training import loss

    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(6, 16, generator=generator).requires_grad_()
    weight = torch.randn(32, 16, generator=generator).requires_grad_()
    targets = torch.tensor([0, 1, -100, 5, -1, 31])
    found = loss.sum_of_learned(hidden, weight, targets, chunk_size=2, compiled=False)
    learned = targets >= 0
    expected = functional.cross_entropy(
        hidden[learned] @ weight.t(), targets[learned], reduction="sum"
    )
    torch.testing.assert_close(found, expected)
    (wanted,) = torch.autograd.grad(expected, hidden)
    found.backward()
    torch.testing.assert_close(hidden.grad, wanted)
    assert weight.grad is None


def test_without_gradients_no_gradient_is_computed(monkeypatch):
    import torch

    from training import loss

    honest, products = torch.mm, []
    monkeypatch.setattr(
        torch, "mm", lambda a, b, **more: products.append(a.shape) or honest(a, b, **more)
    )
    hidden, weight = torch.ones(4, 8, requires_grad=True), torch.ones(16, 8, requires_grad=True)
    targets = torch.zeros(4, dtype=torch.long)
    with torch.no_grad():
        loss.head_loss(hidden, weight, targets, compiled=False)
    assert products == []
    loss.head_loss(hidden, weight, targets, compiled=False)
    assert len(products) == 1


def test_many_chunks_in_bf16_add_their_gradients_in_fp32(monkeypatch):
    """In bf16 the 257th of equal contributions would be rounded away."""
    import torch

    from training import loss

    monkeypatch.setattr(loss, "MAX_CHUNK_LOGITS", 16)
    hidden = torch.ones(600, 8, dtype=torch.bfloat16)
    weight = torch.zeros(16, 8, requires_grad=True)
    targets = torch.zeros(600, dtype=torch.long)
    loss.head_loss(hidden, weight, targets, compiled=False).backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32
    assert weight.grad[0].tolist() == pytest.approx([1 / 16 - 1] * 8, rel=0.01)
    assert weight.grad[1].tolist() == pytest.approx([1 / 16] * 8, rel=0.01)


@pytest.fixture
def aot_eager(monkeypatch):
    """What compiles goes without a compiler of C++: as above."""
    import torch

    from training import loss

    compiles = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiles)
    loss._compiled_chunk_loss.cache_clear()
    yield
    loss._compiled_chunk_loss.cache_clear()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what compiles
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_of_the_head_is_cross_entropy(compiled, dtype, aot_eager):
    import torch

    from training.finetune.packing import IGNORE_INDEX
    from training.loss import sum_of_learned

    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden = torch.randn(64, 16, dtype=kind, requires_grad=True)
    weight, wanted = torch.randn(100, 16, dtype=kind), torch.randint(0, 100, (64,))
    weight.requires_grad_()  # frozen by the loss, not by who calls it
    wanted[::5] = IGNORE_INDEX
    usual = hidden.detach().clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        (usual @ weight.t()).float(), wanted, reduction="sum", ignore_index=IGNORE_INDEX
    )
    (3 * expected).backward()
    weight.grad = None
    loss = sum_of_learned(hidden, weight, wanted, chunk_size=16, compiled=compiled)
    (3 * loss).backward()
    torch.testing.assert_close(loss, expected.detach())
    near = {} if kind == torch.float32 else {"rtol": 0.016, "atol": 0.03}  # bf16 has 8 bits
    torch.testing.assert_close(hidden.grad, usual.grad, **near)
    assert weight.grad is None
    with torch.no_grad():
        again = sum_of_learned(hidden, weight, wanted, chunk_size=16, compiled=compiled)
    assert torch.equal(loss, again)
