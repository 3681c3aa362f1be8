"""The hash tree of a challenge."""

from __future__ import annotations

import hashlib

import pytest

from fixtures.challenge import tree

pytestmark = pytest.mark.cpu


def test_leaves_and_nodes_begin_differently():
    assert tree.leaf_hash(b"row") == hashlib.sha256(b"\0row").digest()
    assert tree.node_hash(b"l", b"r") == hashlib.sha256(b"\1lr").digest()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_leaf_leads_to_the_root_and_from_its_place_alone(count):
    leaves = [tree.leaf_hash(bytes([k])) for k in range(count)]
    levels = tree.levels(leaves)
    (root,) = levels[-1]
    for index, leaf in enumerate(leaves):
        path = tree.path_in(levels, index)
        assert len(path) == (count - 1).bit_length()
        assert tree.root_of(leaf, index, path) == root
        assert all(tree.root_of(leaf, other, path) != root
                   for other in range(count) if other != index)  # fmt: skip


def test_a_level_is_filled_up_with_zeros():
    a, b, c = (bytes([k]) * 32 for k in range(1, 4))
    right = tree.node_hash(c, bytes(32))
    assert tree.levels([a, b, c])[-1] == [tree.node_hash(tree.node_hash(a, b), right)]
