"""A service that is killed anywhere goes on from its journal: no orphan, no double purchase, the same ledger."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from bidbrain.accounts.ledger import Ledger, lines_of
from bidbrain.history.prices import History
from bidbrain.live.cloud import Order, UnknownOutcomeError
from bidbrain.live.journal import Journal, JournalError, read_journal
from bidbrain.policy.registry import Scheme, find_scheme
from bidbrain.setting import Setting, Workload
from tests.bidbrain.live.kills import Fuse, FusedCloud, FusedJournal, Killed, pick
from tests.bidbrain.live.makers import LiveRig, play
from tests.bidbrain.makers import EVALUATE, make_setting


def live(
    folder: Path, ground: LiveRig, scheme: Scheme, kills: list[int]
) -> tuple[Ledger, list[str], list[str]]:
    """A job whose service is killed at the given moments after each start; (ledger, where, moments of the last)."""
    where: list[str] = []
    for at in [*kills, None]:
        fuse = Fuse(at)
        try:
            with Journal(folder) as journal:
                cloud = FusedCloud(ground.replay, fuse)
                _, ledger = play(ground, scheme, FusedJournal(journal, fuse), cloud=cloud)
                return ledger, where, fuse.passed
        except Killed:
            where.append(fuse.where)
    raise AssertionError("the last service has no fuse")


def check(ground: LiveRig) -> None:
    """Nothing runs, nothing was bought twice."""
    assert not ground.launcher.running, "orphans"
    assert not ground.replay.held(), "orphans"
    assert max(Counter(ground.replay.purchases).values()) == 1, "doubles"


@pytest.fixture(scope="module")
def setting(turbulent: History) -> Setting:
    return make_setting(turbulent, Workload(hours=2.0))


START_S = EVALUATE.start_s + 140_002


def campaign(setting: Setting, folder: Path, kills: int, name: str = "proteus") -> Counter[str]:
    scheme = find_scheme(name)
    own = scheme.setting(setting)
    quiet = LiveRig(own, START_S)
    expected, _, moments = live(folder / "quiet", quiet, scheme, [])
    rng = random.Random(1)
    seen: Counter[str] = Counter()
    number = 0
    while sum(seen.values()) < kills:
        ground = LiveRig(own, START_S)
        planned = [pick(rng, moments) for _ in range(min(3, kills - sum(seen.values())))]
        ledger, where, _ = live(folder / str(number), ground, scheme, planned)
        check(ground)
        assert list(lines_of(ledger)) == list(lines_of(expected)), where
        assert len(set(ground.replay.purchases)) == len(set(quiet.replay.purchases))
        seen.update(where)
        number += 1
    return seen


def test_ten_kills(setting: Setting, tmp_path: Path) -> None:
    seen = campaign(setting, tmp_path, 10)
    print(f"{sum(seen.values())} kills: {dict(seen)}")


@pytest.mark.slow
def test_a_hundred_kills(setting: Setting, tmp_path: Path) -> None:
    seen = campaign(setting, tmp_path, 100)
    print(f"{sum(seen.values())} kills: {dict(seen)}")
    assert len(seen) > 15


@pytest.mark.slow
def test_a_kill_at_every_moment(turbulent: History, tmp_path: Path) -> None:
    own = make_setting(turbulent, Workload(hours=0.4))
    scheme = find_scheme("proteus")
    expected, _, moments = live(tmp_path / "quiet", LiveRig(own, START_S), scheme, [])
    for moment in range(1, len(moments) + 1):
        ground = LiveRig(own, START_S)
        ledger, where, _ = live(tmp_path / str(moment), ground, scheme, [moment])
        check(ground)
        assert list(lines_of(ledger)) == list(lines_of(expected)), where
    print(f"{len(moments)} moments")


def test_a_service_that_was_away_gives_back_what_it_must(setting: Setting, tmp_path: Path) -> None:
    """Killed right after a purchase and away for half an hour: the purchase is found, nothing is bought twice."""
    scheme = find_scheme("proteus")
    ground = LiveRig(setting, START_S)
    fuse = Fuse(None)

    class Dies(FusedCloud):
        def acquire(self, order: Order):
            answer = ground.replay.acquire(order)
            if not order.on_demand:
                raise Killed
            return answer

    with Journal(tmp_path) as journal, pytest.raises(Killed):
        play(ground, scheme, journal, cloud=Dies(ground.replay, fuse))
    assert len(ground.launcher.running) > 3
    ground.at_s += 1800
    with Journal(tmp_path) as journal:
        closing, ledger = play(ground, scheme, journal)
    assert closing.finished
    check(ground)
    grant = next(e for e in ledger.entries if e.kind.value == "grant" and e.allocation == 0)
    assert grant.at_s == START_S


def test_machines_that_nobody_knows_are_given_back(setting: Setting, tmp_path: Path) -> None:
    ground = LiveRig(setting, START_S)
    market = setting.listings[0].market
    ground.replay.acquire(Order("job-old-1", market, 8, 4, setting.listings[0].on_demand * 20))
    scheme = find_scheme("proteus")
    with Journal(tmp_path) as journal:
        play(ground, scheme, journal)
    check(ground)
    kinds = [record.kind for record in read_journal(tmp_path / "journal.jsonl")]
    assert kinds.count("stray") == 2


def test_throttled_calls_are_repeated_with_their_token(setting: Setting, tmp_path: Path) -> None:
    scheme = find_scheme("proteus")
    ground = LiveRig(setting, START_S)
    rng = random.Random(3)
    throttled: Counter[str] = Counter()

    class Throttles(FusedCloud):
        def acquire(self, order: Order):
            first = rng.random()
            if first < 0.3:
                throttled["before"] += 1
                raise UnknownOutcomeError("throttled")
            answer = ground.replay.acquire(order)
            if first < 0.6:  # it was bought, but the answer was lost
                throttled["after"] += 1
                raise UnknownOutcomeError("timed out")
            return answer

    with Journal(tmp_path) as journal:
        closing, _ = play(ground, scheme, journal, cloud=Throttles(ground.replay, Fuse(None)))
    assert closing.finished
    assert throttled["before"] and throttled["after"]
    check(ground)


def test_a_second_service_is_refused_and_a_dead_one_leaves_no_lock(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        Journal(tmp_path)
        os._exit(9)  # dies with the lock
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with Journal(tmp_path), pytest.raises(JournalError, match="another service runs this job"):
        Journal(tmp_path)


def test_a_broken_line_inside_a_journal_is_named(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(
        b'{"kind":"opened","job":"j","scheme":"s","start_s":1}\n{"kind":"x"}\n'
    )
    with pytest.raises(JournalError, match=r"line 2: not a journal line"):
        Journal(tmp_path)
