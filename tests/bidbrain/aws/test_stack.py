"""A stack as data: steps and their order."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.aws.site import OtherRegion, Site
from bidbrain.aws.stack.names import names_of, tags_of
from bidbrain.aws.stack.parts import (
    AMONG_OBJECTS,
    DATA,
    REMOVAL,
    Action,
    ForeignError,
    Found,
    Part,
    PartKind,
    StackState,
    left,
    peering_name,
    planned,
    steps,
    teardown,
    template_for,
)
from bidbrain.aws.stack.template import (
    RegionImage,
    Surroundings,
    Wanted,
    resource,
    wanted,
)
from tests.bidbrain.aws.demo_stack import LIMITS, NAMES, PACKAGE, SITE, THERE, WANTED, WEST, WEST_IMAGE
from tests.thorough import examples

RUNNING = (PartKind.HEAD, PartKind.INSTANCE, PartKind.FLEET)


def stack_of(status: str = "CREATE_COMPLETE", **changes: Any) -> StackState:
    state = StackState("stack/1", status, True, WANTED.parameters, WANTED.template)
    return replace(state, **changes)


WHOLE = Found(
    stack_of(),
    (
        Part(PartKind.STACK, NAMES.plain, "stack/1"),
        Part(PartKind.BUCKET, NAMES.bucket, NAMES.bucket),
        Part(PartKind.PACKAGE, PACKAGE, PACKAGE),
        Part(PartKind.LIMITS, NAMES.limits, NAMES.limits, value=LIMITS.text()),
        Part(PartKind.TOKEN, NAMES.token, NAMES.token),
        Part(PartKind.AUTHORITY, NAMES.authority, NAMES.authority),
        Part(PartKind.HEAD, NAMES.head, "i-1", value="10.0.0.5"),
        Part(PartKind.ADDRESS, NAMES.address, NAMES.address, value="10.0.0.5"),
    ),
)


def with_part(kind: PartKind, **changes: Any) -> Found:
    parts = tuple(replace(part, **changes) if part.kind is kind else part for part in WHOLE.parts)
    return replace(WHOLE, parts=parts)


def without(*kinds: PartKind) -> Found:
    stack = None if PartKind.STACK in kinds else WHOLE.stack
    return Found(stack, tuple(part for part in WHOLE.parts if part.kind not in kinds))


def actions(found: Found) -> dict[str, Action]:
    planned = steps(WANTED, found)
    assert all(step.reason for step in planned)
    return {step.kind: step.action for step in planned if step.action is not Action.KEEP}


def test_a_whole_stack_is_kept() -> None:
    assert not actions(WHOLE) and len(steps(WANTED, WHOLE)) == 7


@pytest.mark.parametrize(
    ("found", "todo"),
    [
        (without(PartKind.TOKEN), {PartKind.TOKEN: Action.MAKE}),
        (without(PartKind.AUTHORITY), {PartKind.AUTHORITY: Action.MAKE}),
        (without(PartKind.PACKAGE), {PartKind.PACKAGE: Action.MAKE}),
        (without(PartKind.LIMITS), {PartKind.LIMITS: Action.MAKE}),
        (with_part(PartKind.LIMITS, value="{}"), {PartKind.LIMITS: Action.CHANGE}),
        (without(PartKind.ADDRESS), {PartKind.ADDRESS: Action.MAKE}),
        (without(PartKind.STACK), {PartKind.STACK: Action.MAKE}),
        (with_part(PartKind.PACKAGE, is_current=False), {PartKind.PACKAGE: Action.FINISH}),
        (with_part(PartKind.ADDRESS, value="10.0.0.4"), {PartKind.ADDRESS: Action.CHANGE}),
        (with_part(PartKind.HEAD, is_current=False), {}),
        (with_part(PartKind.HEAD, is_ending=True), {PartKind.HEAD: Action.MAKE, PartKind.ADDRESS: Action.CHANGE}),
        (replace(WHOLE, stack=stack_of("UPDATE_IN_PROGRESS")), {PartKind.STACK: Action.FINISH}),
        (replace(WHOLE, stack=stack_of("ROLLBACK_COMPLETE")), {PartKind.STACK: Action.MAKE}),
        (replace(WHOLE, stack=stack_of("UPDATE_ROLLBACK_COMPLETE")), {}),
        (replace(WHOLE, stack=stack_of(parameters={})), {PartKind.STACK: Action.CHANGE}),
        (replace(WHOLE, stack=stack_of(template={"Resources": {}})), {PartKind.STACK: Action.CHANGE}),
    ],
)  # fmt: skip
def test_each_part_gets_the_step_that_its_state_asks_for(found: Found, todo: dict[str, Action]) -> None:
    assert actions(found) == todo


def test_the_package_is_there_before_machines_can_be_bought_that_want_it() -> None:
    """In a bucket of the stack's own that is not there yet it can only come second."""
    newer = wanted(LIMITS, replace(THERE, package="0"))
    order = [step.kind for step in steps(newer, WHOLE)]
    assert order.index(PartKind.PACKAGE) < order.index(PartKind.STACK)
    assert [step.kind for step in steps(newer, Found(None, ()))][:2] == [PartKind.STACK, PartKind.PACKAGE]
    mine = Site(**{**SITE.model_dump(), "bucket": "mine"})
    theirs = wanted(LIMITS.model_copy(update={"site": mine}), THERE)
    assert steps(theirs, Found(None, ()))[0].kind is PartKind.PACKAGE


def test_the_head_finds_its_secrets_when_it_boots() -> None:
    order = [step.kind for step in steps(WANTED, Found(None, ()))]
    assert order.index(PartKind.HEAD) > max(order.index(PartKind.TOKEN), order.index(PartKind.AUTHORITY))


def test_a_name_that_is_taken_is_refused() -> None:
    foreign = with_part(PartKind.TOKEN, is_ours=False)
    with pytest.raises(ForeignError, match="token /proteus/demo/ray-token: it exists and is not ours"):
        steps(WANTED, foreign)
    assert PartKind.TOKEN not in {part.kind for part in left(foreign, keep_data=False)}


def test_two_heads_are_refused_and_both_removed() -> None:
    second = Part(PartKind.HEAD, NAMES.head, "i-2")
    found = replace(WHOLE, parts=(*WHOLE.parts, second))
    with pytest.raises(ForeignError, match="head: found i-1 and i-2, expected one"):
        steps(WANTED, found)
    assert [step.kind for step in teardown(left(found, keep_data=False))] == [PartKind.HEAD] * 2


def test_a_stack_whose_change_could_not_be_taken_back_is_said_by_plan_too() -> None:
    """`up` neither uses nor replaces it."""
    with pytest.raises(
        ForeignError,
        match="proteus-demo in us-east-1: it is UPDATE_ROLLBACK_FAILED; run `proteus aws down` first",
    ):
        tuple(planned(WANTED, replace(WHOLE, stack=stack_of("UPDATE_ROLLBACK_FAILED"))))


def test_a_stopped_head_is_said_and_removed() -> None:
    """Its services were those of one boot, so started again it would cost money for nothing."""
    found = with_part(PartKind.HEAD, is_stopped=True)
    with pytest.raises(ForeignError, match=r"^head i-1: it is stopped, expected one that runs"):
        steps(WANTED, found)
    assert any(step.kind is PartKind.HEAD for step in teardown(left(found, keep_data=False)))


def test_a_bucket_that_an_earlier_stack_left_is_used_and_not_made() -> None:
    kept = Found(None, tuple(part for part in WHOLE.parts if part.kind is PartKind.BUCKET))
    assert "Bucket" not in template_for(WANTED, kept)["Resources"]
    assert "Bucket" in template_for(WANTED, WHOLE)["Resources"], "it is CloudFormation's"
    assert "Bucket" in template_for(WANTED, Found(None, ()))["Resources"]
    told = {(step.kind, step.name) for step in planned(WANTED, Found(None, ()))}
    assert {("bucket", NAMES.bucket), ("role", NAMES.head), ("queue", NAMES.plain)} <= told


@settings(deadline=None, derandomize=True, max_examples=examples(300))
@given(
    st.lists(
        st.tuples(st.sampled_from([k for k in PartKind if k not in AMONG_OBJECTS]), st.booleans()),
        max_size=12,
    ),
    st.booleans(),
)
def test_what_costs_money_goes_first_and_the_rest_when_no_machine_is_left(
    parts: list[tuple[PartKind, bool]], keep_data: bool
) -> None:
    can_end = (PartKind.HEAD, PartKind.INSTANCE, PartKind.STACK)
    found = [
        Part(kind, f"{kind}-{number}", f"{number}", is_ending=ending and kind in can_end)
        for number, (kind, ending) in enumerate(parts)
    ]
    rounds = 0
    while rest := left(Found(None, tuple(found)), keep_data):
        going = teardown(rest)
        kinds = [PartKind(step.kind) for step in going]
        assert kinds == sorted(kinds, key=REMOVAL.index)
        if {PartKind.STACK, *DATA} & set(kinds):
            assert not any(each.kind in RUNNING for each in rest)
        removed = {step.part for step in going}
        found = [each for each in found if each not in removed and not each.is_ending]
        rounds += 1
        assert rounds < 10
    assert len(found) == sum(keep_data and kind in DATA for kind, _ in parts)


def test_names_fit_what_aws_allows() -> None:
    longest = Site(name="a" * 24, region="ap-southeast-2", zones=("x",), types=("t",))
    names = names_of(longest, "123456789012")
    assert len(names.bucket) <= 63 and len(names.head) <= 64 and len(names.plain) <= 80
    assert tags_of(SITE, "machine")["proteus:stack"] == "demo"
    assert tags_of(Site(**{**SITE.model_dump(), "tags": {"team": "ml"}}), "head")["team"] == "ml"


def test_a_change_of_the_config_changes_what_it_should() -> None:
    def differ(site: Site, there: Surroundings) -> set[str]:
        new = wanted(LIMITS.model_copy(update={"site": site}), there)
        return {
            name for name in WANTED.template["Resources"] if resource(WANTED, name) != resource(new, name)
        }

    assert differ(Site(**{**SITE.model_dump(), "disk_gib": 100}), THERE) == {"NodeTemplate"}
    assert differ(SITE, replace(THERE, package="0")) == {"NodeTemplate", "HeadTemplate"}


def wide_stack(regions: dict[str, OtherRegion]) -> Wanted:
    """A stack whose config names these regions."""
    limits = LIMITS.model_copy(update={"site": SITE.model_copy(update={"regions": regions})})
    images = {name: RegionImage(WEST_IMAGE, "/dev/xvda") for name in regions}
    return wanted(limits, replace(THERE, elsewhere=images))


def found_of(want: Wanted) -> Found:
    """All parts of a stack as `up` made it."""
    states = {
        name: StackState(f"stack/{name}", "CREATE_COMPLETE", True, there.parameters, there.template)
        for name, there in want.elsewhere.items()
    }
    peerings = tuple(
        Part(PartKind.PEERING, peering_name(*ends), f"pcx-{ends[1]}", region=ends[0], other_region=ends[1])
        for ends in combinations((SITE.region, *want.elsewhere), 2)
    )
    return Found(WHOLE.stack, (*WHOLE.parts, *peerings), states)


WEST_ZONES, IRELAND = ("us-west-2a", "us-west-2b", "us-west-2c"), "eu-west-1"
BEFORE = wide_stack({WEST: OtherRegion(zones=WEST_ZONES, image=WEST_IMAGE)})


@pytest.mark.parametrize(
    "regions",
    [
        {IRELAND: OtherRegion(zones=("eu-west-1a",)), WEST: OtherRegion(zones=WEST_ZONES)},
        {WEST: OtherRegion(zones=WEST_ZONES, cidr="10.82.0.0/16")},
    ],
    ids=["a region before it", "another network"],
)
def test_the_network_of_a_region_stays_until_down(regions: dict[str, OtherRegion]) -> None:
    """CloudFormation would have to make another network, which it refuses as the group has a fixed name."""
    with pytest.raises(
        ForeignError,
        match=r"^market\.regions\.us-west-2\.cidr: found 10\.82\.0\.0/16, expected 10\.81\.0\.0/16, the network",
    ):
        steps(wide_stack(regions), found_of(BEFORE))
    more = {WEST: OtherRegion(zones=WEST_ZONES), IRELAND: OtherRegion(zones=("eu-west-1a",))}
    todo = [step for step in steps(wide_stack(more), found_of(BEFORE)) if step.kind == PartKind.REGION]
    assert [(step.region, step.action) for step in todo] == [(WEST, Action.KEEP), (IRELAND, Action.MAKE)]


@pytest.mark.parametrize(
    ("zones", "is_refused"),
    [
        ("abc", False),
        ("abcd", False),
        ("ab", False),
        ("dabc", True),
        ("acb", True),
        ("ac", True),
        ("abd", True),
    ],
)
def test_zones_of_another_region_keep_their_networks(zones: str, is_refused: bool) -> None:
    """One that came before them would ask for the network of a subnet that is still there."""
    want = wide_stack({WEST: OtherRegion(zones=tuple(f"us-west-2{each}" for each in zones))})
    if is_refused:
        expected = r"expected us-west-2a, us-west-2b, us-west-2c first, .* and new zones after them$"
        with pytest.raises(
            ForeignError, match=rf"^market\.regions\.us-west-2\.zones: found us-.*, {expected}"
        ):
            steps(want, found_of(BEFORE))
    else:
        assert steps(want, found_of(BEFORE))


def test_a_peering_is_found_in_whatever_order_the_config_names_its_regions() -> None:
    """EC2 makes no second one between two networks, so `up` would wait for it in vain."""
    west, ireland = OtherRegion(zones=WEST_ZONES, cidr="10.81.0.0/16"), OtherRegion(zones=("eu-west-1a",))
    ireland = ireland.model_copy(update={"cidr": "10.82.0.0/16"})
    found = found_of(wide_stack({WEST: west, IRELAND: ireland}))
    turned = steps(wide_stack({IRELAND: ireland, WEST: west}), found)
    peerings = [step for step in turned if step.kind == PartKind.PEERING]
    assert len(peerings) == 3 and {step.action for step in peerings} == {Action.KEEP}
    assert {(step.region, step.other_region) for step in peerings} == {
        (SITE.region, WEST),
        (SITE.region, IRELAND),
        (WEST, IRELAND),
    }
