"""Ways in which sites differ or fail, one by one: a verdict or one clear line each.

Whatever it is: the exit status is right, no healthy node is blamed, no job is left in the queue.
The table is tests/tools/foreign_quirks.py; all of it takes half an hour (`make soak`). In
`make test` is one row of each mechanism: files that come late or not at all, a filter that refuses
and one that routes, whole nodes, and preemption.
"""

from __future__ import annotations

import re

import pytest

from tests.selftests.sandboxes import refuse
from tests.tools.foreign_quirks import QUIRKS, Quirk, execute
from tests.tools.foreign_site import ForeignSite

pytestmark = pytest.mark.cpu

ROWS = [
    pytest.param(quirk, id=quirk.id, marks=() if quirk.quick else pytest.mark.slow)
    for quirk in QUIRKS
]


@pytest.mark.parametrize("quirk", ROWS)
def test_a_quirk_ends_in_a_verdict_or_a_line_and_blames_nobody(
    quirk: Quirk, request: pytest.FixtureRequest
) -> None:
    refuse(request, ForeignSite.refusal())
    with ForeignSite(quirk.variant) as site:
        done = execute(quirk, site)
        assert done.status == quirk.status, done.said
        assert re.search(quirk.says, done.said), done.said
        assert "Traceback" not in done.said
        assert "INTERNALERROR" not in done.said
        assert done.bad == quirk.bad, done.said
        assert done.ran is quirk.runs, done.said
        assert site.left() == {}
