"""Certificate, exports and comparison: what they say, and that foreign text stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from reports.pages import certificate, figures
from tests.selftests import judged_runs
from tests.selftests.reports.pages.test_page import HOSTILE, PLAN

pytestmark = pytest.mark.cpu


def written(root: Path, plan=PLAN, **more) -> RunDirectory:
    """A run directory with a verdict, and nothing measured."""
    directory = judged_runs.written(
        root, judged_runs.verdict_of(plan, **more), commands=[f"pytest {HOSTILE}"],
        contract={"nodes": 3, "gpus_per_node": 8, "gpu_model": HOSTILE},
        thresholds={"sha256": "ab" * 32, "path": "none"}, versions={"python": HOSTILE},
    )  # fmt: skip
    directory.write_manifest()
    return directory


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(html.replace("<wbr>", ""))  # where a key may be broken, without a letter

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += f" {data}"


@pytest.mark.parametrize("make", [certificate.page, lambda d: figures.figures(d, *both(d))])
def test_foreign_text_stays_text(make, tmp_path):
    page = Page(make(written(tmp_path / "run")))
    assert HOSTILE in page.text
    assert not [tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "link")]
    assert not [a for _, a in page.tags for name in a if name.startswith("on") or name == "src"]


def both(directory: RunDirectory) -> tuple[dict, dict]:
    return json.loads(directory.verdict.read_text()), json.loads(directory.run_json.read_text())
