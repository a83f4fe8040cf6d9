"""A checker for schedules: each list is complete, and the lists together can run to the end."""

from __future__ import annotations

from collections import Counter

from pipeline.schedule.actions import Action, Kind, Policy, Schedule


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
    """Each replica has its own minibatches, each once forward and once backward, each kind ascending."""
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
            name = f"{_name(schedule, worker)}: {kind.name.lower()}"
            if wrong := sorted(set(numbers) - set(mine)):
                found.append(f"{name} of minibatch {wrong[0]}, which belongs elsewhere")
            elif missing := sorted(set(mine) - set(numbers)):
                found.append(f"{name} of minibatch {missing[0]} is missing")
            elif twice := [b for b, times in Counter(numbers).items() if times > 1]:
                found.append(f"{name} of minibatch {twice[0]} stands there twice")
            elif numbers != mine:
                found.append(f"{name}s are not in ascending order")
    return found


def _in_flight(schedule: Schedule) -> list[str]:
    """No replica holds more minibatches than its stage's limit."""
    found = []
    for worker, actions in enumerate(schedule.workers):
        limit, held = schedule.in_flight[schedule.stage_of(worker)], 0
        for action in actions:
            held += 1 if action.kind is Kind.FORWARD else -1
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
    """GPipe: a group's forwards, then its backwards, then the next group."""
    if schedule.policy is not Policy.GPIPE:
        return []
    found = []
    for worker, actions in enumerate(schedule.workers):
        keys = [(*group_of(schedule, a.minibatch), a.kind is Kind.BACKWARD) for a in actions]
        if keys != sorted(keys):
            found.append(f"{_name(schedule, worker)}: forwards and backwards of groups are mixed")
    return found


def group_of(schedule: Schedule, minibatch: int) -> tuple[int, int]:
    """(epoch, group in the epoch) of a minibatch, both from 0."""
    return schedule.epoch_of(minibatch), (minibatch - 1 - schedule.epoch_begin(minibatch)) // schedule.group


def needs(schedule: Schedule, worker: int, action: Action) -> tuple[int, Action] | None:
    """The (worker, action) elsewhere that must have ended before this action; None if there is none."""
    stage = schedule.stage_of(worker)
    if action.kind is Kind.FORWARD:
        return (schedule.worker(stage - 1, action.minibatch), action) if stage > 0 else None
    if stage + 1 < schedule.stages:
        return schedule.worker(stage + 1, action.minibatch), action
    return worker, Action(Kind.FORWARD, action.minibatch)


def round_of(schedule: Schedule, stage: int, minibatch: int) -> list[int]:
    """The minibatches whose gradients the stage's replicas add up together: one for each replica, fewer at
    the end of an epoch."""
    begin = schedule.epoch_begin(minibatch)
    r = schedule.replicas[stage]
    # Round-robin runs on across epochs; an epoch's rounds begin at its first minibatch.
    low = begin + (minibatch - 1 - begin) // r * r + 1
    return list(range(low, min(low + r, schedule.drains[schedule.epoch_of(minibatch)] + 1)))


def _runs(schedule: Schedule, barrier: bool) -> list[str]:
    """Run the lists by their dependencies alone, until the end or until no worker can go on."""
    at = [0] * len(schedule.workers)
    done: set[tuple[int, Action]] = set()
    progress = True
    while progress:
        progress = False
        for worker, actions in enumerate(schedule.workers):
            while at[worker] < len(actions):
                action = actions[at[worker]]
                need = needs(schedule, worker, action)
                if need is not None and need not in done:
                    break
                if (
                    action.kind is Kind.BACKWARD
                    and (worker, Action(Kind.FORWARD, action.minibatch)) not in done
                ):
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


def _past_barrier(schedule: Schedule, worker: int, action: Action, done: set[tuple[int, Action]]) -> bool:
    if action.kind is Kind.FORWARD or schedule.policy is Policy.GPIPE:
        return True
    stage = schedule.stage_of(worker)
    return all(
        (schedule.worker(stage, b), Action(Kind.BACKWARD, b)) in done
        for b in round_of(schedule, stage, action.minibatch)
    )
