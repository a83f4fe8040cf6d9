"""Static schedules: which forwards and backwards each worker runs, in which order (thesis 5.3.2).

`policies.py` makes them: 1F1B (1F1B-RR where stages are replicated), 1F1B with a flush, zero-bubble, GPipe, model
parallel. Minibatches count from 1;
at a stage with r replicas minibatch b belongs to replica (b-1) mod r, forward and backward alike. A worker
runs its list from left to right and waits for what an action needs; nothing else coordinates the workers.

Schedules print as text, one line per worker, and parse back:

    schedule 1f1b replicas=1-1-1-1 minibatches=5 in_flight=4-3-2-1 group=1 drains=5
    stage 1 replica 1: F1 F2 F3 F4 B1 F5 B2 B3 B4 B5
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cached_property


class ScheduleError(ValueError):
    """A schedule that cannot be made or parsed; the message is one sentence."""


class Kind(StrEnum):
    """FORWARD and BACKWARD of a minibatch. WEIGHTS: the gradients of the weights, where they are put off (zero-bubble);
    there BACKWARD is the gradient of the stage's input alone."""

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


class Policy(Enum):
    """The way in which the lists were built."""

    ONE_F_ONE_B = "1f1b"
    FLUSH = "1f1b-flush"
    ZERO_BUBBLE = "zero-bubble"
    GPIPE = "gpipe"
    MODEL_PARALLEL = "model-parallel"


@dataclass(frozen=True, order=True)
class Action:
    """A forward, a backward or gradients of weights: of one minibatch, at a worker's stage."""

    kind: Kind
    minibatch: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.minibatch}"


@dataclass(frozen=True)
class Schedule:
    """Lists of actions for every worker, stage by stage and replica by replica.

    replicas: per stage. in_flight: per stage, the most minibatches whose forward a replica has run and whose
    backward it has not. group: minibatches per update of the weights (1: one per round of the replicas). drains: the
    last minibatch of each epoch, ascending; the pipeline is empty behind each.
    """

    policy: Policy
    replicas: tuple[int, ...]
    in_flight: tuple[int, ...]
    group: int
    drains: tuple[int, ...]
    workers: tuple[tuple[Action, ...], ...]

    @property
    def updates_by_group(self) -> bool:
        """Whether the weights change once per group, between two groups; else after each round of the replicas."""
        return self.policy in (Policy.FLUSH, Policy.ZERO_BUBBLE, Policy.GPIPE)

    def kinds(self, stage: int) -> tuple[Kind, ...]:
        """The actions of a stage for each minibatch, in order. The first stage puts nothing off: it has no gradient to
        send back."""
        if self.policy is Policy.ZERO_BUBBLE and stage > 0:
            return (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHTS)
        return (Kind.FORWARD, Kind.BACKWARD)

    def rounds_behind(self, stage: int) -> int:
        """How many rounds of gradients a forward leaves out, from the round of its worker's last backward on.

        A replicated stage with several minibatches in flight leaves out that one round: it is added up while the
        replicas compute. With one in flight there is nothing else to compute: that is plain data parallelism.
        """
        in_background = self.replicas[stage] > 1 and self.in_flight[stage] > 1 and not self.updates_by_group
        return 1 if in_background else 0

    @property
    def minibatches(self) -> int:
        """How many minibatches there are."""
        return self.drains[-1]

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return len(self.replicas)

    @cached_property
    def first_workers(self) -> tuple[int, ...]:
        """The first worker of each stage."""
        return tuple(sum(self.replicas[:stage]) for stage in range(self.stages))

    @cached_property
    def stage_of_worker(self) -> tuple[int, ...]:
        """The stage (0-based) of each worker."""
        return tuple(stage for stage, count in enumerate(self.replicas) for _ in range(count))

    def worker(self, stage: int, minibatch: int) -> int:
        """The worker that has a minibatch at a stage (0-based)."""
        return self.first_workers[stage] + (minibatch - 1) % self.replicas[stage]

    def stage_of(self, worker: int) -> int:
        """The stage (0-based) of a worker."""
        return self.stage_of_worker[worker]

    def epoch_of(self, minibatch: int) -> int:
        """The epoch (0-based) of a minibatch."""
        return bisect.bisect_left(self.drains, minibatch)

    def epoch_begin(self, minibatch: int) -> int:
        """The last minibatch before the epoch of this one (0 in the first)."""
        epoch = self.epoch_of(minibatch)
        return self.drains[epoch - 1] if epoch else 0

    def __str__(self) -> str:
        lines = [
            f"schedule {self.policy.value} replicas={_joined(self.replicas)} minibatches={self.minibatches} "
            f"in_flight={_joined(self.in_flight)} group={self.group} drains={_joined(self.drains)}"
        ]
        worker = 0
        for stage, count in enumerate(self.replicas, start=1):
            for replica in range(1, count + 1):
                actions = " ".join(map(str, self.workers[worker]))
                lines.append(f"stage {stage} replica {replica}: {actions}".rstrip())
                worker += 1
        return "\n".join(lines) + "\n"


def parse_schedule(text: str) -> Schedule:
    """The schedule that `str` printed. Raises ScheduleError, whose sentence names the line."""
    lines = text.strip().splitlines()
    try:
        word, policy, *pairs = lines[0].split()
        values = dict(pair.split("=") for pair in pairs)
        replicas = _split(values["replicas"])
        assert word == "schedule"
        head = (Policy(policy), replicas, _split(values["in_flight"]), int(values["group"]))
        drains = _split(values["drains"])
        assert len(head[2]) == len(replicas)
        assert min(*replicas, *head[2], head[3], drains[0]) >= 1
        assert list(drains) == sorted(set(drains))
        assert int(values["minibatches"]) == drains[-1]
    except (ValueError, KeyError, IndexError, AssertionError):
        raise ScheduleError(
            "line 1 of the schedule must read like `schedule 1f1b replicas=1-1 minibatches=4 in_flight=2-1 "
            "group=1 drains=4`, with one number of replicas and one in flight for each stage, at least 1 each, and "
            "drains that ascend to the last minibatch"
        ) from None
    wanted = [f"stage {s} replica {r}" for s, n in enumerate(replicas, start=1) for r in range(1, n + 1)]
    if len(lines) - 1 != len(wanted):
        raise ScheduleError(f"found {len(lines) - 1} workers, expected {len(wanted)}")
    workers = []
    for number, (line, name) in enumerate(zip(lines[1:], wanted, strict=True), start=2):
        found, sep, actions = line.partition(":")
        if not sep or found.strip() != name:
            raise ScheduleError(f"line {number} of the schedule must begin with `{name}:`, found {line!r}")
        try:
            workers.append(tuple(Action(Kind(word[0]), int(word[1:])) for word in actions.split()))
        except ValueError:
            raise ScheduleError(
                f"line {number} of the schedule has an action that is not like F3 or B3"
            ) from None
    return Schedule(*head, drains, tuple(workers))


def _joined(numbers: Sequence[int]) -> str:
    return "-".join(map(str, numbers))


def _split(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-"))
