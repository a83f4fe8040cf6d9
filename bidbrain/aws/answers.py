"""EC2's answers as the market's own types: machines, their ends, and fleets that came without any. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from bidbrain.aws.calls import refusal
from bidbrain.billing import Ending
from bidbrain.history.prices import Market
from bidbrain.live.cloud import (
    CapacityError,
    CloudError,
    CredentialsError,
    EndedInstance,
    Instance,
    QuotaError,
)

TAG_JOB, TAG_ORDER, TAG_MARKET = "proteus:job", "proteus:order", "proteus:market"
EVICTED_CODES = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def fleet_error(problems: Sequence[Mapping[str, str]], what: str) -> CloudError:
    """The error of a fleet without machines. It is EC2's last word on its token, also where EC2 was only too busy: who
    asks again needs a new one."""
    if not problems:
        return CapacityError(f"{what}: AWS gave none")
    error = refusal(problems[0].get("ErrorCode", ""), problems[0].get("ErrorMessage", ""), what)
    return (
        error
        if isinstance(error, CapacityError | QuotaError | CredentialsError)
        else CapacityError(str(error))
    )


def machine_of(instance: Mapping[str, Any]) -> Instance:
    """A machine that we bought."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    return Instance(
        instance["InstanceId"],
        tags.get(TAG_ORDER, ""),
        _market(instance, tags),
        int(instance["LaunchTime"].timestamp()),
    )


def _market(instance: Mapping[str, Any], tags: Mapping[str, str]) -> Market:
    """As the tag says; of one whose tag is gone, or was changed by hand into none, by what the machine is."""
    try:
        return Market.parse(tags[TAG_MARKET])
    except (KeyError, ValueError):
        return Market(instance["InstanceType"], instance["Placement"]["AvailabilityZone"])


def fate_of(instance: Mapping[str, Any], now_s: int) -> EndedInstance:
    """The end of an instance: its cause from EC2's state reason, its time from the transition reason (else: now)."""
    code = instance.get("StateReason", {}).get("Code", "")
    found = _WHEN.search(instance.get("StateTransitionReason", ""))
    at_s = now_s
    if found:
        at_s = int(datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp())
    return EndedInstance(
        instance["InstanceId"], at_s, Ending.EVICTED if code in EVICTED_CODES else Ending.TERMINATED
    )
