"""Figures of the report: their axes, and the SVG that they become."""

from __future__ import annotations

import pytest

from reports.plots import drawing

pytestmark = pytest.mark.cpu


def test_a_figure_has_one_axes_or_a_list_of_them():
    figure, axes = drawing.new_figure(3.0, 2.0)
    assert list(figure.get_size_inches()) == [3.0, 2.0]
    assert figure.axes == [axes]
    for rows in (1, 2):
        figure, several = drawing.new_figure(3.0, 2.0, rows=rows)
        assert figure.axes == several
        assert len(several) == rows


def test_the_same_figure_is_the_same_svg_with_its_text_as_text():
    def made() -> str:
        figure, axes = drawing.new_figure(1.0, 1.0)
        axes.set_title("$1 bf16")
        return drawing.svg_of(figure)

    assert made() == made()
    assert made().startswith("<svg ")
    assert ">$1 bf16<" in made()
