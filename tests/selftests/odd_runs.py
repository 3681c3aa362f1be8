"""Honest runs in odd circumstances, from a seed: what happened, the run directory, how it must end.

A cluster of a few nodes is measured by sessions: one is resumed, hours or a month later, from
another time zone; what failed is measured again; GPUs are replaced, once or twice; an accepted run
is recertified after a repair; a node's clock differs from the owner's; units are joined. Every
value is sampled anew, every GPU has its own identity, every time follows from the owner's clock and
the node's offset.

The table (`ends()`) knows of each circumstance what it does to the rows of its nodes. Nothing here
is forged, and nothing may be called so.
"""

# Length: the table of circumstances and the simulator that follows it.

from __future__ import annotations

import datetime
import json
import random
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fixtures.cluster.population import Population
from fixtures.plan.items import planned_list
from fixtures.records.model import Measurement, RankResult, Record
from fixtures.records.run_directory import RunDirectory
from fixtures.thresholds import loader
from tests.selftests import support
from tests.selftests.run.small_run import TEXT

DAY_S, HOUR_S = 86400.0, 3600.0
T0 = 1_700_000_000.0
"""When the first session of every run begins, by the owner's clock."""
GPUS = 2
JOB_S = 120.0
GOOD, SLOW = 650.0, 500.0
NEEDED = 3
"""Passes in a row that take back a failure on the same devices."""
GAPS_S = (600.0, 7 * HOUR_S, 31 * DAY_S)
OFFSETS_H = (0, 2, -8, 9, 5.5)
AHEAD_H = (-20.0, -3.0, -0.02, 0.02, 3.0, 20.0, 72.0, -48.0, -24.0 * 40)
"""By how much a node's clock may be ahead of the owner's."""
SET_TO_S = (0.0, -400.0, 3 * HOUR_S, -20 * HOUR_S)
TOLERANCE_S = DAY_S
"""A clock that differs by more is wrong: nothing of its node is known."""
NAMES = ("gpu-{0:03d}", "rack7-n{0}", "dgx{0}.site.example", "ip-10-0-0-{0}", "w{0}")


@dataclass(frozen=True)
class Circumstances:
    """What happens to one run; a node is named by its number."""

    nodes: int = 2
    names: str = NAMES[0]
    gaps_s: tuple[float, ...] = ()
    """Between sessions: there is one more of them."""
    time_zones_h: float = 0
    """Of the host that creates the run, east of UTC."""
    clocks_s: tuple[float, ...] = ()
    """By how much each node's clock is ahead."""
    set_between: int | None = None
    """A node whose clock is set after the first session."""
    set_to_s: float = 0.0
    """By how much it is ahead from then on."""
    resumed: int | None = None
    """A node that the first session did not measure."""
    failed: int | None = None
    """A node whose GPU was slow in its first measurement."""
    passes: int = 0
    """How often it was fast afterwards, in sessions of their own."""
    swaps: tuple[int, ...] = ()
    """Nodes of which a GPU is replaced between two sessions, one after the other."""
    measured_again: bool = True
    """Whether what a swap invalidates is measured again in the session after it."""
    recertified: int | None = None
    """A node that is repaired after the run was accepted, and measured again."""


def circumstances(seed: int) -> Circumstances:
    """Return what happens to the run of this seed."""
    rng = random.Random(seed)
    nodes = rng.choice((2, 2, 3, 4))
    clocks = [0.0] * nodes
    if rng.random() < 0.4:
        clocks[rng.randrange(nodes)] = rng.choice(AHEAD_H) * HOUR_S
    elif rng.random() < 0.1:  # it is the owner's that differs
        clocks = [rng.choice(AHEAD_H) * HOUR_S] * nodes
    made = Circumstances(
        nodes=nodes, names=rng.choice(NAMES), time_zones_h=rng.choice(OFFSETS_H),
        clocks_s=tuple(clocks),
    )  # fmt: skip
    if any(abs(ahead) > TOLERANCE_S for ahead in clocks):
        return made  # nothing of that node is known, whatever else happens
    if rng.random() < 0.3:
        made = replace(made, set_between=rng.randrange(nodes), set_to_s=rng.choice(SET_TO_S))
    what = rng.choice(("plain", "resume", "retest", "swap", "swap", "swap twice", "recertify"))
    node = rng.randrange(nodes)

    def gaps(count: int) -> tuple[float, ...]:
        return tuple(rng.choice(GAPS_S) for _ in range(count))

    if what == "resume":
        return replace(made, resumed=node, gaps_s=gaps(rng.choice((1, 2))))
    if what == "retest":
        passes = rng.randrange(0, 5)
        return replace(made, failed=node, passes=passes, gaps_s=gaps(passes))
    if what in ("swap", "swap twice"):
        swaps = (node,) if what == "swap" else (node, rng.choice((node, rng.randrange(nodes))))
        failed = node if rng.random() < 0.4 else None
        again = rng.random() < 0.8
        return replace(made, swaps=swaps, gaps_s=gaps(len(swaps)), failed=failed,
                       measured_again=again)  # fmt: skip
    if what == "recertify":
        return replace(made, recertified=node, gaps_s=gaps(1))
    return made


@dataclass(frozen=True)
class Ends:
    """How a run must end."""

    verdict: str
    red: Mapping[tuple[str, str], str]
    """(criterion, subject) of every row that failed or was not measured -> why."""
    wrong_clocks: tuple[str, ...] = ()
    """Nodes that are accused of their clocks: those whose clock is wrong, and not the owner's."""


CLOCK, REPLACED, REPEAT, SLOWER = "clock", "replaced", "repeat", "slow"


OF_GPUS = ("gemm.bf16", "gemm.spread")
OF_NODE = (*OF_GPUS, "allreduce.nvls", "allreduce.errors")
OF_INVENTORY = ("inventory.gpus", "inventory.gpu_model")
OF_PAIR = "allreduce.pair"


def ends(what: Circumstances, nodes: Sequence[str], pairs: Sequence[tuple[str, ...]]) -> Ends:
    """Return how a run in these circumstances must end."""
    why: dict[tuple[str, str], str] = {}

    def rows(node: str, criteria: Sequence[str], reason: str, *, with_pairs: bool) -> None:
        for criterion in criteria:
            why.setdefault((criterion, node), reason)
        for pair in pairs if with_pairs else ():
            if node in pair:
                why.setdefault((OF_PAIR, "--".join(pair)), reason)

    for number, ahead in enumerate(what.clocks_s):
        if abs(ahead) > TOLERANCE_S:
            rows(nodes[number], [*OF_NODE, *OF_INVENTORY], CLOCK, with_pairs=True)
    verdict = "INCOMPLETE" if why else "ACCEPTED"
    wrong = tuple(sorted({node for _, node in why if node in nodes}))
    if len(wrong) == len(nodes):
        wrong = ()
    if what.swaps and not what.measured_again:
        for number in what.swaps:
            rows(nodes[number], OF_NODE, REPLACED, with_pairs=True)
        verdict = "INCOMPLETE"
    elif what.failed is not None and not what.swaps and what.passes < NEEDED:
        node = nodes[what.failed]
        if (OF_GPUS[0], node) not in why:
            rows(node, OF_GPUS, REPEAT if what.passes else SLOWER, with_pairs=False)
            verdict = "INCOMPLETE" if what.passes else "REJECTED"
    return Ends(verdict, why, wrong)


# --- the simulator


@dataclass
class Cluster:
    """The hardware of a run and the owner's clock."""

    what: Circumstances
    rng: random.Random
    now: float = T0
    gpus: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pairs: list[tuple[str, ...]] = field(default_factory=list)
    """Nodes of what the plan measures over several."""
    jobs: int = 100
    sessions: int = 1

    def __post_init__(self) -> None:
        for number in range(self.what.nodes):
            self.gpus[self.name(number)] = [self.gpu(slot) for slot in range(GPUS)]

    def name(self, number: int) -> str:
        return self.what.names.format(number + 1)

    @property
    def nodes(self) -> list[str]:
        return [self.name(number) for number in range(self.what.nodes)]

    def gpu(self, slot: int) -> dict[str, Any]:
        identity = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        serial = str(self.rng.randrange(10**12, 10**13))
        return {**support.H200, "index": slot, "uuid": f"GPU-{identity}", "serial": serial,
                "pci": f"00000000:{0x18 + 0x10 * slot:02x}:00.0"}  # fmt: skip

    def clock(self, node: str) -> float:
        clocks, was_set = self.what.clocks_s, self.what.set_between
        if self.sessions > 1 and was_set is not None and node == self.name(was_set):
            return self.what.set_to_s
        return clocks[self.nodes.index(node)] if clocks else 0.0


@dataclass
class Session:
    """Measures records, each in a job of its own, one after the other."""

    cluster: Cluster
    directory: RunDirectory
    run_id: str
    pairs: list[tuple[str, tuple[str, ...]]]
    """Placement and nodes of what the plan measures over several nodes."""
    attempts: dict[tuple[str, str], int] = field(default_factory=dict)

    def measure(
        self, workload: str, nodes: Sequence[str], *, placement: str = "", slow: str = ""
    ) -> None:
        """Write a record of these nodes; `slow`: the node whose first GPU is."""
        cluster, rng = self.cluster, self.cluster.rng
        submitted = cluster.now
        cluster.now += JOB_S
        cluster.jobs += 1
        placement = placement or "--".join(nodes)
        attempt = self.attempts.get((workload, placement), 0) + 1
        self.attempts[workload, placement] = attempt
        ranks = []
        for node in nodes:
            start = submitted + 5 + cluster.clock(node) + rng.random()
            for slot, device in enumerate(cluster.gpus[node]):
                rate = SLOW if node == slow and not slot else GOOD
                found = self._found(workload, nodes, slot, rate, start)
                ranks.append(
                    RankResult(
                        rank=len(ranks),
                        local_rank=slot,
                        node=node,
                        device=dict(device),
                        start=start + rng.random() / 10,
                        end=start + 60 + rng.random(),
                        measurements=found,
                        facts={},
                    )
                )
        record = Record(
            run_id=self.run_id, nonce=support.NONCE, workload=workload, placement=placement,
            attempt=attempt, nodes=list(nodes), world_size=len(ranks), ranks=ranks,
            job={"name": f"{workload}-{placement}", "id": str(cluster.jobs),
                 "submitted": submitted},
            provenance={"python": "3.11.7"},
        )  # fmt: skip
        support.save(record, self.directory)

    def _found(
        self, workload: str, nodes: Sequence[str], slot: int, rate: float, start: float
    ) -> list[Measurement]:
        rng, began = self.cluster.rng, start + 1

        def sampled(middle: float) -> dict[str, Any]:
            return {"samples": [middle * rng.gauss(1, 0.004) for _ in range(12)],
                    "started": began, "ended": [began + 2 * k + 2 for k in range(12)]}  # fmt: skip

        if workload == "inventory":
            whole = [Measurement(metric="gpus", unit="GPUs", value=GPUS, started=began),
                     Measurement(metric="gpu_model", unit="model", value="H200 SXM",
                                 started=began)]  # fmt: skip
            return [] if slot else whole
        if workload == "gemm":
            return [Measurement(metric="bf16", unit="TFLOPS", checks={"overlap": 0.95},
                                **sampled(rate))]  # fmt: skip
        found = Measurement(metric="busbw", unit="GB/s", at={"size": support.GIB},
                            **sampled(100.0))  # fmt: skip
        right = Measurement(metric="errors", unit="elements", value=0, started=began)
        return [found, *([right] if len(nodes) == 1 else [])]

    def all_of(self, node: str, *, slow: bool = False) -> None:
        """Measure everything of one node; pairs are measured apart."""
        self.measure("inventory", [node])
        self.measure("gemm", [node], slow=node if slow else "")
        self.measure("allreduce", [node])

    def pairs_of(self, node: str) -> None:
        """Measure what the node does together with others."""
        for placement, nodes in self.pairs:
            if node in nodes:
                self.measure("allreduce", nodes, placement=placement)


def write(what: Circumstances, root: Path, seed: int = 0) -> Cluster:
    """Write a run directory that has ended, and limits.yaml beside it."""
    cluster = Cluster(what, random.Random(seed))
    directory = RunDirectory(root)
    directory.records.mkdir(parents=True)
    directory.jobs.mkdir()
    limits = root.parent / f"{root.name}.yaml"
    limits.write_text(_limits(cluster.nodes))
    people = Population(origin="cluster", nodes=tuple(cluster.nodes), gpus_per_node=GPUS,
                        gpu_model="H200 SXM", ordered=True)  # fmt: skip
    items = planned_list(loader.load(limits), people)
    pairs = {item.placement: item.nodes for item in items if len(item.nodes) > 1}
    cluster.pairs = [*pairs.values()]
    session = Session(cluster, directory, _id(T0), [*pairs.items()])
    failed = None if what.failed is None else cluster.name(what.failed)
    late = None if what.resumed is None else cluster.name(what.resumed)
    for node in cluster.nodes:
        if node != late:
            session.all_of(node, slow=node == failed)
    for placement, nodes in session.pairs:
        if late not in nodes:
            session.measure("allreduce", nodes, placement=placement)
    repairs: list[dict[str, Any]] = []
    for number, gap in enumerate(what.gaps_s):
        cluster.now += gap
        _later(what, cluster, session, number, repairs)
    run = _run_json(what, cluster, session, repairs)
    run |= {"population": people.to_json(), "scope": [list(item.key) for item in items],
            "planned": len(items)}  # fmt: skip
    directory.run_json.write_text(json.dumps(run))
    return cluster


def _later(
    what: Circumstances, cluster: Cluster, session: Session, number: int,
    repairs: list[dict[str, Any]],
) -> None:  # fmt: skip
    """Do what a session after the first does."""
    cluster.sessions += 1
    _look_again(what, cluster, session)
    if what.resumed is not None and number == 0:
        late = cluster.name(what.resumed)
        session.all_of(late)
        session.pairs_of(late)
    elif what.swaps:
        node = cluster.name(what.swaps[number])
        slot = 0 if what.failed is not None else cluster.rng.randrange(GPUS)
        cluster.gpus[node][slot] = cluster.gpu(slot)
        _measure_again(session, cluster, node, everything=what.measured_again)
    elif what.recertified is not None:
        node = cluster.name(what.recertified)
        repairs.append({
            "run": session.run_id, "manifest_sha256": "ab" * 32, "verdict": "ACCEPTED",
            "created": _iso(T0, what.time_zones_h), "nodes": [node], "told": [],
            "not_repeated": [],
        })  # fmt: skip
        session.run_id = _id(cluster.now)
        cluster.gpus[node][0] = cluster.gpu(0)
        _measure_again(session, cluster, node, everything=True)
    elif what.failed is not None:
        session.measure("gemm", [cluster.name(what.failed)])


def _look_again(what: Circumstances, cluster: Cluster, session: Session) -> None:
    """Take the inventories that a session begins with: of all nodes with records, and of a return
    to service of those that are measured beside the repaired one."""
    beside = set(cluster.nodes)
    if what.recertified is not None:
        repaired = cluster.name(what.recertified)
        beside = {node for _, nodes in session.pairs if repaired in nodes for node in nodes}
        beside -= {repaired}
    for node in sorted(beside):
        if ("inventory", node) in session.attempts:
            session.measure("inventory", [node])


def _measure_again(session: Session, cluster: Cluster, node: str, *, everything: bool) -> None:
    if not everything:
        session.measure("inventory", [node])
        return
    session.all_of(node)
    session.pairs_of(node)


def _id(time: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%Y%m%d-%H%M%S}-0000"


def _iso(time: float, offset_h: float) -> str:
    zone = datetime.timezone(datetime.timedelta(hours=offset_h))
    return datetime.datetime.fromtimestamp(int(time), zone).isoformat()


def _limits(nodes: Sequence[str]) -> str:
    # Without the part of the small contract whose limit depends on the site.
    text = re.sub(r"\{when: \{nvls: true\}, ", "{", re.sub(r".*nvls: false.*\n", "", TEXT))
    order = f"nodes: {','.join(nodes)!r}, gpus_per_node: {GPUS}"
    return text.replace(f"nodes: 2, gpus_per_node: {GPUS}", order)


def _run_json(
    what: Circumstances, cluster: Cluster, session: Session, repairs: list[dict[str, Any]]
) -> dict[str, Any]:
    began = T0 if not repairs else T0 + what.gaps_s[0]
    return {
        "schema": 2, "id": session.run_id, "nonce": support.NONCE, "origin": "cluster",
        "created": _iso(began, what.time_zones_h),
        "ended": _iso(cluster.now + 60, what.time_zones_h), "tier": "standard", "commands": [],
        "contract": {"nodes": ",".join(cluster.nodes), "gpus_per_node": GPUS,
                     "gpu_model": "H200 SXM"},
        **({"recertifies": repairs} if repairs else {}),
    }  # fmt: skip
