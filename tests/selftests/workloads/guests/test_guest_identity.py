"""Whose a file of another tool is: found in its text, whatever the tool."""

from __future__ import annotations

import socket

import pytest

from fixtures.workloads.guests import guest_identity
from tests.selftests import guest_samples

pytestmark = pytest.mark.cpu

UUID = "GPU-0badcafe-0000-1111-2222-333333333333"
NCCL = """# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728
#  Rank  0 Group  0 Pid  58417 on      gpu07 device  0 [0000:1b:00] NVIDIA H200
#  Rank  1 Group  0 Pid  58418 on      gpu08 device  0 [0000:1b:00] NVIDIA H200
"""


@pytest.mark.parametrize(
    ("text", "hosts", "uuids", "serials"),
    [
        (guest_samples.smi([UUID], serials=["165"]), [], [UUID], ["165"]),
        (guest_samples.smi([UUID]), [], [UUID], []),
        (guest_samples.dcgm4(serials=["165", "166"], host="gpu07"), ["gpu07"], [], ["165", "166"]),
        (guest_samples.dcgm4(), [], [], []),
        (guest_samples.fio(host="gpu07.example.com"), ["gpu07.example.com"], [], []),
        (guest_samples.fio(), [], [], []),
        (NCCL, ["gpu07", "gpu08"], [], []),
        ('{"GPU Device Serials": {"0": "165", "1": 166}}', [], [], ["166", "165"]),
        ("GPU 0: NVIDIA H200 (UUID: " + UUID + ")\nSerial Number : 165\n", [], [UUID], ["165"]),
        ("hostname: gpu07\n", ["gpu07"], [], []),
        ("[" * 100_000, [], [], []),
    ],
    ids=map(str, range(11)),
)
def test_what_a_text_says_of_whose_it_is(text, hosts, uuids, serials):
    found = guest_identity.identities(text)
    assert (found["hosts"], found["uuids"]) == (hosts, uuids)
    assert sorted(found["serials"]) == sorted(serials)


def test_a_text_of_many_names_keeps_some():
    text = "\n".join(f"hostname: n{k}" for k in range(1000))
    assert guest_identity.identities(text)["hosts"] == [f"n{k}" for k in range(64)]
    assert socket.gethostname() in guest_identity.own_names()


@pytest.mark.parametrize(
    ("before", "behind"), [("note: a\n", ""), ("", "\nfio: terminating\n"), ("fio: a\n\n", "b\n")]
)
def test_notes_of_fio_around_its_json_hide_no_host(before: str, behind: str):
    text = before + guest_samples.fio(host="other") + behind
    assert guest_identity.identities(text)["hosts"] == ["other"]
