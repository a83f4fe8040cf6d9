"""A market that does not answer, and a clock that is set back: said once, in one sentence, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from bidbrain.accounts.ledger import EntryKind, Ledger
from bidbrain.history.prices import History
from bidbrain.live.cloud import CredentialsError, UnknownOutcomeError
from bidbrain.live.explain import explain
from bidbrain.live.journal import Closing, Troubled
from bidbrain.live.service import Service
from bidbrain.live.troubles import SILENT_S, TroubleWatch
from bidbrain.live.unix_clock import UnixClock
from bidbrain.policy.registry import find_scheme
from bidbrain.setting import Setting, Workload
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of, play
from tests.bidbrain.makers import EVALUATE, make_setting

START_S = EVALUATE.start_s + 140_002
SCHEME = find_scheme("proteus")


@pytest.fixture(scope="module")
def setting(turbulent: History) -> Setting:
    return make_setting(turbulent, Workload(hours=6.0))


class Dark:
    """A market of which no call is answered between two instants."""

    def __init__(self, rig: LiveRig, from_s: int, to_s: int) -> None:
        self._rig, self._from_s, self._to_s = rig, from_s, to_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rig.replay, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            if self._from_s <= self._rig.at_s < self._to_s:
                self._rig.replay.held()  # the market goes on, and takes what it takes
                raise UnknownOutcomeError("spot prices: could not connect to ec2.us-east-1.amazonaws.com")
            return found(*arguments)

        return call


def test_a_region_that_does_not_answer_is_said_once_and_what_is_held_is_kept(setting: Setting) -> None:
    rig, log = LiveRig(setting, START_S), Memory()
    from_s, to_s = START_S + 5000, START_S + 9000
    closing, ledger = play(rig, SCHEME, log, cloud=Dark(rig, from_s, to_s))  # type: ignore[arg-type]
    assert closing.finished
    (begun, over) = [record for record in log.records if isinstance(record, Troubled)]
    (sentence,) = begun.sentences
    assert sentence.startswith("no answer since ") and "could not connect" in sentence
    assert "nothing is bought, what is held is kept" in sentence
    assert from_s + SILENT_S <= begun.at_s < to_s <= over.at_s and over.sentences == ()
    silent = [entry for entry in ledger.entries if begun.at_s < entry.at_s < over.at_s]
    kinds = {entry.kind for entry in silent}
    assert EntryKind.EVICTION in kinds and not kinds & {
        EntryKind.REQUEST,
        EntryKind.GRANT,
        EntryKind.TERMINATION,
    }
    assert len(rig.replay.purchases) == len(set(rig.replay.purchases))
    assert rig.replay.held() == ()
    lines = [str(line) for line in explain(log.records)]
    assert sum(sentence in line for line in lines) == 1 and any("all is well again" in line for line in lines)


class Refusing:
    """A market whose calls are refused from an instant on: the service that asks ends."""

    def __init__(self, rig: LiveRig, from_s: int) -> None:
        self._rig, self._from_s = rig, from_s

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rig.replay, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            if self._rig.at_s >= self._from_s:
                raise CredentialsError("spot prices: ExpiredToken")
            return found(*arguments)

        return call


@pytest.mark.parametrize("away_s", [61, 3000, 4000, 8000, 15000])
@pytest.mark.parametrize("from_s", [START_S + 4000, START_S + 6100])
def test_a_service_that_was_away_over_several_ends_of_hours_goes_on(
    setting: Setting, from_s: int, away_s: int
) -> None:
    """The policy is asked as of now, and names no instant that is over."""
    rig, log = LiveRig(setting, START_S), Memory()
    with pytest.raises(CredentialsError):
        play(rig, SCHEME, log, cloud=Refusing(rig, from_s))  # type: ignore[arg-type]
    until_s = rig.at_s + away_s
    while rig.at_s < until_s and rig.engine.done_s is None:
        rig.wait(until_s, market=False)
        rig.replay.held()  # the market goes on, and takes what it takes
    closing, ledger = play(rig, SCHEME, log)
    assert closing.finished
    assert rig.replay.held() == ()
    assert [entry.at_s for entry in ledger.entries] == sorted(entry.at_s for entry in ledger.entries)
    assert len(rig.replay.purchases) == len(set(rig.replay.purchases))


def test_single_calls_without_an_answer_are_no_trouble() -> None:
    watch = TroubleWatch()
    for now_s in range(0, 600, 60):
        watch.begin()
        if now_s % 120 == 0:
            watch.unanswered(now_s, "throttled")
        assert watch.troubles(now_s, "") == ()


class SetBack(LiveRig):
    """A host whose wall clock is set back by an hour at an instant; its service asks a `UnixClock`."""

    def __init__(self, setting: Setting, at_s: int) -> None:
        super().__init__(setting, START_S)
        self._set_at_s = at_s
        self.clock = UnixClock(self._wall_s, lambda: float(self.at_s - START_S))

    def _wall_s(self) -> float:
        return float(self.at_s - 3600 * (self.at_s >= self._set_at_s))

    @property
    def trouble(self) -> str:  # type: ignore[override]
        return self.clock.trouble

    def now_s(self) -> int:
        return self.clock.now_s()


def played(rig: LiveRig) -> tuple[Closing, Ledger, Memory]:
    log = Memory()
    service = Service(plan_of(rig.setting, SCHEME, START_S), rig.replay, rig.engine, rig, log)
    rig.state = service.state
    return service.run(), service.state.ledger(), log


def test_a_clock_that_is_set_back_changes_no_decision_and_no_bill(setting: Setting) -> None:
    _, undisturbed, quiet = played(LiveRig(setting, START_S))
    closing, ledger, log = played(SetBack(setting, START_S + 2 * 3600 + 7))
    assert closing.finished
    assert ledger == undisturbed
    assert not [record for record in quiet.records if isinstance(record, Troubled)]
    (told,) = [record for record in log.records if isinstance(record, Troubled)]
    assert told.sentences == (
        "this host's clock was set back by 3600 s: the market goes on by the time that passes",
    )


def test_a_unix_clock_follows_the_host_forward_and_never_back() -> None:
    wall_s, steady_s = [1000.0], [5.0]
    clock = UnixClock(lambda: wall_s[0], lambda: steady_s[0])
    seen = [clock.now_s()]
    for wall, steady in ((1010.0, 15.0), (990.0, 16.0), (1990.0, 1016.0), (5000.0, 1017.0), (5001.0, 1018.0)):
        wall_s[0], steady_s[0] = wall, steady
        seen.append(clock.now_s())
    assert seen == [1000, 1010, 1011, 2011, 5000, 5001]
    assert clock.trouble == ""
    wall_s[0] -= 2.0  # a usual correction
    assert clock.trouble == "" and clock.now_s() == 5001
    wall_s[0] -= 100.0
    assert "set back by 102 s" in clock.trouble
    wall_s[0] += 0.5
    assert "set back by 102 s" in clock.trouble, "one sentence, however the host's clock is corrected"
