"""FlexRR's helper groups (thesis 3.3.1), for any number of workers and machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Groups:
    """`helpers[w]`: the workers that may take work of w, nearest first. `helpees[w]`: the workers that w may help."""

    helpers: tuple[tuple[int, ...], ...]
    helpees: tuple[tuple[int, ...], ...]


def machine_of(worker: int, machines: int) -> int:
    """Workers are dealt to machines in rounds: worker w runs on machine w mod `machines`."""
    return worker % machines


def helper_groups(workers: int, machines: int, group_size: int) -> Groups:
    """Every worker's helpers: one on its own machine, the rest on different machines; 0: no helpers.

    The one on its own machine is the worker dealt to it in the round before (in the first round: in the last).
    The others sit on the machines before its own, cyclically; of each the worker dealt in the same round, or,
    where a last round does not reach that far, in the round before. Where its own machine has no
    other worker, one more machine takes that place.

    Raises ValueError for counts below 1 or a group that needs more machines than there are.
    """
    if workers < 1 or machines < 1:
        raise ValueError(f"workers is {workers} and machines {machines}; expected at least 1 each")
    if group_size < 0:
        raise ValueError(f"group_size is {group_size}; expected 0 or more")
    used = min(machines, workers)
    if group_size > (most := most_helpers(workers, machines)):
        raise ValueError(
            f"group_size is {group_size}, but {workers} workers on {machines} machines have only {most} possible "
            "helpers each; expected a group_size of at most that"
        )
    helpers = tuple(_helpers_of(worker, workers, used, group_size) for worker in range(workers))
    helpees: list[list[int]] = [[] for _ in range(workers)]
    for worker, group in enumerate(helpers):
        for helper in group:
            helpees[helper].append(worker)
    return Groups(helpers, tuple(tuple(group) for group in helpees))


def most_helpers(workers: int, machines: int) -> int:
    """The largest group that every worker can have: one worker on each other machine, and one on its own if each
    machine has two."""
    used = min(machines, workers)
    return used - 1 + (workers >= 2 * used)


def _helpers_of(worker: int, workers: int, machines: int, group_size: int) -> tuple[int, ...]:
    if group_size == 0:
        return ()
    round_, machine = divmod(worker, machines)
    here = _in_round(machine, round_ - 1, workers, machines)
    near = (here,) if here != worker else ()
    elsewhere = group_size - len(near)
    return near + tuple(
        _in_round((machine - step) % machines, round_, workers, machines) for step in range(1, elsewhere + 1)
    )


def _in_round(machine: int, round_: int, workers: int, machines: int) -> int:
    """The worker on a machine that was dealt in a round; before the first: in the machine's last."""
    last = (workers - 1 - machine) // machines
    return machine + machines * (last if round_ < 0 else min(round_, last))
