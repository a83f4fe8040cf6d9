"""Starts, intervals, bounds; equal seeds give equal bytes whatever the number of processes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bidbrain.accounts.rebill import rebill
from bidbrain.instants import Interval
from bidbrain.report.tables import write_tables
from bidbrain.setting import Reliable, Workload
from bidbrain.simulate.bounds import paid_hours
from bidbrain.simulate.experiment import Experiment, Result, Starts, as_json, compare, summarise
from bidbrain.simulate.simulator import Outcome
from bidbrain.simulate.statistics import bootstrap_mean
from bidbrain.simulate.workers import Pool
from tests.bidbrain.makers import EVALUATE, history_of, make_setting
from tests.thorough import examples

DAY = 86_400


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=examples(100))
def test_starts_lie_inside_the_pieces_less_the_margin(gaps: list[tuple[int, int]], spread: bool) -> None:
    pieces, at = [], 0
    for gap, length in gaps:
        pieces.append(Interval(at + gap, at + gap + length))
        at += gap + length
    margin = 5
    starts = Starts(200, 1, spread=spread)
    allowed = {t for p in pieces for t in range(p.start_s, p.end_s) if t < pieces[-1].end_s - margin}
    if not allowed:
        with pytest.raises(ValueError, match="no job can start"):
            starts.draw(pieces, margin)
        return
    drawn = starts.draw(pieces, margin)
    assert len(drawn) == 200
    assert set(drawn) <= allowed


def test_intervals_resample_days_not_jobs() -> None:
    rng = np.random.default_rng(0)
    days = rng.normal(size=40)
    values = np.repeat(days, 50) + rng.normal(scale=0.01, size=2000)
    starts = np.repeat(np.arange(40) * DAY, 50) + np.tile(np.arange(50), 40)
    found = bootstrap_mean(values, starts, 0)
    wide = 1.96 * days.std() / math.sqrt(40)
    assert (found.high - found.low) / 2 == pytest.approx(wide, rel=0.15)
    assert found.mean == pytest.approx(values.mean())
    assert bootstrap_mean(values, starts, 0) == found


def test_all_on_demand_costs_1_whatever_the_type_of_the_reliable_machines(turbulent) -> None:
    setting = replace(make_setting(turbulent), reliable=Reliable("p2.xlarge", 12, 900_000, 4))
    experiment = Experiment(setting, ("on_demand",), (2.0,), (EVALUATE,), Starts(3, 0))
    with Pool(1) as pool:
        (result,) = experiment.run(pool, lambda _: None)
    assert summarise(result, 0).cost == pytest.approx(1.0)
    outcome, ledger = experiment.ledger("on_demand", 2.0, EVALUATE.start_s, "job")
    assert outcome.micro_usd == ledger.micro_usd == result.baseline_micro_usd
    assert rebill(ledger, turbulent).differences == ()


def test_unfinished_jobs_are_counted_and_left_out_of_the_means() -> None:
    jobs = (
        Outcome(0, 3600, True, 500, 0, 0, 10, 0),
        Outcome(DAY, DAY + 7200, True, 700, 2, 5, 10, 0),
        Outcome(2 * DAY, 2 * DAY + 9, False, 1, 0, 0, 1, 0),
    )
    row = summarise(Result("proteus", 1.0, jobs, 1000.0), 0)
    assert (row.cost, row.runtime, row.unfinished, row.jobs) == (0.6, 1.5, 1, 3)
    assert row.free_fraction == 0.25
    nothing = summarise(Result("proteus", 1.0, jobs[2:], 1000.0), 0)
    assert math.isnan(nothing.cost)
    assert as_json([nothing])[0]["cost"] is None


def test_jobs_with_one_start_each_count_in_every_figure() -> None:
    """A short recording has fewer instants than jobs."""
    often = Outcome(300, 3900, True, 500, 0, 0, 10, 0)
    once = Outcome(DAY, DAY + 7200, True, 900, 4, 5, 10, 0)
    results = [Result(name, 1.0, (often, often, often, once), 1000.0) for name in ("elastic", "spot_2026")]
    row = summarise(results[0], 0)
    assert (row.cost, row.runtime, row.evictions_per_job, row.jobs) == (0.6, 1.25, 1.0, 4)
    assert compare(results, 0)[0].jobs == 4


def experiment(turbulent, schemes: tuple[str, ...], count: int = 30) -> Experiment:
    setting = make_setting(turbulent, Workload(hours=2.0))
    return Experiment(setting, schemes, (2.0, 3.0), (EVALUATE,), Starts(count, 5))


def test_equal_seeds_give_equal_bytes_with_any_number_of_processes(turbulent, tmp_path: Path) -> None:
    schemes = ("on_demand", "proteus", "renewal", "bidbrain.policy.standard:Standard", "paid_hours_bound")
    tables = []
    for processes in (1, 2):
        seen: list[int] = []
        with Pool(processes) as pool:
            results = experiment(turbulent, schemes, 3).run(pool, seen.append)
        assert sum(seen) == 2 * 5 * 3
        folder = tmp_path / str(processes)
        folder.mkdir()
        write_tables(folder, [summarise(r, 5) for r in results], compare(results, 5))
        tables.append([(folder / name).read_bytes() for name in ("table.json", "pairs.json", "table.csv")])
    assert tables[0] == tables[1]
    rows = json.loads(tables[0][0])
    assert [row["scheme"] for row in rows if row["job_hours"] == 2.0][-2:] == [
        "paid_hours_bound",
        "paid_hours_schedule",
    ]
    on_demand = rows[0]
    assert (on_demand["cost"], on_demand["runtime"], on_demand["free_fraction"]) == (1.0, 1.0, 0.0)


def test_pairs_are_differences_on_the_same_starts(turbulent) -> None:
    with Pool(1) as pool:
        results = experiment(turbulent, ("standard_checkpoint", "proteus")).run(pool, lambda _: None)
    pair = compare(results, 0)[0]
    rows = {(r.scheme, r.job_hours): summarise(r, 0) for r in results}
    assert (pair.scheme, pair.other, pair.jobs) == ("proteus", "standard_checkpoint", 30)
    difference = rows["proteus", 2.0].cost - rows["standard_checkpoint", 2.0].cost
    assert pair.cost == pytest.approx(difference)
    assert pair.cost_low <= pair.cost <= pair.cost_high


def test_jobs_that_cost_nothing_have_no_difference_in_percent() -> None:
    """Each line of a bill is rounded to a millionth of a dollar."""
    free = (Outcome(0, 360, True, 0, 0, 0, 10, 0),)
    results = [Result(name, 0.1, free, 1000.0) for name in ("elastic", "spot_2026")]
    assert as_json(compare(results, 0))[0]["cost_percent"] is None


def test_the_bound_of_a_constant_market_is_what_one_computes_by_hand() -> None:
    """One price: the work at that price, one boot per vCPU, and the reliable machines while it lasts."""
    price = 50_000
    history = history_of({"c4.xlarge@us-east-1a": [(EVALUATE.start_s - 10, price)]}, EVALUATE.end_s)
    setting = make_setting(history, Workload(hours=4.0))
    bound, schedule = paid_hours(setting, EVALUATE.start_s)
    length = 4 * 3600 * 2 / 3 + 120
    by_hand = price / 4 * 768 * length / 3600 + setting.reliable.hourly * length / 3600
    assert bound.micro_usd <= by_hand * 1.0001
    assert bound.micro_usd >= 0.98 * by_hand
    assert by_hand * 0.999 <= schedule.micro_usd <= 1.03 * by_hand


def test_the_bound_is_below_the_schedule_and_below_what_policies_pay(turbulent) -> None:
    setting = make_setting(turbulent, Workload(hours=4.0))
    for number in range(4):
        start_s = EVALUATE.start_s + 100_003 * number
        bound, schedule = paid_hours(setting, start_s)
        assert 0 < bound.micro_usd <= schedule.micro_usd
        assert schedule.end_s - start_s <= 4 * 3600
    beyond = paid_hours(setting, turbulent.end_s - 3600)
    assert not beyond[0].finished


def test_the_bound_of_a_job_of_less_than_a_second(turbulent) -> None:
    bound, schedule = paid_hours(make_setting(turbulent, Workload(hours=0.0001)), EVALUATE.start_s)
    assert bound.end_s - bound.start_s <= 1
    assert schedule.end_s - schedule.start_s <= 1


def test_a_bigger_job_is_another_setting(turbulent) -> None:
    setting = make_setting(turbulent)
    table = setting.evictions
    assert setting.with_job(replace(setting.job, hours=9.0)).evictions is table
