"""Foreign text (host names, messages, reasons from YAML) changes no structure of any output.

Each output is made twice, with hostile text in every place that holds text and with a harmless
word in the same places: tags, attributes, lines, cells and samples must be the same.
"""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fixtures.records.run_directory import RunDirectory
from fixtures.verdict.model import Outcome, Verdict
from reports.exports import export, github
from reports.facts import blame, rows
from reports.pages import banner, certificate, cluster, figures
from reports.plots import charts
from tests.selftests import judged_runs
from tests.selftests.fabric_loads import fabric_load

pytestmark = pytest.mark.cpu

PLAIN = "word"
HOSTILE = {
    "tag": "<img src=x onerror=alert(1)>",
    "end of a script": "</script><script>alert(1)</script>",
    "attribute": '" onmouseover="alert(1)" x=\'',
    "template": "{{ 7 * 7 }}{% raw %}",
    "formula": '=HYPERLINK("http://example.org";"x")',
    "formula behind a tab": "\t@SUM(1+1)*cmd|' /C calc'!A0",
    "lines": "a\nb\r\nc\u2028d",
    "label": 'a"} 1\ngpu_acceptance_pass{criterion="x\\',
    "workflow command": "a\n::error title=x::forged%0A::add-mask::y",
    "table": "a | b | [c](http://d) `e` **f**\n| g |",
    "half a character": "worker\udcff1",
}


def verdict(outcome: Outcome, text: str) -> Verdict:
    """A verdict with `text` wherever one has text."""
    reason = f"waived by {text}, until 2027-01-31: {text}" if outcome is Outcome.WAIVED else text
    return Verdict(
        criterion=text, title=text, subject=text, outcome=outcome, value=text, unit=text,
        limit=f"{text} (loose: {text})", ceiling=1.0, margin=-0.5,
        worst={"node": text, "gpu": text, "uuid": text, "value": text}, reason=reason,
        next_step=text, record=text, job=text, notes=[text],
    )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path):
    def make(text: str) -> tuple[RunDirectory, dict, dict]:
        """A run directory whose verdict and run.json hold `text` everywhere."""
        plan = [verdict(outcome, text) for outcome in Outcome]
        said = judged_runs.verdict_of(
            plan, interrupted=text, tier=text, origin=text, gpu_model=text, nodes=[text]
        )
        replayed = ("run", "path", "thresholds_sha256", "created", "commit")
        said |= {"run_id": text, "replay": dict.fromkeys(replayed, text)}
        said["fabric_load"] = fabric_load(2, never=1) | {
            "sentence": text, "not_covered": text, "leaves": [text, text], "findings": [text],
            "leaves_from": text, "missing": [[text, text, text, text]],
        }  # fmt: skip
        run = {
            "schema": 2, "id": text, "nonce": "n", "commands": [text], "commit": text,
            "contract": {"nodes": text, "gpus_per_node": 8, "gpu_model": text, "driver": text},
            "thresholds": {"sha256": text, "path": text}, "versions": {text: text},
        }  # fmt: skip
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        return judged_runs.written(root, said, **run), said, run

    return make


class Structure(HTMLParser):
    """Tags with the names of their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "wbr":  # the suite's own, after each dot and underscore of a key
            return
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))

    def handle_endtag(self, tag):
        self.tags.append((f"/{tag}", ()))


def report(directory: RunDirectory, said: dict, run: dict) -> str:
    """All that the report is made of by us; pytest-html escapes the rows into an attribute."""
    found = cluster.Cluster.of(directory, run, said["scope"])
    blamed = blame.blame(said, blame.lists_of(directory, said, run)).sentence
    parts = [banner.banner(said, run, cluster=found.headline, blamed=blamed)]
    parts += [cluster.section(found), banner.run_section(said, run), banner.notes(said)]
    parts += [figures.figures(directory, said, run)]
    parts += banner.environment(run, {}).values()
    for data in said["criteria"]:
        found = Verdict.from_json(data)
        parts += rows.cells(found, rows.RESULT[found.outcome])
        parts += [rows.details(found, [data])]
        parts += rows.summary_cells((found.subject, found.reason), [found])
        parts += [rows.summary_details([found])]
        parts += rows.cells_without_verdict(found.subject, found.reason, "Error")
    return "".join(parts)


def certified(directory: RunDirectory, said: dict, run: dict) -> str:
    return certificate.page(directory)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("make", [report, certified])
def test_no_page_gets_another_tag_or_attribute(made, make, text):
    page = make(*made(text))
    assert Structure(page).tags == Structure(make(*made(PLAIN))).tags


@pytest.mark.parametrize("text", [t for t in HOSTILE.values() if t.isprintable()])
def test_no_chart_gets_another_tag(text):
    def drawn(name: str) -> set:
        many = [(f"{name}{k}", float(k)) for k in range(charts.MAX_BARS + 1)]
        chart = charts._bars(name, name, many, [(1.5, name, "#000")])
        return set(Structure(chart.svg).tags)  # how many ticks there are depends on the width

    assert drawn(text) == drawn(PLAIN)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_cell_becomes_a_formula_or_a_second_row(made, text):
    directory, said, _ = made(text)
    export.write_results(directory, said)
    table = list(csv.reader(io.StringIO((directory.root / "results.csv").read_text())))
    assert [len(row) for row in table] == [len(export.COLUMNS)] * (len(Outcome) + 1)
    cells = [cell for row in table[1:] for cell in row]
    assert [c for c in cells if c[:1] in ("=", "@", "\t", "\r") and c] == []
    assert [c for c in cells if c[:1] in ("+", "-") and not re.fullmatch(r"-?[\d.]+", c)] == []
    assert [c for c in cells if "\n" in c or "\r" in c] == []


LABEL = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"[a-z_]+\{{{LABEL}(?:,{LABEL})*\}} \S+")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_prometheus_gets_no_other_sample(made, text):
    lines, plain = (export.prometheus(made(t)[1]).rstrip("\n").split("\n") for t in (text, PLAIN))
    assert len(lines) == len(plain)
    assert [n for n in lines if not n.startswith("# ") and not SAMPLE.fullmatch(n)] == []
    names = [[n.partition("{")[0] for n in found] for found in (lines, plain)]
    assert names[0] == names[1]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_github_gets_no_other_line_cell_or_command(made, text):
    said, plain = made(text)[1], made(PLAIN)[1]
    shown, harmless = github.markdown(said), github.markdown(plain)
    assert [n.count("|") for n in shown.splitlines()] == [
        n.count("|") for n in harmless.splitlines()
    ]
    # An address or a team stands as code, in which nothing is a link or a mention.
    code = re.compile(r"`(?:@|[^`|\s]*(?:://|@|www\.))[^`|\s]*`")
    assert not set("<>[]`") & set(code.sub("", shown))
    assert not re.search(r"(?<!\w)@\w|://|www\.", code.sub("", shown))
    commands = github.annotate(said)
    "".join((shown, *commands)).encode()
    assert len(commands) == len(github.annotate(plain))
    for command in commands:
        assert re.fullmatch(r"::error title=[^:\r\n]*::[^\r\n]*", command)
