"""The engine's own classes over a bad network, under many random schedules of faults.

Deterministic BSP has to end with the sequential bits, the other modes have to count each unit exactly once, and all
have to keep the invariants of `invariants.py` on the way. A seed that fails is repeated by
`python -m tests.model.run --seed N --mode M [--faults K]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest

from tests.model.fault_kinds import GENTLE, LEAVING, ONE_WAY, PARTED, PRESSING, ROUGH, WAKING
from tests.model.run import MODES, PLAIN, SCHEDULES, Tally, run_many, run_one
from tests.model.schedule import (
    CLIPPED,
    FLUSH,
    HELD,
    HELPED,
    LAMB,
    PIPELINES,
    PLANNED,
    RESIDENT,
    SCALED,
    SHARDED,
    make_schedule,
)
from tests.model.simulator import Simulation

# A mode of each kind; the others are for the slow tests.
FEW = (
    *PLAIN,
    *(
        "flush",
        "stash",
        "elastic",
        "bsp-planned",
        "dense-clipped",
        "bsp-scaled",
        "dense-held",
        "overlap-lamb",
    ),
    *("bsp-helped", "ssp-helped", "allreduce-resident"),
)
FAST_MODES = [pytest.param(mode, marks=[] if mode in FEW else pytest.mark.slow) for mode in MODES]
KINDS = {*GENTLE, *ROUGH, PRESSING, WAKING, PARTED, LEAVING, *ONE_WAY}
SEEN = ("stage 1", "stage 2", "stage 3", "rollbacks", "clocks redone")
WAYS = ("short notice: move", "short notice: roll back")
SHORT_NOTICES = (19, 71)  # seeds of the mode bsp in which both are chosen


def assert_clean(seeds: Iterable[int], mode: str, faults: int | None = None) -> Tally:
    tally = run_many(seeds, mode, faults)
    print(f"\n{tally}")
    how = f"python -m tests.model.run --mode {mode}" + (f" --faults {faults}" if faults else "")
    assert not tally.failed, f"{len(tally.failed)} of {tally.runs} failed; {how} --seed N: {tally.failed[:5]}"
    return tally


def assert_everything_happened(tally: Tally) -> None:
    """A test that injects nothing proves nothing."""
    assert_all_seen(tally, KINDS, (*SEEN, *WAYS))


def assert_all_seen(tally: Tally, kinds: Iterable[str], seen: Iterable[str]) -> None:
    missing = set(kinds) - set(tally.fired)
    assert not missing, missing
    for what in seen:
        # A pipeline's stages are transient machines wherever there are some.
        assert tally.seen[what] or (what == "stage 2" and tally.mode.startswith(PIPELINES)), what


def assert_machines_came_and_went(tally: Tally, kinds: Iterable[str] = ("join", "notice", "kill")) -> None:
    """Of each kind at least one in ten schedules."""
    for kind in kinds:
        found = sum(count for fired, count in tally.fired.items() if kind in fired)
        assert found >= tally.runs / 10, (kind, tally)


def seeds_with_everything(mode: str, times: int) -> list[int]:
    """The first seeds whose schedules have every kind of fault in so many of them."""
    missing = Counter(dict.fromkeys(KINDS, times))
    chosen = []
    for seed in count():
        kinds = {fault.kind for fault in make_schedule(seed, mode).faults} & missing.keys()
        if kinds:
            chosen.append(seed)
            missing -= Counter(kinds)
        if not missing:
            return chosen
    raise AssertionError("never here")


def test_schedules_of_every_fault() -> None:
    """The long test has thousands of schedules in every mode."""
    assert_everything_happened(assert_clean([*seeds_with_everything("bsp", 3), *SHORT_NOTICES], "bsp"))


@pytest.mark.parametrize(("mode", "seeds"), [("dense", 8), ("ssp", 6), ("asp", 9), ("overlap", 6)])
def test_schedules_of_faults_at_random(mode: str, seeds: int) -> None:
    assert_machines_came_and_went(assert_clean(range(seeds), mode))


@pytest.mark.parametrize("mode", ["allreduce", "allreduce-lamb"])
def test_a_model_of_fewer_numbers_than_partitions_could_share_is_trained_all_the_same(mode: str) -> None:
    """A partition has at least 16 elements of a table, or none."""
    for seed in range(2):
        schedule = make_schedule(seed, mode)
        algorithm = schedule.algorithm if mode.endswith(LAMB) else "adam"
        Simulation(replace(schedule, partitions=7, algorithm=algorithm)).run()


@pytest.mark.parametrize("mode", ["bsp", "ssp", "allreduce"])
def test_schedules_in_which_work_fails_on_machines(mode: str) -> None:
    tally = run_many(range(5), mode, sick=True)
    print(f"\n{tally}")
    assert not tally.failed, f"python -m tests.model.run --mode {mode} --sick --seed N: {tally.failed[:5]}"
    assert tally.fired["sick"] > 4
    assert tally.seen["quarantined"] > 2


def test_schedules_with_one_sum_per_worker() -> None:
    assert_machines_came_and_went(assert_clean(range(6), "sum"))


@pytest.mark.parametrize(("mode", "seeds"), [("elastic", 14), ("denseelastic", 4)])
def test_schedules_with_supersteps(mode: str, seeds: int) -> None:
    """Each ends with the bits that its log gives, and with every minibatch once in the log."""
    tally = assert_clean(range(seeds), mode)
    assert tally.seen["rollbacks"] > seeds / 8 and tally.fired["join"] > seeds / 4, tally


@pytest.mark.parametrize(("mode", "seeds"), [("asppool", 3), ("ssppool", 4), ("denseasppool", 3)])
def test_schedules_with_one_pool_of_bundles(mode: str, seeds: int) -> None:
    """Whoever draws a bundle, each counts once. In seed 107 all go back to a cut before a clock that is whole."""
    tally = assert_clean([*range(seeds), 107], mode)
    assert tally.fired["draw"] > 50 * seeds and tally.fired["draw again"] > seeds / 2, tally
    assert_machines_came_and_went(tally)


def test_schedules_with_sums_by_all_reduce() -> None:
    """Gentle ones have to end with no clock done again and no sum given up half way: the simulator asserts it."""
    tally = assert_clean(range(30), "allreduce")
    assert not {"kill", "kill_many", "notice_all", "join", "freeze", "cut"} - set(tally.fired)
    for stage in ("stage 1", "stage 2", "stage 3"):
        assert tally.seen[stage]


def test_a_forward_that_waits_is_often_aborted_where_it_overlaps() -> None:
    tally = assert_clean(range(300, 315), "overlap")
    assert tally.fired["early"] > 150
    assert tally.fired["abort"] > 3


@pytest.mark.parametrize(
    ("mode", "seeds"), [("bsp", 5), ("dense", 8), ("sum", 6), ("allreduce", 16), ("overlap", 4)]
)
def test_schedules_with_a_plan_for_every_clock(mode: str, seeds: int) -> None:
    tally = assert_clean(range(seeds), mode + PLANNED)
    assert tally.fired["plan"] > seeds
    assert_machines_came_and_went(tally)


@pytest.mark.parametrize(("mode", "seeds"), [("bsp", 4), ("dense", 6), ("ssp", 4), ("allreduce", 6)])
def test_schedules_in_which_the_norm_of_gradients_is_limited(mode: str, seeds: int) -> None:
    tally = assert_clean(range(seeds), mode + CLIPPED)
    assert_machines_came_and_went(tally)


@pytest.mark.parametrize("mode", ["bsp" + SCALED, "allreduce" + SCALED, "dense" + LAMB])
def test_schedules_in_which_units_overflow_or_layers_have_norms(mode: str) -> None:
    assert_machines_came_and_went(assert_clean(range(9), mode))


@pytest.mark.parametrize(("mode", "seeds"), [("bsp", 4), ("ssp", 3), ("allreduce", 8)])
def test_schedules_in_which_cuts_are_held_until_they_were_judged(mode: str, seeds: int) -> None:
    # In seed 60 an owner was past the clock of a cut, and the next one must not lie behind a clock that waits.
    tally = assert_clean([*range(seeds), 60], mode + HELD)
    assert tally.fired["judged"] > seeds, tally
    assert_machines_came_and_went(tally)


@pytest.mark.parametrize(
    ("mode", "seeds"), [("bsp", 4), pytest.param("dense", 25, marks=pytest.mark.slow), ("sum", 4), ("ssp", 8)]
)
def test_schedules_in_which_machines_help_each_other(mode: str, seeds: int) -> None:
    tally = assert_clean(range(seeds), mode + HELPED)
    for message in ("BegunHelping", "HelpCompleted", "CancelHelp", "CancelAck", "HelpPush"):
        assert tally.seen[message] > 5 * seeds, tally
    assert_machines_came_and_went(tally)


def test_schedules_in_which_the_plans_of_some_clocks_have_machines_help() -> None:
    tally = assert_clean(range(6), "dense" + HELPED + PLANNED)
    assert tally.fired["plan"] > 20 and tally.seen["HelpPush"] > 30, tally


def test_schedules_of_a_pipeline() -> None:
    """Each machine computes its layers of every unit; the bits are those of one process all the same."""
    tally = assert_clean(range(9), FLUSH)
    assert_machines_came_and_went(tally)
    assert tally.seen["rollbacks"] > 2, tally
    assert_clean(range(2), FLUSH + CLIPPED)


@pytest.mark.parametrize(
    ("mode", "seeds"), [("stash", 5), ("none", 10), ("vertical_sync", 5), ("double_buffered", 13)]
)
def test_schedules_of_a_pipeline_without_a_flush(mode: str, seeds: int) -> None:
    """Each ends with what the thesis' formulas make of the stages in its log; gentle ones compute nothing again."""
    tally = assert_clean(range(seeds), mode)
    assert_machines_came_and_went(tally)
    assert tally.seen["rollbacks"] > 2, tally


def test_schedules_with_tables_in_replicas() -> None:
    """The counts of every cut are checked, so a cut that a replica is ahead of or behind fails."""
    tally = assert_clean(range(8), "allreduce" + RESIDENT)
    assert_machines_came_and_went(tally)


def test_schedules_with_the_state_of_replicas_shared_out() -> None:
    """A machine that goes without notice takes a part of the state along: all go back to the cut."""
    tally = assert_clean(range(7), "allreduce" + SHARDED)
    assert_machines_came_and_went(tally)
    assert tally.seen["rollbacks"] > 2, tally


@pytest.mark.parametrize(
    ("mode", "seeds"),
    [("bsp", 2), ("dense", 1), ("ssp", 2), ("asp", 1), ("allreduce", 1), ("overlap", 1)],
)
def test_schedules_of_30_faults(mode: str, seeds: int) -> None:
    tally = assert_clean(range(seeds), mode, faults=30)
    assert sum(tally.fired.values()) > 15 * seeds, tally


@pytest.mark.parametrize("mode", FAST_MODES)
def test_a_seed_repeats_exactly(mode: str) -> None:
    first, second = run_one(3, mode), run_one(3, mode)
    assert first.events == second.events
    assert first.store == second.store
    assert (first.messages, first.now_s) == (second.messages, second.now_s)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_schedules(mode: str) -> None:
    tally = assert_clean(range(SCHEDULES), mode)
    if SCHEDULES >= 5000:  # the rarest kinds are that rare
        assert_everything_happened(tally)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bsp", "ssp", "allreduce"])
def test_many_schedules_in_which_work_fails_on_machines(mode: str) -> None:
    tally = run_many(range(SCHEDULES // 5), mode, sick=True)
    assert not tally.failed, f"python -m tests.model.run --mode {mode} --sick --seed N: {tally.failed[:5]}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_schedules_in_which_nothing_is_lost(mode: str) -> None:
    tally = run_many(range(SCHEDULES // 5), mode, orderly=True)
    assert not tally.failed, f"python -m tests.model.run --orderly --mode {mode} --seed N: {tally.failed[:5]}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_schedules_of_30_faults(mode: str) -> None:
    seeds = max(SCHEDULES // 50, 10)
    tally = assert_clean(range(seeds), mode, faults=30)
    if seeds >= 100:
        # Quiet schedules alone have an owner that wakes in the middle of a change, and both answers to a short notice.
        assert_all_seen(tally, KINDS - {WAKING, PARTED, LEAVING, *ONE_WAY}, SEEN)


def test_a_run_ends_though_another_controller_heard_of_its_last_clocks() -> None:
    """Two controllers at once: what one of them was told of progress the other never hears."""
    assert run_one(854, "bsp").finished is not None


@pytest.mark.parametrize("seed", [133, 258])
def test_help_that_comes_before_own_work(seed: int) -> None:
    """133: the own range had not begun when a change ended the help. 258: it was done, but the help was not."""
    assert run_one(seed, "ssp" + HELPED).finished is not None


@pytest.mark.parametrize("mode", FAST_MODES)
def test_nobody_has_to_repeat_anything_where_nothing_is_lost(mode: str) -> None:
    """Whatever is only found again by a repeat stops everybody for as long as that is waited for."""
    seeds = 8 if mode in PLAIN else 3
    tally = run_many(range(seeds), mode, orderly=True)
    print(f"\n{tally}")
    how = f"python -m tests.model.run --orderly --mode {mode}"
    assert not tally.failed, f"{len(tally.failed)} of {tally.runs} failed; {how} --seed N: {tally.failed[:5]}"
    if mode in PLAIN:
        assert_machines_came_and_went(tally, ("join", "notice"))
