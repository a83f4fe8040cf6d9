"""The end of a job whose market gives no credentials just then: it is asked for as long as for any other answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from agileml.market import service as market_service
from agileml.market.service import NotGivenBackError, OpenMarket
from agileml.market.setup import MarketSetup, Pacing
from agileml.runs.folder import MARKET, RunFolder
from bidbrain.live.cloud import Cloud, CredentialsError, UnknownOutcomeError
from bidbrain.live.job import Timekeeper
from bidbrain.live.journal import Journal
from bidbrain.live.unix_clock import UnixClock
from tests.bidbrain.live.lone_cloud import LoneCloud, LoneJob

EXPIRED = CredentialsError("ending machines: AWS answers ExpiredToken")


class Forgetful(LoneCloud):
    """Has no credentials to end machines for so many calls. bought: once the reliable machine is there."""

    def __init__(self, clock: UnixClock, refusals: int) -> None:
        super().__init__(clock.now_s)
        self.refusals, self.is_bought = refusals, threading.Event()

    def release(self, instance_ids: tuple[str, ...]) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise EXPIRED
        super().release(instance_ids)

    def held(self) -> tuple[Any, ...]:
        if self.running:
            self.is_bought.set()
        return super().held()

    def quotes(self, now_s: int) -> Any:
        if self.running:
            self.is_bought.set()
        return super().quotes(now_s)


class LoneBackend:
    """No cluster, and this cloud."""

    warm, leave_s, nodes = 0, 0.0, None

    def __init__(self, cloud: LoneCloud, clock: UnixClock) -> None:
        self._cloud, self._clock = cloud, clock

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def runtime_env(self, variables: Mapping[str, str]) -> dict[str, Any]:
        return {}

    def check(self) -> None:
        pass

    def risk_keeper(self) -> None:
        return None

    def open(self, stopping: threading.Event, folder: Path) -> tuple[Cloud, Timekeeper]:
        self._clock.sleep = stopping.wait
        return self._cloud, self._clock


@pytest.fixture
def open_market(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an open market with its cloud, which holds a machine. refusals: see `Forgetful`."""
    monkeypatch.setattr(market_service, "AGAIN_S", 0.001)
    folder = RunFolder.create(tmp_path / "run", "job")
    with Journal(folder.path / MARKET) as journal:

        def opened(refusals: int) -> tuple[OpenMarket, Forgetful]:
            job, clock = LoneJob(), UnixClock(wait_s=0.01)
            job.engine.is_drained = True
            cloud = Forgetful(clock, refusals)
            setup = MarketSetup(job.plan, job.setting, clock.now_s(), 1.0, Pacing())
            market = OpenMarket(setup, LoneBackend(cloud, clock), job.engine, journal, folder)  # type: ignore[arg-type]
            market.start()
            assert cloud.is_bought.wait(60)
            return market, cloud

        yield opened


def test_credentials_that_come_back_while_a_job_ends_let_it_give_its_machines_back(open_market: Any) -> None:
    market, cloud = open_market(market_service.MOST_FAILURES + 10)
    closing = market.close("told to stop")
    assert closing.reason == "told to stop"
    assert not cloud.running


def test_a_job_that_ends_without_credentials_names_them_and_its_machines(
    open_market: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    market, cloud = open_market(1 << 40)
    monkeypatch.setattr(market_service, "CLOSE_S", 1.0)
    with pytest.raises(NotGivenBackError) as left:
        market.close("told to stop")
    (machine,) = cloud.running
    assert str(left.value) == (
        f"machines may not have been given back (it took more than 1 s: {EXPIRED}); look after: {machine}"
    )
    cloud.refusals = 0
    market.suspend()


def test_machines_that_the_cloud_took_back_are_not_to_be_looked_after(
    open_market: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of when they ended, so there is no bill: they were named as if they cost money."""
    market, cloud = open_market(0)
    monkeypatch.setattr(market_service, "CLOSE_S", 1.0)
    cloud.fails["ended"] = UnknownOutcomeError("listing machines: AWS answers RequestLimitExceeded")
    with pytest.raises(NotGivenBackError) as left:
        market.close("told to stop")
    assert not cloud.running
    assert str(left.value) == (
        "market: all known machines are given back, but there is no bill of them (it took more than 1 s)"
    )
    market.suspend()
