"""Risk that outlives jobs: two writers lose nothing, a broken object is left out, trouble never stops a job."""

import threading
from pathlib import Path

import pytest

from bidbrain.history.prices import Market
from bidbrain.live.keeping import BANDS, FolderObjects, RiskKeeper, read_kept
from bidbrain.live.service import Service
from bidbrain.policy.registry import find_scheme
from bidbrain.risk.bands import band_rate
from bidbrain.risk.tally import Cell, Tally
from tests.bidbrain.live.makers import LiveRig, Memory, plan_of
from tests.bidbrain.makers import made_trace
from tests.bidbrain.policy.test_today import setting_of

POOL = Market("c5.xlarge", "us-east-1a")


def tally(hours: float, lost: float = 0.0) -> Tally:
    found = Tally()
    found.at(POOL, 0).add(Cell(hours, lost, lost))
    return found


def total(folder: Path, but: str | None = None) -> float:
    kept = read_kept(FolderObjects(folder), but)
    return sum(cell.node_h for cell in kept.tally.cells.values())


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(job: int) -> None:
        keeper = RiskKeeper(FolderObjects(tmp_path), f"job-{job}")
        for round_ in range(1, 11):
            keeper.write(round_, tally(10.0 * round_))

    threads = [threading.Thread(target=write, args=(job,)) for job in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total(tmp_path) == 600.0  # the last of each, once
    assert total(tmp_path, but="job-3") == 500.0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_job_that_writes_again_counts_once(tmp_path: Path) -> None:
    for hours in (1.0, 2.0, 2.0):
        RiskKeeper(FolderObjects(tmp_path), "stack/job").write(0, tally(hours))
    assert total(tmp_path) == 2.0


def test_bands_of_the_place_go_first_and_a_broken_object_is_named_and_left_out(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    objects.put(BANDS, b"region,instance_type,band\nus-east-1,c5.xlarge,4\n")
    RiskKeeper(objects, "good").write(0, tally(5.0))
    (tmp_path / "broken.jsonl").write_text("not json\n")
    said: list[str] = []
    keeper = RiskKeeper(objects, "me", said.append)
    known = keeper.known(3600)
    assert known is not None
    assert known.bands is not None
    assert known.bands.rate(POOL) == band_rate(4)
    assert known.sums[POOL].node_h == pytest.approx(5.0, rel=0.01)
    keeper.known(7200)
    assert len(said) == 1
    assert said[0].startswith("risk: broken.jsonl line 1: not a line of a risk file")


def test_a_place_that_fails_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    keeper = RiskKeeper(FolderObjects(tmp_path / "file" / "folder"), "me", said.append)
    keeper.write(0, tally(1.0))
    keeper.write(600, tally(2.0))
    assert len(said) == 1
    assert said[0].startswith("this job's risk could not be kept: ")


def test_two_jobs_of_one_stack_share_what_they_learn(tmp_path: Path) -> None:
    setting = setting_of([made_trace(zone, 16, 80.0, 2.0, 1.0, seed=7) for zone in ("a", "b")])
    scheme = find_scheme("elastic")
    for number, start_s in enumerate((0, 3 * 3600), 1):
        ground = LiveRig(setting, start_s)
        keeper = RiskKeeper(FolderObjects(tmp_path), f"job-{number}", pytest.fail)
        plan = plan_of(setting, scheme, start_s)
        service = Service(plan, ground.replay, ground.engine, ground, Memory(), keeper)
        ground.state = service.state
        service.run()
        kept = read_kept(FolderObjects(tmp_path))
        assert kept.writers == number
        held_s = sum(o.spot_vcpu_s for o in [service.state.account])
        own = read_kept(FolderObjects(tmp_path), None if number == 1 else "job-1")
        hours = sum(cell.node_h for cell in own.tally.cells.values())
        assert hours * 3600 == pytest.approx(held_s, abs=1.0)
        lost = sum(cell.lost for cell in own.tally.cells.values())
        assert lost == service.state.account.evictions
