"""The diagrams of the README and docs/architecture.md: as committed, true, and readable."""

import itertools

import pytest

from tests.tools import diagrams
from tests.tools.diagrams import BOX_H, BOX_W, CHECKOUT, DIAGRAMS, Box

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda d: d.name)
def test_a_diagram_is_committed_as_its_table_makes_it(diagram):
    assert diagram.path.read_text(encoding="utf-8") == diagrams.picture(diagram), (
        "run `python -m tests.tools.diagrams --write`"
    )
    page = CHECKOUT / diagram.page
    shown = diagram.path.relative_to(page.parent)
    assert f"]({shown})" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("box", [b for d in DIAGRAMS for b in d.boxes], ids=lambda b: b.title)
def test_what_a_box_names_is_there(box):
    assert box.word in (CHECKOUT / box.source).read_text(encoding="utf-8")
    assert len(diagrams.shown_source(box)) * 6 < BOX_W, "the line fits into the box"


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda d: d.name)
def test_boxes_are_apart_and_arrows_cross_none(diagram):
    places = [(box.column, box.row) for box in diagram.boxes]
    assert len(set(places)) == len(places)
    assert all(box.column < len(diagram.columns) for box in diagram.boxes)
    boxes = {box.title: box for box in diagram.boxes}
    for start, end in diagram.arrows:
        others = [b for b in diagram.boxes if b.title not in (start, end)]
        assert [b.title for b in others if crosses(boxes[start], boxes[end], b)] == []


def crosses(start: Box, end: Box, other: Box) -> bool:
    """Whether the arrow between two boxes goes through a third one."""
    (x, y), (to_x, to_y) = diagrams._ends(start, end)
    left, top = diagrams._corner(other)
    steps = [k / 200 for k in range(1, 200)]
    return any(
        left <= x + (to_x - x) * s <= left + BOX_W and top <= y + (to_y - y) * s <= top + BOX_H
        for s in steps
    )


def test_an_arrow_through_a_box_is_found():
    boxes = [Box(str(k), k, 0, "", "") for k in range(3)]
    assert crosses(boxes[0], boxes[2], boxes[1])
    assert not any(crosses(a, b, c) for a, b, c in itertools.permutations(boxes) if b.column == 1)


def test_the_picture_for_users_names_no_file():
    text = diagrams.picture(diagrams.ACCEPTANCE)
    assert [box.title for box in diagrams.ACCEPTANCE.boxes if not box.note] == []
    assert "/" not in "".join(text.split("<title>")[1:]).replace("</", "").replace("/>", "")
