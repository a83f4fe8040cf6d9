"""The conditions that an action waits for: the same for the checker, the versions, the simulation and the runner."""

from __future__ import annotations

from pipeline.schedule.actions import Action, Kind, Schedule


def needs(schedule: Schedule, worker: int, action: Action) -> tuple[int, Action] | None:
    """The (worker, action) that must have ended before this action, besides those before it in its own list and those
    that its weights come from (`newest`); None if there is none."""
    stage = schedule.stage_of(worker)
    if action.kind is Kind.WEIGHTS:
        return worker, Action(Kind.BACKWARD, action.minibatch)
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


def update_members(schedule: Schedule, stage: int, minibatch: int, group: int | None = None) -> list[int]:
    """The minibatches that go into the same update of a stage as this one, ascending.

    group: of double-buffered weights; None: the schedule's own rounds or groups.
    """
    if group is None and not schedule.updates_by_group:
        return round_of(schedule, stage, minibatch)
    size = group or schedule.group
    base, end = epoch_bounds(schedule, minibatch)
    low = base + (minibatch - 1 - base) // size * size + 1
    return list(range(low, min(low + size, end + 1)))


def newest(schedule: Schedule, worker: int) -> tuple[list[int], list[int]]:
    """(the newest version that each action of a worker's list may use, the newest that may be there after it ended).

    All rounds up to that of the worker's last backward count, less `Schedule.rounds_behind`. An action may start only
    when all gradients that went into its version have been added up, those of the other replicas too: the one rule
    that checker, walk, simulation and runner share.
    """
    stage = schedule.stage_of(worker)
    last_kind = schedule.kinds(stage)[-1]
    visible = there = 0
    before, after = [], []
    for action in schedule.workers[worker]:
        base, _ = epoch_bounds(schedule, action.minibatch)
        if schedule.updates_by_group:
            base = max(base, update_members(schedule, stage, action.minibatch)[0] - 1)
        visible, there = max(visible, base), max(there, base)
        before.append(visible)
        if action.kind is last_kind:
            members = update_members(schedule, stage, action.minibatch)
            mine = [b for b in members if schedule.worker(stage, b) == worker]
            if action.minibatch == mine[-1]:
                there = members[-1]
                visible = members[0] - 1 if schedule.rounds_behind(stage) else there
        after.append(there)
    return before, after


def epoch_bounds(schedule: Schedule, minibatch: int) -> tuple[int, int]:
    """(last minibatch before the epoch, last of the epoch)."""
    return schedule.epoch_begin(minibatch), schedule.drains[schedule.epoch_of(minibatch)]
