"""Groups of ports fitted to latencies: distances, ports, noise, and what noise alone explains."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch

from fixtures.workloads.wiring import wiring_fit
from fixtures.workloads.wiring.wiring_fit import Fit

pytestmark = [pytest.mark.cpu, pytest.mark.usefixtures("one_thread")]


def fabric(
    groups: list[int], gap: float = 2.0, noise: float = 0.0, seed: int = 1,
    tiers: dict[tuple[int, int], float] | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Both ends of every pair, and its latency: base 10, what the ports add, and the distance."""
    pairs = list(itertools.combinations(range(len(groups)), 2))
    a, b = (torch.tensor(end) for end in zip(*pairs, strict=True))
    generator = torch.Generator().manual_seed(seed)
    own = torch.rand(len(groups), generator=generator, dtype=torch.float64)
    us = 10 + own[a] + own[b]
    us += noise * torch.randn(len(pairs), generator=generator, dtype=torch.float64)
    for k, (one, other) in enumerate(pairs):
        places = tuple(sorted((groups[one], groups[other])))
        if places[0] != places[1]:
            us[k] += (tiers or {}).get(places, gap)  # type: ignore[arg-type]
    return a, b, us


TWO = [0, 0, 0, 0, 1, 1, 1, 1]


def fit(groups: list[int], us: tuple[Any, Any, Any], count: int = 2, **more: Any) -> Fit:
    found = Fit(*us, torch.tensor(groups), count, **more)
    found.settle()
    return found


def test_a_port_in_the_wrong_group_is_moved_to_its_own():
    wrong = [0, 0, 0, 1, 1, 1, 1, 1]
    found = fit(wrong, fabric(TWO, noise=0.01))
    assert found.groups.tolist() == TWO
    assert found.gap == pytest.approx(2, abs=0.05)
    assert found.distance.tolist() == [[0, found.gap], [found.gap, 0]]
    assert 0 < found.noise < 0.05


def test_what_a_port_adds_is_not_a_distance():
    a, b, us = fabric(TWO, noise=0.01)
    us = us + 5.0 * ((a == 2) | (b == 2))
    assert fit(TWO, (a, b, us)).groups.tolist() == TWO


def test_a_disturbed_pair_does_not_change_the_distances():
    a, b, us = fabric(TWO, noise=0.01)
    us[3] += 50.0
    found = fit(TWO, (a, b, us))
    assert found.groups.tolist() == TWO
    assert found.gap == pytest.approx(2, abs=0.1)
    assert float((found.rest - found.distance[found.groups[a], found.groups[b]])[3]) > 40


def test_groups_may_have_distances_of_their_own():
    three = [0, 0, 0, 1, 1, 1, 2, 2, 2]
    tiers = {(0, 1): 1.0, (0, 2): 3.0, (1, 2): 3.0}
    us = fabric(three, tiers=tiers, noise=0.005)
    own = fit(three, us, 3, own_distances=True)
    assert own.distance[0].tolist() == pytest.approx([0, 1, 3], abs=0.05)
    assert own.gap == pytest.approx(3, abs=0.05), "the median of the three"
    same = fit(three, us, 3)
    assert same.distance[0, 1] == same.distance[0, 2] == same.gap
    assert own.explains_more_than(same)
    assert not same.explains_more_than(own)
    best = wiring_fit.search(*us, [torch.tensor(three)], 3)
    assert best.distance[0].tolist() == pytest.approx([0, 1, 3], abs=0.05)
    even = wiring_fit.search(*fabric(three, noise=0.05), [torch.tensor(three)], 3)
    assert float(even.distance[0, 1]) == float(even.distance[0, 2]), "not without a reason"


def test_distances_that_nothing_measured_are_as_others():
    a, b, us = fabric([0, 0, 1, 1, 2, 2], gap=2.0)
    groups = torch.tensor([0, 0, 1, 1, 2, 2])
    keep = (groups[a] + groups[b] != 3) | (groups[a] == groups[b])  # none between 1 and 2
    found = Fit(a[keep], b[keep], us[keep], groups, 3, own_distances=True)
    found.settle()
    assert float(found.distance[1, 2]) == pytest.approx(found.gap)
    alone = fit([0] * 4, fabric([0] * 4), 1)
    assert (alone.gap, alone.distance.tolist()) == (0, [[0]])


def test_kinds_of_distances_are_numbered():
    found, number = wiring_fit._kinds(3, True)
    assert found.tolist() == [[-1, 0, 1], [0, -1, 2], [1, 2, -1]]
    assert number == 3
    found, number = wiring_fit._kinds(3, False)
    assert found.tolist() == [[-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert (number, wiring_fit._kinds(1, False)[1], wiring_fit._kinds(1, True)[1]) == (1, 0, 0)


def test_pairs_are_listed_by_port():
    a, b = torch.tensor([0, 0, 2]), torch.tensor([1, 2, 1])
    pairs, partners, none = wiring_fit._by_port(a, b, 4)
    listed = [
        {(int(p), int(q)) for p, q, n in zip(*rows, strict=True) if not n}
        for rows in zip(pairs, partners, none, strict=True)
    ]
    assert listed == [{(0, 1), (1, 2)}, {(0, 0), (2, 2)}, {(1, 0), (2, 1)}, set()]
    found = Fit(a, b, torch.ones(3, dtype=torch.float64), torch.tensor([0, 0, 1, 1]), 2)
    assert found.partners().tolist() == [[1, 1], [1, 1], [2, 0], [0, 0]]


def test_a_median_is_of_the_middle_two():
    assert wiring_fit._median(torch.tensor([1.0, 2.0, 4.0, 9.0])) == 3
    assert wiring_fit._median(torch.tensor([1.0, 2.0, 9.0])) == 2
    # torch.quantile() takes no more than 2**24 values.
    assert wiring_fit._median(torch.arange(2**24 + 2, dtype=torch.float64)) == 2**23 + 0.5


def test_the_best_of_many_groupings_of_noise_is_gumbel_s():
    seen = [1.0, 2.0, 3.0, 4.0]
    # The median of Gumbel's distribution: m - b (gamma + ln ln 2), with b = s sqrt(6) / pi.
    scale = statistics.stdev(seen) * math.sqrt(6) / math.pi
    expected = 2.5 - scale * (0.577216 + math.log(math.log(2)))
    assert wiring_fit._exceeded_by_chance(seen, 0.5) == pytest.approx(expected, rel=1e-5)
    few, many = (wiring_fit._exceeded_by_chance(seen, chance) for chance in (1e-3, 0.1))
    assert few > many > 2.5


def test_the_fit_with_the_least_loss_is_the_best():
    us = fabric(TWO, noise=0.01)
    fits = [Fit(*us, torch.tensor(groups), 2) for groups in ([0, 1] * 4, TWO)]
    best = wiring_fit.best_of(fits)
    assert best.loss == min(one.loss for one in fits)
    assert best.groups.tolist() in (TWO, [1 - g for g in TWO])


def test_groups_are_found_from_the_latencies_alone():
    us = fabric(TWO, noise=0.01)
    found = wiring_fit.spectral(*us, 8, 2).tolist()
    assert found in (TWO, [1 - g for g in TWO])
    three = [0, 1, 2] * 3
    found = wiring_fit.spectral(*fabric(three, noise=0.01), 9, 3).tolist()
    assert len({(g, f) for g, f in zip(three, found, strict=True)}) == 3
    # A port without any pair has a group too.
    assert len(wiring_fit.spectral(*us, 9, 2)) == 9


def test_a_plan_that_is_wrong_altogether_is_left_up_to_256_ports(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[int] = []
    honest = wiring_fit.spectral

    def spectral(*given: Any) -> Any:
        asked.append(given[3])
        return honest(*given)

    monkeypatch.setattr(wiring_fit, "spectral", spectral)
    us = fabric(TWO, noise=0.01)
    plan = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
    found = wiring_fit.search(*us, [plan], 2).groups.tolist()
    assert found in (TWO, [1 - g for g in TWO])
    assert asked == [8]
    monkeypatch.setattr(wiring_fit, "SPECTRAL_MAX", 8)
    wiring_fit.search(*us, [plan], 2)
    monkeypatch.setattr(wiring_fit, "SPECTRAL_MAX", 7)
    wiring_fit.search(*us, [plan], 2)
    assert asked == [8, 8]
    monkeypatch.undo()
    assert (wiring_fit.SPECTRAL_MAX, wiring_fit.OWN_DISTANCES) == (256, 32)


def test_tiers_are_tried_of_three_groups_on(monkeypatch: pytest.MonkeyPatch):
    tried: list[int] = []
    honest = Fit.__init__

    def made(self: Fit, *given: Any, own_distances: bool = False) -> None:
        if own_distances:
            tried.append(given[-1])
        honest(self, *given, own_distances=own_distances)

    monkeypatch.setattr(Fit, "__init__", made)
    three = [0, 0, 1, 1, 2, 2]
    for groups, most, ports_most, expected in (
        (three, 32, 256, 2), (three, 3, 256, 2), (three, 2, 256, 0), ([0, 0, 1, 1], 32, 256, 0),
        (three, 32, 6, 2), (three, 32, 5, 0),
    ):  # fmt: skip
        tried.clear()
        monkeypatch.setattr(wiring_fit, "OWN_DISTANCES", most)
        monkeypatch.setattr(wiring_fit, "SPECTRAL_MAX", ports_most)
        count = max(groups) + 1
        wiring_fit.search(*fabric(groups, noise=0.01), [torch.tensor(groups)], count)
        assert len(tried) == expected


def test_groups_have_to_explain_what_it_takes_to_write_them_down():
    us = fabric(TWO, noise=0.01)
    two, one = fit(TWO, us), fit([0] * 8, us, 1)
    assert two.explains_more_than(one)
    assert not one.explains_more_than(two)
    # Eight ports in two groups, and one distance more of 28 pairs: 8 ln 2 + ln(28) / 2.
    needed = 8 * math.log(2) + math.log(28) / 2
    one.loss, two.loss = 10.0, 10.0 - needed - 0.01
    assert two.explains_more_than(one)
    two.loss += 0.02
    assert not two.explains_more_than(one)


def test_a_gap_within_the_noise_tells_nothing_apart(monkeypatch: pytest.MonkeyPatch):
    found = fit(TWO, fabric(TWO, noise=0.01))
    assert found.tells_apart(0.01)
    monkeypatch.setattr(Fit, "explains_more_than", lambda *_: True)
    monkeypatch.setattr(wiring_fit, "SHUFFLED_MAX", 7)
    for gap, noise, apart in ((1.5, 1.0, True), (1.49, 1.0, False), (1.0, 0.0, False)):
        found.gap, found.noise = gap, noise
        assert found.tells_apart(0.01) is apart
    monkeypatch.setattr(Fit, "explains_more_than", lambda *_: False)
    found.gap = found.noise = 1.5
    found.noise = 1.0
    assert not found.tells_apart(0.01)


def shuffled(
    monkeypatch: pytest.MonkeyPatch, by_noise: list[float], own: float, chance: float = 0.01
) -> tuple[bool, int]:
    """Whether groups are told apart that explain so much, where shuffled latencies explain that;
    and after how many of these."""
    found = fit(TWO, fabric(TWO, noise=0.01))
    values = iter(by_noise)
    made: list[float] = []

    def left(self: Fit) -> float:
        return lefts.get(id(self), 1.0)

    lefts: dict[int, float] = {id(found): math.exp(-own)}

    class Found:
        def __init__(self) -> None:
            made.append(next(values))
            self.left = math.exp(-made[-1])

    with monkeypatch.context() as patch:
        patch.setattr(Fit, "left", property(left))
        patch.setattr(Fit, "explains_more_than", lambda *_: True)
        patch.setattr(wiring_fit, "search", lambda *_: Found())
        return found.tells_apart(chance), len(made)


def test_groups_are_told_apart_from_those_that_noise_alone_gives(
    monkeypatch: pytest.MonkeyPatch,
):
    noise = [0.1, 0.2] * 20
    assert shuffled(monkeypatch, noise, own=9.0) == (True, 8), "clear after eight"
    assert shuffled(monkeypatch, noise, own=0.15) == (False, 2), "noise explains as much"
    assert shuffled(monkeypatch, noise, own=0.2)[0] is False
    # The largest of 40 with a chance of 1 %: 0.15 + 3.14 x 0.0506 = 0.309.
    assert shuffled(monkeypatch, noise, own=0.32) == (True, 40)
    assert shuffled(monkeypatch, noise, own=0.30) == (False, 40)
    # Clear: three times as far above the mean as needed, which of eight values is 0.168.
    assert shuffled(monkeypatch, noise, own=0.15 + 3 * 0.168 + 0.01) == (True, 8)
    assert shuffled(monkeypatch, noise, own=0.15 + 3 * 0.168 - 0.02) == (True, 40)


def test_what_is_left_is_the_mean_distance_from_the_fit():
    a, b, us = fabric(TWO, noise=0.001)
    found = fit(TWO, (a, b, us))
    assert 0 < found.left < 0.003
    found.rest = found.distance[found.groups[a], found.groups[b]] + 0.5
    assert found.left == pytest.approx(0.5)
    found.rest = found.distance[found.groups[a], found.groups[b]]
    assert found.left == wiring_fit.TINY


def test_a_noisy_port_is_held_to_its_own_noise():
    a, b, us = fabric(TWO, noise=0.01)
    found = fit(TWO, (a, b, us))
    costs = found.costs()
    assert costs.shape == (8, 2)
    assert costs.argmin(dim=1).tolist() == TWO
    quiet = float(costs[0, 1] - costs[0, 0])
    noisy = us + 3.0 * torch.tensor([(-1.0) ** k for k in range(28)]) * ((a == 0) | (b == 0))
    loud = fit(TWO, (a, b, noisy)).costs()
    assert float((loud[0, 1] - loud[0, 0]).abs()) < quiet
