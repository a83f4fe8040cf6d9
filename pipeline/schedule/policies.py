"""The policies that make static schedules; each returns fixed lists for every worker."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.schedule.actions import Action, Kind, Policy, Schedule, ScheduleError
from pipeline.schedule.walk import StageTimes, Walk

# Minibatches: 24-46-7-19 stands as before after 73,416, which takes minutes to simulate.
LONGEST_TURN = 2_000


def noam(replicas: Sequence[int]) -> int:
    """NUM_OPT_ACTIVE_MINIBATCHES per input replica: ceil(workers / replicas of the input stage)."""
    return -(-sum(replicas) // replicas[0])


def full_rate_in_flight(replicas: Sequence[int]) -> int:
    """Minibatches in flight per input replica that keep inner replicated stages busy.

    NOAM is enough for straight pipelines and replicated input stages. A stage with r replicas behind the
    input holds each minibatch r times as long, and its replicas are served in turn: up to r - 1 more
    minibatches must be on their way so that none of them waits.
    """
    inner = max(replicas[1:], default=1)
    return noam(replicas) + inner - 1


def stage_limits(replicas: Sequence[int], in_flight: int | None = None) -> tuple[int, ...]:
    """Minibatches in flight per replica of each stage: as `noam` counted from that stage on, plus what the
    input stage admits beyond NOAM. 4 stages: 4, 3, 2, 1."""
    first = noam(replicas) if in_flight is None else in_flight
    extra = (first - noam(replicas)) * replicas[0]
    limits = []
    for stage, count in enumerate(replicas):
        here = -(-(sum(replicas[stage:]) + extra) // count)
        limits.append(max(1, min(here, -(-first * replicas[0] // count) if stage else first)))
    return tuple(limits)


def whole_turn(replicas: Sequence[int], group: int = 1) -> int:
    """Minibatches after which all stages stand as before; where that takes very many, whole rounds of the largest
    stage and of groups, over which the pace is the same to a few in a thousand."""
    turn = math.lcm(*replicas, group)
    if turn <= LONGEST_TURN:
        return turn
    rounds = math.lcm(max(replicas), group)
    return -(-LONGEST_TURN // rounds) * rounds


def long_enough(replicas: Sequence[int], in_flight: int) -> int:
    """Minibatches of a schedule with so many in flight per input replica that show its long-run pace."""
    return 12 * max(replicas) + 4 * in_flight * replicas[0] + 2 * whole_turn(replicas)


def one_f_one_b(
    replicas: Sequence[int],
    minibatches: int,
    *,
    in_flight: int | None = None,
    drains: Sequence[int] = (),
    forward_s: Sequence[float] | None = None,
    backward_s: Sequence[float] | None = None,
    link_s: Sequence[float] | None = None,
    barrier: bool = False,
) -> Schedule:
    """1F1B, or 1F1B-RR where a stage has replicas.

    in_flight: minibatches that each input replica admits (default NOAM; `full_rate_in_flight` keeps inner
    replicated stages busy). drains: minibatches after which the pipeline empties, besides the last.
    forward_s, backward_s: seconds per stage of one minibatch on one replica, from which the order of start-up
    follows; by default stages are balanced and a backward takes two forwards. link_s: seconds from each stage
    to the next, and back, [stages - 1]; by default none. A forward never stands before the end of the round that its
    weights need. barrier: make lists that also run to the end where replicas wait for each other inside a backward,
    to add up their gradients (as DDP does); some lists that are sound without would stop there.
    Raises ScheduleError.
    """
    ends = _check(replicas, minibatches, drains)
    limits = _limits(replicas, in_flight)
    times = stage_times(replicas, forward_s, backward_s, link_s)
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    first = 1
    for last in ends:
        walk = Walk(replicas, limits, limits, times, (first, last), rounds=True, barrier=barrier)
        for worker, actions in enumerate(walk.run()):
            workers[worker] += actions
        first = last + 1
    return Schedule(
        Policy.ONE_F_ONE_B, tuple(replicas), limits, 1, ends, tuple(tuple(actions) for actions in workers)
    )


def flush(
    replicas: Sequence[int],
    minibatches: int,
    group: int,
    *,
    zero_bubble: bool = False,
    in_flight: int | None = None,
    forward_s: Sequence[float] | None = None,
    backward_s: Sequence[float] | None = None,
    weights_s: Sequence[float] | None = None,
    link_s: Sequence[float] | None = None,
) -> Schedule:
    """1F1B over each group, then an empty pipeline and one update of the summed gradient (synchronous 1F1B).

    zero_bubble: every stage but the first puts the gradients of weights off to where it would wait (Qi et al., Zero
    Bubble Pipeline Parallelism, 2024, schedule ZB-H1). A stage then holds what they need of no more minibatches than
    the first stage has in flight. weights_s: their part of backward_s, by default half. The other arguments are
    those of `one_f_one_b`. Raises ScheduleError.
    """
    ends = _check(replicas, minibatches, ())
    if group < 1:
        raise ScheduleError(f"a group must have at least one minibatch, found {group}")
    limits = _limits(replicas, in_flight)
    holds = [-(-limits[0] * replicas[0] // count) for count in replicas]
    times = stage_times(replicas, forward_s, backward_s, link_s, weights_s=weights_s, puts_off=zero_bubble)
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    for first in range(1, minibatches + 1, group):
        last = min(first + group - 1, minibatches)
        walk = Walk(replicas, limits, holds, times, (first, last), rounds=False)
        for worker, actions in enumerate(walk.run()):
            workers[worker] += actions
    policy = Policy.ZERO_BUBBLE if zero_bubble else Policy.FLUSH
    return Schedule(policy, tuple(replicas), limits, group, ends, tuple(map(tuple, workers)))


def flush_dealt(
    takers: Sequence[Sequence[int]], *, zero_bubble: bool = False
) -> tuple[tuple[Action, ...], ...]:
    """The lists of all workers for one group of `flush`, where replicas have any share of its minibatches.

    takers: [stages, minibatches], the replica (0-based) that has each minibatch at each stage. Minibatches enter in the
    order of their numbers, from 1. Raises ScheduleError.
    """
    replicas = [max(each, default=-1) + 1 for each in takers]
    _check(replicas, len(takers[0]), ())
    limits = _limits(replicas, None)
    holds = [-(-limits[0] * replicas[0] // count) for count in replicas]
    times = stage_times(replicas, None, None, None, puts_off=zero_bubble)
    walk = Walk(replicas, limits, holds, times, (1, len(takers[0])), rounds=False, takers=takers)
    return tuple(map(tuple, walk.run()))


def gpipe(replicas: Sequence[int], minibatches: int, group: int, *, drains: Sequence[int] = ()) -> Schedule:
    """GPipe (figure 5.3): a group's forwards, then its backwards in the same order, one update, the next group.

    An epoch's last group may be smaller. Raises ScheduleError.
    """
    ends = _check(replicas, minibatches, drains)
    if group < 1:
        raise ScheduleError(f"a group must have at least one minibatch, found {group}")
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    begin = 0
    for last in ends:
        for low in range(begin + 1, last + 1, group):
            members = range(low, min(low + group, last + 1))
            for kind in (Kind.FORWARD, Kind.BACKWARD):
                for b in members:
                    for stage, count in enumerate(replicas):
                        workers[sum(replicas[:stage]) + (b - 1) % count].append(Action(kind, b))
        begin = last
    limits = tuple(-(-min(group, minibatches) // count) for count in replicas)
    return Schedule(Policy.GPIPE, tuple(replicas), limits, group, ends, tuple(map(tuple, workers)))


def model_parallel(replicas: Sequence[int], minibatches: int, *, drains: Sequence[int] = ()) -> Schedule:
    """Model parallel training (figure 5.2): one minibatch at a time per input replica. Raises ScheduleError."""
    ends = _check(replicas, minibatches, drains)
    workers: list[list[Action]] = [[] for _ in range(sum(replicas))]
    for b in range(1, minibatches + 1):
        for stage, count in enumerate(replicas):
            workers[sum(replicas[:stage]) + (b - 1) % count] += [
                Action(Kind.FORWARD, b),
                Action(Kind.BACKWARD, b),
            ]
    limits = (1,) * len(replicas)
    return Schedule(Policy.MODEL_PARALLEL, tuple(replicas), limits, 1, ends, tuple(map(tuple, workers)))


def stage_times(
    replicas: Sequence[int],
    forward_s: Sequence[float] | None,
    backward_s: Sequence[float] | None,
    link_s: Sequence[float] | None,
    *,
    weights_s: Sequence[float] | None = None,
    puts_off: bool = False,
) -> list[StageTimes]:
    """The seconds of every stage, balanced where they are not given. Raises ScheduleError."""
    forward = [float(r) for r in replicas] if forward_s is None else list(forward_s)
    backward = [2.0 * r for r in replicas] if backward_s is None else list(backward_s)
    weights = [b / 2 for b in backward] if weights_s is None else list(weights_s)
    for seconds in (forward, backward, weights):
        if len(seconds) != len(replicas):
            raise ScheduleError(f"found times for {len(seconds)} stages, there are {len(replicas)}")
    links = [0.0] * (len(replicas) - 1) if link_s is None else list(link_s)
    if len(links) != len(replicas) - 1:
        raise ScheduleError(
            f"found times for {len(links)} links, there are {len(replicas) - 1} between stages"
        )
    named = {"forward_s": forward, "backward_s": backward, "weights_s": weights, "link_s": links}
    for name, seconds in named.items():
        # A walk through time never gets past one that is no number.
        if not all(0 <= each < math.inf for each in seconds):
            raise ScheduleError(f"{name} is {list(seconds)}; expected seconds of 0 or more")
    if puts_off and any(w > b for w, b in zip(weights, backward, strict=True)):
        raise ScheduleError(f"weights_s is {weights}; expected at most backward_s, {backward}")
    return [
        StageTimes(f, b, link, w if puts_off and stage > 0 else None)
        for stage, (f, b, w, link) in enumerate(zip(forward, backward, weights, [*links, 0.0], strict=True))
    ]


def _limits(replicas: Sequence[int], in_flight: int | None) -> tuple[int, ...]:
    if in_flight is not None and in_flight < 1:
        raise ScheduleError(f"at least one minibatch must be in flight, found {in_flight}")
    return stage_limits(replicas, in_flight)


def _check(replicas: Sequence[int], minibatches: int, drains: Sequence[int]) -> tuple[int, ...]:
    """The ends of the epochs."""
    if not replicas or min(replicas) < 1:
        raise ScheduleError(f"each stage needs at least one replica, found {list(replicas)}")
    if minibatches < 1:
        raise ScheduleError(f"there must be at least one minibatch, found {minibatches}")
    ends = (*drains, minibatches) if not drains or drains[-1] != minibatches else tuple(drains)
    if list(ends) != sorted(set(ends)) or ends[0] < 1:
        raise ScheduleError(f"drains must ascend between 1 and {minibatches}, found {list(drains)}")
    return ends
