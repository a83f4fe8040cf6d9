"""A checker for schedules: each list is complete, and the lists together can run to the end."""

from __future__ import annotations

from collections import Counter

from pipeline.schedule.actions import Action, Kind, Policy, Schedule
from pipeline.schedule.rules import needs, newest, round_of, update_members


def problems(schedule: Schedule, *, barrier: bool = False) -> list[str]:
    """Sentences about everything that is wrong with a schedule; empty if it is sound.

    barrier: the replicas of a stage add up their gradients within the backward of a round (one minibatch for
    each replica), as DDP does, so none gets past it before all are there.
    """
    found = _lists(schedule)
    if found:
        return found
    return [*_in_flight(schedule), *_drains(schedule), *_groups(schedule), *_runs(schedule, barrier)]


def _name(schedule: Schedule, worker: int) -> str:
    stage = schedule.stage_of(worker)
    return f"stage {stage + 1} replica {worker - schedule.first_workers[stage] + 1}"


def _lists(schedule: Schedule) -> list[str]:
    """Each replica has its own minibatches, each once in every kind, each kind ascending."""
    if len(schedule.workers) != sum(schedule.replicas):
        return [
            f"there are {len(schedule.workers)} workers, the stages have {sum(schedule.replicas)} replicas"
        ]
    found = []
    for worker, actions in enumerate(schedule.workers):
        stage = schedule.stage_of(worker)
        offset = worker - schedule.first_workers[stage]
        mine = list(range(1 + offset, schedule.minibatches + 1, schedule.replicas[stage]))
        for kind in Kind:
            numbers = [action.minibatch for action in actions if action.kind is kind]
            expected = mine if kind in schedule.kinds(stage) else []
            name = f"{_name(schedule, worker)}: {kind.name.lower()}"
            if wrong := sorted(set(numbers) - set(expected)):
                found.append(f"{name} of minibatch {wrong[0]}, which belongs elsewhere")
            elif missing := sorted(set(expected) - set(numbers)):
                found.append(f"{name} of minibatch {missing[0]} is missing")
            elif twice := [b for b, times in Counter(numbers).items() if times > 1]:
                found.append(f"{name} of minibatch {twice[0]} stands there twice")
            elif numbers != expected:
                found.append(f"{name}s are not in ascending order")
    return found


def _in_flight(schedule: Schedule) -> list[str]:
    """No replica holds more minibatches than its stage's limit."""
    found = []
    for worker, actions in enumerate(schedule.workers):
        limit, held = schedule.in_flight[schedule.stage_of(worker)], 0
        for action in actions:
            held += {Kind.FORWARD: 1, Kind.BACKWARD: -1, Kind.WEIGHTS: 0}[action.kind]
            if held > limit:
                found.append(
                    f"{_name(schedule, worker)}: {held} minibatches in flight at {action}, limit {limit}"
                )
                break
    return found


def _drains(schedule: Schedule) -> list[str]:
    """No forward of an epoch before all backwards of the epochs before it."""
    found = []
    for worker, actions in enumerate(schedule.workers):
        reached = 0
        for action in actions:
            if schedule.epoch_of(action.minibatch) < reached:
                found.append(f"{_name(schedule, worker)}: {action} comes after the drain of its epoch")
                break
            reached = schedule.epoch_of(action.minibatch)
    return found


def _groups(schedule: Schedule) -> list[str]:
    """Groups one after the other; in GPipe a group's forwards before its backwards."""
    if not schedule.updates_by_group:
        return []
    splits = schedule.policy is Policy.GPIPE
    found = []
    for worker, actions in enumerate(schedule.workers):
        keys = [(*group_of(schedule, a.minibatch), splits and a.kind is Kind.BACKWARD) for a in actions]
        if keys != sorted(keys):
            found.append(f"{_name(schedule, worker)}: forwards and backwards of groups are mixed")
    return found


def group_of(schedule: Schedule, minibatch: int) -> tuple[int, int]:
    """(epoch, group in the epoch) of a minibatch, both from 0."""
    return schedule.epoch_of(minibatch), (minibatch - 1 - schedule.epoch_begin(minibatch)) // schedule.group


def _runs(schedule: Schedule, barrier: bool) -> list[str]:
    """Run the lists by their dependencies alone, until the end or until no worker can go on."""
    at = [0] * len(schedule.workers)
    weights = [newest(schedule, worker)[0] for worker in range(len(schedule.workers))]
    done: set[tuple[int, Action]] = set()
    progress = True
    while progress:
        progress = False
        for worker, actions in enumerate(schedule.workers):
            while at[worker] < len(actions):
                action = actions[at[worker]]
                if not _can_run(schedule, worker, action, weights[worker][at[worker]], done):
                    break
                if (worker, action) not in done:
                    done.add((worker, action))
                    progress = True
                if barrier and not _past_barrier(schedule, worker, action, done):
                    break
                at[worker] += 1
                progress = True
    stuck = [w for w, actions in enumerate(schedule.workers) if at[w] < len(actions)]
    if not stuck:
        return []
    waits = ", ".join(f"{_name(schedule, w)} at {schedule.workers[w][at[w]]}" for w in stuck)
    return [f"deadlock: {waits} wait for each other"]


def _can_run(
    schedule: Schedule, worker: int, action: Action, version: int, done: set[tuple[int, Action]]
) -> bool:
    """Whether what an action needs from elsewhere, its own forward and its weights are there."""
    need = needs(schedule, worker, action)
    if need is not None and need not in done:
        return False
    if action.kind is not Kind.FORWARD:
        return (worker, Action(Kind.FORWARD, action.minibatch)) in done
    stage = schedule.stage_of(worker)
    if version == 0 or schedule.replicas[stage] == 1:
        return True
    last = schedule.kinds(stage)[-1]
    members = update_members(schedule, stage, version)
    return all((schedule.worker(stage, b), Action(last, b)) in done for b in members)


def _past_barrier(schedule: Schedule, worker: int, action: Action, done: set[tuple[int, Action]]) -> bool:
    if action.kind is not Kind.BACKWARD or schedule.updates_by_group:
        return True
    stage = schedule.stage_of(worker)
    return all(
        (schedule.worker(stage, b), Action(Kind.BACKWARD, b)) in done
        for b in round_of(schedule, stage, action.minibatch)
    )
