"""slurmdbd and its database: started for root alone, waited for, or why they did not start."""

from __future__ import annotations

import pytest

from fixtures.sandbox import accounting, network, processes
from fixtures.sandbox.cgroups import Cgroups
from fixtures.sandbox.errors import SandboxError
from tests.selftests.sandbox import parts
from tests.selftests.sandbox.parts import DEAD, Calls

pytestmark = pytest.mark.cpu


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    return parts.clock(monkeypatch, processes)


def test_database_and_slurmdbd_are_started_and_closed_to_others(tmp_path, monkeypatch):
    found = parts.state(tmp_path / "ab1")
    ran, spawned = Calls(""), Calls(parts.living())
    for name, call in (("run", ran), ("spawn", spawned), ("wait_for_file", Calls())):
        monkeypatch.setattr(accounting, name, call)
    monkeypatch.setattr(network, "free_port", lambda address: {"198.18.7.1": 7007}[address])
    assert accounting.start(found, parts.tools(), Cgroups(1, {"x": tmp_path}, True)) == 7007
    folder = tmp_path / "ab1" / "accounting"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "slurmdbd.conf").stat().st_mode & 0o777 == 0o600
    lines = (tmp_path / "ab1" / "slurmdbd.conf").read_text().splitlines()
    assert {"DbdPort=7007", "DbdAddr=198.18.7.1"} <= set(lines)
    assert "/fake/mariadb-install-db" in ran[0][0]
    database, daemon = spawned
    assert {"/fake/mariadbd", "--skip-networking", f"--socket={folder}/socket"} <= set(database[0])
    assert "CommunicationParameters=NoInAddrAny" in lines
    assert daemon[0][-6:-1] == ["unshare", "--mount", "--uts", "sh", "-c"]
    assert daemon[0][-1].startswith("hostname controller && mount --bind ")
    assert daemon[0][-1].endswith("/hosts /etc/hosts && exec /fake/slurmdbd -D")
    assert daemon[1]["env"]["MYSQL_UNIX_PORT"] == f"{folder}/socket"
    assert {"mariadbd", "slurmdbd"} <= set(found.processes)


def test_a_database_is_waited_for_a_minute_or_until_it_has_ended(tmp_path, clock):
    found = parts.state(tmp_path / "ab1", processes={"mariadbd": parts.living()})
    socket, log = tmp_path / "socket", tmp_path / "log"
    with pytest.raises(SandboxError, match="mariadbd of sandbox ab1 did not start: nothing in its"):
        accounting.wait_for_file(found, "mariadbd", socket, log)
    assert clock[0] == pytest.approx(60, abs=0.1)
    found.processes["mariadbd"] = DEAD
    log.write_text("no space\n")
    clock[0] = 0.0
    with pytest.raises(SandboxError, match="did not start: no space"):
        accounting.wait_for_file(found, "mariadbd", socket, log)
    found.processes["mariadbd"] = parts.living()
    socket.touch()
    accounting.wait_for_file(found, "mariadbd", socket, log)
    assert clock[0] == 0


def test_the_cluster_is_registered_once_slurmdbd_answers(tmp_path, monkeypatch, clock):
    found = parts.state(tmp_path / "ab1", processes={"slurmdbd": parts.living()})
    folder = tmp_path / "ab1" / "accounting"
    folder.mkdir()
    refused = [3]
    ran: list[list[str]] = []

    def run(argv: list[str], **more) -> str:
        if "list" in argv and refused[0]:
            refused[0] -= 1
            raise SandboxError("connection refused")
        ran.append(argv[1:])
        return ""

    monkeypatch.setattr(accounting, "run", run)
    accounting.register(found, parts.tools())
    assert ran == [["-n", "list", "cluster"], ["-i", "add", "cluster", "sandbox-ab1"]]
    refused[0] = 10**6
    for file, said in (
        (None, "nothing in its log"),
        ("slurmdbd.out", "out"),
        ("slurmdbd.log", "log"),
    ):
        if file:
            (folder / file).write_text(f"{said}\n")
        with pytest.raises(SandboxError, match=f"slurmdbd of sandbox ab1 did not start: {said}$"):
            accounting.register(found, parts.tools())


def test_a_slurmdbd_that_has_ended_does_not_answer(tmp_path, monkeypatch):
    found = parts.state(tmp_path / "ab1", processes={"slurmdbd": parts.living()})
    ran = Calls("")
    monkeypatch.setattr(accounting, "run", ran)
    assert accounting.slurmdbd_answers(found, parts.tools(), {}) is True
    found.processes["slurmdbd"] = DEAD
    assert accounting.slurmdbd_answers(found, parts.tools(), {}) is False
    assert len(ran) == 1
