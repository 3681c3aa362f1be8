"""Nearly all memory in few tensors."""

from __future__ import annotations

import pytest

from fixtures.workloads.memory import allocation

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("pieces", "sizes"),
    [([100], [100]), ([60, 40], [50, 25, 12, 6, 3, 3, 1]), ([1, 1, 1], [1, 1, 1]), ([0], [])],
)
def test_as_few_tensors_as_possible_take_all_that_can_be_had(pieces, sizes):
    """Free memory that lies in pieces; each allocation takes the first that is large enough."""
    import torch

    free = list(pieces)

    def new(chunks):
        for k, piece in enumerate(free):
            if piece >= chunks:
                free[k] -= chunks
                return torch.empty(chunks)
        raise torch.OutOfMemoryError("CUDA out of memory")

    tensors = allocation.allocate(new, lambda taken: sum(pieces) - taken)
    assert [len(t) for t in tensors] == sizes
    assert free == [0] * len(pieces)


def test_a_quarter_of_a_gib_is_left_for_kernels_and_sums():
    """A kernel that is loaded takes tens of MiB; a thousandth of what a GPU has is not a loss."""
    assert allocation.RESERVE == 256 * 2**20
