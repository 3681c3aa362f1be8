"""One emulated node for the tests of a module: its driver is compiled once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.sandbox import emulation
from tests.selftests import ready_nodes
from tests.selftests.ready_nodes import Node
from tests.selftests.sandboxes import refuse


@pytest.fixture(scope="module")
def emulated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    refuse(request, emulation.refusal())
    with ready_nodes.emulated(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(emulated: Node) -> Iterator[Node]:
    """The node, healthy; made healthy again at the end."""
    yield emulated
    emulated.heal()
