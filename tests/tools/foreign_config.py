"""The configuration files of the foreign site (foreign_site.py): as unlike the sandbox's as can be.

Every name in it is another one than in the sandbox: users, nodes, partitions, folders, ports.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

USER, UID = "alice", 20_417
"""Who runs the suite."""
DAEMON, DAEMON_UID = "slurm", 20_418
"""SlurmUser, where the host has no such user."""
ACCOUNT = "research"
CLUSTER = "foreign"
DOMAIN = "hpc.example"
LOGIN = "login01"
GPUS, MODEL = 2, "h200"
SUBNET, SUBNET6 = "10.77.0", "fd77"
COMMENT = "--sbatch-args=--comment=project-7"
"""What the site's submit filter demands."""
OPTIONS = ("--partition=gpu", COMMENT)
"""What an engineer has to give on this site."""

HOSTS = {"rack1n1": "u11-a", "rack2n1": "u11-b", "svc1": "services"}
"""NodeName -> the host's name without its domain."""
GPU_NODES = ("rack1n1", "rack2n1")
CONTRACT = """\
base: thresholds.yaml
cluster:
  nodes: rack[1-2]n[1-1]
  gpus_per_node: 2
  gpu_model: cpu
waivers:
  - {{criterion: scheduler.cpu_binding, node: rack1n1, owner: A. Name, expires: "{expires}",
     reason: the nodes claim more cores than the machine has that they are on}}
  - {{criterion: scheduler.cpu_binding, node: rack2n1, owner: A. Name, expires: "{expires}",
     reason: the nodes claim more cores than the machine has that they are on}}
"""
"""What was ordered, for a file beside thresholds.yaml, and what is known to be otherwise."""

FILTER = """\
function slurm_job_submit(job, partitions, uid)
  if job.comment == nil or job.comment == "" then
    slurm.log_user("this site wants --comment=PROJECT")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
"""
PROLOG = """\
#!/bin/sh
# What a site checks here takes its time.
sleep 2
"""
SUBMITTED = "  return slurm.SUCCESS\nend\nfunction slurm_job_modify"
"""Where FILTER has accepted a job."""
ROUTES = FILTER.replace(SUBMITTED, f'  job.partition = "hid"\n  job.name = "site"\n{SUBMITTED}')
NO_MEM = FILTER.replace(
    SUBMITTED,
    """  slurm.log_user("NOTE: maintenance on Friday")
  if job.pn_min_memory ~= slurm.NO_VAL64 then
    slurm.log_user("do not ask for memory: every job has all of it")
    return slurm.ERROR
  end
"""
    + SUBMITTED,
)
PARTITIONS = """\
PartitionName=batch Default=YES Nodes=svc1 State=UP MaxTime=INFINITE
PartitionName=gpu Nodes=rack1n1,rack2n1 State=UP MaxTime=1-00:00:00
"""
SLURM = """\
ClusterName={cluster}
SlurmctldHost={login}({address})
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser={daemon}
AuthType=auth/munge
StateSaveLocation={state}/slurmctld
SlurmctldPidFile={state}/run/slurmctld.pid
SlurmctldLogFile={state}/log/slurmctld.log
SlurmdSpoolDir=/var/spool/slurmd
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile={state}/log/slurmd-%n.log
SelectType={select}
{selection}
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
MpiDefault=none
# The nodes claim more CPUs than this host has.
SlurmdParameters=config_overrides
ReturnToService=1
Prolog=/etc/slurm/prolog.sh
PrivateData={private}
{submit}
{accounting}
JobAcctGatherType=jobacct_gather/linux
{more}
{nodes}
{partitions}
"""
NODE = (
    "NodeName={name} NodeHostname={host}.{domain} NodeAddr={address} Sockets=2 CoresPerSocket=3 "
    "ThreadsPerCore=2 CoreSpecCount=1 RealMemory={memory}{gres}"
)
NEW_NETWORK = "CommunicationParameters=EnableIPv6,DisableIPv4"
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageEnforce=associations,limits,qos
"""
SLURMDBD = """\
AuthType=auth/munge
DbdHost=localhost
SlurmUser={daemon}
LogFile={state}/log/slurmdbd.log
PidFile={state}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser={daemon}
StorageLoc=accounting
{more}
"""


@dataclass(frozen=True)
class Variant:
    """What is otherwise on a site than the usual foreign one."""

    slurm: str = ""
    """Lines at the end of slurm.conf."""
    private: str = "jobs,usage,users,accounts"
    partitions: str = PARTITIONS
    prolog: str = PROLOG
    task_prolog: str = ""
    submit_filter: bool = True
    lua: str = FILTER
    """What the submit filter does."""
    gres: bool = True
    """Whether Slurm knows of the GPUs."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Node -> its GPUs in Gres, where they are not h200."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """Node -> shards of its GPUs."""
    select: str = "select/cons_tres"
    devices: bool = True
    """Whether jobs are kept from devices that they were not given."""
    features: Mapping[str, str] = field(default_factory=dict)
    """Node -> features."""
    database: bool = True
    """Whether there is accounting."""
    accounting: tuple[str, ...] = ()
    """Commands of sacctmgr, after the account and the user were made."""
    setup: str = ""
    """A shell script of root on the login node, in the user's home, before the nodes start."""
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Node -> directories that are empty there, relative to the user's home."""
    linked_home: bool = False
    """Whether the user's home is a link of the site, to where the login node alone has it."""
    ipv6: bool = False
    """Whether there is no IPv4."""


def contract() -> str:
    """Return the contract, with waivers that hold for a month."""
    return CONTRACT.format(expires=date.today() + timedelta(days=30))


def address(name: str, variant: Variant) -> str:
    """Return the address of a node, or of the login node."""
    number = 11 + list(HOSTS).index(name) if name in HOSTS else 1
    return f"{SUBNET6}::{number}" if variant.ipv6 else f"{SUBNET}.{number}"


def network(name: str, variant: Variant) -> str:
    """Return an address with its prefix, for `ip addr add`."""
    # Without nodad an address of IPv6 cannot be used for its first second.
    return address(name, variant) + ("/64 nodad" if variant.ipv6 else "/24")


def hosts(variant: Variant) -> str:
    """Return /etc/hosts: full names first, as sites have it."""
    local = "::1" if variant.ipv6 else "127.0.0.1"
    lines = [f"{local} localhost", f"{address(LOGIN, variant)} {LOGIN}.{DOMAIN} {LOGIN}"]
    lines += [
        f"{address(name, variant)} {host}.{DOMAIN} {host} {name}" for name, host in HOSTS.items()
    ]
    return "\n".join([*lines, ""])


def gpu_partition(setting: str, more: str = "") -> str:
    """Return the partitions with a setting for that of the GPU nodes, and more of them."""
    return PARTITIONS.replace("MaxTime=1-", f"{setting} MaxTime=1-") + more


def partition(name: str, setting: str) -> str:
    """Return one more partition of the GPU nodes."""
    return f"PartitionName={name} Nodes=rack1n1,rack2n1 State=UP MaxTime=1-00:00:00 {setting}\n"


def slurm_conf(variant: Variant, *, state: Path, memory_mib: int) -> str:
    """Return slurm.conf."""
    nodes = [
        NODE.format(
            name=name, host=host, domain=DOMAIN, address=address(name, variant), memory=memory_mib,
            gres=_gres(name, variant)
            + (f" Feature={variant.features[name]}" if name in variant.features else ""),
        )
        for name, host in HOSTS.items()
    ]  # fmt: skip
    partitions = "\n".join(
        f"{line} DefMemPerCPU={memory_mib // 12}" for line in variant.partitions.splitlines()
    )
    return SLURM.format(
        cluster=CLUSTER, login=LOGIN, address=address(LOGIN, variant), daemon=DAEMON, state=state,
        select=variant.select, selection=_selection(variant), private=variant.private,
        submit="JobSubmitPlugins=lua" if variant.submit_filter else "",
        accounting=ACCOUNTING if variant.database else "", nodes="\n".join(nodes),
        partitions=partitions, more="\n".join(_more(variant)),
    )  # fmt: skip


def slurmdbd_conf(variant: Variant, *, state: Path) -> str:
    """Return slurmdbd.conf."""
    return SLURMDBD.format(daemon=DAEMON, state=state, more=NEW_NETWORK if variant.ipv6 else "")


def _more(variant: Variant) -> Iterator[str]:
    if variant.ipv6:
        yield NEW_NETWORK
    if variant.task_prolog:
        yield "TaskProlog=/etc/slurm/task_prolog.sh"
    yield variant.slurm


def _selection(variant: Variant) -> str:
    linear = variant.select == "select/linear"
    lines = [f"SelectTypeParameters={'CR_Memory' if linear else 'CR_Core_Memory'}"]
    if variant.gres:
        kinds = "gpu,shard" if variant.shards else "gpu"
        lines += [f"GresTypes={kinds}"]
        lines += ["AccountingStorageTRES=gres/gpu"] if variant.database else []
    return "\n".join(lines)


def _gres(name: str, variant: Variant) -> str:
    if name not in GPU_NODES or not variant.gres:
        return ""
    shards = f",shard:{variant.shards[name]}" if name in variant.shards else ""
    return f" Gres=gpu:{variant.types.get(name, MODEL)}:{GPUS}{shards}"


def gres_conf(variant: Variant, devices: Mapping[str, list[str]]) -> str:
    """Return gres.conf: typed GPUs by their device files, also where Slurm does not read it."""
    lines = [
        f"NodeName={name} Name=gpu Type={variant.types.get(name, MODEL)} File={file}"
        for name, files in devices.items()
        for file in files
    ]
    lines += [f"NodeName={name} Name=shard Count={n}" for name, n in variant.shards.items()]
    return "\n".join(["AutoDetect=off", *lines, ""])


def cgroup_conf(variant: Variant, version: int, *, memory: bool) -> str:
    """Return cgroup.conf."""
    lines = [
        f"CgroupPlugin=cgroup/v{version}",
        "CgroupMountpoint=/sys/fs/cgroup",
        f"ConstrainDevices={'yes' if variant.devices else 'no'}",
        f"ConstrainRAMSpace={'yes' if memory else 'no'}",
        "ConstrainCores=no",
        *(["IgnoreSystemd=yes"] if version == 2 else []),
    ]
    return "\n".join([*lines, ""])


def users(host_file: str, name_of: Mapping[str, int], fields: str) -> str:
    """Return the host's passwd or group with these users or groups added where they are not."""
    lines = host_file.rstrip("\n").splitlines()
    known = {line.partition(":")[0] for line in lines}
    added = [fields.format(name=n, id=i) for n, i in name_of.items() if n not in known]
    return "\n".join([*lines, *added, ""])
