"""What the site of slurm_capture.py has: nodes, partitions and jobs, each in a state of its own.

Every name in it is made up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

USER, UID = "alice", 20_417
LOGIN, ADDRESS = "login1", "10.77.1.1"
HOME = "/srv/site"
FIRST_PORT = 7001

NODES = {
    "c01": "CoreSpecCount=1 MemSpecLimit=1000",
    **dict.fromkeys([f"c{k:02}" for k in range(2, 16)], ""),
    "c16": "Gres=gpu:a100:2,gpu:a100_1g.5gb:4",
    "c17": "Gres=",
    "c18": "Gres=gpu:2",
    "c19": "Gres=gpu:l40s:2,gpu:l4:1,bandwidth:lustre:no_consume:4G Feature=ib,ssd",
    **dict.fromkeys([f"c{k:02}" for k in range(20, 27)], ""),
    **dict.fromkeys(["e01", "e02", "e03", "e04"], "State=CLOUD"),
    "f01": "State=FUTURE",
}
"""Node -> what it has beside the usual."""
USUAL_GRES = "Gres=gpu:h100:4"
FILES = {"a100": 2, "a100_1g.5gb": 4, "": 2, "l40s": 2, "l4": 1}
OF_FILES = {"c16": ("a100", "a100_1g.5gb"), "c17": (), "c18": ("",), "c19": ("l40s", "l4")}
FEWER = {"c13": 3}
"""Node -> GPUs that it has of those configured."""
SILENT = ("c04", "e01", "e02", "e03", "f01")
"""No slurmd runs there."""
LOST = "c25"
"""Its slurmd is killed once it has registered."""

PARTITIONS = """\
main Default=YES Nodes=c[01-26],e[01-04]
hidden Hidden=YES Nodes=c[22-24]
down State=DOWN Nodes=c08
inactive State=INACTIVE Nodes=c08
drain State=DRAIN Nodes=c08
closed AllowGroups=hpc,operators Nodes=c08
rootonly RootOnly=YES Nodes=c08
nolords DisableRootJobs=YES Nodes=c08
shared OverSubscribe=YES:4 Nodes=c18
force OverSubscribe=FORCE:2 Nodes=c18
whole OverSubscribe=EXCLUSIVE Nodes=c18
mem MaxMemPerNode=2000 DefMemPerNode=1000 Nodes=c18
memcpu MaxMemPerCPU=500 DefMemPerCPU=250 Nodes=c18
cpus MaxCPUsPerNode=2 Nodes=c18
short MaxTime=10 DefaultTime=5 Nodes=c18
small MaxNodes=1 Nodes=c[18-19]
reserved ReqResv=YES Nodes=c18
low PriorityTier=1 PreemptMode=CANCEL Nodes=c23
high PriorityTier=9 Nodes=c23
accounts AllowAccounts=poor DenyQos=quick Nodes=c18
"""

SLURM = """\
ClusterName=site
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={home}/state
SlurmctldPidFile={home}/slurmctld.pid
SlurmctldLogFile={home}/log/slurmctld.log
SlurmdSpoolDir={home}/spool-%n
SlurmdPidFile={home}/slurmd-%n.pid
SlurmdLogFile={home}/log/slurmd-%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu,bandwidth
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdTimeout=40
MessageTimeout=10
BatchStartTimeout=60
Prolog={home}/prolog
Epilog={home}/epilog
PrologEpilogTimeout=600
KillWait=2
ReturnToService=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
Licenses=fluent:1
PrivateData=cloud
RebootProgram=/bin/true
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=7200
SuspendTimeout=3600
ResumeTimeout=3600
SuspendExcNodes=c[01-26]
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos,safe
JobAcctGatherType=jobacct_gather/none
"""
SLURMDBD = """\
AuthType=auth/munge
DbdHost=localhost
SlurmUser=root
LogFile={home}/log/slurmdbd.log
PidFile={home}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
"""
PROLOG = "#!/bin/sh\nexit 0\n"
EPILOG = '#!/bin/sh\n[ "$SLURMD_NODENAME" != c07 ] || sleep 600\n'

ACCOUNTS = (
    "add cluster site",
    "add account research Description=any Organization=any",
    "add account poor Description=any Organization=any GrpTRESMins=cpu=1",
    "add account narrow Description=any Organization=any GrpTRES=cpu=1",
    "add qos quick MaxWall=00:10:00",
    "add qos single MaxJobsPerUser=1",
    "add user root Account=research",
    f"add user {USER} Account=research,poor,narrow DefaultAccount=research",
    f"modify user {USER} set QOS=normal,quick,single",
)
"""Commands of sacctmgr."""

HOSTILE_NAME = "x JobState=FAILED Reason=None ExitCode=9:9 |y|z"


@dataclass(frozen=True)
class Job:
    """A job of the user."""

    name: str
    options: str
    script: str = "sleep 3000"
    first: bool = False
    """Whether it is there before nodes are drained or stopped."""

    @property
    def accounted(self) -> bool:
        """Whether it needs accounts."""
        return re.search(r"-A |--qos=", self.options) is not None


JOBS: Sequence[Job] = (
    Job("exclusive", "-w c05 --exclusive", first=True),
    Job("mixed", "-w c06 -n1 --mem=1000 --gres=gpu:1", first=True),
    Job("completing", "-w c07 -n1 --mem=100", "exit 0", first=True),
    Job("draining", "-w c08 -n1 --mem=100", first=True),
    Job("rebooting", "-w c11 -n1 --mem=100", first=True),
    Job("failing", "-w c21 -n1 --mem=100", first=True),
    Job("occupant", "-w c15 --exclusive --time=100", first=True),
    Job("node-fail", "-w c20 -n1 --mem=100 --no-requeue", first=True),
    Job("suspended", "-w c22 -n1 --mem=100", first=True),
    Job("preempted", "-w c23 -p low --exclusive", first=True),
    Job("powering", "-w e04 -n1 --mem=100", first=True),
    Job("time-out", "-w c24 -n1 --mem=100 --time=1", first=True),
    Job("failed", "-w c24 -n1 --mem=100", "exit 3", first=True),
    Job("cancelled", "-w c24 -n1 --mem=100", first=True),
    Job("requeued", "-w c24 -n1 --mem=100", first=True),
    Job("requeue-held", "-w c24 -n1 --mem=100", first=True),
    Job(HOSTILE_NAME, "-w c24 -n1 --mem=100 --comment='JobState=COMPLETED Reason=no'", first=True),
    Job("hidden", "-p hidden -w c22 -n1 --mem=100", first=True),
    Job("planned", "-w c14,c15 -N2 --exclusive --time=50"),
    Job("behind", "-w c15 --exclusive --time=100"),
    Job("preemptor", "-w c23 -p high --exclusive"),
    Job("starting", "-w e02 -n1 --mem=100"),
    Job("held", "-H -w c24 -n1 --mem=100"),
    Job("held-by-admin", "-w c05 --exclusive"),
    Job("dependent", "-w c24 -n1 --mem=100 --dependency=afterok:{exclusive}"),
    Job("never", "-w c24 -n1 --mem=100 --dependency=afterok:{failed}"),
    Job("later", "-w c24 -n1 --mem=100 --begin=now+2hours"),
    Job("licensed", "-w c24 -n1 --mem=100 -L fluent:1"),
    Job("unlicensed", "-w c24 -n1 --mem=100 -L fluent:1"),
    Job("array", "-w c24 -n1 --mem=100 --array=1-3%1"),
    Job("het", "-w c18 -n1 --mem=100 : -w c19 -n1 --mem=100"),
    Job("partition-down", "-p down -n1 --mem=100"),
    Job("partition-inactive", "-p inactive -n1 --mem=100"),
    Job("partition-time", "-p short --time=60 -n1 --mem=100"),
    Job("partition-nodes", "-p small -N2 --mem=100"),
    Job("partition-memory", "-p mem -w c18 -n1 --mem=9000"),
    Job("partition-memory-per-cpu", "-p memcpu -w c18 -n1 --mem-per-cpu=9000"),
    Job("on-drained", "-w c02 -n1 --mem=100"),
    Job("on-down", "-w c03 -n1 --mem=100"),
    Job("in-maintenance", "-w c09 -n1 --mem=100"),
    Job("reserved-for-others", "-w c10 -n1 --mem=100"),
    Job("own-reservation-later", "--reservation=later -n1 --mem=100"),
    Job("minutes-used-up", "-A poor -w c24 -n1 --mem=100 --time=100"),
    Job("group-cpus", "-A narrow -w c24 -n4 --mem=100"),
    Job("qos-wall", "--qos=quick --time=60 -w c24 -n1 --mem=100"),
    Job("qos-first", "--qos=single -w c24 -n1 --mem=100"),
    Job("qos-second", "--qos=single -w c24 -n1 --mem=100"),
)
ADMIN_FIRST = (
    "scontrol create reservation ReservationName=window StartTime=now Duration=600 Flags=MAINT "
    "Nodes=c09 Users=root",
    "scontrol create reservation ReservationName=others StartTime=now Duration=600 "
    "Nodes=c10,c26 Users=root",
    f"scontrol create reservation ReservationName=later StartTime=now+3hours Duration=600 "
    f"Nodes=c12 Users={USER}",
)
"""What an administrator does before the jobs."""
DRAINED_FOR = "Xid 79 [GPU 0000:3B:00.0] State=IDLE Gres=gpu:0"
ADMIN_THEN = (
    f"scontrol update NodeName=c02 State=DRAIN Reason='{DRAINED_FOR}'",
    "scontrol update NodeName=c03 State=DOWN Reason='PSU 2 [slot 4]'",
    "scontrol update NodeName=c08 State=DRAIN Reason='fan'",
    "scontrol update NodeName=c18 Comment='rack 4 Reason=none'",
    "scontrol update NodeName=c26 State=DRAIN Reason='lost [2 of 4]' Comment='see [ticket 7]'",
    "scontrol update NodeName=c26 Extra='slot [3]'",
    "scontrol reboot nextstate=RESUME c11",
    "scontrol reboot ASAP nextstate=RESUME Reason='new kernel' c12",
    "scontrol update NodeName=c20 State=DOWN Reason='it was pulled'",
    "scontrol update NodeName=c21 State=FAIL Reason='ECC'",
    "scontrol suspend {suspended}",
    "scontrol update NodeName=e03 State=POWER_DOWN",
    "scontrol update NodeName=e04 State=POWER_DOWN",
    "scancel {cancelled}",
    "scontrol requeue {requeued}",
    "scontrol requeuehold {requeue-held}",
)
"""And once the first jobs run."""
ADMIN_LAST = ("scontrol hold {held-by-admin}",)
"""And once all jobs are there."""

SHOWN_JOBS = (
    "exclusive", "completing", "node-fail", "preempted", "time-out", "failed", "cancelled",
    "requeued", "requeue-held", HOSTILE_NAME, "planned", "starting", "array", "het", "on-drained",
    "suspended",
)  # fmt: skip
"""Jobs of which all that scontrol says is kept."""
JSON_NODES = "c01,c02,c13,c14,c16,c19,e02"


def slurm_conf(release: tuple[int, int], *, accounting: bool) -> str:
    """Return slurm.conf for a Slurm of this release."""
    text = SLURM.format(login=LOGIN, address=ADDRESS, home=HOME)
    lines = [
        x for x in text.splitlines() if accounting or not x.startswith("AccountingStorage")
    ]  # fmt: skip
    for k, (name, more) in enumerate(NODES.items()):
        gres = "" if "Gres=" in more else USUAL_GRES
        more = more.replace("Gres=", "") if more == "Gres=" else more
        lines.append(
            f"NodeName={name} NodeHostname={LOGIN} NodeAddr={ADDRESS} Port={FIRST_PORT + k} "
            f"Sockets=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=16000 {gres} {more}"
        )
    for line in PARTITIONS.splitlines():
        open_to_all = re.sub(r" (?:AllowAccounts|DenyQos)=\S+", "", line)
        lines.append(f"PartitionName={line if accounting else open_to_all}")
    if release >= (22, 5):
        lines.append("MaxNodeCount=64")
    return "\n".join([*lines, ""])


def gres_conf() -> str:
    """Return gres.conf: plain files stand for GPUs, as no job here opens one."""
    lines = []
    for name in NODES:
        kinds = OF_FILES.get(name, ("h100",))
        for kind in kinds:
            count = FILES.get(kind, FEWER.get(name, 4))
            typed = f" Type={kind}" if kind else ""
            files = f"File={HOME}/gpu-{kind}[0-{count - 1}]" if count > 1 else (
                f"File={HOME}/gpu-{kind}0"
            )  # fmt: skip
            cores = " Cores=0-3" if kind == "h100" else ""
            lines.append(f"NodeName={name} Name=gpu{typed} {files}{cores}")
    lines.append("NodeName=c19 Name=bandwidth Type=lustre Count=4G Flags=CountOnly")
    return "\n".join([*lines, ""])


def cgroup_conf(release: tuple[int, int]) -> str:
    """Return cgroup.conf: nothing here uses control groups."""
    if release >= (23, 11):
        return "CgroupPlugin=disabled\n"
    return "CgroupAutomount=no\n" if release < (21, 8) else "CgroupPlugin=cgroup/v1\n"
