"""The verdict, facts and notes of the report: what they say, once, and that they are escaped."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.verdict.model import Outcome, Verdict
from reports.pages import banner
from tests.selftests.fabric_loads import fabric_load
from tests.selftests.reports.facts.test_rows import FAIL, HOSTILE, LOST, PASS, hostile, verdict_json

pytestmark = pytest.mark.cpu


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html.replace("<wbr>", "")).split())


def test_the_banner_says_verdict_counts_and_coverage():
    text = banner.banner(verdict_json(PASS, FAIL, LOST), {})
    assert "REJECTED" in text
    assert "<b>2 of 3</b> judged; 1 not measured" in " ".join(text.split())
    assert "node lost: worker1 went down" in text
    assert "repair it, then --resume" in text


def test_one_reason_is_told_once():
    lost = [replace(LOST, criterion=f"gemm.{k}") for k in ("bf16", "fp16", "tf32")]
    text = banner.banner(verdict_json(*lost, name="INCOMPLETE"), {})
    assert text.count("went down") == 1
    assert all(f"gemm.{k}" in text for k in ("bf16", "fp16", "tf32"))


def test_the_run_section_says_what_was_ordered_and_by_which_limits():
    contract = {"nodes": "gpu[01-32]", "gpus_per_node": 8, "gpu_model": "H200 SXM",
                "nics_per_node": 8, "nic_gbps": 400.0, "driver": None}  # fmt: skip
    run = {"contract": contract, "thresholds": {"sha256": "fe2a9ad1"}, "commit": "6a4f-dirty",
           "created": "2026-11-20T14:26:18+00:00",
           "ended": "2026-11-20T15:01:00+00:00"}  # fmt: skip
    text = banner.run_section(verdict_json(PASS), run)
    for said in ("nodes gpu[01-32], 8 x H200 SXM per node, 8 NICs per node at 400 Gbit/s",
                 "fe2a9ad1", "6a4f, with uncommitted changes", "1: worker1",
                 "2026-11-20 14:26 UTC to 2026-11-20 15:01 UTC"):  # fmt: skip
        assert said in text
    assert "nothing (the run has no order)" in banner.run_section(verdict_json(PASS), {})


def test_a_replay_says_so():
    replay = {"run": "20261101-000000-aaaa", "thresholds_sha256": "beef"}
    text = banner.run_section(verdict_json(PASS, replay=replay), {})
    assert "Re-judged from run 20261101-000000-aaaa with the limits beef" in text


def test_notes_list_loose_limits_notes_waivers_and_what_does_not_apply():
    text = banner.notes(
        verdict_json(
            replace(PASS, limit=">= 1 (loose: demonstration)", notes=["NVLS was off"]),
            replace(PASS, outcome=Outcome.WAIVED, reason="waived by Kim, until 2027-01-01"),
            replace(PASS, outcome=Outcome.NOT_APPLICABLE, reason="a single node has no pairs"),
        )
    )
    for said in ("demonstration", "NVLS was off", "waived by Kim", "a single node has no pairs"):
        assert said in text
    assert "<details>" in text


def test_nothing_in_banner_and_notes_is_markup():
    data = verdict_json(*(hostile(o) for o in Outcome), name=HOSTILE, reasons=[HOSTILE])
    data["replay"] = {"run": HOSTILE, "thresholds_sha256": HOSTILE}
    data["scope"] = {"tier": HOSTILE, "origin": HOSTILE, "nodes": [HOSTILE]}
    run = {"contract": {"nodes": HOSTILE, "driver": HOSTILE}, "commit": HOSTILE,
           "thresholds": {"sha256": HOSTILE}, "versions": {HOSTILE: HOSTILE}}  # fmt: skip
    text = banner.banner(data, run, cluster=HOSTILE, blamed=HOSTILE)
    text += banner.run_section(data, run) + banner.notes(data)
    text += "".join(banner.environment(run, {}).values())
    assert "<img" not in text
    assert "&lt;img" in text


def test_bytes_that_are_no_text_do_not_cost_the_report():
    data = verdict_json(replace(LOST, reason="worker\udcff1"))
    assert "worker?1" in banner.banner(data, {})


def test_the_page_loads_nothing_from_outside():
    assert not {"http:", "https:", "url(", "@import"} & set(banner.style().split())
    assert "url(" not in banner.style()
    assert str(Path.home()) not in banner.style()


def test_what_is_not_there_is_not_said():
    bare = {name: value for name, value in verdict_json(PASS, name="ACCEPTED").items()
            if name not in ("reasons", "scope")}  # fmt: skip
    text = plain(banner.banner(bare, {}))
    assert text.startswith("ACCEPTED Every criterion of the whole scope passed")
    assert "why" not in text
    assert "why" in plain(banner.banner(verdict_json(PASS), {}))
    assert "Nodes" not in plain(banner.run_section(bare, {}))
    no_nodes = verdict_json(PASS, scope={"nodes": None})
    assert "Nodes" not in plain(banner.run_section(no_nodes, {}))


def test_the_next_step_of_a_verdict_is_told_unless_somebody_is_to_blame():
    accepted = verdict_json(PASS, name="ACCEPTED")
    run = {"path": "/runs/r"}
    assert "Next: Sign the certificate: python -m reports sign /runs/r" in plain(
        banner.banner(accepted, run)
    )
    assert "Next:" not in plain(banner.banner(accepted, run, blamed="1 node at fault"))


# --- names, texts and links


def test_more_than_sixteen_names_are_a_host_list():
    names = [f"n{k:02d}" for k in range(17)]
    assert banner._name_list(names[:16]) == ", ".join(names[:16])
    assert banner._name_list(names) == "n[00-16]"


def test_a_key_is_broken_after_dots_and_underscores():
    assert banner._breakable("gemm.bf16_per_ghz") == "gemm.<wbr>bf16_<wbr>per_<wbr>ghz<wbr>"


def test_text_between_backticks_is_code_and_all_of_it_is_escaped():
    for text, html in (
        ("run `pytest <x>` & see", "run <code>pytest &lt;x&gt;</code> &amp; see"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("one ` alone <b>", "one ` alone &lt;b&gt;"), ("plain", "plain"),
    ):  # fmt: skip
        assert banner._with_code(text) == html


def test_the_anchor_of_a_key_has_letters_digits_and_dashes():
    assert banner.anchor("allreduce busbw_1.5") == "chart-allreduce-busbw-1-5"


def test_style_and_script_stand_in_the_page():
    assert banner.style().startswith('<meta name="viewport"')
    assert re.search(r"<style>.*\{.*</style>$", banner.style(), re.DOTALL)
    assert re.fullmatch(r"<script>\n.*function.*</script>", banner.script(), re.DOTALL)


# --- groups and notes


def test_a_group_counts_its_verdicts_and_the_largest_comes_first():
    def lost(criterion: str, subject: str, reason: str) -> Verdict:
        return replace(LOST, criterion=criterion, subject=subject, reason=reason)

    rows = [lost("a", "n0", "small"), lost("a", "n1", "large"), lost("b", "n1", "large"),
            lost("b", "n2", ""), PASS]  # fmt: skip
    found = banner._group_by_reason([v.to_json() for v in rows], Outcome.NOT_MEASURED)
    assert [(g.reason, g.count) for g in found] == [
        ("large", 2), ("small", 1), ("no reason given", 1)
    ]  # fmt: skip
    assert found[0].subjects_by_criterion == {"a": ["n1"], "b": ["n1"]}


def test_a_hundred_notes_are_shown():
    for count, said in ((100, False), (101, True)):
        verdict = replace(PASS, notes=[f"note {k}" for k in range(count)])
        text = banner.notes(verdict_json(verdict))
        assert ("1 more stand in results.csv" in text) == said


# --- facts on the run


def test_the_versions_are_those_that_are_known():
    run = {"commit": "6a4f", "versions": {"python": "3.11", "rich": None}}
    assert banner.environment(run, {"pytest": "<8>"}) == {
        "Suite commit": "6a4f", "Python": "3.11", "Pytest": "&lt;8&gt;"
    }  # fmt: skip
    assert banner.environment({}, {}) == {"Suite commit": "not in git"}


def test_the_contract_is_one_line_of_what_it_states():
    assert banner.contract_text(None) == "nothing (the run has no order)"
    for contract, text in (
        ({"nodes": 2, "gpus_per_node": 8, "gpu_model": "H200"}, "2 nodes, 8 x H200 per node"),
        ({"nodes": "n[0-1]", "gpus_per_node": 0}, "nodes n[0-1], 0 x GPU per node"),
        ({"nics_per_node": 1, "nic_gbps": 400.0}, "1 NIC per node at 400 Gbit/s"),
        ({"nics_per_node": 2, "driver": "", "cuda": None, "x_y": 0}, "2 NICs per node, x y 0"),
    ):  # fmt: skip
        assert banner.contract_text(contract) == text


def test_the_facts_of_a_run_are_those_that_it_states():
    verdict: dict[str, Any] = {"run_id": "r1"}
    assert banner.facts(verdict, {}) == [
        ("Ordered", "nothing (the run has no order)"), ("Run", "r1"),
        ("Suite commit", "not in git"),
    ]  # fmt: skip
    run = {"commit": "6a4f-dirty", "thresholds": {"sha256": "beef"},
           "created": "2026-11-20T14:00:00+00:00", "ended": "2026-11-20T15:00:00+01:00",
           "contract": {"nodes": 1}}  # fmt: skip
    scope = {"tier": "probe", "whole": True, "origin": "sandbox"}
    assert dict(banner.facts({**verdict, "scope": scope}, run)) == {
        "Ordered": "1 node", "Run": "r1", "Scope": "all of the probe tier",
        "Measured on": "a sandbox: virtual nodes on one machine",
        "When": "2026-11-20 14:00 UTC", "Suite commit": "6a4f, with uncommitted changes",
        "Limits SHA-256": "beef",
    }  # fmt: skip
    part = {"tier": "probe", "origin": "moon"}
    found = dict(banner.facts({**verdict, "scope": part}, {}))
    assert (found["Scope"], found["Measured on"]) == ("a part of the probe tier", "moon")


def test_a_replay_has_the_time_of_both_runs():
    replay = {"run": "r0", "created": "2026-11-01T10:00:00+00:00"}
    run = {"created": "2026-11-20T14:00:00+00:00"}
    found = dict(banner.facts({"run_id": "r1", "replay": replay}, run))
    assert (found["Run"], found["When"], found["Judged again"]) == (
        "r0", "2026-11-01 10:00 UTC", "2026-11-20 14:00 UTC"
    )  # fmt: skip
    unnamed = dict(banner.facts({"run_id": "r1", "replay": {"created": "x"}}, run))
    assert unnamed["Run"] == "r1"


def test_a_time_range_has_what_is_known_of_it():
    early, late = "2026-11-20T14:00:10+00:00", "2026-11-20T15:01:00+00:00"
    for created, ended, text in (
        (early, late, "2026-11-20 14:00 UTC to 2026-11-20 15:01 UTC"),
        (early, "2026-11-20T14:00:50+00:00", "2026-11-20 14:00 UTC"),
        (early, None, "2026-11-20 14:00 UTC"), (None, late, "2026-11-20 15:01 UTC"),
        ("soon", None, ""),
    ):  # fmt: skip
        assert banner._time_range({"created": created, "ended": ended}) == text
    assert banner._format_minute("2026-11-20T00:30:00+02:00") == "2026-11-19 22:30 UTC"
    assert banner._format_minute("soon") == ""
    assert banner._scope_text({}) == ""


@pytest.mark.parametrize(
    ("began", "ended", "said"),
    [
        ("2026-11-22T13:38:00+00:00", "2026-11-22T13:49:10+00:00",
         "Measured 2026-11-22 13:38 UTC to 2026-11-22 13:49 UTC (11 min), run r1"),
        ("2026-11-22T15:38:00+02:00", "2026-11-24T13:38:00+00:00", "(2 days), run r1"),
        ("2026-11-22T13:38:00+00:00", None, "Measured 2026-11-22 13:38 UTC, run r1"),
        (None, None, "Run r1"), ("yesterday", 7, "Run r1"),
    ],
    ids=["minutes", "another time zone", "killed", "unknown", "no times"],
)  # fmt: skip
def test_the_first_screen_says_when_and_how_long(began, ended, said):
    data = {**verdict_json(PASS), "run_id": "r1"}
    text = plain(banner.banner(data, {"created": began, "ended": ended}))
    assert said in text
    replayed = {**data, "replay": {"run": "r0", "created": "2020-01-01T00:00:00+00:00"}}
    assert "Measured 2020-01-01 00:00 UTC, run r0" in plain(banner.banner(replayed, {}))


def test_what_was_ordered_stands_beside_what_was_found():
    order = {"customer": "ACME", "nodes": 4, "gpus_per_node": 8, "gpu_model": "H200 SXM"}
    data = verdict_json(PASS)
    text = plain(banner.banner(data, {"contract": order}, found="3 nodes, 24 x NVIDIA H200"))
    assert "Ordered: 4 nodes, 8 x H200 SXM per node. Found: 3 nodes, 24 x NVIDIA H200." in text
    assert "Ordered" not in plain(banner.banner(data, {}, found="3 nodes"))


def test_the_fabric_under_load_has_a_part_of_its_own():
    assert banner.fabric(verdict_json(PASS)) == ""
    nothing = plain(banner.fabric({**verdict_json(PASS), "fabric_load": None}))
    assert "The fabric was not loaded" in nothing
    load = fabric_load(8, never=60)
    html = banner.fabric({**verdict_json(PASS), "fabric_load": load})
    assert '<a href="#fabric-load">' in banner.contents([html])
    text = plain(html)
    assert load["sentence"][1:] in text
    assert load["findings"][0] in text
    assert "Never driven at 0.9 of the expected load and more; 6 further ways not listed" in text
    assert 'role="img" aria-label="56 ordered pairs of 8 leaves; 56 never driven' in html
    assert "from leaf" in text
    assert "to leaf" in text
    assert text.count("leaf 0 leaf 1 0 this way") == 1
    many = {**load, "findings": [f"finding {k}" for k in range(22)]}
    text = plain(banner.fabric({**verdict_json(PASS), "fabric_load": many}))
    assert "finding 19" in text
    assert "finding 20" not in text
    assert "2 more findings: see the rows." in text


def test_of_many_leaves_it_is_said_what_a_line_is():
    for made, said in ((fabric_load(64), False), (fabric_load(256, rails=8, never=3), True)):
        text = plain(banner.fabric({**verdict_json(PASS), "fabric_load": made}))
        assert ("A line is 4 leaves that follow each other" in text) is said
        assert ("some of its pairs never" in text) is said
