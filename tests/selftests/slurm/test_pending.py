"""Which reasons of a pending job end by waiting: of all that Slurm has, each has its place."""

from __future__ import annotations

import pytest

from fixtures.slurm import pending

pytestmark = pytest.mark.cpu

WAITS = """\
None Priority Resources Reservation Dependency BeginTime Licenses Prolog Cleaning SchedDefer
FedJobLock
BurstBufferResources BurstBufferStageIn PowerNotAvail PowerReserved JobArrayTaskLimit
AssocMaxJobsLimit AssocMaxSubmitJobLimit AssociationJobLimit AssociationResourceLimit
QOSJobLimit QOSResourceLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxNodePerUserLimit
QOSMaxSubmitJobPerUserLimit QOSMaxUnknownPerUser QOSMaxMemoryPerUser QOSMaxEnergyPerUser
QOSMaxGRESPerUser QOSMaxLicensePerUser QOSMaxBBPerUser QOSMaxBillingPerUser MaxBBPerAccount
MaxCpuPerAccount MaxEnergyPerAccount MaxGRESPerAccount MaxNodePerAccount MaxLicensePerAccount
MaxMemoryPerAccount MaxUnknownPerAccount MaxJobsPerAccount MaxSubmitJobsPerAccount
MaxBillingPerAccount
"""
GROUPS = """Cpu{}Limit Mem{}Limit Node{}Limit Unknown{} Energy{} GRES{} License{} BB{} Billing{}"""
NEVER = """\
PartitionNodeLimit PartitionTimeLimit PartitionDown PartitionInactive JobHeldAdmin JobHeldUser
AssociationTimeLimit BadConstraints NonZeroExitCode RaisedSignal TimeLimit
InactiveLimit InvalidAccount InvalidQOS QOSUsageThreshold QOSTimeLimit QOSNotAllowed
AccountNotAllowed DependencyNeverSatisfied QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit
QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit QOSMinCpuNotSatisfied AssocMaxCpuPerJobLimit
AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit AssocMaxWallDurationPerJobLimit
JobHoldMaxRequeue BurstBufferOperation AssocMaxUnknownPerJob AssocMaxUnknownPerNode
AssocMaxMemPerNode AssocMaxGRESPerJob AssocMaxGRESMinutesPerJob QOSMaxCpuPerNode
QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryMinutesPerJob QOSMinMemory QOSMinNode
QOSMinGRES QOSMaxGRESPerJob DeadLine PartitionConfig AccountingPolicy OutOfMemory MaxMemPerLimit
ReservationDeleted ReservationInvalid Constraints
"""


@pytest.mark.parametrize("reason", WAITS.split())
def test_what_ends_by_waiting_is_waited_for(reason):
    assert pending.ends_by_waiting(reason)
    assert pending.ends_by_waiting(f"({reason})")


@pytest.mark.parametrize("owner", ["QOS", "Assoc"])
@pytest.mark.parametrize("of", GROUPS.split())
def test_limits_of_a_group_at_a_time_end_and_what_it_has_used_up_does_not(owner, of):
    assert pending.ends_by_waiting(f"{owner}Grp{of.format('')}")
    assert pending.limits_many(f"{owner}Grp{of.format('')}")
    assert pending.ends_by_waiting(f"{owner}Grp{of.format('RunMinutes')}")
    used_up = f"{owner}Grp{of.format('Minutes')}"
    assert not pending.ends_by_waiting(used_up)
    assert not pending.is_of_nodes(used_up)


@pytest.mark.parametrize("reason", [*NEVER.split(), "QOSGrpWallLimit", "AssocGrpWallLimit", "?"])
def test_everything_else_is_said_at_once_and_no_node_is_at_fault(reason):
    assert not pending.ends_by_waiting(reason)
    assert not pending.is_of_nodes(reason)


@pytest.mark.parametrize(
    "reason",
    ["NodeDown", "(ReqNodeNotAvail, UnavailableNodes:n1)", "FrontEndDown", "JobLaunchFailure",
     "(Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved)", "launch failed requeued held"],
)  # fmt: skip
def test_nodes_that_cannot_be_used_are_named_as_such(reason):
    assert not pending.ends_by_waiting(reason)
    assert pending.is_of_nodes(reason)


def test_a_reservation_of_somebody_else_is_no_fault_of_the_node():
    reason = "(ReqNodeNotAvail, Reserved for maintenance)"
    assert not pending.ends_by_waiting(reason)
    assert not pending.is_of_nodes(reason)
    assert pending.ends_by_waiting(pending.IN_SERVICE)
