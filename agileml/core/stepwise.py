"""A run with supersteps once more, in one process, from its log: the same minibatches in the same order, each computed
from what it was computed from. It ends with the bits of the run.

It uses the very functions of workers and shards. For each partition the log holds the order of its steps and the
versions that their workers read; a version is kept as long as a later step reads it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agileml.application import Application, Array
from agileml.core.compute.contract import checked_tables, initial_values
from agileml.core.compute.threads import single_threaded
from agileml.core.compute.unit_computer import UnitComputer
from agileml.core.parameters.apply import State, apply_total, initial_state, partition_optimizers, whole_slots
from agileml.core.parameters.fold import Contribution
from agileml.core.parameters.layout import Layout
from agileml.core.parameters.minibatch_steps import per_minibatch
from agileml.core.parameters.optimizer import Optimizer
from agileml.core.parameters.step_terms import StepTerms
from agileml.core.protocol.superstep_messages import StepTaken
from agileml.core.sequential import Trained
from agileml.events.run import StepsLogged

Steps = Sequence[Sequence[StepTaken]]  # of each partition, in their order
# Position of a minibatch and its contribution to partition 0, which has loss and metrics, once each; True ends the
# training of one partition.
OnStep = Callable[[int, Contribution], bool]


class StepsMissingError(ValueError):
    """The log does not say all steps: one sentence."""


def steps_of(events: Iterable[StepsLogged], counts: Sequence[int]) -> Steps:
    """The first `counts[p]` steps of each partition p. Raises StepsMissingError.

    Steps of a later timeline replace those of an earlier one, which a rollback has undone.
    """
    found: list[dict[int, tuple[int, StepTaken]]] = [{} for _ in counts]
    for event in events:
        if event.partition >= len(counts):
            raise StepsMissingError(
                f"found steps of partition {event.partition}, expected {len(counts)} partitions"
            )
        known = found[event.partition]
        taken = map(StepTaken, event.positions, event.reads)
        for number, step in enumerate(taken, event.first):
            if number not in known or known[number][0] <= event.timeline:
                known[number] = event.timeline, step
    for partition, count in enumerate(counts):
        missing = next((number for number in range(count) if number not in found[partition]), None)
        if missing is not None:
            raise StepsMissingError(
                f"found no step {missing} of partition {partition}, expected {count} from step 0 on"
            )
    return [[known[number][1] for number in range(count)] for known, count in zip(found, counts, strict=True)]


def serial(count: int) -> Sequence[StepTaken]:
    """The first `count` steps of one machine with one partition: each minibatch is computed from all before it."""
    return [StepTaken(position, (position,)) for position in range(count)]


@dataclass
class _Partition:
    """One partition: its newest version, older ones that are still read, and the steps to come."""

    blocks: tuple[Array, ...]
    state: Sequence[State]
    rules: Sequence[Optimizer]
    todo: deque[StepTaken]
    steps: int = 0
    readers: Counter[int] = field(default_factory=Counter)  # by number of steps, computations to come
    kept: dict[int, tuple[Array, ...]] = field(default_factory=dict)

    def keep(self) -> None:
        """Keep this version if it will be read."""
        if self.readers[self.steps]:
            self.kept[self.steps] = tuple(block.copy() for block in self.blocks)

    def read(self, steps: int) -> tuple[Array, ...]:
        """A version, for one of its readers."""
        blocks = self.kept[steps]
        self.readers[steps] -= 1
        if not self.readers[steps]:
            del self.kept[steps]
        return blocks


class Stepwise:
    """Takes the steps of a log. `steps[p]` has those of partition p."""

    def __init__(
        self,
        application: Application,
        optimizer: Optimizer,
        parts: int,
        steps: Steps,
        on_step: OnStep | None = None,
    ) -> None:
        self._tables = checked_tables(application)
        self._layout = Layout(self._tables, len(steps))
        self._work = UnitComputer(application, self._layout, parts)
        self._work.load(range(application.settings.slices))
        self._optimizer = optimizer
        self._on_step = on_step
        self._seen: set[int] = set()
        self._is_over = False
        rule = per_minibatch(optimizer, self._work.units)
        start = initial_values(application, self._tables)
        self._partitions = []
        for number, taken in enumerate(steps):
            blocks = tuple(self._layout.blocks(start, number))
            rules = partition_optimizers(rule, self._layout, number)
            state = initial_state(self._tables, blocks, optimizer)
            self._partitions.append(_Partition(blocks, state, rules, deque(taken)))
        # A minibatch may have been computed more than once; each computation is known by what it read.
        self._wanted = Counter(step for taken in steps for step in taken)
        for step in self._wanted:
            for partition, read in zip(self._partitions, step.reads, strict=True):
                partition.readers[read] += 1
        for partition in self._partitions:
            partition.keep()
        self._found: dict[StepTaken, list[Contribution]] = {}

    def train(self) -> Trained:
        """Take all steps. Raises StepsMissingError where they wait for each other, and the errors of `train`."""
        with single_threaded():
            while not self._is_over and any(partition.todo for partition in self._partitions):
                before = self._left
                for number, partition in enumerate(self._partitions):
                    while partition.todo and not self._is_over and self._take(number, partition):
                        pass
                if self._left == before:
                    step = next(p.todo[0] for p in self._partitions if p.todo)
                    raise StepsMissingError(
                        f"found minibatch {step.position} computed from steps {step.reads}, expected steps that come "
                        "before it"
                    )
        slots = whole_slots(self._layout, [p.state for p in self._partitions], self._optimizer.slots)
        return Trained(self._layout.whole([p.blocks for p in self._partitions]), slots)

    @property
    def _left(self) -> int:
        return sum(len(partition.todo) for partition in self._partitions)

    def _take(self, number: int, partition: _Partition) -> bool:
        """Take the next step of a partition, if all that its gradient read is there."""
        step = partition.todo[0]
        if step not in self._found:
            if any(at.steps < read for at, read in zip(self._partitions, step.reads, strict=True)):
                return False
            self._found[step] = self._compute(step)
        partition.todo.popleft()
        contribution = self._found[step][number]
        self._wanted[step] -= 1
        if not self._wanted[step]:
            del self._found[step]
        applied = apply_total(
            contribution,
            self._tables,
            partition.blocks,
            partition.state,
            partition.steps,
            partition.rules,
            in_place=True,
            terms=StepTerms(scale=self._work.units),
        )
        partition.blocks, partition.state = applied.blocks, applied.state
        partition.steps += 1
        partition.keep()
        return True

    def _compute(self, step: StepTaken) -> list[Contribution]:
        clock, unit = divmod(step.position, self._work.units)
        bundle = 1 << unit
        reads = self._work.reads(clock, [bundle])
        versions = [at.read(read) for at, read in zip(self._partitions, step.reads, strict=True)]
        found = self._work.compute(self._work.assemble(reads, reads.taken_from(versions)), bundle)
        if self._on_step is not None and step.position not in self._seen:
            self._seen.add(step.position)
            is_over = self._on_step(step.position, found[0])
            self._is_over = is_over and len(self._partitions) == 1
        return list(found)
