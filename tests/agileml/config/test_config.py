"""What a config may say, and the one sentence that each mistake gets."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.config.helping import HelpingConfig
from agileml.config.job import ConfigError, JobConfig, dump, from_values, load, locate
from agileml.config.market import KINDS
from agileml.config.optimizer import AdamConfig, MomentumConfig
from agileml.config.plan import JoinConfig, MachineCounts, NoticeConfig, machines_over_time
from agileml.config.section import Section
from bidbrain.history.prices import Market
from tests.agileml.config.files import write
from tests.thorough import examples

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
BASE: dict[str, Any] = {"application": "mf", "clocks": 20}


def test_flags_reach_every_depth_and_the_last_one_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "application: mf\nclocks: 20\nplan: [{at_clock: 3, notice: 1}]\n")
    config = load(
        path,
        [
            "clocks=30",
            "clocks=40",
            "optimizer.learning_rate=1e-3",
            "plan.0.notice=all",
            "model.rank=16",
            "stage=2",
        ],
    )
    assert (config.clocks, config.stage, config.model) == (40, 2, {"rank": 16})
    assert config.optimizer.learning_rate == 0.001
    assert config.plan == (NoticeConfig(at_clock=3, notice="all"),)


def test_a_path_of_python_is_text() -> None:
    here = Path("some/where")
    config = from_values(
        {**BASE, "out": here, "checkpoint": {"path": here}, "data": {"path": [here, "x.csv"]}}
    )
    assert (config.out, config.checkpoint.path) == ("some/where", "some/where")  # type: ignore[union-attr]
    assert config.data == {"path": ["some/where", "x.csv"]}


def test_defaults_follow_the_machines() -> None:
    assert from_values(BASE).slices == 8
    twelve = from_values(BASE, ["machines.max=12"])
    assert twelve.slices == 16
    assert twelve.partitions is None  # they follow the tables
    assert from_values(BASE).deterministic
    assert not from_values(BASE, ["consistency={kind: ssp, slack: 2}"]).deterministic
    assert not from_values(BASE, ["exchange=allreduce"]).deterministic


def test_an_error_of_an_application_is_placed_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "application: mf\nclocks: 20\ndata:\n  path: x.csv\n")
    error = ConfigError("no such file", key=("data", "path"))
    assert str(locate(error, path)) == f"{path}:4: data.path: no such file"
    assert str(locate(error, path, ["data.path=y"])) == "--set data.path=y: data.path: no such file"
    path.write_text("")  # as a pipe that was read once
    assert str(locate(error, path)) == f"{path}: data.path: no such file"


def test_events_happen_in_the_order_of_their_clocks() -> None:
    leave, join = NoticeConfig(at_clock=9, notice="all"), JoinConfig(at_clock=2, join=3)
    start, joined, left = MachineCounts(1, 2), MachineCounts(1, 5), MachineCounts(1, 0)
    assert machines_over_time((leave, join), start, most=8, clocks=10) == [start, joined, left]
    with pytest.raises(ConfigError, match=r"plan\[2\].notice"):
        machines_over_time((leave, join, NoticeConfig(at_clock=9, notice=1)), start, most=8, clocks=10)


def test_reading_a_config_is_cheap() -> None:
    heavy = (
        "import sys, agileml.config; print([m for m in ('ray', 'torch', 'zmq', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


JOBS = sorted(path for path in CONFIGS.glob("*.yaml") if "\napplication:" in f"\n{path.read_text()}")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_every_shipped_config_loads_and_dumps_to_an_equal_one(path: Path, tmp_path: Path) -> None:
    assert {"demo.yaml", "mf.yaml", "mlr.yaml"} <= {job.name for job in JOBS}
    config = load(path)
    assert load(write(tmp_path, dump(config))) == config


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=8,
)
rates = st.floats(0, 0.99)
positive = st.floats(1e-9, 1e6)


@st.composite
def configs(draw: st.DrawFn) -> JobConfig:
    clocks = draw(st.integers(3, 1000))
    reliable, transient, spare = draw(st.integers(1, 4)), draw(st.integers(0, 6)), draw(st.integers(0, 6))
    plan: list[Any] = []
    if spare:
        plan.append({"at_clock": draw(st.integers(1, clocks - 1)), "join": draw(st.integers(1, spare))})
    if transient:
        plan.append({"at_clock": draw(st.integers(1, clocks - 1)), "notice": draw(st.integers(1, transient))})
    most = reliable + transient + spare
    return from_values(
        {
            "application": draw(st.sampled_from(["mf", "mlr", "my.package:App"])),
            "data": draw(st.dictionaries(st.text(), yaml_values, max_size=3)),
            "model": draw(st.dictionaries(st.text(), yaml_values, max_size=3)),
            "optimizer": draw(
                st.fixed_dictionaries({"kind": st.just("sgd"), "learning_rate": positive})
                | st.fixed_dictionaries(
                    {"kind": st.just("momentum"), "momentum": rates, "nesterov": st.booleans()}
                )
                | st.fixed_dictionaries(
                    {"kind": st.just("adamw"), "weight_decay": rates, "clip": st.none() | positive}
                )
                | st.builds(
                    lambda kind, final: {"schedule": {"kind": kind, "clocks": 9, "final": final}},
                    st.sampled_from(["cosine", "linear"]),
                    rates,
                )
                | st.fixed_dictionaries(
                    {"kind": st.just("adagrad"), "epsilon": positive, "weight_decay": rates}
                )
                | st.fixed_dictionaries({"kind": st.just("adam"), "beta1": rates, "epsilon": positive})
            ),
            "clocks": clocks,
            "slices": draw(st.sampled_from([16, 32, 64])),
            "seed": draw(st.integers(0, 2**63 - 1)),
            "machines": {"reliable": reliable, "transient": transient, "max": most, "cpus": draw(positive)},
            "stage": draw(st.sampled_from(["auto", 1, 2, 3])),
            "active_fraction": draw(st.floats(0.01, 1)),
            "consistency": {"kind": draw(st.sampled_from(["bsp", "ssp", "asp"]))},
            "plan": plan,
            "out": draw(st.none() | st.text().filter(str.strip)),
        }
    )


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(configs())
def test_the_resolved_config_loads_back_equal(config: JobConfig) -> None:
    from agileml.config.text import parse_yaml

    values, _ = parse_yaml(dump(config), "text")
    assert from_values(values) == config


@pytest.mark.parametrize(
    "market",
    [
        {"kind": "made"},
        {"kind": "replay", "history": ["a.csv"], "train": "2016-03-01/2016-04-01", "start": "2016-04-01"},
        {"kind": "availability", "availability": ["a.json"]},
        {
            "kind": "ec2",
            "region": "us-east-1",
            "zones": ["us-east-1a"],
            "types": ["c5.xlarge"],
            "budget_usd": 1.0,
        },
        {
            "kind": "kubernetes",
            "cluster": "ray",
            "pools": {"spot": {"vcpus": 4, "usd_per_h": 0.06}},
            "reliable": {"vcpus": 4, "usd_per_h": 0.2},
            "budget_usd": 1.0,
        },
    ],
)
def test_a_resolved_market_loads_back_equal(market: dict[str, Any]) -> None:
    from agileml.config.text import parse_yaml

    more = {"address": "auto", "checkpoint": {"path": "ck"}} if "budget_usd" in market else {}
    config = from_values({**BASE, "market": {**market, "job_vcpus": 4, "job_hours": 1.0}, **more})
    values, _ = parse_yaml(dump(config), "text")
    assert from_values(values) == config


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "found '', expected the name of a RayCluster"),
        ("on-demand", "found 'on-demand', expected a RayCluster of another name than on-demand"),
    ],
)
def test_a_cluster_whose_spot_pods_would_pass_for_reliable_ones_is_refused(name: str, problem: str) -> None:
    market = {
        "kind": "kubernetes",
        "cluster": name,
        "pools": {"spot": {"vcpus": 4, "usd_per_h": 0.06}},
        "reliable": {"vcpus": 4, "usd_per_h": 0.2},
        "budget_usd": 1.0,
        "job_vcpus": 4,
        "job_hours": 1.0,
    }
    with pytest.raises(ConfigError, match=f"market.cluster: {problem}$"):
        from_values({**BASE, "market": market, "address": "auto", "checkpoint": {"path": "ck"}})


def on_ec2(**more: Any) -> JobConfig:
    zones, types = ["us-east-1b", "us-east-1a"], ["c5.xlarge"]
    market = {"kind": "ec2", "region": "us-east-1", "zones": zones, "types": types, "budget_usd": 1.0}
    job = {"job_vcpus": 4, "job_hours": 1.0}
    return from_values(
        {**BASE, "market": {**market, **job, **more}, "address": "auto", "checkpoint": {"path": "ck"}}
    )


def test_traffic_between_zones_of_ec2_has_a_price() -> None:
    for more, price in (({}, 20_000), ({"traffic_usd_per_gb": {"zone>zone": 0.5}}, 500_000)):
        routes = on_ec2(**more).market.routes
        home, other = (routes.place(Market("c5.xlarge", zone)) for zone in ("on-demand", "us-east-1a"))
        assert (home.zone, routes.price(home, other)) == ("us-east-1b", price)
    assert on_ec2(zones=["us-east-1a", "us-east-1-wl1-bos-wlz-1"]).market.routes is None
    with pytest.raises(ConfigError, match=r"market.traffic_usd_per_gb: found the route 'zones', expected"):
        on_ec2(traffic_usd_per_gb={"zones": 0.5})


def test_other_regions_of_ec2_are_offered_and_what_data_costs_there_is_known() -> None:
    west = {"us-west-2": {"zones": ["us-west-2a"]}}
    market = on_ec2(regions=west).market
    assert ("c5.xlarge", "us-west-2a") in market.offered.markets
    home, far = (market.routes.place(Market("c5.xlarge", zone)) for zone in ("on-demand", "us-west-2a"))
    assert (home.zone, market.routes.price(home, far)) == ("us-east-1b", 20_000)
    bahrain = {"me-south-1": {"zones": ["me-south-1a"]}}
    with pytest.raises(
        ConfigError, match=r"market.traffic_usd_per_gb: what data costs from me-south-1 to us-east"
    ):
        on_ec2(regions=bahrain)
    assert on_ec2(regions=bahrain, traffic_usd_per_gb={"me-south-1>*": 0.1}).market.routes is not None
    with pytest.raises(
        ConfigError, match=r"market.regions: found .*us-east-1, expected others than us-east-1, which is"
    ):
        on_ec2(regions={"us-east-1": {"zones": ["us-east-1a"]}})


def test_sums_without_keys_are_refused_before_machines_with_addresses_of_their_own_are_bought() -> None:
    job, summed = on_ec2().model_dump(mode="json"), ["exchange=allreduce", "deterministic=false"]
    with pytest.raises(
        ConfigError,
        match=r"trusted_network: found false with exchange: allreduce and market.kind ec2, expected",
    ):
        from_values(job, summed)
    for more in ("trusted_network=true", "machines.max=1"):
        assert from_values(job, [*summed, more]).exchange == "allreduce"


def test_optimizers_keep_their_kind() -> None:
    assert isinstance(from_values(BASE, ["optimizer.kind=momentum"]).optimizer, MomentumConfig)
    assert from_values(BASE, ["optimizer.kind=adam"]).optimizer == AdamConfig()
    assert from_values(BASE).changed(clocks=3).clocks == 3
    with pytest.raises(ConfigError, match="clocks: found 0"):
        from_values(BASE).changed(clocks=0)


def test_the_documentation_names_every_key() -> None:
    text = (CONFIGS.parent / "docs" / "configuration.md").read_text()
    config = from_values(BASE)
    for market in KINDS.values():
        for key in market.model_fields:
            assert re.search(rf"\b{key}\b", text), f"market.{key}"
    for name, value in config:
        below = list(type(value).model_fields) if isinstance(value, Section) else []
        for key in below or [name]:
            assert re.search(rf"\b{key}\b", text), f"{name}.{key}"


def test_a_flag_names_a_machine_type_with_dots(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "application: mf\nclocks: 20\nmarket: {job_vcpus: 8, job_hours: 1, on_demand: {c4.xlarge: 0.2}}\n",
    )
    flags = [
        'market.on_demand."c4.xlarge"=0.3',
        'market.on_demand."r3.8xlarge"=2.5',
        'market.vcpus."c4.xlarge"=4',
    ]
    market = load(path, flags).market
    assert market is not None
    assert market.on_demand == {"c4.xlarge": 0.3, "r3.8xlarge": 2.5}
    assert market.vcpus == {"c4.xlarge": 4}
    with pytest.raises(ConfigError) as error:
        load(path, ["market.on_demand.r3.8xlarge=2.5"])
    assert str(error.value) == (
        "--set market.on_demand.r3.8xlarge=2.5: market.on_demand.r3: found the keys 8xlarge, expected a number; a name "
        "with dots stands in quotes: --set 'market.on_demand.\"r3.8xlarge\"=...'"
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"out": ""}, "config: out: found '', expected a path"),
        (
            {
                "market": {
                    "kind": "replay",
                    "job_vcpus": 1,
                    "job_hours": 1,
                    "train": "",
                    "start": "",
                    "history": [""],
                }
            },
            "config: market.history[0]: found '', expected a path",
        ),
    ],
)
def test_a_place_that_a_shell_left_empty_is_refused(values: dict[str, Any], sentence: str) -> None:
    """As of a variable that is not set: "" is the working folder."""
    with pytest.raises(ConfigError) as error:
        from_values({**BASE, **values})
    assert str(error.value) == sentence


def test_recordings_of_a_market_may_lie_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    market = {"job_vcpus": 1, "job_hours": 1}
    prices = from_values(
        {
            **BASE,
            "market": {**market, "kind": "replay", "train": "", "start": "", "history": ["~/prices.csv"]},
        }
    )
    pools = from_values(
        {**BASE, "market": {**market, "kind": "availability", "availability": ["~/pool.json"]}}
    )
    assert getattr(prices.market, "history", None) == ("/home/user/prices.csv",)
    assert getattr(pools.market, "availability", None) == ("/home/user/pool.json",)


def test_helping_is_a_switch_or_its_settings() -> None:
    assert from_values(BASE).helping is False
    assert from_values({**BASE, "helping": False}).helping is False
    assert from_values({**BASE, "helping": True}).helping == HelpingConfig()
    tuned = from_values({**BASE, "helping": {"group_size": 2, "replication": 0.25}})
    assert tuned.helping == HelpingConfig(group_size=2, replication=0.25)


def test_a_plan_in_a_cluster_of_others_does_what_harms_no_machine_of_theirs() -> None:
    gentle = [
        {"at_clock": 1, "join": 1},
        {"at_clock": 2, "notice": 1},
        {"at_clock": 3, "kill_controller": True},
    ]
    gentle += [{"at_clock": 4, "slow": 1, "seconds": 1}, {"at_clock": 5, "cut": 1, "seconds": 1}]
    assert len(from_values({**BASE, "plan": gentle, "address": "auto"}).plan) == 5
    job = from_values({**BASE, "plan": [{"at_clock": 1, "kill": 1}]})
    with pytest.raises(ConfigError, match=r"^plan\[0\]: found kill with an address"):
        job.changed(address="auto")  # as --address does
