"""reports.facts.policy: every page has one, it allows the page's scripts and nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports.facts import policy
from reports.pages import page
from tests.selftests.support import CHECKOUT, DATA
from tests.tools import browser

pytestmark = pytest.mark.cpu


class Parsed(HTMLParser):
    """Scripts, policies and handlers of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.policies: list[str] = []
        self.handlers: list[str] = []
        self.before: list[str] = []
        """What stands before the policy, as far as a policy rules it."""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(str(given["content"]))
        if not self.policies and tag in ("script", "style", "link", "img", "base"):
            self.before.append(tag)
        self.handlers += [name for name in given if name.startswith("on")]
        self.handlers += [str(v) for v in given.values() if str(v).startswith("javascript:")]
        self._in_script = tag == "script"
        if self._in_script:
            assert not given, "a script from elsewhere"

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts.append(data)
            self._in_script = False


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = RunDirectory(DATA / "h200-1x2")
    path = tmp_path_factory.mktemp("policy") / page.NAME
    unjudged = page.without_verdict(directory, directory.read_run())
    row = Verdict(criterion="a", title="a", subject="n", outcome=Outcome.NOT_MEASURED).to_json()
    path.write_text(page.page(directory, {**unjudged, "criteria": [row]}), encoding="utf-8")
    return path


def test_the_report_allows_its_own_scripts_and_nothing_else(report):
    found = Parsed(report.read_text(encoding="utf-8"))
    (said,) = found.policies
    rules = dict(rule.split(" ", 1) for rule in said.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["style-src"] == "'unsafe-inline'"
    assert rules["img-src"] == "data:"
    assert len(found.scripts) == 2, "that of the suite, that of pytest-html"
    assert rules["script-src"].split() == [policy.source(text) for text in found.scripts]
    assert found.before == [], "the policy rules all of the page"
    assert found.handlers == []


def test_a_script_that_came_into_a_page_is_not_allowed_by_it():
    made = policy.in_page('<meta charset="utf-8"><script>evil()</script>', "own()")
    (said,) = Parsed(made).policies
    assert policy.source("own()") in said
    assert policy.source("evil()") not in said
    with pytest.raises(ValueError, match="no place for its policy"):
        policy.in_page("<html></html>")


PAGES = sorted(
    path.name
    for path in (CHECKOUT / "reports" / "templates").glob("*.jinja2")
    if "<!DOCTYPE" in path.read_text(encoding="utf-8")
)


def test_there_are_templates_of_pages():
    assert {"certificate.jinja2", "joined.jinja2", "dossier.jinja2"} <= {*PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_every_other_page_allows_no_script_at_all(name):
    text = (CHECKOUT / "reports" / "templates" / name).read_text(encoding="utf-8")
    assert re.search(r'<meta charset="utf-8">\s*\{\{ policy \}\}', text)
    found = Parsed(text.replace("{{ policy }}", policy.meta()))
    assert (len(found.policies), found.before, found.scripts, found.handlers) == (1, [], [], [])
    assert "script-src 'none';" in found.policies[0]


@pytest.mark.slow
@pytest.mark.skipif(browser.REFUSAL is not None, reason=str(browser.REFUSAL))
def test_a_browser_runs_the_own_scripts_and_no_other(report, tmp_path):
    planted = tmp_path / "planted.html"
    text = report.read_text(encoding="utf-8")
    image = "<img src=x onerror=\"document.title = 'taken over'\">"
    script = "<script>document.title = 'taken over'</script>"
    planted.write_text(text.replace("</body>", f"{image}{script}</body>"), encoding="utf-8")
    asked = "return [document.title, document.querySelectorAll('#results-table tbody').length > 0]"
    for title, has_rows in browser.evaluate([report, planted], asked):
        assert title != "taken over"
        assert has_rows, "the table is made by a script of the page"
