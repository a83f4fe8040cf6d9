"""The parts of a stack that there are, and the steps that lead to a whole stack or away from it. Pure.

CloudFormation makes and removes most of a stack, and is one part here. Names are fixed by the stack's name and all that
can carry tags carries `proteus:stack`, so everything is found again without a record of what was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import Any

from bidbrain.aws.stack.names import TAG_STACK
from bidbrain.aws.stack.template import Wanted, listed, without_bucket


class PartKind(StrEnum):
    """The parts of a stack in the order of their removal.

    Money first: the head, which buys, and the instances that it bought. Then parts that cost nothing, and data last.
    """

    HEAD = "head"
    INSTANCE = "instance"
    FLEET = "fleet"
    VOLUME = "volume"
    PEERING = "peering of networks"
    REGION = "CloudFormation stack of a region"
    STACK = "CloudFormation stack"
    ADDRESS = "address of the head"
    TOKEN = "token"
    AUTHORITY = "authority of certificates"
    PACKAGE = "package"
    LIMITS = "limits of the buyer"
    OBJECTS = "objects"
    BUCKET = "bucket"


REMOVAL = tuple(PartKind)
DATA = (PartKind.OBJECTS, PartKind.BUCKET)
AMONG_OBJECTS = (PartKind.PACKAGE, PartKind.LIMITS)
RUNNING = (PartKind.HEAD, PartKind.INSTANCE, PartKind.FLEET)


KEPT = "it is as it should be"


class Action(StrEnum):
    """The effect of a step on its part."""

    MAKE = "make"
    FINISH = "finish"
    CHANGE = "change"
    KEEP = "keep"
    REMOVE = "remove"


@dataclass(frozen=True)
class Part:
    """A part that there is.

    part_id: as AWS calls it. is_current: it holds what it should. is_ending: it was told to go and is still there.
    is_stopped: a head that was stopped.
    value: of the head its address inside, of the address its value, of limits their text, of objects their number.
    region: where it is if not at home; of a peering that of its first network, and other_region that of its second.
    """

    kind: PartKind
    name: str
    part_id: str
    is_ours: bool = True
    is_current: bool = True
    is_ending: bool = False
    value: str = ""
    region: str = ""
    other_region: str = ""
    is_stopped: bool = False


@dataclass(frozen=True)
class StackState:
    """A CloudFormation stack as it is. status: in CloudFormation's words."""

    stack_id: str
    status: str
    is_ours: bool
    parameters: Mapping[str, str]
    template: Mapping[str, Any]

    @property
    def is_busy(self) -> bool:
        """CloudFormation works on it."""
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"

    @property
    def is_whole(self) -> bool:
        """It can be used, and changed."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")

    @property
    def is_remains(self) -> bool:
        """It is the remains of a stack that was never whole, or is no more."""
        return self.status in (
            "CREATE_FAILED",
            "ROLLBACK_COMPLETE",
            "ROLLBACK_FAILED",
            "DELETE_FAILED",
            "REVIEW_IN_PROGRESS",
        )


@dataclass(frozen=True)
class Found:
    """The parts of a stack that there are. elsewhere: its CloudFormation stacks in other regions, of the config or of
    an earlier one; their parts are among `parts`."""

    stack: StackState | None
    parts: tuple[Part, ...]
    elsewhere: Mapping[str, StackState] = field(default_factory=dict)

    def of(self, kind: PartKind, name: str | None = None) -> Part | None:
        """The part of a kind, and of a name if given, that is not ending."""
        fitting = (
            p for p in self.parts if p.kind is kind and not p.is_ending and (name is None or p.name == name)
        )
        return next(fitting, None)


@dataclass(frozen=True)
class Step:
    """One thing to do, and why.

    kind: a `PartKind`, or the words for a type of CloudFormation's. region, other_region: as of a part.
    """

    action: Action
    kind: str
    name: str
    reason: str
    part: Part | None = None
    region: str = ""
    other_region: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.kind} {self.name}: {self.reason}"


class ForeignError(ValueError):
    """Something has a name that we need and is not ours, is there twice, or cannot become what the config asks for; in
    one sentence."""


def template_for(want: Wanted, found: Found) -> Mapping[str, Any]:
    """The template for this account: a bucket that is there and is not in the stack was left by an earlier one."""
    is_in_stack = found.stack is not None and "Bucket" in found.stack.template["Resources"]
    if found.of(PartKind.BUCKET) is None or is_in_stack:
        return want.template
    return without_bucket(want.template)


def steps(want: Wanted, found: Found) -> tuple[Step, ...]:
    """One step for each part, in order. Raises ForeignError where a name is taken.

    The package goes before a stack that has its bucket already: no instance is bought that cannot find its package. A
    head that differs is kept, for a job may run on it: only `down` and `up` replace it.
    """
    for part in found.parts:
        if not part.is_ours and not _is_being_made(part, found):
            raise ForeignError(
                f"{part.kind} {part.name}: it exists and is not ours (no tag {TAG_STACK}, or of another account), take "
                "another name"
            )
    heads = [part.part_id for part in found.parts if part.kind is PartKind.HEAD and not part.is_ending]
    if len(heads) > 1:
        raise ForeignError(f"head: found {' and '.join(heads)}, expected one; terminate the others")
    for part in found.parts:
        if part.is_stopped:
            raise ForeignError(
                f"head {part.part_id}: it is stopped, expected one that runs: started again it would have neither Ray "
                "nor a buyer; terminate it, and `proteus aws up` starts another one"
            )
    stack = _stack_step(want, found)
    if stack.action is Action.FINISH:
        return (stack,)  # the rest is known when that is over
    package = _package_step(want, found)
    names = {PartKind.TOKEN: want.names.token, PartKind.AUTHORITY: want.names.authority}
    secrets = tuple(_step(kind, name, found.of(kind)) for kind, name in names.items())
    is_bucket_there = found.of(PartKind.BUCKET) is not None or "Bucket" not in want.template["Resources"]
    objects = (package, _limits_step(want, found))
    first = (*objects, stack) if is_bucket_there else (stack, *objects)
    return (
        *first,
        *secrets,
        *_regions_steps(want, found),
        _head_step(want, found),
        _address_step(want, found),
    )


def _regions_steps(want: Wanted, found: Found) -> Iterator[Step]:
    """Of the stacks in other regions, then of the peerings: each network with each, as a peering passes nothing on."""
    for region in found.elsewhere.keys() - want.elsewhere.keys():
        raise ForeignError(
            f"market.regions: found no {region}, where the stack has a part, expected it there until `proteus aws down`"
        )
    for region, there in want.elsewhere.items():
        state = found.elsewhere.get(region)
        step = _stack_step(there, Found(state, ()))
        if state is not None and step.action is Action.CHANGE:
            _check_networks(region, there, state)
        yield replace(step, kind=PartKind.REGION, name=name_in(there.names.plain, region), region=region)
    for first, second in combinations((want.names.region, *want.elsewhere), 2):
        # An earlier config may have named the regions in another order.
        names = peering_name(first, second), peering_name(second, first)
        part = found.of(PartKind.PEERING, names[0]) or found.of(PartKind.PEERING, names[1])
        if part is not None and part.name == names[1]:
            first, second = second, first
        torn = (
            None if part is None or part.is_current else (Action.FINISH, "it is not open on both sides yet")
        )
        step = _step(PartKind.PEERING, peering_name(first, second), part, torn)
        yield replace(step, region=first, other_region=second, part=part)


def _check_networks(region: str, want: Wanted, state: StackState) -> None:
    """Raise ForeignError where a network, or a zone's part of it, would get other addresses.

    CloudFormation can only replace such a network, which it may not do under a group with a fixed name. What the config
    leaves out follows from the place of a region, or of a zone, among the others.
    """
    key = f"market.regions.{region}"
    there, wanted_cidr = state.parameters.get("Cidr"), want.parameters["Cidr"]
    if there != wanted_cidr:
        raise ForeignError(
            f"{key}.cidr: found {wanted_cidr}, expected {there}, the network that is there until `proteus aws down`"
        )
    zones, wanted_zones = _zones_by_cidr(state.template), _zones_by_cidr(want.template)
    if any(zones.get(cidr, zone) != zone for cidr, zone in wanted_zones.items()):
        found, expected = ", ".join(wanted_zones.values()), ", ".join(zones.values())
        raise ForeignError(
            f"{key}.zones: found {found}, expected {expected} first, whose networks are there until "
            "`proteus aws down`, and new zones after them"
        )


def _zones_by_cidr(template: Mapping[str, Any]) -> dict[str, str]:
    """The zone of each subnet by its network, in the order of the template."""
    every = [each for each in template["Resources"].values() if each["Type"] == "AWS::EC2::Subnet"]
    return {each["Properties"]["CidrBlock"]: each["Properties"]["AvailabilityZone"] for each in every}


def name_in(name: str, region: str) -> str:
    """Of a part that other regions have, too."""
    return f"{name} in {region}"


def peering_name(first: str, second: str) -> str:
    """Of the peering of the networks of two regions, in the order of the config."""
    return f"{first} with {second}"


def _is_being_made(part: Part, found: Found) -> bool:
    """A bucket gets its tags a moment after itself."""
    return part.kind is PartKind.BUCKET and found.stack is not None and found.stack.is_busy


def changed(want: Wanted, state: StackState) -> tuple[str, ...]:
    """The parameters whose values are others than those wanted."""
    names = {*want.parameters, *state.parameters}
    return tuple(sorted(n for n in names if want.parameters.get(n) != state.parameters.get(n)))


def _stack_step(want: Wanted, found: Found) -> Step:
    state, kind, name = found.stack, PartKind.STACK, want.names.plain
    if state is None:
        return Step(Action.MAKE, kind, name, "it is not there")
    if state.is_busy:
        return Step(Action.FINISH, kind, name, "CloudFormation works on it")
    if not (state.is_whole or state.is_remains):
        where = name_in(name, want.names.region)
        raise ForeignError(f"{kind} {where}: it is {state.status}; run `proteus aws down` first")
    if not state.is_whole:
        return Step(Action.MAKE, kind, name, f"its remains cannot be used ({state.status})")
    template = template_for(want, found)
    same = all(template[section] == state.template.get(section) for section in ("Resources", "Mappings"))
    others = changed(want, state)
    if same and not others:
        return Step(Action.KEEP, kind, name, KEPT)
    return Step(Action.CHANGE, kind, name, f"its content has changed ({', '.join(others) or 'the template'})")


def _step(kind: PartKind, name: str, part: Part | None, otherwise: tuple[Action, str] | None = None) -> Step:
    """otherwise: the action and its reason where the part is there and is not as it should be."""
    if part is None:
        return Step(Action.MAKE, kind, name, "it is not there")
    action, reason = otherwise or (Action.KEEP, KEPT)
    return Step(action, kind, name, reason)


def _package_step(want: Wanted, found: Found) -> Step:
    name = f"{want.names.prefix}package/{want.package}"
    part = found.of(PartKind.PACKAGE, name)
    is_torn = part is not None and not part.is_current
    return _step(
        PartKind.PACKAGE, name, part, (Action.FINISH, "its making was interrupted") if is_torn else None
    )


def _limits_step(want: Wanted, found: Found) -> Step:
    part = found.of(PartKind.LIMITS)
    differs = part is not None and part.value != want.limits
    return _step(
        PartKind.LIMITS,
        want.names.limits,
        part,
        (Action.CHANGE, "the config has others") if differs else None,
    )


def _head_step(want: Wanted, found: Found) -> Step:
    part = found.of(PartKind.HEAD)
    # DiskGiB is the one parameter that is not the head's.
    will_differ = found.stack is not None and set(changed(want, found.stack)) - {"DiskGiB"}
    differs = will_differ or (part is not None and not part.is_current)
    why = "it differs, and only `down` and `up` replace a head"
    return _step(PartKind.HEAD, want.names.head, part, (Action.KEEP, why) if differs else None)


def _address_step(want: Wanted, found: Found) -> Step:
    part, head = found.of(PartKind.ADDRESS), found.of(PartKind.HEAD)
    is_right = part is not None and head is not None and head.value == part.value
    otherwise = None if is_right else (Action.CHANGE, "the head has another one")
    return _step(PartKind.ADDRESS, want.names.address, part, otherwise)


def left(found: Found, keep_data: bool) -> tuple[Part, ...]:
    """The parts to remove: ours, without what is among the objects anyway, and without data that shall stay."""
    stays = (*AMONG_OBJECTS, *DATA) if keep_data else AMONG_OBJECTS
    return tuple(part for part in found.parts if part.is_ours and part.kind not in stays)


def teardown(parts: Iterable[Part]) -> tuple[Step, ...]:
    """The removals that are possible now, in order.

    To be asked again until nothing is left. The stacks have the instances' groups and roles, and instances write data,
    so both go when the last instance has ended; instances may have been bought meanwhile. Other regions go first: what
    the head may do there hangs on its role, and only the limits, which are among the objects, may know of them.
    """
    parts = tuple(parts)
    wait = any(each.kind in RUNNING for each in parts) or any(each.is_ending for each in parts)
    now = REMOVAL[: REMOVAL.index(PartKind.PEERING)] if wait else REMOVAL
    if any(each.region for each in parts):
        now = tuple(kind for kind in now if kind not in DATA)
    going = [each for each in parts if each.kind in now and not each.is_ending]
    going.sort(key=lambda each: (REMOVAL.index(each.kind), each.region, each.name, each.part_id))
    return tuple(Step(Action.REMOVE, each.kind, each.name, "it is ours", each, each.region) for each in going)


def kind_of(resource_type: str) -> str:
    """A CloudFormation type in words: `instance profile` for AWS::IAM::InstanceProfile."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", resource_type.rpartition("::")[2]).lower()


def planned(want: Wanted, found: Found) -> Iterator[Step]:
    """The steps as `plan` shows them: a new CloudFormation stack with each of its resources."""
    for step in steps(want, found):
        yield step
        if step.kind == PartKind.REGION and step.action is Action.MAKE:
            there = want.elsewhere[step.region]
            for resource_type, name in listed(there.template, there):
                yield Step(
                    Action.MAKE, kind_of(resource_type), name_in(name, step.region), "CloudFormation makes it"
                )
        if step.kind == PartKind.STACK and step.action is Action.MAKE:
            for resource_type, name in listed({**want.template, **template_for(want, found)}, want):
                yield Step(Action.MAKE, kind_of(resource_type), name, "CloudFormation makes it")
