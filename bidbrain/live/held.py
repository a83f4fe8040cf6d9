"""The instances of a live job: tells the trainer which it holds, passes notices on, and journals how they end."""

from __future__ import annotations

from bidbrain.billing import Ending
from bidbrain.live.cloud import EndedInstance, Instance
from bidbrain.live.job import LiveJob
from bidbrain.live.journal import Ended, HourPassed, Noticed, Stray, Worked
from bidbrain.money import HOUR_S
from bidbrain.policy.base import Phase


class HeldInstances:
    """The instances that a job holds."""

    def __init__(self, job: LiveJob) -> None:
        self._job = job

    def tell(self, at_s: int) -> None:
        """Tell the trainer all instances that it holds."""
        account, instances = self._job.state.account, self._job.state.instances
        seats: dict[bool, list[Instance]] = {True: [], False: []}
        for allocation in account.open:
            seats[allocation.number < 0] += instances.get(allocation.number, ())
        self._job.trainer.hold(at_s, tuple(seats[True]), tuple(seats[False]))

    def tell_again(self, now_s: int) -> None:
        """Tell a trainer that may be new its instances and all open notices: a queue delivers each notice only once."""
        self.tell(now_s)
        state = self._job.state
        ours = {instance.instance_id for instance in state.open_instances()}
        notices = [each for each in state.noticed.values() if each.instance_id in ours]
        for allocation in state.account.held():
            notices += state.hour_end_notices(allocation.number) if allocation.phase is Phase.LEAVING else ()
        for notice in notices:
            if notice.deadline_s > now_s:
                self._job.trainer.warn(now_s, notice)

    def pass_on_notices(self, now_s: int) -> None:
        """Journal new notices, and tell the trainer all that are open.

        EC2's queue has the events of the whole account. A notice may come before the answer to the machine's order.
        """
        state = self._job.state
        ours = {instance.instance_id for instance in state.open_instances()}
        notices = {
            notice.notice_id: notice
            for notice in self._job.cloud.notices()
            if notice.instance_id in ours or state.pending
        }
        if new := tuple(each for each in notices.values() if each.notice_id not in state.noticed):
            self._job.put(Noticed(now_s, new))
        for notice in notices.values():
            self._job.trainer.warn(now_s, notice)

    def ended(self) -> dict[int, EndedInstance]:
        """Allocations that ended without us, with their last instance: evicted, or shut down by themselves."""
        ids = tuple(instance.instance_id for instance in self._job.state.open_instances())
        return self._job.state.over(self._job.cloud.ended(ids)) if ids else {}

    def record_events(self, at_s: int, ended: dict[int, EndedInstance]) -> None:
        """Journal an instant's evictions and ends of hours, and remove them from `ended`, also allocations that a
        decision has given back since the cloud was asked."""
        state = self._job.state
        for number in [number for number in ended if state.account.find(number) is None]:
            del ended[number]
        over = {number for number, last in ended.items() if last.at_s <= at_s}
        if over:  # before the journal, so it is told at least once
            gone = sorted(number for number in over if ended[number].ending is not Ending.JOB_END)
            self._job.trainer.lost(at_s, tuple(m.instance_id for n in gone for m in state.instances[n]))
        for allocation in list(state.account.open):
            number = allocation.number
            if allocation.phase is Phase.REQUESTED:
                continue
            if number in over:
                last = ended.pop(number)
                self._job.put(Ended(max(last.at_s, allocation.hour_start_s), number, last.ending))
            elif not allocation.on_demand and at_s >= allocation.hour_start_s + HOUR_S:
                end_s = allocation.hour_start_s + HOUR_S
                if allocation.phase is Phase.LEAVING:
                    self.give_back(end_s, number)
                    self._job.put(Ended(end_s, number, Ending.TERMINATED))
                else:
                    price = self._job.cloud.price(allocation.market, end_s)
                    self._job.put(HourPassed(end_s, number, price))
        if state.work_due:
            self._job.put(
                Worked(max(at_s, self._job.state.last_s), self._job.trainer.report(at_s).done_vcpu_s)
            )
        if over:
            self.tell(at_s)

    def record_up_to(self, at_s: int, ended: dict[int, EndedInstance]) -> None:
        """Journal the evictions and ends of hours up to an instant, in the order of time. Several hours
        may end during a purchase on a market that is played fast."""
        while True:
            due = self._hour_ends() + [last.at_s for last in ended.values()]
            if not due or min(due) > at_s:
                return
            self.record_events(min(due), ended)

    def _hour_ends(self) -> list[int]:
        return [each.hour_start_s + HOUR_S for each in self._job.state.account.held()]

    def catch_up(self, closing_s: int) -> None:
        """Journal the evictions and ends of hours before the job's end that came since the service last looked."""
        taken = self.ended().items()
        ended = {n: last for n, last in taken if last.ending is Ending.EVICTED and last.at_s <= closing_s}
        self.record_until(closing_s - 1, ended)

    def catch_up_until_released(self) -> None:
        """Journal the ends of all instances that were given back at the job's end, and all that came before them."""
        state, said = self._job.state, self.ended()
        ended: dict[int, EndedInstance] = {}
        for number, own in state.instances.items():
            at_s, ending = max(state.released[each.instance_id] for each in own), Ending.JOB_END
            if (first := said.get(number)) is not None:  # the cloud may have ended it before us
                at_s = min(at_s, first.at_s)
                ending = first.ending if first.ending is Ending.EVICTED else ending
            ended[number] = EndedInstance(own[0].instance_id, at_s, ending)
        self.record_until(max((each.at_s for each in ended.values()), default=0), ended)

    def record_ends(self) -> None:
        """Journal the ends that came since the service last looked, and all that came before them."""
        if ended := self.ended():
            self.record_until(max(each.at_s for each in ended.values()), ended)

    def record_until(self, hours_s: int, ended: dict[int, EndedInstance]) -> None:
        """Journal all of `ended`, which it empties, and the ends of hours until an instant, in the order of time."""
        while True:
            hours = [at_s for at_s in self._hour_ends() if at_s <= hours_s]
            due = hours + [last.at_s for last in ended.values()]
            if not due:
                return
            self.record_events(min(due), ended)

    def give_back(self, at_s: int, number: int) -> None:
        """Have the trainer leave the instances of an allocation, then return them to the cloud."""
        ids = tuple(instance.instance_id for instance in self._job.state.instances.get(number, ()))
        self._job.trainer.leave(at_s, ids)
        self._job.cloud.release(ids)

    def give_back_strays(self, now_s: int) -> None:
        """Give back instances with our tag that belong to no allocation or order."""
        known = {instance.instance_id for instance in self._job.state.open_instances()}
        tokens = {pending.order.token for pending in self._job.state.pending.values()}
        for instance in self._job.cloud.held():
            if instance.instance_id not in known and instance.token not in tokens:
                self._job.put(Stray(now_s, instance))
                self._job.cloud.release((instance.instance_id,))
