"""Certificate, exports and comparison: what they say, and that foreign text stays text."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.conclusion.run_verdict import conclude
from fixtures.records.run_directory import RunDirectory
from reports import certificate, figures
from tests.selftests.reports.test_page import HOSTILE, PLAN

pytestmark = pytest.mark.cpu


def written(root: Path, plan=PLAN, **more) -> RunDirectory:
    """A run directory with a verdict, and nothing measured."""
    last = conclude(
        plan, planned=len(plan), whole_scope=True, ordered=True, origin="cluster",
        demonstration=False, interrupted=more.get("interrupted", ""),
    )  # fmt: skip
    verdict = {
        **vars(last), "schema": 1, "run_id": "20261120-141500-3fa2",
        "scope": {"tier": "standard", "whole": True, "origin": "cluster", "gpus_per_node": 8,
                  "gpu_model": "H200 SXM", "nodes": ["worker0", "worker1", "worker2"]},
        "criteria": [v.to_json() for v in plan],
    }  # fmt: skip
    run = {
        "schema": 2, "id": verdict["run_id"], "nonce": "n", "commands": [f"pytest {HOSTILE}"],
        "contract": {"nodes": 3, "gpus_per_node": 8, "gpu_model": HOSTILE},
        "thresholds": {"sha256": "ab" * 32, "path": "none"}, "versions": {"python": HOSTILE},
    }  # fmt: skip
    (root / "records").mkdir(parents=True)
    (root / "run.json").write_text(json.dumps(run))
    (root / "verdict.json").write_text(json.dumps(verdict))
    directory = RunDirectory(root)
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
