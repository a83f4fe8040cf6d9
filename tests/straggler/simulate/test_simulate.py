"""The simulator against closed forms, its bound, its own repeat, and departures and losses in every scheme."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.flexrr.groups import machine_of
from straggler.flexrr.protocol import FlexRrParameters
from straggler.simulate.engine import Simulation
from straggler.simulate.outcome import Counted, Departure, Network
from straggler.simulate.patterns import Cluster, parse_pattern, read_trace
from straggler.simulate.policies import PoolPolicy
from straggler.simulate.profile import Piece, SpeedProfile, ideal_time_s
from straggler.simulate.schemes import Experiment, SchemeKind, parse_scheme, run_scheme
from tests.thorough import examples

SCHEMES = (
    "bsp",
    "ssp:1",
    "ssp:3",
    "asp",
    "bsp-rr",
    "flexrr",
    "lb-bsp:ema",
    "elasticbsp:6",
    "elasticbsp:6,wait",
)
PATTERNS = (
    "none",
    "slow-worker:300",
    "disrupted-machine:200",
    "power-law:4",
    "uneven:75",
    "heterogeneous:0.33",
)
SMALL = Experiment(Cluster(8, 4), iterations=6, units=40, flexrr=FlexRrParameters(checks=20))


@pytest.mark.parametrize("slack", [0, 1, 2, 4])
@pytest.mark.parametrize("pattern", ["slow-worker:200", "power-law:4", "uneven:75"])
def test_bsp_and_ssp_equal_their_recursion(pattern: str, slack: int) -> None:
    """start(t) = max(own end of t - 1, everyone's end of t - 1 - slack): with a network that takes no time."""
    made = parse_pattern(pattern)
    experiment = replace(SMALL, iterations=12, network=Network(delay_s=0))
    profiles, shares = made.profiles(experiment.cluster, 3), made.shares(experiment.cluster)
    ends = np.zeros((13, 8))
    for clock in range(12):
        barrier = ends[clock - slack].max() if clock >= slack else 0.0
        for worker, profile in enumerate(profiles):
            start = max(ends[clock, worker], barrier)
            ends[clock + 1, worker] = profile.time_of(profile.work_by(start) + shares[worker])
    scheme = parse_scheme(f"ssp:{slack}" if slack else "bsp")
    row, outcome = run_scheme(scheme, made, experiment, 3)
    assert outcome.total_s == pytest.approx(ends[-1].max(), rel=1e-6)
    np.testing.assert_allclose(np.array(outcome.completed_ns) / 1e9, ends[1:].max(axis=1), rtol=1e-6)
    assert row.per_iteration_s == pytest.approx(outcome.total_s / 12)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_unit_once_no_faster_than_ideal_and_the_same_again(scheme: str, pattern: str) -> None:
    arguments = (parse_scheme(scheme), parse_pattern(pattern), SMALL)
    row, outcome = run_scheme(*arguments, 5)
    assert outcome.units == 8 * 6 * 40  # that each is counted once is checked by every run itself
    assert row.over_ideal >= 1 - 1e-9
    again, repeated = run_scheme(*arguments, 5)
    assert asdict(row) == asdict(again)
    assert outcome.log == repeated.log
    assert run_scheme(*arguments, 6)[0] != row or pattern in ("none", "uneven:75")


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(
    st.sampled_from(SCHEMES),
    st.sampled_from(PATTERNS),
    st.lists(
        st.tuples(st.integers(0, 7), st.floats(0, 12), st.booleans()),
        max_size=4,
        unique_by=lambda departure: departure[0],
    ),
    st.sampled_from([0.0, 0.0, 0.1, 0.4]),
    st.sampled_from([0.0, 0.001, 0.2]),
    st.integers(0, 1000),
)
def test_departures_and_losses_in_every_scheme(
    scheme: str, pattern: str, departures: list, loss: float, delay_s: float, seed: int
) -> None:
    experiment = replace(
        SMALL,
        network=Network(delay_s, loss),
        departures=tuple(Departure(worker, at_s, notice) for worker, at_s, notice in departures),
    )
    row, outcome = run_scheme(parse_scheme(scheme), parse_pattern(pattern), experiment, seed)
    assert outcome.units == 8 * 6 * 40
    assert row.over_ideal >= 1 - 1e-9
    assert 0 <= row.waiting_share <= 1


def test_notice_saves_what_was_done() -> None:
    redone = []
    for notice in (True, False):
        experiment = replace(SMALL, departures=(Departure(3, 2.5, notice),))
        row, _ = run_scheme(parse_scheme("bsp"), parse_pattern("none"), experiment, 0)
        redone.append(row.redone_units)
    # Half of clock 2's 40 units are done at 2.5 s (less the delays); every later clock is dealt without it.
    assert 18 <= redone[0] <= 22
    assert redone[1] == 40


def test_a_worker_leaves_once() -> None:
    rows = [
        run_scheme(parse_scheme("bsp"), parse_pattern("none"), replace(SMALL, departures=departures), 0)[0]
        for departures in ((Departure(3, 2.5),), (Departure(3, 2.5), Departure(3, 5.0)))
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_worker_that_leaves_after_the_end_changes_nothing(scheme: str) -> None:
    run = partial(run_scheme, parse_scheme(scheme), parse_pattern("slow-worker:200"))
    late = replace(SMALL, departures=(Departure(3, 5000.0),))
    usual, row = run(SMALL, 1)[0], run(late, 1)[0]
    assert row.waiting_share == pytest.approx(usual.waiting_share)
    assert (row.per_iteration_s, row.moved_share) == (usual.per_iteration_s, usual.moved_share)


def test_workers_without_a_share_do_the_rest_when_all_others_have_left() -> None:
    gone = tuple(Departure(worker, 1.5) for worker in (1, 3))
    setup = replace(SMALL, cluster=Cluster(4, 4), departures=gone)
    row, _ = run_scheme(parse_scheme("bsp"), parse_pattern("uneven:100"), setup, 0)
    assert row.over_ideal < 1.5


def test_flexrr_and_its_parts_on_the_slow_worker_pattern() -> None:
    """Figure 3.6 in small: both parts help, together they come close to ideal, work moves from the slow."""
    experiment = Experiment(Cluster(32, 8), iterations=12, units=400)
    pattern = parse_pattern("slow-worker:200")
    rows = {
        scheme: [run_scheme(parse_scheme(scheme), pattern, experiment, seed)[0] for seed in range(3)]
        for scheme in ("bsp", "ssp:1", "bsp-rr", "flexrr")
    }
    over = {scheme: np.mean([row.over_ideal for row in found]) for scheme, found in rows.items()}
    assert over["flexrr"] < 1.1 < 1.3 < min(over["ssp:1"], over["bsp-rr"]) < over["bsp"]
    assert np.mean([row.moved_share for row in rows["flexrr"]]) > 0.05


def test_lb_bsp_shares_by_speed() -> None:
    experiment = Experiment(Cluster(8, 8), iterations=300, units=128)
    pattern = parse_pattern("heterogeneous:0.3333")
    rows = {
        scheme: run_scheme(parse_scheme(scheme), pattern, experiment, 1)[0]
        for scheme in ("bsp", "lb-bsp:ema", "asp")
    }
    assert rows["lb-bsp:ema"].waiting_share < 0.05 < rows["bsp"].waiting_share
    assert rows["lb-bsp:ema"].per_iteration_s < 1.05 * rows["asp"].per_iteration_s


@given(
    bundles=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    speeds=st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0]), min_size=1, max_size=4),
    slack=st.sampled_from([0, 1, 3, None]),
)
@settings(deadline=None)
def test_no_bundle_of_a_pool_is_begun_while_too_old_a_clock_is_open(
    bundles: list[int], speeds: list[float], slack: int | None
) -> None:
    """Clock t has bundles of t + 1 units, so the log tells of which clock each is."""
    pool = PoolPolicy([[clock + 1] * count for clock, count in enumerate(bundles)], slack)
    profiles = [SpeedProfile(iter([Piece(1.0, speed)])) for speed in speeds]
    outcome = Simulation(profiles, pool, units=1, iteration_s=1.0).run()
    done: dict[int, list[Counted]] = {clock: [] for clock in range(len(bundles))}
    for counted in outcome.log:
        done[counted.bundle.stop - counted.bundle.start - 1].append(counted)
    assert [len(each) for each in done.values()] == bundles
    ended = [max(each.arrived_ns for each in found) for found in done.values()]
    for clock, found in done.items():
        begun = min(each.read_ns for each in found)
        assert slack is None or all(end <= begun for end in ended[: max(0, clock - slack)])


def test_ideal_by_hand() -> None:
    profiles = [
        SpeedProfile(iter([Piece(2.0, 1.0), Piece(1.0, 0.5)])),
        SpeedProfile(iter([Piece(1.0, 1.0)])),
    ]
    assert ideal_time_s(profiles, 4.0) == pytest.approx(2.0)
    assert ideal_time_s(profiles, 7.0) == pytest.approx(4.0)
    assert ideal_time_s(profiles, 4.0, {1: 1.0}) == pytest.approx(4.0)
    with pytest.raises(ValueError, match="never done"):
        ideal_time_s(profiles, 4.0, {0: 1.0, 1: 1.0})


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(st.sampled_from(PATTERNS), st.integers(0, 99), st.floats(0, 40))
def test_profiles_are_consistent(pattern: str, seed: int, time_s: float) -> None:
    cluster = Cluster(4, 2)
    for profile, same in zip(
        parse_pattern(pattern).profiles(cluster, seed),
        parse_pattern(pattern).profiles(cluster, seed),
        strict=True,
    ):
        work = profile.work_by(time_s)
        assert profile.time_of(work) == pytest.approx(time_s, abs=1e-9)
        assert same.work_by(time_s) == work
        assert 0 < profile.speed_at(time_s) <= 1.2


def test_a_disrupted_machine_slows_all_its_workers() -> None:
    cluster = Cluster(6, 3)
    profiles = parse_pattern("disrupted-machine:100").profiles(cluster, 2)
    speeds = [[profile.speed_at(20 * k + 1) for k in range(40)] for profile in profiles]
    for worker in range(6):
        assert speeds[worker] == speeds[machine_of(worker, 3)]
        assert set(speeds[worker]) == {0.5, 1.0}
    assert speeds[0] != speeds[1]


def test_power_law_has_the_exponent() -> None:
    profile = parse_pattern("power-law:4").profiles(Cluster(1, 1), 0)[0]
    times = np.diff([profile.time_of(k) for k in range(20_001)])
    assert times.min() >= 1
    assert 1 + 1 / np.mean(np.log(times)) == pytest.approx(4, rel=0.03)  # maximum likelihood


def test_slow_spells_have_the_stated_share() -> None:
    """A point in own progress is slow unless no spell covers it: about 1 - exp(-0.1) of the iterations."""
    profile = parse_pattern("slow-worker:100").profiles(Cluster(1, 1), 0)[0]
    slow = profile.time_of(50_000) / 50_000 - 1
    assert slow == pytest.approx(1 - np.exp(-0.1), abs=0.006)


def test_a_recorded_trace_is_a_pattern(tmp_path) -> None:
    file = tmp_path / "times.csv"
    file.write_text("worker,seconds,cpu\n" + "".join(f"{w},{s},0.5\n" for w in "ab" for s in (1, 2, 1)))
    pattern = parse_pattern(f"trace:{file}")
    profile = pattern.profiles(Cluster(2, 2, iteration_s=3.0), 0)[0]
    assert [profile.time_of(3.0 * k) for k in range(1, 5)] == pytest.approx([3.0, 9.0, 12.0, 15.0])
    assert profile.resources_at(0).cpu == 0.5
    for scheme in ("bsp", "flexrr", "asp"):
        run_scheme(parse_scheme(scheme), pattern, SMALL, 0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no rows"),
        ("worker\n1\n", "no column 'seconds'"),
        ("seconds\n1\nx\n", "line 3: seconds is 'x'"),
        ("seconds\n1\n-1\n", "line 3: seconds is '-1'"),
        ("seconds,cpu\n1,nan\n", "line 2: cpu is 'nan'"),
        ("worker, seconds\na, 1\n", "'worker', ' seconds'"),
        ("seconds,cpu\n1,1\n1,50\n", "line 3: cpu is '50'; expected a share, 0 to 1"),
        ("seconds\n1,5\n", "line 2 has more values than the header; expected 1"),
        ("seconds\n1\n\n\n0\n", "line 5: seconds is '0'"),
    ],
)
def test_a_bad_trace_is_named(tmp_path, text: str, sentence: str) -> None:
    file = tmp_path / "times.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        parse_pattern(f"trace:{file}")


def test_a_seed_of_numpy_is_as_good() -> None:
    """As of a loop over np.arange."""
    small = Experiment(Cluster(4, 2), iterations=2, units=10)
    (of_numpy, _), (plain, _) = (
        run_scheme(parse_scheme("ssp:1"), parse_pattern("power-law:7"), small, seed)
        for seed in (np.arange(3)[2], 2)
    )
    assert of_numpy == plain
    assert type(of_numpy.seed) is int


@pytest.mark.parametrize(
    "text",
    [
        *(*PATTERNS, "uneven:60,block", "heterogeneous:0.5,100,0.1", "slow-worker:12.5", "slow-worker:7"),
        *("slow-worker:123.456789", "power-law:7.12345678", "uneven:66.6666666667"),
        *("disrupted-machine:33.3333333333", "heterogeneous:0.3333333333333,1234567.5,0.012345678"),
    ],
)
def test_patterns_print_and_parse(text: str) -> None:
    assert str(parse_pattern(text)) == text
    assert parse_pattern(str(parse_pattern(text))) == parse_pattern(text)


@pytest.mark.parametrize(
    "text", ["bsp", "ssp:3", "asp", "bsp-rr", "flexrr", "flexrr:2", "lb-bsp:narx", "elasticbsp:30,wait"]
)
def test_schemes_print_and_parse(text: str) -> None:
    assert str(parse_scheme(text)) == text
    assert {parse_scheme(kind.value).kind for kind in SchemeKind} == set(SchemeKind)


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        (parse_pattern, "sleepy", "pattern 'sleepy' is unknown; expected one of none, slow-worker"),
        (parse_pattern, "slow-worker", "not complete"),
        (parse_pattern, "slow-worker:x", "slow-worker:200"),
        (parse_pattern, "slow-worker:-5", "intensity is -0.05"),
        (parse_pattern, "power-law:2", "alpha is 2"),
        (parse_pattern, "heterogeneous:nan", "slowest is nan"),
        (parse_pattern, "trace:nowhere.csv", "cannot be read"),
        (parse_scheme, "fast", "scheme 'fast' is unknown; expected one of bsp"),
        (parse_scheme, "ssp:-1", "not understood"),
        (parse_scheme, "lb-bsp:lstm", "not understood"),
        (parse_scheme, "elasticbsp:0", "not understood"),
        (parse_scheme, "asp:3", "not understood"),
    ],
)
def test_unknown_names_are_named(parse, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse(text)


def test_a_trace_that_a_spreadsheet_saved_is_read(tmp_path: Path) -> None:
    """It begins with a byte-order mark, before the name of the first column."""
    path = tmp_path / "trace.csv"
    path.write_text("seconds,worker\n1,a\n3,a\n", encoding="utf-8-sig")
    assert read_trace(str(path)).median_s == 2


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Cluster(0, 1), "0 workers on 1 machines"),
        (lambda: Cluster(4, 8), "4 workers on 8 machines"),
        (lambda: Cluster(4, 2, -1.0), "iteration_s is -1"),
        (lambda: replace(SMALL, iterations=0), "iterations is 0"),
        (lambda: replace(SMALL, departures=(Departure(8, 1.0),)), "below 8"),
        (lambda: replace(SMALL, departures=tuple(Departure(w, 1.0) for w in range(8))), "every worker"),
        (lambda: Network(loss=1.0), "loss below 1"),
    ],
)
def test_bad_setups_are_named(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
