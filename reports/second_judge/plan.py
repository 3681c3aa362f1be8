"""The second judge's plan: every criterion on every subject, and the limit that holds there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from reports.second_judge.physics import TABLES, Cannot, Json

KNOWN: Json = TABLES["known"]

# --- limits, as plain data (rejudge.plain)


def unresolved(wanted: Json, facts: Json) -> list[str] | None:
    """Return the names of conditions on unknown facts; None where a condition is false."""
    for name, want in wanted.items():
        fact: Any = facts.get(name)
        if name not in facts:
            holds = name not in ("algorithm", "cpu_bf16", "domains")  # proven, or false
        elif isinstance(want, list):
            holds = fact in want
        elif isinstance(want, dict):
            low, high = want["min"] or 0, want["max"] or math.inf
            holds = not isinstance(fact, (str, bool)) and low <= fact <= high
        else:  # True == 1 in Python, but a flag and a count are different facts
            holds = isinstance(want, bool) == isinstance(fact, bool) and want == fact
        if not holds:
            return None
    return [name for name in wanted if name not in facts]


def choose(rows: Sequence[Json], facts: Json) -> Json:
    """Return the one row with the most conditions, all true; Cannot for none, or for several."""
    states = [(len(row["when"]), unresolved(row["when"], facts), row) for row in rows]
    most = max((n for n, open_, _ in states if open_ == []), default=-1)
    # A row that an unknown fact might select goes before a less specific one.
    best = [(open_, row) for n, open_, row in states if open_ is not None and n >= most]
    if len(best) != 1 or best[0][0]:
        raise Cannot("no limit, or several")
    return best[0][1]


# --- the plan

FACTS: Mapping[str, Callable[[Any], bool]] = {
    "fabric": lambda p: p.nics_per_node > 0 and not p.virtual,
    "order": lambda p: p.ordered,
    "gpu": lambda p: not p.on_cpu,
    "nics": lambda p: p.nics_per_node > 0,
    "ib_ports": lambda p: p.nic_fabric == "InfiniBand",
    "port_states": lambda p: p.nic_fabric != "EFA",
    "roce": lambda p: p.nic_fabric == "RoCE",
    "efa": lambda p: p.nic_fabric == "EFA",
    "rack": lambda p: p.gpu_model in ("GB200", "GB300"),
    "nvml": lambda p: not p.on_cpu or p.emulated,
    "nvlink": lambda p: p.gpus_per_node > 1 and (p.emulated if p.on_cpu else p.nvlink > 0),
    "nvls": lambda p: p.nvls and p.gpus_per_node > 1 and not p.on_cpu,
    "multinode": lambda p: len(p.nodes) > 1,
    "multigpu": lambda p: p.gpus_per_node > 1,
    "several": lambda p: len(p.nodes) * p.gpus_per_node > 1,
    "fp8": lambda p: p.capability >= 8.9 and not p.on_cpu,
    "slurm": lambda p: p.origin in ("cluster", "sandbox"),
    "shared_nodes": lambda p: not p.whole_nodes,
    "gres": lambda p: not p.uncounted,
    "task_gpus": lambda p: not p.uncounted and not p.linear,
    "own_host": lambda p: not p.virtual or len(p.nodes) == 1,
    "cores": lambda p: p.bindable,
    "memory_control": lambda p: p.memory_control,
    "own_processes": lambda p: not p.light,
    "shared_directory": lambda p: p.shared_directory,
    "shared_tb": lambda p: p.shared_tb > 0,
    "rail_optimized": lambda p: p.rail_optimized,
    "breakable": lambda p: p.virtual and not p.light,
    "finetune": lambda p: "finetune" in p.installed,
    "zero3": lambda p: "zero3" in p.installed,
    "all_reduce_perf": lambda p: not p.on_cpu and "all_reduce_perf" in p.installed,
}


def planned(run: Json, limits: Json, p: Any) -> list[Any]:
    """Return the planned rows of a run on the population `p` (records.Records): none is released
    by run.json of whose workload there are records."""
    rows = list(_planned(run, limits, p))
    exempt = {key for entry in limits["not_applicable"] for key in entry["criteria"]}
    judged = {r.c["workload"] for r in rows if r.applies or r.c["key"] in exempt}
    for row in rows if p.origin not in ("sandbox", "by-hand") else ():
        row.applies |= row.c["workload"] in p.measured - judged
    return rows


def _planned(run: Json, limits: Json, p: Any) -> Iterator[Any]:
    nodes, depth = p.nodes, KNOWN["tier"].index(run.get("tier") or "standard")
    tiers = [*KNOWN["tier"][: min(depth, 2)], KNOWN["tier"][depth]]
    tiers += ["destructive"] if run.get("destructive") and depth else []
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    pairs += [(nodes[-1], nodes[0])] if len(nodes) % 2 and len(nodes) > 1 else []
    rails = p.gpus_per_node if len(nodes) > 1 and p.gpus_per_node > 1 else 0
    subjects: dict[str, Any] = {
        "node": {n: (n,) for n in nodes}, "pair": {f"{a}--{b}": (a, b) for a, b in pairs},
        "rail": {f"rail{k}": nodes for k in range(rails)}, "cluster": {"cluster": nodes},
    }  # fmt: skip
    for c in limits["criteria"]:
        if c["tier"] not in tiers and c["key"] not in run.get("optional", ()):
            continue
        own = subjects.get(c["per"], {})
        if c["tier"] == "destructive" and c["per"] == "cluster" and pairs:
            own = {"cluster": pairs[0]}
        for subject, of in (own or subjects["cluster"]).items():
            facts = facts_of(c, of, p)
            unknown = [n for n in ("per", "statistic", "over", "tier") if c[n] not in KNOWN[n]]
            unknown += [n for n in c["facts"] if n not in FACTS]
            named = [e for e in limits["not_applicable"] if c["key"] in e["criteria"]]
            exempt = any(unresolved(e["when"], facts) == [] for e in named)
            held = all(FACTS[n](p) for n in c["facts"] if n in FACTS)
            at = next((q for q in pairs if of[0] in q), of) if len(of) == 1 else of
            at = at if c["workload"] in TABLES["pairs"] else of
            place = "--".join([*[c["at"].get("way")] * (c["tier"] == "destructive"), *at])
            if c["workload"] == "slurm":
                place = "login"
            elif c["workload"] not in TABLES["small"] and len(nodes) > 1:
                place = "all" if c["workload"] in TABLES["across"] or of == nodes else place
            yield SimpleNamespace(
                c=c, subject=subject, nodes=of, place=place, facts=facts, unknown=unknown,
                applies=bool(own) and held and not exempt,
            )  # fmt: skip


def facts_of(c: Json, nodes: tuple[str, ...], p: Any) -> Json:
    """Return what is known before the run, by which limits and bounds are chosen."""
    count = len(nodes)
    facts = {k: getattr(p, k) for k in ("gpus_per_node", "nics_per_node", "nic_gbps", "nic_fabric")}
    facts |= {"nodes": count, "gpus": count * (p.gpus_per_node if c["per"] != "rail" else 1)}
    facts |= {"metric": c["metric"], **c["at"]}
    facts |= {"nvls": True} if p.nvls and c["per"] != "rail" else {}
    facts |= {"dtype": c["metric"].partition("_")[0]} if c["workload"] == "gemm" else {}
    on_host = p.virtual and count > 1 and (c["unit"] in ("GB/s", "us") or c["statistic"] == "dip")
    return facts | ({"model": "cpu" if on_host else p.gpu_model} if p.gpu_model else {})
