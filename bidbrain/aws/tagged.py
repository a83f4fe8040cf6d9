"""Every EC2 instance of our runs in a region, found by tag alone, so that it can be ended without a journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bidbrain.aws.answers import TAG_JOB, TAG_MARKET
from bidbrain.aws.calls import errors
from bidbrain.aws.ec2 import ALIVE, BATCH
from bidbrain.live.cloud import RefusedError


@dataclass(frozen=True)
class Tagged:
    """A machine that runs, or will. `launched_s`: Unix time."""

    machine_id: str
    job: str
    market: str
    state: str
    launched_s: int


def tagged(ec2: Any, job: str | None = None) -> list[Tagged]:
    """The machines of a job, or of all jobs, by job and age; `ec2`: a client. Raises CloudError."""
    by_job = (
        {"Name": "tag-key", "Values": [TAG_JOB]}
        if job is None
        else {"Name": f"tag:{TAG_JOB}", "Values": [job]}
    )
    filters = [by_job, {"Name": "instance-state-name", "Values": [*ALIVE, "shutting-down"]}]
    found = []
    with errors("listing machines"):
        for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
            for reservation in page["Reservations"]:
                found += [_tagged(instance) for instance in reservation["Instances"]]
    return sorted(found, key=lambda machine: (machine.job, machine.launched_s, machine.machine_id))


def _tagged(instance: Any) -> Tagged:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    market = tags.get(TAG_MARKET) or f"{instance['InstanceType']}/{instance['Placement']['AvailabilityZone']}"
    launched_s = int(instance["LaunchTime"].timestamp())
    return Tagged(instance["InstanceId"], tags[TAG_JOB], market, instance["State"]["Name"], launched_s)


def terminate(ec2: Any, machines: Sequence[Tagged]) -> None:
    """End machines that `tagged` returned. Raises CloudError: those before it may have been ended."""
    for start in range(0, len(machines), BATCH):
        ids = [machine.machine_id for machine in machines[start : start + BATCH]]
        with errors("ending machines"):
            ec2.terminate_instances(InstanceIds=ids)


def chosen(machines: Sequence[Tagged], wanted: Sequence[str], *, every: bool) -> list[Tagged]:
    """The machines that `wanted` names, or with `every` all that are not ending already. Raises RefusedError."""
    if every == bool(wanted):
        raise RefusedError("found no machine to terminate, expected ids or --all, and not both")
    by_id = {machine.machine_id: machine for machine in machines}
    if unknown := [name for name in wanted if name not in by_id]:
        raise RefusedError(f"found no machine {unknown[0]} with the tag {TAG_JOB}, expected one of ours")
    found = list(machines) if every else [by_id[name] for name in dict.fromkeys(wanted)]
    return [machine for machine in found if machine.state != "shutting-down"]
