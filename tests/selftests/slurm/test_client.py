"""What Slurm's commands answer, on every version and of every cluster, and what is read of it."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from fixtures.errors import ConfigError, RunError
from fixtures.jobs import launcher, watcher
from fixtures.slurm import client
from tests.selftests.fake_commands import command

__all__ = ["command"]

pytestmark = pytest.mark.cpu

# --- scontrol show node

JSON_NODE = {
    "name": "n1", "state": ["IDLE", "DRAIN"], "reason": "was State=IDLE", "address": "n1.site",
    "cpus": 8, "effective_cpus": 6, "gres": "gpu:h200:8(S:0-1)", "partitions": ["gpu", "all"],
    "real_memory": 16000, "specialized_memory": 1000,
}  # fmt: skip
"""The fields that are read, as Slurm 24.11 writes them."""


def test_slurm_s_json_is_read_where_slurm_writes_it(command):
    command("scontrol", json.dumps({"nodes": [JSON_NODE], "errors": []}))
    (found,) = client.slurm_nodes("gpu")
    assert found == client.SlurmNode(
        name="n1", state="IDLE+DRAIN", reason="was State=IDLE", address="n1.site", cpus=6, gpus=8,
        partitions=("gpu", "all"), memory_mib=15000,
    )  # fmt: skip
    assert client.slurm_nodes("batch") == []


@pytest.mark.parametrize(
    "text",
    [
        "", "not JSON", "{}", '{"nodes": [{}]}', '{"nodes": 3}',
        json.dumps({"nodes": [{**JSON_NODE, "state": "idle"}]}),
        json.dumps({"nodes": [{k: v for k, v in JSON_NODE.items() if k != "effective_cpus"}]}),
        json.dumps({"nodes": [JSON_NODE, {"name": "n2"}]}),
    ],
)  # fmt: skip
def test_json_of_another_structure_is_left_alone(text):
    assert client.nodes_of_json(text) is None


NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4 CPUAlloc=0 CPUEfctv=6 CPUTot=8 CPULoad=0.1 "
    "Gres={gres} NodeAddr=n1 NodeHostName=n1.site CoreSpecCount=1 CPUSpecList=6-7 State=IDLE+DRAIN "
    "Partitions=gpu BootTime=2026-11-01T00:00:00 {typed}\n"
)


def node(command, typed: str = "", gres: str = "gpu:h200:8(S:0-1)") -> client.SlurmNode:
    command("scontrol", NODE.format(gres=gres, typed=typed))
    (found,) = client.slurm_nodes()
    return found


def test_cores_kept_for_the_system_are_not_asked_for(command):
    assert node(command).cpus == 6


@pytest.mark.parametrize(
    "typed",
    [
        "Reason=ECC State=bad [root@2026-11-01T00:00:00]",
        "Reason=was State=IDLE [root@2026-11-01T00:00:00]",
        "Reason=Gres=gpu:1 lost, CPUTot=? CPUEfctv=? [root@2026-11-01T00:00:00]",
        "Comment=State=IDLE Gres=gpu:64 Extra=CPUTot=9",
    ],
)
def test_what_an_admin_typed_is_no_field(typed, command):
    found = node(command, typed)
    assert (found.state, found.cpus, found.gpus) == ("IDLE+DRAIN", 6, 8)


def test_slices_of_a_gpu_are_not_gpus(command):
    assert node(command, gres="gpu:h200:8,gpu:a100_1g.5gb:7").gpus == 8
    assert node(command, gres="gpu:a100_3g.20gb:2(S:0),gpu:a100_1g.5gb:1").gpus == 0


MIG = (
    "a100_1g.5gb",
    "1g.10gb",
    "mig-3g.40gb",
    "mig1g.5gb",
    "1c.3g.20gb",
    "1g.5gb+me",
    "2g.20gb.me",
    "nvidia_h100_80gb_hbm3_1g.10gb",
    "h200-1g.18gb",
    "1G.24GB",
    "b200_7g.180gb",
    "1g_12gb",
)
WHOLE = (
    "h100",
    "nvidia_h100_80gb_hbm3",
    "a100-sxm4-40gb",
    "nvidia_gb200",
    "l40s",
    "h20-3e",
    "A100_80GB_PCIe",
    "nvidia_a100-sxm4-80gb",
    "tesla_v100-sxm2-32gb",
    "h100/sxm@80gb",
)


@pytest.mark.parametrize("kind", MIG)
def test_a_slice_of_a_gpu_is_none_in_any_spelling(command, kind):
    assert node(command, gres=f"gpu:h100:6(S:0-1),gpu:{kind}:7(S:0)").gpus == 6


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_gpus_are_counted_by_any_name(command, kind):
    assert node(command, gres=f"gpu:{kind}:4(S:0-1),gpu:1g.10gb:7,shard:8").gpus == 4


# --- one cluster of several


def test_every_command_of_slurm_reaches_the_cluster_that_is_named(command, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CLUSTERS", "a")
    launcher.reach_cluster(["--comment=x"])
    assert os.environ["SLURM_CLUSTERS"] == "a", "the user's own choice stays"
    launcher.reach_cluster(["--clusters=b"])
    command("sinfo", "CLUSTER: b\nn1 idle\n")
    command("squeue", "CLUSTER: b\n")
    command("sacct", "7|COMPLETED|0:0\n")
    nodes = watcher.SlurmWatcher().nodes()
    assert nodes == {"n1": "idle"}
    assert watcher.SlurmWatcher().states(["7"])["7"].state == "COMPLETED"
    for name in ("sinfo", "squeue"):
        assert "SLURM_CLUSTERS=b" in (tmp_path / "bin" / f"{name}.env").read_text()
    assert "--clusters=b" in (tmp_path / "bin" / "sacct.args").read_text()
    assert client.slurm_query("sinfo") == "n1 idle\n"


def test_a_job_on_another_cluster_starts_its_ranks_on_that_cluster(command, monkeypatch, tmp_path):
    command("srun")
    options = launcher.SlurmOptions(sbatch_args=("--clusters=b",))
    asked = launcher.JobRequest(
        name="j", directory=tmp_path, nodes=("n1",), ranks_per_node=1, time_limit_min=1
    )
    monkeypatch.setenv("SLURM_CLUSTERS", "b")
    parameters = launcher.SlurmLauncher("r", options).executor(asked).parameters
    assert parameters["setup"][0] == "unset SLURM_CLUSTERS"
    assert "clusters" not in parameters["additional_parameters"]
    monkeypatch.delenv("SLURM_CLUSTERS")
    parameters = launcher.SlurmLauncher("r", options).executor(asked).parameters
    assert "unset SLURM_CLUSTERS" not in parameters["setup"]


# --- queries, partitions, allocations


def test_a_query_that_fails_says_slurm_s_last_words(command, tmp_path, monkeypatch):
    for out, err, said in (
        ("on stdout\n", "first\nlast\n", "`sinfo -h` failed: last"),
        ("on stdout\n", "", "`sinfo -h` failed: on stdout"), ("", "", "`sinfo -h` failed: 3"),
    ):  # fmt: skip
        command("sinfo", out, err=err, status=3)
        with pytest.raises(RunError, match=f"^{said}$"):
            client.slurm_query("sinfo", "-h")
    command("sinfo", err="slurm.conf: No such file", status=1)
    with pytest.raises(RunError, match="belongs to no Slurm cluster: run on a login node"):
        client.slurm_query("sinfo")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(RunError, match=r"no Slurm here .sinfo is not on the PATH"):
        client.slurm_query("sinfo")

    def never(*argv, **more):
        raise subprocess.TimeoutExpired(argv, 1)

    monkeypatch.setattr(client, "run_command", never)
    with pytest.raises(RunError, match="`sinfo -h` did not answer in 30 s"):
        client.slurm_query("sinfo", "-h")


def test_nodes_are_in_their_natural_order_and_of_the_partition(command):
    lines = [f"NodeName={n} CPUTot=4 Partitions={p} State=IDLE" for n, p in (
        ("n10", "a"), ("n2", "a,b"), ("n1", "b"))]  # fmt: skip
    command("scontrol", "\n".join([*lines, "no node"]))
    assert [n.name for n in client.slurm_nodes()] == ["n1", "n2", "n10"]
    assert [n.name for n in client.slurm_nodes("a")] == ["n2", "n10"]
    (first, *_) = client.slurm_nodes()
    assert (first.address, first.reason, first.gpus, first.cpus) == ("n1", "", 0, 4)


def test_fields_that_slurm_leaves_out_have_defaults():
    (found,) = client.nodes_of_text("NodeName=n1\n")
    assert (found.state, found.cpus, found.partitions) == ("?", 1, ())
    for text, cpus in (
        ("CPUTot=8", 8), ("CPUEfctv=6 CPUTot=8", 6), ("CPUEfctv=N/A CPUTot=8", 1),
        ("CPUTot=²", 1), ("CPUTot=", 1),
    ):  # fmt: skip
        (found,) = client.nodes_of_text(f"NodeName=n1 {text}\n")
        assert found.cpus == cpus, text
    (found,) = client.nodes_of_text("NodeName=n1 State=DOWN Reason=ECC [root@x]\n")
    assert found.reason == "ECC"
    json_node = {**JSON_NODE, "address": ""}
    (found,) = client.nodes_of_json(json.dumps({"nodes": [json_node]}))
    assert found.address == "n1"


def test_a_sandbox_is_known_by_the_name_of_its_cluster(command):
    for name, form in (("sandbox-ab1", "full"), ("sandbox-light-ab1", "light"), ("site", None)):
        command("scontrol", f"X = sandbox-\nClusterName             = {name}\n")
        assert client.sandbox_form() == form


def test_partitions_are_listed_the_default_one_first(command):
    command("sinfo", "batch\ngpu*\nall\nbatch\n")
    assert client.slurm_partitions() == ["gpu", "all", "batch"]
    assert client.default_partition() == "gpu"
    command("scontrol", "PartitionName=x AllowGroups=ALL RootOnly=NO Hidden=YES\n")
    for partition in (None, "", "batch", "gpu"):
        client.refuse_unknown_partition(partition)
    with pytest.raises(ConfigError, match="--partition gpus: Slurm has gpu, all, batch"):
        client.refuse_unknown_partition("gpus")
    command("sinfo", "b\na\nb\n")
    with pytest.raises(ConfigError, match=r"no default partition: .* \(there are a, b\)"):
        client.default_partition()


@pytest.mark.parametrize(
    ("fields", "shown", "setting"),
    [
        ("AllowGroups=admins Hidden=NO", ["gpu"], "AllowGroups=admins"),
        ("AllowGroups=admins,staff Hidden=YES", ["gpu", "new"], "AllowGroups=admins,staff"),
        ("AllowGroups=ALL Hidden=NO RootOnly=YES", ["gpu", "new"], "RootOnly=YES"),
        ("AllowGroups=admins Hidden=NO", ["gpu", "new"], ""),
        ("AllowGroups=admins,research Hidden=YES", ["gpu"], ""),
        ("AllowGroups=ALL Hidden=YES RootOnly=NO", ["gpu"], ""),
    ],
)  # fmt: skip
def test_a_partition_that_is_closed_to_the_user_is_told_from_one_that_is_not_there(
    monkeypatch, command, fields, shown, setting
):
    monkeypatch.setattr(client.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(client, "_own_groups", lambda: {"research"})
    command("scontrol", f"PartitionName=new {fields}\n")

    def query(*argv: str) -> str:
        if argv[0] == "scontrol":
            return f"PartitionName=new {fields}\n"
        return "\n".join(shown) if "--hide" in argv else "gpu*\nnew\n"

    monkeypatch.setattr(client, "slurm_query", query)
    if not setting:
        client.refuse_unknown_partition("new")
        return
    with pytest.raises(ConfigError, match=r"--partition new: this user may not use it") as error:
        client.refuse_unknown_partition("new")
    assert f"({setting})" in str(error.value)
    assert "(there are gpu)" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [({"AllowGroups": "admins"}, False), ({"RootOnly": "YES"}, False),
     ({"DisableRootJobs": "YES"}, True)],
)  # fmt: skip
def test_root_may_use_all_partitions_but_those_closed_to_root(monkeypatch, fields, refused):
    monkeypatch.setattr(client.os, "geteuid", lambda: 0)
    assert (client._closed_by("new", fields) is not None) is refused


def test_own_groups_have_names(monkeypatch):
    monkeypatch.setattr(client.os, "getgroups", lambda: [0, 4_000_000])
    assert "root" in client._own_groups()


def test_whole_nodes_are_those_of_an_exclusive_partition(command, tmp_path):
    command("scontrol", "PartitionName=gpu State=UP OverSubscribe=EXCLUSIVE:4\n")
    fields = client.slurm_partition("gpu")
    assert fields["State"] == "UP"
    assert (tmp_path / "bin" / "scontrol.args").read_text() == "show partition -o gpu\n"
    for value, whole in (
        ("EXCLUSIVE", True),
        ("EXCLUSIVE:4", True),
        ("NO", False),
        ("YES:4", False),
    ):
        assert client.allocates_whole_nodes({"OverSubscribe": value}) is whole
    assert client.allocates_whole_nodes({}) is False
    for value, whole in (("NODE", True), ("NODE,USER", True), ("USER", False), ("NO", False)):
        fields = {"OverSubscribe": "NO", "Exclusive": value}  # of Slurm 26.05
        assert client.allocates_whole_nodes(fields) is whole
    linear = {"OverSubscribe": "NO", "SelectType": "select/linear"}
    assert client.allocates_whole_nodes(linear) is True


def test_gpus_need_not_be_counted_where_no_two_jobs_share_a_node():
    whole, shared = {"OverSubscribe": "EXCLUSIVE"}, {"OverSubscribe": "NO"}
    assert client.counts_no_gpus(whole, [0, 0]) is True
    assert client.counts_no_gpus(whole, [0, 2]) is False
    assert client.counts_no_gpus(whole, []) is False, "no node is known"
    assert client.counts_no_gpus(shared, [0, 0]) is False


def test_who_can_share_a_node_is_of_the_partition_and_of_the_whole_slurm(monkeypatch):
    monkeypatch.setattr(client, "slurm_partition", lambda name: {"OverSubscribe": "NO"})
    for chosen, whole in (("select/linear", True), ("select/cons_tres", False)):
        monkeypatch.setattr(client, "slurm_config", lambda of=chosen: {"SelectType": of})
        assert client.allocates_whole_nodes(client.sharing_of("gpu")) is whole


def test_what_slurm_allows_between_a_job_s_start_and_its_first_process(command):
    """At least three minutes: a minute and the shortest time-outs of Slurm's manual."""
    for lines, prolog, seconds in (
        ("", False, 180.0),
        ("Prolog                  = (null)\nTaskProlog = (null)\nBatchStartTimeout = 10 s\n",
         False, 180),
        ("Prolog = /etc/prolog\n", True, 180), ("TaskProlog = /x\n", True, 180),
        ("Prolog[0] = /etc/prolog\n", True, 180), ("Prolog[0]               = (null)\n", True, 180),
        ("PrologEpilogTimeout = 65534\nBatchStartTimeout = 200 sec\n", False, 260),
        ("PrologEpilogTimeout = 65533\n", False, 65593),
        ("TaskProlog =\nBatchStartTimeout = 200 sec\n", False, 260),
        ("PrologEpilogTimeout = 100\nBatchStartTimeout = 90\nPrologTimeout = 50\n", False, 300),
        ("PrologTimeout = unlimited\n", False, 180),
    ):  # fmt: skip
        command("scontrol", lines)
        found = client.startup_settings()
        assert (found.has_prolog, found.longest_s) == (prolog, seconds), lines


def test_a_shell_inside_an_allocation_of_these_nodes_is_told_to_leave_it(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[2,10-11]")
    said = client.enclosing_allocation(["n11", "n2", "n3"])
    assert said is not None
    assert "inside Slurm job 7, which holds n2, n11:" in said
    assert client.enclosing_allocation(["n3"]) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    assert client.enclosing_allocation(["n2"]) is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    assert client.enclosing_allocation(["n2"]) is None


def test_a_message_shows_no_comment_and_nothing_that_looks_like_a_secret(monkeypatch):
    def fails(*command: str) -> SimpleNamespace:
        return SimpleNamespace(returncode=1, stdout="", stderr="refused")

    monkeypatch.setattr(client, "run_command", fails)
    with pytest.raises(RunError) as refused:
        client.slurm_query("sbatch", "--comment=x", "--account=password=y", "--nodes=1")
    assert str(refused.value) == (
        "`sbatch --comment=[removed] --account=password=[removed] --nodes=1` failed: refused"
    )
