"""What sites do that the sandbox does not, one by one, and what the suite must make of each.

Every row runs on a foreign site of its own (foreign_site.py), as its ordinary user: the suite ends
with a verdict or one clear line and the right exit status, blames no healthy node, and leaves no
job in the queue. tests/selftests/whole_runs/test_foreign_quirks.py runs them (`make soak`).
"""

# Length: one table, and what its rows do to a site.

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fixtures.records.run_directory import RunDirectory
from tests.selftests.sandboxes import (
    NODES_ONLY,
    SMALL,
    Finished,
    Suite,
    Waiting,
    waiting_in,
)
from tests.tools import foreign_config as config
from tests.tools.foreign_config import (
    GPU_NODES,
    OPTIONS,
    PARTITIONS,
    Variant,
    gpu_partition,
    partition,
)
from tests.tools.foreign_deeds import (
    Case,
    by_root,
    cancel_one,
    cancel_pending,
    covered_by,
    fill,
    hold_one,
    occupy,
    order,
    preempt,
    preempt_in_prolog,
    restart_controller,
    suspend_for_a_while,
    twice,
    use_up_names,
)
from tests.tools.foreign_site import ForeignSite

SMALL_DISK = """\
truncate -s 16M disk.img
mkfs.ext4 -q {options} disk.img
mount -o loop disk.img runs
chown {uid} runs
"""
WIDER = ("-m", "multinode", "-k", "environment or scheduler or filesystem or isolation")
UNSEEN = "not visible on the nodes"


@dataclass(frozen=True)
class Outcome:
    """What the suite made of a quirk."""

    status: int
    said: str
    bad: tuple[str, ...]
    """bad-nodes.txt."""
    ran: bool
    """Whether there is a run directory."""


@dataclass(frozen=True)
class Quirk:
    """One way in which a site is unlike ours, and what the suite must make of it."""

    name: str
    status: int
    says: str
    """A regular expression in what the suite prints."""
    bad: tuple[str, ...] = ()
    """bad-nodes.txt: nodes that are at fault."""
    variant: Variant = field(default_factory=Variant)
    options: tuple[str, ...] = OPTIONS
    more: tuple[str, ...] = ()
    """Options beside these."""
    plan: tuple[str, ...] = NODES_ONLY
    """What is selected."""
    through: tuple[str, ...] = ()
    """The command line by which the user starts it."""
    run: str = "run"
    """The name of the run directory."""
    env: Mapping[str, str] = field(default_factory=dict)
    owner: int = config.UID
    """Whose the checkout is."""
    before: Callable[[Case], object] | None = None
    """Done before the suite starts."""
    during: Callable[[Case], object] | None = None
    """Done while all ranks wait in `environment`; then they go on."""
    meanwhile: Callable[[Case], object] | None = None
    """Done while the suite works."""
    runs: bool = True
    """Whether there is a run at all; else one line and no run directory."""
    quick: bool = False
    """Whether it is part of `make test`: what new sites meet first."""

    @property
    def id(self) -> str:
        return self.name.replace(" ", "-")


def execute(quirk: Quirk, site: ForeignSite) -> Outcome:
    """Run the suite on a site that has the quirk."""
    waiting = waiting_in(site.user_home, "environment") if quirk.during else None
    root = waiting.checkout if waiting else site.user_home / "suite"
    site.install(root, owner=quirk.owner)
    arguments = (*quirk.plan, "--thresholds=site.yaml", *quirk.options, *quirk.more)
    with contextlib.ExitStack() as until_end:
        case = Case(site, root, site.user_home / "runs" / quirk.run, until_end)
        if quirk.before:
            quirk.before(case)
        done = _run(quirk, case, waiting, arguments)
    bad = done.root / "bad-nodes.txt"
    named = bad.read_text().split() if bad.exists() else []
    return Outcome(done.status, done.said, tuple(named), done.root.exists())


def _run(quirk: Quirk, case: Case, waiting: Waiting | None, arguments: Sequence[str]) -> Finished:
    site, root = case.site, case.checkout
    with Suite(
        root, case.run, *arguments, cwd=Path("/"), before=site.pytest(root, *quirk.through),
        env={**site.env, **quirk.env},
    ) as case.suite:  # fmt: skip
        case.suite.directory = RunDirectory(site.seen(case.run))
        if waiting and quirk.during:
            ranks = config.GPUS * len(GPU_NODES)
            case.suite.until(lambda: case.ranks() == ranks, "all ranks run")
            quirk.during(case)
            waiting.let_go()
        if quirk.meanwhile:
            quirk.meanwhile(case)
        try:
            return case.suite.wait(300)
        except subprocess.TimeoutExpired:
            jobs = site.root("squeue", "--noheader", "-o", "%A %T %r %R")
            raise AssertionError(f"no end in 300 s: {jobs}\n{case.suite.said}") from None


# --- settings, scripts and command lines of sites

PREEMPTED = gpu_partition("PriorityTier=1 PreemptMode=REQUEUE",
                          partition("first", "PriorityTier=9"))  # fmt: skip
PREEMPTS = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE"
SUSPENDED = gpu_partition("PriorityTier=1 PreemptMode=SUSPEND",
                          partition("first", "PriorityTier=9 PreemptMode=OFF"))  # fmt: skip
SUSPENDS = """\
PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
SelectTypeParameters=CR_Core
"""
"""Memory is not what it decides by: a suspended job keeps its own."""
TASK_PROLOG = """\
#!/bin/sh
echo print welcome to this site
echo unset PYTHONPATH
echo export TMPDIR=/scratch/gone
"""
WRAPPERS = """\
mkdir bin
for name in sinfo squeue sbatch scontrol scancel sacct srun; do
  printf '#!/bin/sh\\necho "NOTE: maintenance on Friday"{to}\\nexec /usr/bin/%s "$@"\\n' \\
    $name > bin/$name
done
chmod 755 bin/*
"""
WRAPPED = ("sh", "-c", 'export PATH=$HOME/bin:$PATH; exec "$@"', "sh")
CONF_ELSEWHERE = ("sh", "-c", 'export SLURM_CONF=$HOME/conf/slurm.conf PATH=$HOME/bin:$PATH; '
                  'exec "$@"', "sh")  # fmt: skip
OWN_PYTHON = ("sh", "-c", 'shift 5; exec .venv/bin/python "$@"', "sh")
"""That of the checkout, as who stands in it starts it."""
CRON = ("env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", 'exec "$@" <&-', "sh")
SHELL = """\
ulimit -n 128 -u 150
export BASH_ENV=$HOME/greeting.sh
module() { echo no modules here; }
export -f module
exec "$@"
"""
TWO_MODELS = Variant(
    types={GPU_NODES[0]: "nvidia_h100_80gb_hbm3", GPU_NODES[1]: "a100"}, shards={GPU_NODES[1]: 8}
)
BROKEN_PROLOG = f"#!/bin/sh\n[ $SLURMD_NODENAME != {GPU_NODES[1]} ]\n"
SHORT = PARTITIONS.replace("1-00:00:00", "1")

QUIRKS = (
    Quirk("nothing but the site", 0, "DEMONSTRATION"),
    # --- files
    Quirk("disk full", 2, "No space left|full", during=fill,
          variant=Variant(setup=SMALL_DISK.format(options="", uid=config.UID))),
    Quirk("no inodes left", 2, "No space left|full", during=use_up_names,
          variant=Variant(setup=SMALL_DISK.format(options="-N 256", uid=config.UID))),
    Quirk("disk quota is used up", 2, "Disk quota exceeded",
          during=covered_by("quota", login=True)),
    Quirk("files are visible late", 0, "DEMONSTRATION", quick=True, before=covered_by("late")),
    Quirk("checkout not visible on the nodes", 2, UNSEEN,
          variant=Variant(hidden=dict.fromkeys(GPU_NODES, ("suite",)))),
    Quirk("run directory not visible on the nodes", 2, UNSEEN, quick=True,
          variant=Variant(hidden=dict.fromkeys(GPU_NODES, ("runs",)))),
    Quirk("interpreter missing on one node", 2, UNSEEN, bad=GPU_NODES[1:],
          variant=Variant(hidden={GPU_NODES[1]: ("../../venv",)})),
    Quirk("read-only checkout", 0, "DEMONSTRATION", owner=0),
    Quirk("home behind a link of the site", 0, "DEMONSTRATION", through=OWN_PYTHON,
          variant=Variant(linked_home=True, setup="ln -s ../../../venv suite/.venv")),
    Quirk("names that a shell or Slurm reads", 0, "DEMONSTRATION", run="it's 100%j done",
          through=("sh", "-c", 'ln -s suite "../my suite" && cd "../my suite" && exec "$@"', "sh")),
    # --- nodes
    Quirk("node drained at the start", 2, GPU_NODES[1], bad=GPU_NODES[1:],
          more=("--queue-timeout=1",),
          before=by_root("scontrol", "update", f"NodeName={GPU_NODES[1]}", "State=DRAIN",
                         "Reason=bad DIMM")),
    Quirk("node drained in the middle", 0, "DEMONSTRATION",
          during=by_root("scontrol", "update", f"NodeName={GPU_NODES[1]}", "State=DRAIN",
                         "Reason=later")),
    Quirk("prolog fails on one node", 2, r"rack2n1 is drained \(Prolog error\)", bad=GPU_NODES[1:],
          more=("--queue-timeout=1",), variant=Variant(prolog=BROKEN_PROLOG)),
    # --- what the scheduler is asked for and refuses
    Quirk("reservation holds the nodes", 2, "not measured", more=("--queue-timeout=1",),
          before=by_root("scontrol", "create", "reservation", "ReservationName=other",
                         "Users=root", "Nodes=ALL", "StartTime=now", "Duration=60",
                         "Flags=MAINT,IGNORE_JOBS")),
    Quirk("submit filter refuses", 2, "this site wants --comment=PROJECT", quick=True,
          options=("--partition=gpu",)),
    Quirk("comment by sbatch-args", 0, "DEMONSTRATION",
          options=("--partition=gpu", "--sbatch-args=--comment=project 7")),
    Quirk("MaxSubmitJobs of the association", 0, "DEMONSTRATION",
          variant=Variant(accounting=(f"modify user {config.USER} set MaxSubmitJobs=1",))),
    Quirk("no job may be submitted", 2, "refused by Slurm: .*MaxSubmitJob",
          variant=Variant(accounting=(f"modify user {config.USER} set MaxSubmitJobs=0",))),
    Quirk("MaxWall of the QOS without DenyOnLimit", 2, "QOSMaxWall",
          variant=Variant(accounting=("modify qos gpu set MaxWall=1",))),
    Quirk("GrpTRES of the association that one job never meets", 2,
          "refused by Slurm: .*AssocGrpGRES, and no other job is running",
          before=by_root("sacctmgr", "-i", "modify", "account", config.ACCOUNT, "set",
                         "GrpTRES=gres/gpu=1")),
    Quirk("GrpSubmitJobs of the association", 0, "DEMONSTRATION",
          variant=Variant(accounting=(f"modify account {config.ACCOUNT} set GrpSubmitJobs=1",))),
    Quirk("a QOS that the user does not have", 2, "Invalid qos", more=("--qos=other",),
          variant=Variant(accounting=("add qos other",))),
    Quirk("wrong default partition", 4, "batch has none of rack1n1, rack2n1: give --partition",
          options=(config.COMMENT,), runs=False),
    Quirk("no default partition", 4, "no default partition: give --partition", runs=False,
          options=(config.COMMENT,),
          variant=Variant(partitions=PARTITIONS.replace("Default=YES ", ""))),
    Quirk("partition never allows the time", 2, "refused by Slurm",
          variant=Variant(partitions=SHORT)),
    Quirk("partition never allows the time, said at once", 2, "time limit",
          variant=Variant(partitions=SHORT, slurm="EnforcePartLimits=ALL")),
    Quirk("partition never allows as many nodes", 2, "ode count specification", plan=SMALL,
          variant=Variant(partitions=gpu_partition("MaxNodes=1"), slurm="EnforcePartLimits=ALL")),
    Quirk("partition is down", 2, "not measured", more=("--queue-timeout=1",),
          before=by_root("scontrol", "update", "PartitionName=gpu", "State=DOWN")),
    Quirk("another account's partition", 2, "account not permitted to use this partition",
          variant=Variant(partitions=PARTITIONS.replace(
              "MaxTime=1-00:00:00", "AllowAccounts=root"))),
    Quirk("licenses are demanded and there", 0, "DEMONSTRATION",
          variant=Variant(slurm="Licenses=site:4"), more=("--sbatch-args=--licenses=site:1",)),
    Quirk("a license that the site does not have", 2, "nvalid license",
          more=("--sbatch-args=--licenses=other:1",)),
    Quirk("PrivateData hides the nodes", 4, "PrivateData|permission|no node|visible", runs=False,
          variant=Variant(private="jobs,usage,users,accounts,nodes")),
    # --- partitions and settings that other sites do not have
    Quirk("hidden partition", 0, "DEMONSTRATION",
          variant=Variant(partitions=gpu_partition("Hidden=YES"))),
    Quirk("filter routes to a hidden partition and renames jobs", 0, "DEMONSTRATION", quick=True,
          variant=Variant(partitions=gpu_partition("", partition("hid", "Hidden=YES")),
                          lua=config.ROUTES)),
    Quirk("partition of another group", 4, "this user may not use it .AllowGroups=root",
          runs=False, variant=Variant(partitions=gpu_partition("AllowGroups=root"))),
    Quirk("no GPUs in Gres", 0, "DEMONSTRATION", variant=Variant(gres=False)),
    Quirk("no GPUs in Gres, and whole nodes", 0, "DEMONSTRATION",
          variant=Variant(gres=False, partitions=gpu_partition("OverSubscribe=EXCLUSIVE"))),
    Quirk("whole nodes by select-linear", 0, "DEMONSTRATION", quick=True,
          variant=Variant(select="select/linear", devices=False)),
    Quirk("select-linear that keeps jobs from GPUs", 4, "select/linear, and ConstrainDevices=yes",
          runs=False, variant=Variant(select="select/linear")),
    Quirk("MaxMemPerNode", 0, "DEMONSTRATION",
          variant=Variant(partitions=gpu_partition("MaxMemPerNode=2000"))),
    Quirk("MaxMemPerNode with EnforcePartLimits", 0, "DEMONSTRATION",
          variant=Variant(slurm="EnforcePartLimits=ALL",
                          partitions=gpu_partition("MaxMemPerNode=6000"))),
    Quirk("MaxMemPerCPU", 0, "DEMONSTRATION",
          variant=Variant(slurm="EnforcePartLimits=ALL",
                          partitions=gpu_partition("MaxMemPerCPU=500"))),
    Quirk("MaxMemPerCPU too small for torch", 2, "MaxMemPerCPU=100 gives the job less memory",
          variant=Variant(partitions=gpu_partition("MaxMemPerCPU=100")),
          plan=("-m", "multinode", "-k", "environment or collectives_in_a_node")),
    Quirk("MaxCPUsPerNode", 0, "DEMONSTRATION",
          variant=Variant(partitions=gpu_partition("MaxCPUsPerNode=4"))),
    Quirk("MaxCPUsPerNode below one for each GPU", 4, "MaxCPUsPerNode=1, and a node needs 2",
          runs=False, variant=Variant(partitions=gpu_partition("MaxCPUsPerNode=1"))),
    Quirk("submit filter refuses --mem", 0, "DEMONSTRATION", variant=Variant(lua=config.NO_MEM)),
    Quirk("own reservation", 0, "DEMONSTRATION", more=("--reservation=own",),
          before=by_root("scontrol", "create", "reservation", "ReservationName=own",
                         f"Users={config.USER}", "Nodes=rack1n1,rack2n1", "StartTime=now",
                         "Duration=60", "Flags=MAINT")),
    Quirk("minutes of the project are used up", 2, "refused by Slurm: .*AssocGrpCPUMinutes",
          variant=Variant(slurm="AccountingStorageEnforce=associations,limits,qos,safe",
                          accounting=(f"modify account {config.ACCOUNT} set GrpTRESMins=cpu=1",))),
    Quirk("jobs are forgotten at once, without accounting", 0, "DEMONSTRATION",
          variant=Variant(database=False, slurm="MinJobAge=2\nSrunPortRange=60001-60060")),
    Quirk("OverSubscribe=FORCE and MpiDefault=pmi2", 0, "DEMONSTRATION",
          variant=Variant(partitions=gpu_partition("OverSubscribe=FORCE:2"),
                          slurm="MpiDefault=pmi2")),
    Quirk("two models of GPUs in one partition", 0, "DEMONSTRATION", variant=TWO_MODELS),
    Quirk("an order by number and a partition of more", 4,
          "orders 1, but the partition has 2: give a hostlist", runs=False,
          before=order("nodes: 1"), variant=TWO_MODELS),
    Quirk("no IPv4", 0, "DEMONSTRATION", variant=Variant(ipv6=True),
          plan=("-m", "multinode", "-k", "environment or peers or allreduce")),
    Quirk("two minutes between the signals of a cancelled job", 2, "nterrupted",
          during=lambda case: case.signal(2), variant=Variant(slurm="KillWait=120")),
    # --- how its user starts it
    Quirk("cron", 0, "DEMONSTRATION", through=CRON),
    Quirk("locale, shell and limits of the user", 0, "DEMONSTRATION",
          through=("bash", "-c", SHELL, "bash"),
          env={"LC_ALL": "tr_TR.UTF-8", "SLURM_TIME_FORMAT": "relative", "COLUMNS": "40",
               "SCANCEL_INTERACTIVE": "1", "SCONTROL_ALL": "0", "SQUEUE_STATES": "PD"},
          variant=Variant(setup="echo 'echo good morning' > greeting.sh")),
    Quirk("variables of the user", 0, "DEMONSTRATION",
          env={"SQUEUE_PARTITION": "elsewhere", "SINFO_FORMAT": "%c", "SQUEUE_FORMAT": "%u",
               "SACCT_FORMAT": "user", "SBATCH_ACCOUNT": "elsewhere"}),
    Quirk("a profile full of variables, and four workers", 0, "DEMONSTRATION", more=("-n", "4"),
          env={"SLURM_NTASKS": "7", "SLURM_CPU_BIND": "map_cpu:0", "SLURM_NODELIST": "svc1",
               "SLURM_EXCLUSIVE": "user", "SBATCH_PARTITION": "batch", "SBATCH_TIMELIMIT": "1",
               "SBATCH_EXPORT": "NONE", "SRUN_CPUS_PER_TASK": "7", "SRUN_CONTAINER": "x",
               "PYTHONPATH": "/gone", "PYTEST_ADDOPTS": "-x --tb=long", "SHELL": "/bin/csh"}),
    Quirk("inside a job of another partition", 0, "DEMONSTRATION",
          through=("srun", "--partition=batch", "--comment=x", "--mem=0")),
    Quirk("inside an allocation of a node that is to be measured", 4,
          r"inside Slurm job \d+, which holds rack2n1", runs=False,
          through=("salloc", "--quiet", "--partition=gpu", f"--nodelist={GPU_NODES[1]}",
                   "--comment=x")),
    Quirk("commands that print a notice on stderr, and SLURM_CONF elsewhere", 0, "DEMONSTRATION",
          through=CONF_ELSEWHERE,
          variant=Variant(setup=WRAPPERS.format(to=" >&2") + "cp -r /etc/slurm conf\n")),
    Quirk("commands that print a notice", 0, "DEMONSTRATION", through=WRAPPED,
          variant=Variant(setup=WRAPPERS.format(to=""))),
    Quirk("task prolog that prints and unsets, and folders that are gone", 0, "DEMONSTRATION",
          plan=WIDER, env={"TMPDIR": "/scratch/gone"},
          variant=Variant(task_prolog=TASK_PROLOG)),
    # --- what ends one node's job and concerns no node
    Quirk("constraint that one node does not meet", 2, "not measured", plan=SMALL,
          more=("--constraint=rack1",), variant=Variant(features={GPU_NODES[0]: "rack1"})),
    Quirk("constraint that all nodes meet", 0, "DEMONSTRATION", more=("--constraint=h200",),
          variant=Variant(features=dict.fromkeys(GPU_NODES, "h200"))),
    Quirk("preempted by a higher partition", 2, "PREEMPTED|preempted", quick=True, plan=SMALL,
          during=preempt, variant=Variant(partitions=PREEMPTED, slurm=f"{PREEMPTS}\nKillWait=3")),
    Quirk("preempted in the prolog", 2, "PREEMPTED|preempted", plan=SMALL,
          meanwhile=preempt_in_prolog, more=("--queue-timeout=1",),
          variant=Variant(partitions=PREEMPTED, slurm=PREEMPTS, prolog="#!/bin/sh\nsleep 8\n")),
    Quirk("suspended by a higher partition", 0, "DEMONSTRATION", plan=SMALL,
          during=suspend_for_a_while, variant=Variant(partitions=SUSPENDED, slurm=SUSPENDS)),
    Quirk("pending job cancelled by root", 2, "cancelled|CANCELLED", plan=SMALL,
          before=occupy, meanwhile=cancel_pending),
    Quirk("pyxis is not installed", 2, "container-image",
          more=("--srun-args=--container-image=x",)),
    Quirk("MPI that Slurm does not have", 2, "pmix_v9", more=("--srun-args=--mpi=pmix_v9",)),
    # --- what happens to a run
    Quirk("slurmctld is down at the start", 4, "lurm", runs=False,
          before=lambda case: case.site.stop_controller()),
    Quirk("slurmctld restarted in the middle", 0, "DEMONSTRATION", during=restart_controller),
    Quirk("SIGINT twice", 2, "nterrupted", during=twice(2)),
    Quirk("terminal closed", 2, "nterrupted|SIGHUP|closed", during=lambda case: case.signal(1)),
    # With Slurm's 30 s of KillWait the watchdog of the other job's ranks, which wait, would end it.
    Quirk("job cancelled by root", 2, "cancelled", plan=SMALL, during=cancel_one,
          variant=Variant(slurm="KillWait=3")),
    Quirk("job held by root", 2, "held|Held", before=occupy, meanwhile=hold_one,
          more=("--queue-timeout=1",)),
)  # fmt: skip
"""In the order in which the documentation of sites would name them."""


def main() -> int:
    """Run the quirks that are named, or all, and print a line for each."""
    chosen = [q for q in QUIRKS if not sys.argv[1:] or q.id in sys.argv[1:]]
    for quirk in chosen:
        with ForeignSite(quirk.variant) as site:
            try:
                done = execute(quirk, site)
            except AssertionError as error:
                print(f"== {quirk.name}: {error}", flush=True)
                continue
            queue = site.left()
        good = (done.status, done.bad, done.ran) == (quirk.status, quirk.bad, quirk.runs)
        good = good and not queue and re.search(quirk.says, done.said) is not None
        print("as expected" if good and "Traceback" not in done.said else "OTHERWISE", end=" ")
        print(f"== {quirk.name}: exit {done.status}, bad {done.bad}, ran {done.ran}, queue {queue}")
        print(done.said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
