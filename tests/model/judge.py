"""The driver's part in cuts that are held: it reads each from its backups, in its own time, and judges it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agileml.core.protocol.commands import Finished
from agileml.core.protocol.inputs import CutJudged
from agileml.core.protocol.messages import Cut
from agileml.events.run import ClockDone, CutCommitted, MembershipChanged
from tests.model.invariants import check_counts

if TYPE_CHECKING:
    from tests.model.controller_shell import SimulatedController
    from tests.model.simulator import Simulation

LOOK_S = 0.05
READ_S = 0.8  # the longest time from the look at a cut until its parts are read
REPEAT_S = 2.0  # until a judgement may come again


class Judge:
    """Looks at the newest controller that lives. A held cut must stay where it is until it was judged, or is moved."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self._seen: tuple[SimulatedController, int, Finished] | None = None  # with the epoch

    def look(self) -> None:
        """See what is held, and begin to read what is new."""
        if self.sim.is_over:
            return
        self.sim.after(LOOK_S, self.look)
        living = [each for each in self.sim.controllers if not each.is_dead]
        if not living or living[-1].frozen_until_s > self.sim.now_s:
            self._seen = None
            return
        simulated = living[-1]
        control = simulated.controller._control
        held = simulated.controller.held
        epoch = control.view.epoch if control.view is not None else -1
        if self._seen is not None and self._seen != (simulated, epoch, held):
            before, its_epoch, cut = self._seen
            is_same = before is simulated and its_epoch == epoch and control.change is None
            assert not is_same, f"the cut at {cut.clock} is not held any more, and nobody has judged it"
            self._seen = None
        if held is not None and self._seen is None:
            self._seen = seen = (simulated, epoch, held)
            self.sim.after(self.sim.rng.uniform(0.0, READ_S), lambda: self._read(seen))

    def _read(self, seen: tuple[SimulatedController, int, Finished]) -> None:
        """Read the parts of a cut and judge it; where a machine is away or a change has begun, another time."""
        simulated, epoch, held = seen
        if self._seen is not seen or self.sim.is_over:
            return
        parts: list[Cut] = []
        for partition, name in enumerate(held.backup):
            node = self.sim.nodes[name]
            is_away = node.is_dead or max(node.frozen_until_s, node.cut_until_s) > self.sim.now_s
            if is_away or node.node.promised != epoch or simulated.controller._control.change is not None:
                self._seen = None
                return
            backup = node.node.backup
            found = [cut for cut in (backup.cut(partition), backup.arrived(partition)) if cut is not None]
            part = next((cut for cut in found if cut.clock == held.clock), None)
            is_kept = (simulated.controller.record.committed, partition, name) in self.sim.kept
            if backup.is_staged(epoch, partition):  # and may not be read before the view is announced
                is_kept = False
            assert part is not None or not is_kept, (
                f"{name} has no part {partition} of the cut at {held.clock}"
            )
            # As the driver, which asks again until the cut can be read or is not held any more.
            if part is None:
                self._seen = None
                return
            check_counts(self.sim.job, partition, part)
            parts.append(part)
        self.sim.check_tables(self.sim.job.layout.whole([part.blocks for part in parts]), held.clock)
        self._seen = None
        self.sim.fired["judged"] += 1
        judged = CutJudged(held.clock)
        self.sim.tell(simulated, judged)
        self.sim.after(self.sim.rng.uniform(0.0, REPEAT_S), lambda: self.sim.tell(simulated, judged))


def check_none_passed_over(sim: Simulation) -> None:
    """While machines stay and no message is lost, every clock that is evaluated is a cut before the next one is."""
    every = sim.job.holds_every
    if every is None or len(sim.controllers) > 1 or not sim.schedule.orderly:
        return
    base, committed = 0, {0}
    for event in sim.events:
        match event:
            case MembershipChanged():
                base = event.base
            case CutCommitted():
                committed.add(event.clock)
            case ClockDone():
                last = (event.clock - every - 1) // every * every
                assert last < max(1, base) or last in committed, f"the cut at {last} was passed over"
