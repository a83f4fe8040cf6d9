"""A run whose machines BidBrain buys and loses, in one process: the bits, the bill, the log, and the ways it ends."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agileml.cluster.ray_cluster import TieredNode
from agileml.core.protocol.inputs import Stop
from agileml.errors import HeadLostError, RunError
from agileml.events.market import (
    AllocationEnded,
    Billed,
    DecisionTaken,
    EstimatesChanged,
    InstancesBought,
    PricesChanged,
)
from agileml.events.run import CheckpointSaved
from agileml.market.setup import SPARE_HOURS
from agileml.runs.folder import REPORT, RunFolder
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Supervision
from bidbrain.accounts.ledger import EntryKind, read_ledgers
from bidbrain.live.cloud import Instance
from bidbrain.live.decide import Measurements
from bidbrain.live.job import EXIT_BUDGET, EXIT_FINISHED, EXIT_MARKET_CLOSED
from bidbrain.live.journal import JOURNAL, Closed, Closing, Draining, Journal, Opened, read_journal
from tests.agileml.market.jobs import MARKET, job, seen_all, taken
from tests.agileml.market.market_rig import (
    HELD,
    InstantBackend,
    InstantNodes,
    MarketRig,
    StoppedClock,
    reference,
)
from tests.agileml.runs.report.frozen import frozen
from tests.bidbrain.makers import made_trace


def test_a_job_on_a_market_ends_with_the_bits_of_one_process_and_a_bill_that_holds(tmp_path: Path) -> None:
    rig = MarketRig(job(more={"application": HELD}), tmp_path)
    rig.hold(50, seen_all)
    rig.with_report = True
    ran = rig.run()
    assert ran.sha256 == reference(rig.config)
    assert (ran.settlement.closing.code, ran.settlement.closing.finished) == (EXIT_FINISHED, True)
    bill = ran.settlement.bill
    assert bill.differences == ()
    assert bill.evictions == len([e for e in ran.of(AllocationEnded) if e.ending == "evicted"]) >= 1
    assert bill.micro_usd > 0 and bill.standard is not None
    # 128 vCPUs for an hour: four machines of the smaller type.
    assert bill.on_demand == bill.on_demand_paid == 4 * 1_680_000
    # Everything that was bought was given back or taken, and really ended.
    bought = {machine for event in ran.of(InstancesBought) for machine in event.instances}
    assert set(ran.killed) <= bought
    # The log tells of decisions with their reasons, of prices, spend and estimates; the report draws them.
    assert all(event.reason for event in ran.of(DecisionTaken))
    assert ran.of(Billed)[-1].usd == bill.micro_usd / 1e6
    # An hour that was begun is paid; the ledger keeps the thesis' convention.
    told = ran.summary["market"]
    assert told["usd"] == bill.micro_usd / 1e6
    assert told["thesis"]["usd"] == (bill.micro_usd - bill.given_back) / 1e6
    (ledger,) = (
        each
        for each in read_ledgers(ran.folder / "market" / "ledger.jsonl")
        if each.header.scheme == "proteus"
    )
    began_s = {e.allocation: e.at_s for e in ledger.entries if e.kind is EntryKind.GRANT}
    open_s = [
        e.at_s - began_s[e.allocation]
        for e in ledger.entries
        if e.kind is EntryKind.JOB_END and e.allocation >= 0
    ]
    assert (bill.given_back > 0) == any(seconds % 3600 for seconds in open_s)
    refunds = [entry.micro_usd or 0 for entry in ledger.entries if entry.kind is EntryKind.REFUND]
    assert max(refunds, default=0) <= 0
    refunded = -sum(refunds) / 1e6
    last = max(event.usd for event in ran.of(Billed))
    assert told["usd"] <= last <= told["usd"] + refunded + 1e-6, (
        "the screen takes back only what evictions refund"
    )
    assert ran.of(PricesChanged)[0].usd_per_h.keys() == {str(m) for m in rig.setup.setting.markets}
    assert all(0 < nu <= 40 for nu in ran.of(EstimatesChanged)[-1].nu.values())
    shown = frozen((ran.folder / REPORT).read_text())
    assert all(shown[part] for part in ("prices", "bids", "spend", "speeds"))
    assert {"decided", "bought", "evicted"} <= {what for _, what, _, _ in shown["news"]}
    assert ["bill", f"${told['usd']:.2f}"] in shown["tiles"]
    assert json.loads((ran.folder / "summary.json").read_text())["market"]["usd"] == bill.micro_usd / 1e6


@pytest.mark.slow
def test_a_budget_ends_the_job_with_a_checkpoint_and_its_own_code(tmp_path: Path) -> None:
    place = str(tmp_path / "checkpoints")
    # Slow enough for a busy computer: it must get to its first clock before the money is gone.
    slow: dict[str, Any] = {"budget_usd": 2.2, "job_hours": 2.0, "silent_share": 0.0, "speed": 400}
    values = job(400, {"checkpoint": {"path": place, "every_s": 60}}, **slow)
    ran = MarketRig(values, tmp_path).run()
    assert ran.settlement.closing.code == EXIT_BUDGET
    assert "budget" in ran.settlement.closing.reason
    assert ran.settlement.bill.micro_usd <= 2_200_000
    assert 0 < ran.clock < 400
    saved = [event.clock for event in ran.of(CheckpointSaved)]
    assert saved[-1] == ran.clock
    assert any("ends early" not in line for line in ran.summary["market"]["ending"])
    # It goes on from there on another market, and the bits are those of a job that was never stopped.
    values["market"] = {**MARKET, "seed": 8}
    (tmp_path / "again").mkdir()
    again = MarketRig(values, tmp_path / "again", resume=place)
    assert again.run().sha256 == reference(again.config)


class Booting(InstantNodes):
    """Machines that come up later than the money lasts."""

    def present(self, wanted: Mapping[str, Instance], now_s: int) -> dict[str, TieredNode]:
        return {}


def test_a_budget_that_is_gone_before_the_first_clock_leaves_nothing(tmp_path: Path) -> None:
    """The reliable machine's hour fits, but not the reserve."""

    def backend(rig: MarketRig) -> InstantBackend:
        found = InstantBackend(rig.config, rig.setup)
        found.nodes = Booting(0)
        return found

    values = job(400, {"checkpoint": {"path": str(tmp_path / "checkpoints")}}, budget_usd=0.21)
    rig = MarketRig(values, tmp_path, backend=backend)
    with pytest.raises(RunError, match="before its first clock"):
        rig.run()
    assert rig.fleet.settlement is not None
    assert rig.fleet.settlement.closing.code == EXIT_BUDGET
    assert rig.fleet.settlement.bill.micro_usd < 210_000


@pytest.mark.slow
def test_a_history_that_ends_before_the_job_ends_it_with_its_own_code(tmp_path: Path) -> None:
    # An hour and the spare ones pass in four seconds, the job would take minutes.
    rig = MarketRig(job(50_000, hours=1, job_hours=80.0, speed=3600 * (1 + SPARE_HOURS) / 4), tmp_path)
    rig.backend.seconds = seconds = StoppedClock()
    rig.on_clock = lambda clock: seconds.go() if clock else None
    ran = rig.run()
    assert ran.settlement.closing.code == EXIT_MARKET_CLOSED
    assert "before the job does" in ran.settlement.closing.reason
    assert 0 < ran.clock < 50_000


@pytest.mark.slow
def test_a_job_on_recorded_availability(tmp_path: Path) -> None:
    """Pools lose and regain nodes; the policy moves to where there is room."""
    files = []
    for name, seed in (("a", 1), ("b", 2)):
        trace = made_trace(name, 4, 48.0, 0.5, 0.2, seed)
        files.append(tmp_path / f"{name}.json")
        document = {"metadata": {"gap_seconds": trace.tick_s}, "data": trace.counts.tolist()}
        files[-1].write_text(json.dumps(document))
    market = {"kind": "availability", "availability": [str(file) for file in files], "start_hours": 1.0}
    kept = {key: MARKET[key] for key in ("speed", "silent_share", "paced", "seed")}
    values = job(more={"application": HELD})
    rig = MarketRig({**values, "market": {**kept, **market, "job_vcpus": 4, "job_hours": 0.75}}, tmp_path)
    rig.hold(50, taken)
    ran = rig.run()
    assert ran.sha256 == reference(rig.config)
    assert ran.settlement.closing.finished
    assert ran.settlement.bill.evictions >= 1
    assert ran.settlement.bill.differences == ()
    assert ran.settlement.bill.standard_scheme == "static_checkpoint"


def test_a_job_that_is_told_to_stop_ends_with_its_next_cut_and_gives_everything_back(tmp_path: Path) -> None:
    rig = MarketRig(job(4000), tmp_path)
    rig.on_clock = lambda clock: rig.head.tell(Stop(None)) if clock >= 20 else None
    ran = rig.run()
    assert 0 < ran.clock < 4000  # its cut may have been on its way when it was told
    closing = ran.settlement.closing
    assert (closing.code, closing.finished, closing.reason) == (0, False, "the run was told to stop")
    assert ran.settlement.bill.differences == ()


def test_a_second_service_for_the_same_job_is_refused(tmp_path: Path) -> None:
    first, second = MarketRig(job(), tmp_path / "a"), MarketRig(job(), tmp_path / "b")
    with first.fleet, second.fleet:
        first.fleet.attach(first.folder)
        with pytest.raises(RunError, match="another service runs this job"):
            second.fleet.attach(first.folder)


def test_a_run_that_begins_again_goes_on_with_what_was_measured(tmp_path: Path) -> None:
    rig = MarketRig(job(), tmp_path)
    rig.folder.events.write(EstimatesChanged(5, 0.8, 40.0, 9.0, {"c3.8xlarge": 20.0}))
    with Journal(rig.folder.path / "market") as journal:
        journal.append(Opened("job", "proteus", 0))
    with rig.fleet:
        rig.fleet.attach(rig.folder)
        assert rig.fleet.trainer.report(0).measured == Measurements(0.8, 40.0, 9.0, {"c3.8xlarge": 20.0})


def test_a_run_that_breaks_off_gives_its_machines_back(tmp_path: Path) -> None:
    rig = MarketRig(job(clocks=4000), tmp_path, interrupt_at=20)
    with pytest.raises(KeyboardInterrupt):
        rig.run()
    assert rig.fleet.settlement is not None
    assert rig.fleet.settlement.closing.reason == "the run ended: KeyboardInterrupt"
    assert rig.fleet.settlement.bill.differences == ()


@pytest.mark.slow
def test_every_policy_for_a_running_job_finishes_it(tmp_path: Path) -> None:
    for policy in ("renewal", "standard_agileml", "on_demand"):
        (tmp_path / policy).mkdir()
        more = {"machines": {"reliable": 1, "max": 48}, "slices": 64} if policy == "on_demand" else {}
        ran = MarketRig(
            job(40, more, policy=policy, **({"job_vcpus": 32} if more else {})), tmp_path / policy
        ).run()
        assert ran.settlement.closing.finished, policy
        assert ran.settlement.bill.differences == (), policy


@pytest.mark.slow
def test_a_head_that_dies_under_a_supervised_run_leaves_its_machines_held(tmp_path: Path) -> None:
    """The next process of the run goes on with them: nothing is given back, and the service has stopped."""
    rig = MarketRig(job(4000), tmp_path)
    rig.backend.may_leave = True
    RunFolder.write_text(rig.folder.path / SUPERVISION, Supervision(this_process(), 3).to_text())

    def dies(clock: int) -> None:
        if clock >= 20:
            raise HeadLostError("the head is gone")

    rig.on_clock = dies
    with pytest.raises(HeadLostError):
        rig.run()
    assert rig.backend.market.held()
    assert rig.fleet.settlement is None and not rig.fleet.left
    records = read_journal(rig.folder.path / "market" / JOURNAL)
    assert not any(isinstance(each, Draining | Closing | Closed) for each in records)
    assert not any(thread.name == "market" for thread in threading.enumerate())
