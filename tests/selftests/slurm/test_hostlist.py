"""Slurm's host lists: expanded as Slurm would, folded again, and refused where Slurm refuses."""

from __future__ import annotations

import pytest

from fixtures.slurm.hostlist import expand_hostlist, hostlist, natural_sort_key

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        (" b , a ", ["b", "a"]),
        ("gpu[01-03,07],login", ["gpu01", "gpu02", "gpu03", "gpu07", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[3-3]", ["n3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[1-2]a", ["1a", "2a"]),
        ("n[1-2].site", ["n1.site", "n2.site"]),
    ],
)
def test_names_are_in_the_order_of_the_list(text, names):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[1-3", "is not a hostlist"), ("", "is not a hostlist"), ("a,,b", "is not a hostlist"),
        ("@group", "is not a hostlist"), ("n[1-9/2]", "is not a hostlist"),
        ("n[1,,2]", "is not a hostlist"), ("n[-3]", "is not a hostlist"),
        ("n[1-5,3-2]", "3-2 is not a range"), ("n[4-3]", "4-3 is not a range"),
        ("a,a", "names a node twice"), ("n[1-2],n2", "names a node twice"),
        ("n[1-2,2]", "names a node twice"), ("n[1-100001]", "100001 of them"),
        ("r[1-1000]n[1-101]", "101000 of them"),
    ],
)  # fmt: skip
def test_what_slurm_would_refuse_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        expand_hostlist(text)


def test_as_many_nodes_as_a_cluster_may_have_are_expanded():
    assert len(expand_hostlist("n[1-100000]")) == 100_000


def test_names_are_folded_and_what_is_no_name_stays():
    assert hostlist(["n2", "n1", "n3", "login"]) == "login,n[1-3]"
    assert hostlist(["n01", "n02", "a b"]) == "n[01-02],a b"
    assert hostlist([]) == ""
    assert hostlist(["*"]) == "*"


def test_numbers_in_names_are_ordered_as_numbers():
    names = ["gpu10", "gpu2", "gpu1b", "gpu1a", "a", "gpu02"]
    assert sorted(names, key=natural_sort_key) == ["a", "gpu1a", "gpu1b", "gpu02", "gpu2", "gpu10"]
