"""A played market whose process dies goes on from its book: the same instances, the same evictions, the same ledger."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from bidbrain.accounts.ledger import Ledger, lines_of
from bidbrain.billing import Ending
from bidbrain.history.prices import History
from bidbrain.live.cloud import Order
from bidbrain.live.journal import Journal
from bidbrain.live.replay import InstantLauncher, Replay
from bidbrain.live.replay_book import BOOK, Began, Over, ReplayBook, ReplayBookError, Sold
from bidbrain.policy.registry import Scheme, find_scheme
from bidbrain.setting import Setting, Workload
from tests.bidbrain.live.kills import Fuse, FusedCloud, FusedJournal, Killed, pick
from tests.bidbrain.live.makers import LiveRig, play
from tests.bidbrain.makers import EVALUATE, make_setting

START_S = EVALUATE.start_s + 140_002


class FusedBook(ReplayBook):
    """A book whose writer may die before or after a line."""

    fuse = Fuse(None)

    def append(self, entry: Began | Sold | Over) -> None:
        self.fuse.moment(f"before booking {entry.kind}")
        super().append(entry)
        self.fuse.moment(f"after booking {entry.kind}")


def live(
    folder: Path, ground: LiveRig, scheme: Scheme, kills: list[int]
) -> tuple[Ledger, list[str], list[str]]:
    """A job whose service and market both die at the given moments; (ledger, where, moments of the last process)."""
    where: list[str] = []
    for at in [*kills, None]:
        fuse = Fuse(at)
        ground.launcher = InstantLauncher()  # the instances die with the process, as local Ray nodes do
        try:
            with Journal(folder) as journal, FusedBook(folder) as book:
                book.fuse = fuse
                ground.replay = Replay(ground.setting, ground.now_s, ground.launcher, book=book)
                cloud = FusedCloud(ground.replay, fuse)
                _, ledger = play(ground, scheme, FusedJournal(journal, fuse), cloud=cloud)
                return ledger, where, fuse.passed
        except Killed:
            where.append(fuse.where)
    raise AssertionError("the last process has no fuse")


def campaign(setting: Setting, folder: Path, kills: int) -> Counter[str]:
    scheme = find_scheme("proteus")
    own = scheme.setting(setting)
    quiet = LiveRig(own, START_S)
    expected, _, moments = live(folder / "quiet", quiet, scheme, [])
    rng = random.Random(4)
    seen: Counter[str] = Counter()
    while sum(seen.values()) < kills:
        ground = LiveRig(own, START_S)
        planned = [pick(rng, moments) for _ in range(3)]
        ledger, where, _ = live(folder / str(sum(seen.values())), ground, scheme, planned)
        assert not ground.launcher.running, "orphans"
        assert not ground.replay.held(), "orphans"
        assert max(Counter(ground.replay.purchases).values()) == 1, "doubles"
        assert list(lines_of(ledger)) == list(lines_of(expected)), where
        seen.update(where)
    return seen


@pytest.fixture(scope="module")
def setting(turbulent: History) -> Setting:
    return make_setting(turbulent, Workload(hours=0.6))


def test_six_kills_of_service_and_market(setting: Setting, tmp_path: Path) -> None:
    print(dict(campaign(setting, tmp_path, 6)))


@pytest.mark.slow
def test_a_hundred_kills_of_service_and_market(turbulent: History, tmp_path: Path) -> None:
    seen = campaign(make_setting(turbulent, Workload(hours=2.0)), tmp_path, 100)
    print(f"{sum(seen.values())} kills: {dict(seen)}")
    assert {"before booking sold", "after booking sold", "before booking over", "after booking over"} <= set(
        seen
    )


def order_of(setting: Setting, number: int = 0) -> Order:
    listing = setting.listings[0]
    return Order(f"job-{number}", listing.market, 2 * listing.vcpus, listing.vcpus, listing.on_demand * 20)


def test_what_is_held_is_started_again_and_what_ended_is_not(setting: Setting, tmp_path: Path) -> None:
    with ReplayBook(tmp_path) as book:
        before = Replay(setting, lambda: START_S, InstantLauncher(), book=book)
        first, second = before.acquire(order_of(setting))
        before.release((first.instance_id,))
    launcher = InstantLauncher()
    with ReplayBook(tmp_path) as book:
        after = Replay(setting, lambda: START_S + 5, launcher, book=book)
        assert launcher.running == {second.instance_id}
        assert after.held() == (second,)
        assert after.acquire(order_of(setting)) == (first, second), "not bought twice"
        assert [each.instance_id for each in after.ended((first.instance_id, second.instance_id))] == [
            first.instance_id
        ]
        assert len(after.acquire(order_of(setting, 1))) == 2


def test_time_goes_on_while_nobody_plays(tmp_path: Path) -> None:
    with ReplayBook(tmp_path) as book:
        assert book.time_s(1000, 120.0, 50.0) == 1000
    with ReplayBook(tmp_path) as book:
        assert book.time_s(1000, 120.0, 60.5) == 1000 + 1260
        book.append(Over(4000, ("a",), Ending.EVICTED))
    with ReplayBook(tmp_path) as book:
        assert book.time_s(1000, 120.0, 40.0) == 4000, "a clock that was set back"


def test_a_half_line_goes_a_wrong_one_is_named_and_two_do_not_share(tmp_path: Path) -> None:
    with ReplayBook(tmp_path) as book:
        book.time_s(1000, 1.0, 50.0)
        with pytest.raises(ReplayBookError, match="another process plays this market"):
            ReplayBook(tmp_path)
    file = tmp_path / BOOK
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"kind":"so')
    with ReplayBook(tmp_path) as book:
        assert len(book.records) == 1
    assert file.read_bytes() == whole
    file.write_bytes(whole + b'{"kind":"x"}\n')
    with pytest.raises(ReplayBookError, match=r"line 2: not a line of a book"):
        ReplayBook(tmp_path)
