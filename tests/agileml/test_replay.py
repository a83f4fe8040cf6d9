"""A recorded run with another balance: what was recorded comes out again, and LB-BSP comes near the ideal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agileml.cli import main
from agileml.config.job import JobConfig, dump, from_values
from agileml.events.run import ClockDone, HelpGiven, Work, WorkDone
from agileml.events.schema import Logged, RunEvent, header, to_line
from agileml.events.terms import Cause, Trigger
from agileml.replay import ReplayError, replay, stretches, with_consistency
from tests.agileml.events.samples import changed

CONFIG = from_values({"application": "mlr", "clocks": 100})
MESSAGES_S = 0.01


def log(
    speeds: list[list[float]], clocks: int, units: int = 30, shares: list[list[int]] | None = None
) -> list[Logged[RunEvent]]:
    """A static run, `clocks` clocks in each phase of `speeds` (units per second by machine), each its own epoch.
    `shares`: in each phase, of the machines; None: equal ones."""
    found: list[Logged[RunEvent]] = []
    now_s, clock = 0.0, 0
    for epoch, machines in enumerate(speeds, 1):
        found.append(Logged(now_s, changed(epoch, Trigger(Cause.JOIN, ("m9",)), base=clock)))
        dealt = shares[epoch - 1] if shares else [units // len(machines)] * len(machines)
        took_s = [share / v for share, v in zip(dealt, machines, strict=True)]
        clock_s = max(took_s) + MESSAGES_S
        for _ in range(clocks):
            now_s, clock = now_s + clock_s, clock + 1
            found.append(Logged(now_s, ClockDone(clock, 0.5, 9, clock_s)))
            each = zip(dealt, took_s, strict=True)
            work = {
                f"m{i}": Work(share, spent_s, clock_s - spent_s) for i, (share, spent_s) in enumerate(each)
            }
            found.append(Logged(now_s, WorkDone(epoch, clock, 1, work)))
    return found


def test_a_static_run_comes_out_again_and_lbbsp_comes_near_the_ideal() -> None:
    recorded, static, lbbsp, ideal = replay(log([[10, 20, 30]], 60), CONFIG, ["static", "lbbsp"])
    assert [row.policy for row in (recorded, static, lbbsp, ideal)] == [
        "recorded",
        "static",
        "lbbsp",
        "ideal",
    ]
    assert recorded.clock_s == pytest.approx(10 / 10 + MESSAGES_S)
    assert static.clock_s == pytest.approx(recorded.clock_s, rel=0.02)
    assert static.waiting_share == pytest.approx(recorded.waiting_share, abs=0.02)
    assert ideal.clock_s == pytest.approx(30 / 60)
    assert ideal.clock_s < lbbsp.clock_s <= 1.1 * ideal.clock_s
    assert lbbsp.waiting_share is not None and lbbsp.waiting_share < 0.1


def test_machines_with_more_cores_keep_their_larger_shares() -> None:
    """Equal shares of unequal machines would take 1.5 s, which the run never did."""
    unequal = log([[10, 20]], 60, shares=[[10, 20]])
    for config in (CONFIG, CONFIG.changed(balance="static"), CONFIG.changed(balance="lbbsp")):
        recorded, static, lbbsp, _ = replay(unequal, config, ["static", "lbbsp"])
        assert static.clock_s == pytest.approx(recorded.clock_s, rel=0.02)
        assert lbbsp.clock_s == pytest.approx(recorded.clock_s, rel=0.02)
    asp = with_consistency(CONFIG, "asp")
    _, shares, _ = replay(unequal, asp, ["static"], recorded=CONFIG)
    assert shares.clock_s == pytest.approx(1.0, rel=0.02)


def test_what_helpers_computed_belongs_to_the_share_of_the_helped() -> None:
    found = log([[10, 20]], 60, shares=[[10, 20]])
    config = CONFIG.changed(balance="static", helping=True)
    for at in range(2, len(found), 2):
        event = found[at].event
        assert isinstance(event, WorkDone)
        work = {"m0": Work(6, 0.6, 0.4), "m1": Work(24, 1.2, 0.01)}
        found[at] = Logged(found[at].t_s, WorkDone(event.epoch, event.clock, event.clocks, work))
        given = HelpGiven(event.epoch, event.clock, event.clocks, {"m1": {"m0": 4}})
        found.append(Logged(found[at].t_s, given))
    _, static, _ = replay(found, config, ["static"])
    assert static.clock_s == pytest.approx(10 / 10 + 0.01, rel=0.02)


def test_shares_by_speed_of_a_later_view_are_not_those_of_its_cores() -> None:
    """The second view of a run with `lbbsp` begins with shares by speed: its static shares are the first one's."""
    found = log([[10, 20]] * 2, 12, shares=[[15, 15], [10, 20]])
    _, static, _ = replay(found, CONFIG.changed(balance="lbbsp"), ["static"])
    assert static.clock_s == pytest.approx(15 / 10 + MESSAGES_S, rel=0.02)


def test_machines_have_a_unit_each_however_slow_they_were_before_others_joined() -> None:
    """The share of the slow one, 2 of 16 beside one machine, is half a unit beside seven."""
    found = log([[70, 10], [70, 10, *[40] * 6]], 12, 16, shares=[[14, 2], [2] * 8])
    for balance in ("lbbsp", "auto"):
        _, static, lbbsp, auto, ideal = replay(
            found, CONFIG.changed(balance=balance), ["static", "lbbsp", "auto"]
        )
        assert ideal.seconds < lbbsp.seconds
        assert {static.clocks, lbbsp.clocks, auto.clocks} == {24}


def test_without_a_barrier_a_pool_lets_no_machine_wait_for_the_slowest() -> None:
    recorded = log([[10, 20, 30]], 60)
    asp, ssp = (with_consistency(CONFIG, text) for text in ("asp", "ssp:3"))
    _, shares, pool, ideal = replay(recorded, asp, ["static", "pool"])
    assert shares.clock_s == pytest.approx(10 / 10, rel=0.01), "the slowest machine has a third of everything"
    assert ideal.clock_s < pool.clock_s <= 1.02 * ideal.clock_s
    _, shares, pool, _ = replay(recorded, ssp, ["static", "pool"])
    assert shares.clock_s == pytest.approx(10 / 10, rel=0.02), "slack does not make the slowest faster"
    assert ideal.clock_s < pool.clock_s <= 1.1 * ideal.clock_s
    (_, auto, _) = replay(recorded, asp, ["auto"])
    assert auto.seconds == replay(recorded, asp, ["pool"])[1].seconds


def test_smaller_bundles_need_less_slack() -> None:
    recorded, config = log([[5, 20, 35]], 60), with_consistency(CONFIG.changed(slices=32), "ssp:1")
    (_, _, whole, _), (_, shares, small, ideal) = (
        replay(recorded, config.changed(pool_units=units), ["static", "pool"]) for units in (10, 2)
    )
    assert ideal.clock_s < small.clock_s < 0.9 * whole.clock_s < shares.clock_s


def test_each_stretch_between_changes_has_its_own_machines() -> None:
    found = stretches(log([[10, 20, 30], [10, 20], [10]], 12))
    assert [(stretch.machines, stretch.units, stretch.clocks) for stretch in found] == [
        (("m0", "m1", "m2"), 30, 12), (("m0", "m1"), 30, 12),
    ]  # fmt: skip


def test_a_machine_that_drew_nothing_for_a_clock_is_still_there() -> None:
    found = log([[10, 20, 30]], 12)
    for at in range(2, len(found), 4):  # in every other clock m2 does the work of m0
        event = found[at].event
        assert isinstance(event, WorkDone)
        work = {"m1": Work(10, 0.5, 0.5), "m2": Work(20, 20 / 30, 0.3)}
        found[at] = Logged(found[at].t_s, WorkDone(event.epoch, event.clock, event.clocks, work))
    (stretch,) = stretches(found)
    assert (stretch.machines, stretch.clocks, stretch.units) == (("m0", "m1", "m2"), 12, 30)
    assert [window.clocks for window in stretch.windows] == [2] * 6
    assert stretch.windows[0].by_machine["m2"].units == 30
    assert stretch.seconds == pytest.approx(12 * (1 + MESSAGES_S))


def test_a_clock_in_which_a_helper_computed_units_in_vain_is_left_out() -> None:
    found = log([[10, 20, 30]], 12)
    event = found[10].event
    assert isinstance(event, WorkDone)
    work = {**event.by_machine, "m2": Work(15, 15 / 30, 0.5)}  # 5 of them are those of m0
    found[10] = Logged(found[10].t_s, WorkDone(event.epoch, event.clock, event.clocks, work))
    (stretch,) = stretches(found)
    assert (stretch.clocks, stretch.units) == (11, 30)


def test_a_log_without_work_is_one_sentence() -> None:
    with pytest.raises(ReplayError, match="no stretch of clocks with the same two machines or more"):
        replay(log([[10]], 9), CONFIG, ["lbbsp"])


def folder_of(tmp_path: Path, config: JobConfig) -> Path:
    (tmp_path / "config.yaml").write_text(dump(config))
    lines = [header(), *map(to_line, log([[10, 20, 30]], 40))]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(folder_of(tmp_path, CONFIG)), "--balance", "lbbsp", "--balance", "auto"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "40 clocks between changes of members" in told
    assert [line.split()[0] for line in told.splitlines()[2:]] == ["recorded", "lbbsp", "auto", "ideal"]


def test_a_run_with_asp_is_replayed_with_asp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asp = from_values({"application": "mlr", "clocks": 100, "consistency": {"kind": "asp"}})
    run = str(folder_of(tmp_path, asp))
    for options, policies in (((), ["static", "pool"]), (("--consistency", "bsp"), ["static", "lbbsp"])):
        with pytest.raises(SystemExit) as ended:
            main(["replay", run, *options])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert [line.split()[0] for line in told.splitlines()[2:]] == ["recorded", *policies, "ideal"]


@pytest.mark.parametrize(
    "run",
    [
        {"keep_best": {}},
        {"optimizer": {"kind": "sgd", "clip_norm": 1.0}},
        {"optimizer": {"kind": "lamb"}},
        {
            "exchange": "allreduce",
            "allreduce_backend": "nccl",
            "trusted_network": True,
            "machines": {"transient": 2, "gpus": 1},
        },
        {"exchange": "allreduce", "application": "torch", "optimizer": {"kind": "torch", "name": "SGD"}},
    ],
)
@pytest.mark.parametrize("text", ["bsp", "asp", "ssp:3"])
def test_what_only_bsp_has_does_not_keep_a_run_from_being_compared(run: dict[str, Any], text: str) -> None:
    config = with_consistency(from_values({"application": "mlr", "clocks": 100, **run}), text)
    assert config.consistency.kind == text.partition(":")[0]


def test_ssp_without_slack_is_replayed_as_the_bsp_that_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ssp = from_values({"application": "mlr", "clocks": 100, "consistency": {"kind": "ssp"}})
    for options in ((), ("--consistency", "ssp:0")):
        with pytest.raises(SystemExit) as ended:
            main(["replay", str(folder_of(tmp_path, ssp)), *options])
        assert ended.value.code == 0
        told = capsys.readouterr().out
        assert [line.split()[0] for line in told.splitlines()[2:]] == ["recorded", "static", "lbbsp", "ideal"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (None, "holds no config.yaml"),
        (["--balance", "pool"], "balance: found pool with consistency bsp"),
        (["--consistency", "ssp"], "consistency: found 'ssp', expected bsp, asp, or ssp with its slack"),
        (["--consistency", "ssp:3", "--balance", "lbbsp"], "balance: found lbbsp with consistency ssp"),
        (["--consistency", "elastic"], "consistency: found 'elastic', expected bsp, asp"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    options: list[str] | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "nothing" if options is None else folder_of(tmp_path, CONFIG)
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(run), *(options or [])])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_supersteps_have_no_clocks_to_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elastic = from_values({"application": "mlr", "clocks": 100, "consistency": {"kind": "elastic"}})
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(folder_of(tmp_path, elastic))])
    assert ended.value.code == 2
    assert "found a run with supersteps, expected one with bsp, ssp or asp" in capsys.readouterr().err
