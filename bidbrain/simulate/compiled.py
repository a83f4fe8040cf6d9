"""The compiled simulator: turns settings into the arrays of `kernel`, and its results into outcomes and ledgers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bidbrain.accounts.account import RELIABLE_NUMBER
from bidbrain.accounts.ledger import Entry, EntryKind, Ledger
from bidbrain.history.prices import Ints
from bidbrain.money import machine_seconds_micro_usd
from bidbrain.policy.registry import KernelPolicy, Scheme
from bidbrain.risk.survival import STATES
from bidbrain.setting import Setting
from bidbrain.simulate import kernel
from bidbrain.simulate.simulator import Outcome, header, with_traffic

TAPE_ROWS = 20_000
KINDS = {
    kernel.GRANT: EntryKind.GRANT,
    kernel.CHARGE: EntryKind.CHARGE,
    kernel.REFUND: EntryKind.REFUND,
    kernel.EVICT: EntryKind.EVICTION,
    kernel.TERMINATE: EntryKind.TERMINATION,
    kernel.REQUEST: EntryKind.REQUEST,
    kernel.REFUSED: EntryKind.REFUSED,
    kernel.LEAVE: EntryKind.LET_GO,
    kernel.KEEP: EntryKind.KEEP,
    kernel.END: EntryKind.JOB_END,
    kernel.WORK: EntryKind.WORK,
}
RULE_NUMBERS = {
    "hourly_2016": kernel.HOURLY,
    "per_second": kernel.PER_SECOND,
    "per_second_paid": kernel.PER_SECOND_PAID,
}
MONEY = (kernel.CHARGE, kernel.REFUND)
NO_PRICE = (kernel.EVICT, kernel.TERMINATE, kernel.LEAVE, kernel.KEEP, kernel.END)
NO_HOUR = (kernel.GRANT, kernel.REQUEST, kernel.REFUSED)


class CompiledSimulator:
    """Runs the jobs of one scheme compiled. `setting` is the scheme's own (`scheme.setting(...)`)."""

    def __init__(self, setting: Setting, scheme: Scheme) -> None:
        assert scheme.compiled is not None, f"{scheme.name} has no compiled twin"
        self._setting, self._scheme, self._policy = setting, scheme, scheme.compiled.policy
        steps = [setting.history.steps[market] for market in setting.markets]
        self._markets = kernel.MarketArrays(
            np.concatenate([s.times for s in steps]),
            np.concatenate([s.prices for s in steps]),
            np.cumsum([0, *(len(s.times) for s in steps)]).astype(np.int64),
            np.array([listing.on_demand for listing in setting.listings], np.int64),
            np.array([listing.vcpus for listing in setting.listings], np.int64),
            np.array(setting.bidding.deltas, np.int64),
            setting.history.end_s,
        )
        self._job = self._numbers(scheme.compiled.slot_share, scheme.compiled.requests)

    def _numbers(self, slot_share: int, requests: int) -> kernel.JobNumbers:
        setting, job = self._setting, self._setting.job
        engine, reliable = job.engine, setting.reliable
        held = reliable.vcpus if self._scheme.reliable else 0
        return kernel.JobNumbers(
            job.work_vcpu_s,
            job.vcpus,
            job.cap_vcpus,
            setting.bidding.slot(job.cap_vcpus, slot_share),
            job.phi,
            setting.reference,
            reliable.hourly,
            reliable.on_demand,
            held,
            reliable.vcpus_per_machine,
            engine.boot_s,
            engine.boot_again_s,
            engine.lambda_s,
            engine.sigma_s,
            setting.bidding.grant_delay_s,
            engine.overhead,
            engine.checkpoint_s,
            RULE_NUMBERS[setting.rules],
            setting.bidding.first_delta,
            requests,
        )

    def _tables(self, start_s: int) -> kernel.Tables:
        return _tables(self._setting, self._policy, start_s)

    def run(self, starts: Sequence[int]) -> Ints:
        """One row of `kernel.RESULTS` numbers per start; int64."""
        out = np.zeros((len(starts), kernel.RESULTS), np.int64)
        tape = np.zeros((0, kernel.TAPE_COLUMNS), np.int64)
        for row, start_s in enumerate(starts):
            kernel.simulate_job(
                int(self._policy), start_s, self._job, self._markets, self._tables(start_s), tape, out[row]
            )
        return out

    def outcomes(self, starts: Sequence[int]) -> list[Outcome]:
        """The same, one outcome per start."""
        if self._setting.routes is not None and self._setting.job.traffic_gb_per_h:
            return [self.ledger(start_s, "job")[0] for start_s in starts]  # traffic is billed from the ledger
        return [self._outcome(s, row) for s, row in zip(starts, self.run(starts).tolist(), strict=True)]

    def ledger(self, start_s: int, name: str) -> tuple[Outcome, Ledger]:
        """One job with its ledger (without the policy's reasons)."""
        out = np.zeros(kernel.RESULTS, np.int64)
        tape = np.zeros((TAPE_ROWS, kernel.TAPE_COLUMNS), np.int64)
        tables = self._tables(start_s)
        # A job of n hours has at most a few dozen lines an hour; the tape is made longer until it fits.
        while True:
            full = kernel.simulate_job(
                int(self._policy), start_s, self._job, self._markets, tables, tape, out
            )
            if not full:
                break
            tape = np.zeros((2 * len(tape), kernel.TAPE_COLUMNS), np.int64)
        rows = tape[: out[kernel.TAPE_ROWS]].tolist()
        entries = self._with_reliable([self._entry(row) for row in rows], start_s, int(out[kernel.END_S]))
        ledger = Ledger(header(self._setting, self._scheme.name, start_s, name), tuple(entries))
        return with_traffic(self._outcome(start_s, out.tolist()), ledger)

    def _outcome(self, start_s: int, row: list[int]) -> Outcome:
        end_s = row[kernel.END_S]
        return Outcome(
            start_s,
            end_s,
            bool(row[kernel.FINISHED]),
            row[kernel.COST],
            row[kernel.EVICTIONS],
            row[kernel.FREE_VCPU_S],
            row[kernel.HELD_VCPU_S],
            self._job.reliable_vcpus * (end_s - start_s),
        )

    def _entry(self, row: list[int]) -> Entry:
        at_s, kind, number, market, vcpus, price, amount, hour = row
        if kind == kernel.WORK:
            return Entry(at_s, EntryKind.WORK, done_vcpu_s=amount)
        return Entry(
            at_s,
            KINDS[kind],
            number,
            self._setting.markets[market],
            vcpus,
            price=None if kind == kernel.REQUEST or kind in NO_PRICE else price,
            bid=price if kind == kernel.REQUEST else amount if kind == kernel.GRANT else None,
            hour=None if kind in NO_HOUR else hour,
            micro_usd=amount if kind in MONEY else None,
        )

    def _with_reliable(self, entries: list[Entry], start_s: int, end_s: int) -> list[Entry]:
        """The reliable machines' lines: granted first, closed first at the end."""
        r = self._setting.reliable
        if not self._job.reliable_vcpus:
            return entries
        what = (RELIABLE_NUMBER, r.market, r.vcpus)
        cost = machine_seconds_micro_usd(r.on_demand, r.vcpus, r.vcpus_per_machine, end_s - start_s)
        closing = len(entries) - 1
        while closing > 0 and entries[closing - 1].at_s == end_s and _closes(entries, closing - 1):
            closing -= 1
        return [
            Entry(start_s, EntryKind.GRANT, *what, price=r.on_demand),
            *entries[:closing],
            Entry(end_s, EntryKind.JOB_END, *what, hour=0),
            *(
                [Entry(end_s, EntryKind.CHARGE, *what, price=r.on_demand, hour=0, micro_usd=cost)]
                if cost
                else []
            ),
            *entries[closing:],
        ]


def _closes(entries: list[Entry], index: int) -> bool:
    """Whether this line belongs to the closing of the job: the end of an allocation, or the charge or refund that
    follows it."""
    ended = {entry.allocation for entry in entries[: index + 1] if entry.kind is EntryKind.JOB_END}
    return entries[index].allocation in ended and entries[index].kind is not EntryKind.WORK


def _tables(setting: Setting, policy: KernelPolicy, start_s: int) -> kernel.Tables:
    """The tables that this policy reads; the others are empty."""
    beta = np.zeros((0, 0, 0))
    median, thresholds = beta, np.zeros((0, 2), np.int64)
    evicted = held = useful = np.zeros((0, STATES, 0))
    if policy is KernelPolicy.PROTEUS:
        table = setting.evictions
        beta, median = table.beta, table.median_s
    if policy is KernelPolicy.RENEWAL:
        survival = setting.survival(start_s)
        thresholds, evicted = survival.thresholds, survival.evicted
        held, useful = survival.held_s, survival.useful_s
    return kernel.Tables(beta, median, thresholds, evicted, held, useful)
