"""reports.policy: every page has one, it allows the page's scripts and nothing else."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from fixtures.records.run_directory import RunDirectory
from tests.selftests import support


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
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return RunDirectory(support.judged("h200-1x2", tmp_path_factory.mktemp("run")))
