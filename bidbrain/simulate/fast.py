"""The way between settings and `compiled`: arrays in, outcomes and ledgers out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bidbrain.accounts.books import RELIABLE_NUMBER
from bidbrain.accounts.ledger import Entry, Kind, Ledger
from bidbrain.history.prices import Ints
from bidbrain.money import machine_seconds_micro_usd
from bidbrain.policy import compiled
from bidbrain.policy.registry import Scheme
from bidbrain.risk.survival import STATES
from bidbrain.setting import Setting
from bidbrain.simulate.simulator import Outcome, header

TAPE_ROWS = 20_000
KINDS = {
    compiled.GRANT: Kind.GRANT,
    compiled.CHARGE: Kind.CHARGE,
    compiled.REFUND: Kind.REFUND,
    compiled.EVICT: Kind.EVICTION,
    compiled.TERMINATE: Kind.TERMINATION,
    compiled.REQUEST: Kind.REQUEST,
    compiled.REFUSED: Kind.REFUSED,
    compiled.LEAVE: Kind.LET_GO,
    compiled.KEEP: Kind.KEEP,
    compiled.END: Kind.JOB_END,
    compiled.WORK: Kind.WORK,
}
RULE_NUMBERS = {
    "hourly_2016": compiled.HOURLY,
    "per_second": compiled.PER_SECOND,
    "per_second_paid": compiled.PER_SECOND_PAID,
}
MONEY = (compiled.CHARGE, compiled.REFUND)
NO_PRICE = (compiled.EVICT, compiled.TERMINATE, compiled.LEAVE, compiled.KEEP, compiled.END)
NO_HOUR = (compiled.GRANT, compiled.REQUEST, compiled.REFUSED)


class FastSimulator:
    """Runs the jobs of one scheme compiled. `setting` is the scheme's own (`scheme.setting(...)`)."""

    def __init__(self, setting: Setting, scheme: Scheme) -> None:
        assert scheme.compiled is not None, f"{scheme.name} has no compiled twin"
        self._setting, self._scheme, self._kind = setting, scheme, scheme.compiled.kind
        steps = [setting.history.steps[market] for market in setting.markets]
        self._markets = compiled.MarketArrays(
            np.concatenate([s.times for s in steps]),
            np.concatenate([s.prices for s in steps]),
            np.cumsum([0, *(len(s.times) for s in steps)]).astype(np.int64),
            np.array([listing.on_demand for listing in setting.listings], np.int64),
            np.array([listing.vcpus for listing in setting.listings], np.int64),
            np.array(setting.bidding.deltas, np.int64),
            setting.history.end_s,
        )
        self._job = self._numbers(scheme.compiled.slot_share, scheme.compiled.requests)

    def _numbers(self, slot_share: int, requests: int) -> compiled.JobNumbers:
        setting, job = self._setting, self._setting.job
        engine, reliable = job.engine, setting.reliable
        held = reliable.vcpus if self._scheme.reliable else 0
        return compiled.JobNumbers(
            job.work_vcpu_s,
            job.vcpus,
            job.cap_vcpus,
            setting.bidding.slot_vcpus or job.cap_vcpus // slot_share,
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

    def _tables(self, start_s: int) -> compiled.Tables:
        return _tables(self._setting, self._kind, start_s)

    def run(self, starts: Sequence[int]) -> Ints:
        """One row of `compiled.RESULTS` numbers per start; int64."""
        out = np.zeros((len(starts), compiled.RESULTS), np.int64)
        tape = np.zeros((0, compiled.TAPE_COLUMNS), np.int64)
        for row, start_s in enumerate(starts):
            compiled.simulate_job(
                self._kind, start_s, self._job, self._markets, self._tables(start_s), tape, out[row]
            )
        return out

    def outcomes(self, starts: Sequence[int]) -> list[Outcome]:
        """The same, one outcome per start."""
        return [self._outcome(s, row) for s, row in zip(starts, self.run(starts).tolist(), strict=True)]

    def ledger(self, start_s: int, name: str) -> tuple[Outcome, Ledger]:
        """One job with its ledger (without the policy's reasons)."""
        out = np.zeros(compiled.RESULTS, np.int64)
        tape = np.zeros((TAPE_ROWS, compiled.TAPE_COLUMNS), np.int64)
        tables = self._tables(start_s)
        # A job of n hours has at most a few dozen lines an hour; the tape is made longer until it fits.
        while True:
            full = compiled.simulate_job(self._kind, start_s, self._job, self._markets, tables, tape, out)
            if not full:
                break
            tape = np.zeros((2 * len(tape), compiled.TAPE_COLUMNS), np.int64)
        rows = tape[: out[compiled.TAPE_ROWS]].tolist()
        entries = self._with_reliable([self._entry(row) for row in rows], start_s, int(out[compiled.END_S]))
        ledger = Ledger(header(self._setting, self._scheme.name, start_s, name), tuple(entries))
        return self._outcome(start_s, out.tolist()), ledger

    def _outcome(self, start_s: int, row: list[int]) -> Outcome:
        end_s = row[compiled.END_S]
        return Outcome(
            start_s,
            end_s,
            bool(row[compiled.FINISHED]),
            row[compiled.COST],
            row[compiled.EVICTIONS],
            row[compiled.FREE_VCPU_S],
            row[compiled.HELD_VCPU_S],
            self._job.reliable_vcpus * (end_s - start_s),
        )

    def _entry(self, row: list[int]) -> Entry:
        at_s, kind, number, market, vcpus, price, amount, hour = row
        if kind == compiled.WORK:
            return Entry(at_s, Kind.WORK, done_vcpu_s=amount)
        return Entry(
            at_s,
            KINDS[kind],
            number,
            self._setting.markets[market],
            vcpus,
            price=None if kind == compiled.REQUEST or kind in NO_PRICE else price,
            bid=price if kind == compiled.REQUEST else amount if kind == compiled.GRANT else None,
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
            Entry(start_s, Kind.GRANT, *what, price=r.on_demand),
            *entries[:closing],
            Entry(end_s, Kind.JOB_END, *what, hour=0),
            *([Entry(end_s, Kind.CHARGE, *what, price=r.on_demand, hour=0, micro_usd=cost)] if cost else []),
            *entries[closing:],
        ]


def _closes(entries: list[Entry], index: int) -> bool:
    """Whether this line belongs to the closing of the job: an end of it, or the money of one that follows it."""
    ended = {entry.allocation for entry in entries[: index + 1] if entry.kind is Kind.JOB_END}
    return entries[index].allocation in ended and entries[index].kind is not Kind.WORK


def _tables(setting: Setting, kind: int, start_s: int) -> compiled.Tables:
    """What the policy of this number reads; the rest is empty."""
    beta = np.zeros((0, 0, 0))
    median, thresholds = beta, np.zeros((0, 2), np.int64)
    evicted = held = useful = np.zeros((0, STATES, 0))
    if kind == compiled.PROTEUS:
        table = setting.evictions
        beta, median = table.beta, table.median_s
    if kind == compiled.RENEWAL:
        survival = setting.survival(start_s)
        thresholds, evicted = survival.thresholds, survival.evicted
        held, useful = survival.held_s, survival.useful_s
    return compiled.Tables(beta, median, thresholds, evicted, held, useful)
