"""Warnings reach the policy of a live job: it buys ahead, and the hint is evidence about the pool."""

from dataclasses import dataclass, field

import pytest

from bidbrain.accounts.ledger import EntryKind
from bidbrain.live.cloud import Alert, InstanceNotice, UnknownOutcomeError, notice_of
from bidbrain.live.decide import Measurements, view_of
from bidbrain.live.guards import Guards
from bidbrain.live.journal import Decided, Ordered
from bidbrain.live.replay import Replay
from bidbrain.live.service import Service
from bidbrain.policy.base import Decision, MarketView, Request
from bidbrain.policy.registry import find_scheme
from tests.bidbrain.live.lone_cloud import ON_DEMAND, SMALL, Engine0, LoneJob
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of
from tests.bidbrain.makers import pool
from tests.bidbrain.policy.test_today import setting_of


@dataclass
class Hinting:
    """A replayed market with hints of our own."""

    replay: Replay
    hints: list[InstanceNotice] = field(default_factory=list)

    def __getattr__(self, name: str):
        return getattr(self.replay, name)

    def notices(self) -> tuple[InstanceNotice, ...]:
        return (*self.replay.notices(), *self.hints)


def started(name: str):
    scheme = find_scheme(name)
    setting = scheme.setting(setting_of([pool("a", [24] * 200)], cap=1.0, phi=0.5))
    ground, log = LiveRig(setting, 3600), Memory()
    cloud = Hinting(ground.replay)
    service = Service(plan_of(setting, scheme, 3600), cloud, ground.engine, ground, log)
    ground.state = service.state
    service.state.apply(_opened(service, log))
    service.step()
    return service, ground, cloud, log


def _opened(service: Service, log: Memory):
    from bidbrain.live.journal import Opened

    record = Opened("job", "test", 3600)
    log.append(record)
    return record


def test_a_rebalance_hint_buys_ahead_and_is_evidence() -> None:
    service, ground, cloud, log = started("expected_cost")
    state = service.state
    assert len(list(state.open_instances())) == 16
    ground.at_s += 400
    service.step()
    before = state.risk.hazard(next(iter(state.account.open)).market, ground.at_s).per_node_h
    victim = next(iter(state.open_instances()))
    cloud.hints.append(InstanceNotice("hint", victim.instance_id, Alert.REBALANCE, ground.at_s + 120))
    ground.at_s += 5
    orders = sum(isinstance(record, Ordered) for record in log.records)
    service.step()
    assert len(list(state.open_instances())) == 17
    assert sum(isinstance(record, Ordered) for record in log.records) == orders + 1
    decided = [record for record in log.records if isinstance(record, Decided)][-1]
    assert "1 leave" in decided.reason
    assert state.risk.hazard(victim.market, ground.at_s).per_node_h > before
    assert [e.kind for e in state.account.entries].count(EntryKind.NOTICE) == 1
    service.step()  # the same hint again is no news
    assert len(list(state.open_instances())) == 17
    # A service that is continued from the journal knows the warning, and the odds.
    again = type(state)(service._job.plan.setting, log.records)
    assert again.warned == state.warned
    ground.at_s += 600  # the other has booted
    service.step()
    assert victim.instance_id not in {each.instance_id for each in state.open_instances()}
    assert len(list(state.open_instances())) == 16


def test_a_policy_that_does_not_ask_for_warnings_is_not_woken() -> None:
    service, ground, cloud, log = started("elastic")
    decisions = sum(isinstance(record, Decided) for record in log.records)
    victim = next(iter(service.state.open_instances()))
    cloud.hints.append(InstanceNotice("hint", victim.instance_id, Alert.REBALANCE, ground.at_s + 120))
    ground.at_s += 5
    service.step()
    assert sum(isinstance(record, Decided) for record in log.records) == decisions


@pytest.mark.parametrize(
    ("measured", "same"),
    [
        (Measurements(), True),
        (Measurements(phi=0.3), False),
        (Measurements(lambda_s=900.0), False),
        (Measurements(sigma_s=77.0), False),
        (Measurements(nu={"node": 0.5}), False),
        (Measurements(traffic_gb_per_h=9.0), False),
    ],
)
def test_what_the_running_job_measured_is_what_the_policy_sees(measured: Measurements, same: bool) -> None:
    service, ground, _, _ = started("expected_cost")
    quotes = ground.replay.quotes(ground.at_s)
    setting = service._job.plan.setting
    plain = view_of(setting, service.state, quotes, Measurements(), Guards(), 0.0)
    view = view_of(setting, service.state, quotes, measured, Guards(), 0.0)
    assert ((view.job, view.offers) == (plain.job, plain.offers)) is same


@pytest.mark.parametrize("alert", [Alert.REBALANCE, Alert.TERMINATE])
def test_a_warning_that_comes_before_the_answer_of_its_order_is_kept_for_it(alert: Alert) -> None:
    """The cloud says it once. The machine was bought, and the answer lost."""

    def one(now_s: int, view: MarketView) -> Decision:
        wanted = () if view.holdings else (Request(SMALL, 1, ON_DEMAND),)
        return Decision(wanted, "one", now_s + 300, wake_on_notice=True)

    job = LoneJob(one)
    job.cloud.is_answer_lost = True
    job.cloud.fails[SMALL.zone] = UnknownOutcomeError("no answer")
    job.after(0)
    (victim,) = (each for each in job.cloud.running.values() if each.market == SMALL)
    job.cloud.open_notices = (
        notice_of(alert, "i-of-another-job", job.at_s + 120),
        notice_of(alert, victim.instance_id, job.at_s + 120),
    )
    job.after(10)
    job.cloud.open_notices = ()
    job.cloud.fails.clear()
    decided = len(job.of(Decided))
    job.after(10)
    job.after(10)
    assert job.service.state.warned == {0}
    assert len(job.of(Decided)) == decided + 1, "it is asked at once"
    hints = [each for each in job.service.state.account.entries if each.kind is EntryKind.NOTICE]
    assert len(hints) == (alert is Alert.REBALANCE)
    assert type(job.service.state)(job.setting, job.log.records).warned == {0}


def test_a_new_process_tells_its_trainer_the_warnings_that_the_queue_gave_to_the_one_before() -> None:
    def two(now_s: int, view: MarketView) -> Decision:
        return Decision((Request(SMALL, 1, ON_DEMAND, 2),) if not view.holdings else (), "two", now_s + 300)

    job = LoneJob(two)
    job.after(0)
    over, open_ = (name for name, own in job.cloud.running.items() if own.market == SMALL)
    job.cloud.open_notices = (
        notice_of(Alert.TERMINATE, over, job.at_s + 10),
        notice_of(Alert.TERMINATE, open_, job.at_s + 120),
        notice_of(Alert.TERMINATE, "i-stranger", job.at_s + 120),
    )
    job.after(5)
    job.cloud.open_notices = ()  # the queue gives each once
    job.at_s += 20
    job.engine = Engine0()
    job.engine.finished_s = job.at_s
    job.restarted().run()
    assert job.engine.warned == [open_], "the machine whose time is over is still there: it was a false alarm"
