"""docs/examples/certificate.html says what the suite says today of the recorded run."""

import pytest

from tests.tools import example_certificate

pytestmark = pytest.mark.cpu


def test_the_example_has_every_row_of_the_recorded_run_as_judged_today(tmp_path):
    verdict, fresh = example_certificate.page(tmp_path)
    committed = example_certificate.EXAMPLE.read_text(encoding="utf-8")
    assert verdict == "ACCEPTED"
    assert '<p class="word">ACCEPTED</p>' in committed
    found, expected = example_certificate.rows(committed), example_certificate.rows(fresh)
    assert len(expected) > 200
    assert found == expected, "run `python -m tests.tools.example_certificate --write`"


def test_a_changed_value_is_found(tmp_path):
    committed = example_certificate.EXAMPLE.read_text(encoding="utf-8")
    changed = committed.replace("79.18 GiB", "79.19 GiB", 1)
    assert example_certificate.rows(changed) != example_certificate.rows(committed)


def test_the_example_names_no_path_of_the_machine_that_made_it():
    committed = example_certificate.EXAMPLE.read_text(encoding="utf-8")
    assert "reports verify /runs/recorded" in committed
    assert str(example_certificate.CHECKOUT) not in committed
