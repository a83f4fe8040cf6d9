"""What a job asks of its market, and what is refused before anything starts."""

import re
from pathlib import Path
from typing import Any

import pytest

from agileml.cluster.errors import ClusterError
from agileml.cluster.local import gpus_here
from agileml.config.text import ConfigError
from agileml.market.setup import first_decision, set_up
from tests.agileml.market.jobs import job


def test_a_paced_machine_is_as_fast_as_its_vcpus() -> None:
    from agileml.config.job import from_values

    types = ["c4.xlarge", "c4.2xlarge"]
    setup = set_up(from_values(job(100, types=types, job_vcpus=16, job_hours=2.0)), "job", "run", 0)
    # 16 vCPUs for two hours, played 1200 times as fast, in 100 clocks of 16 units: on 4 vCPUs each takes
    assert setup.pacing.unit_s == pytest.approx(16 * 7200 / 1600 / 4 / 1200)
    assert setup.pacing.speeds == {"c4.xlarge": 1.0, "c4.2xlarge": 2.0}


@pytest.mark.parametrize(
    ("market", "sentence"),
    [
        ({"types": ["c3.8xlarg"]},
         "market: no on-demand price is known for the machine type 'c3.8xlarg' (give its dollars"),
        ({"types": ["c9.huge"], "on_demand": {"c9.huge": 1.0}},
         "how many vCPUs 'c9.huge' has is not known (give its dollars per hour"),
        ({"slot_vcpus": 24},
         "market.slot_vcpus: found 24, expected whole machines: a multiple of the 32 vCPUs of c3.8xlarge"),
        ({"policy": "elastic"},
         "found elastic, which takes nodes of one vCPU from pools, expected on_demand, standard_agileml,"),
        ({"policy": "proteuss"}, "market.policy: there is no scheme 'proteuss' for a running job; there are on_demand, "
         "standard_agileml, proteus, renewal, expected_cost, or your own"),
        ({"policy": "standard_checkpoint"}, "market.policy: found standard_checkpoint, expected a policy for"),
        ({"policy": "one_hour_oracle"}, "it knows the future"),
        ({"start": "tomorrow"}, "market.start: "),
        ({"job_vcpus": 16, "cap": 1.0}, "market.job_vcpus: found 16, and with cap 1 not even one machine of 32 vCPUs"),
        ({"kind": "replay", "history": ["nowhere.csv"], "train": "2016-04-01/2016-05-01", "start": "2016-05-01"},
         "market: nowhere.csv: no such file"),
        ({"kind": "replay", "history": ["nowhere.csv"], "train": "2016-04-01", "start": "2016-05-01"},
         "market.train: '2016-04-01' is not an interval (expected FROM/TO, as 2016-02-25T13:00Z/2016-03-26)"),
        ({"kind": "replay", "history": ["nowhere.csv"], "train": "2016-04-01/2016-03-01", "start": "2016-05-01"},
         "market.train: the interval 2016-04-01/2016-03-01 ends before it starts"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_before_anything_starts(market: dict[str, Any], sentence: str) -> None:
    from agileml.config.job import from_values

    values = job(**market)
    if market.get("kind") == "replay":
        values["market"].pop("hours", None)
    with pytest.raises(ConfigError) as caught:
        set_up(from_values(values), "job", "run", 0)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("drain_s", "reserve_s", "hold_s"), [(120, 300, 3600), (900, 990, 3600), (7200, 7290, 7290)]
)
def test_the_budget_of_a_cloud_is_enough_to_drain_and_to_leave(
    drain_s: int, reserve_s: int, hold_s: int
) -> None:
    from agileml.config.job import from_values

    market = {"kind": "ec2", "region": "us-east-1", "zones": ["us-east-1a"], "types": ["c5.xlarge"]}
    market |= {"job_vcpus": 12, "job_hours": 1.0, "budget_usd": 5.0, "drain_s": drain_s}
    values = job(more={"address": "auto", "checkpoint": {"path": "ck"}})
    setup = set_up(from_values({**values, "market": market}), "job", "run", 0)
    assert (setup.plan.limits.reserve_s, setup.plan.limits.hold_s) == (reserve_s, hold_s)


@pytest.mark.parametrize(
    ("machines", "sentence"),
    [
        (
            {"cpus": 8},
            "machines.cpus: found 8, expected at most 4: a machine of the type c5.xlarge has 4 vCPUs",
        ),
        ({"workers": 6}, "and a process has 1 thread (a machine of the type c5.xlarge has 4 vCPUs)"),
        ({"cpus": 4, "workers": 4}, None),
        (
            {"gpus": 1},
            "machines.gpus: found 1, expected at most 0: a machine of the type c5.xlarge has 0 GPUs",
        ),
    ],
)
def test_a_type_that_is_too_small_for_the_jobs_processes_is_not_bought(
    machines: dict[str, Any], sentence: str | None
) -> None:
    from agileml.config.job import from_values

    market: dict[str, Any] = {"kind": "ec2", "region": "us-east-1", "job_vcpus": 12, "job_hours": 1.0}
    market |= {"zones": ["us-east-1a"], "types": ["c5.xlarge"], "budget_usd": 5.0}
    values = job(more={"address": "auto", "checkpoint": {"path": "ck"}})
    config = from_values({**values, "market": market, "machines": {**values["machines"], **machines}})
    if sentence is None:
        set_up(config, "job", "run", 0)
        return
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        set_up(config, "job", "run", 0)


@pytest.mark.skipif(gpus_here() > 0, reason="there is a GPU here")
def test_a_played_market_has_no_gpus_that_this_computer_lacks() -> None:
    from agileml.config.job import from_values
    from agileml.market.played import PlayedBackend

    config = from_values(job(more={"machines": {"max": 4, "gpus": 1}}))
    with pytest.raises(
        ClusterError, match=r"machines\.gpus: found 1, expected at most 0, as this computer has"
    ):
        PlayedBackend(set_up(config, "job", "run", 0), config)


def test_the_reserve_of_a_played_market_is_as_it_was() -> None:
    from agileml.config.job import from_values

    for speed, drain_s, reserve_s in ((60, 120, 300), (60, 800, 800), (400, 120, 2000)):
        setup = set_up(from_values(job(100, speed=speed, drain_s=drain_s)), "job", "run", 0)
        assert setup.plan.limits.reserve_s == reserve_s


def test_a_budget_below_the_first_hour_is_refused(tmp_path: Path) -> None:
    from agileml.config.job import from_values

    values = job(more={"checkpoint": {"path": str(tmp_path)}}, budget_usd=0.1)
    with pytest.raises(
        ConfigError, match=r"market.budget_usd: found 0.100000 \$, expected at least 0.209000 \$"
    ):
        first_decision(set_up(from_values(values), "job", "run", 0))


def test_a_highest_price_that_forbids_what_a_deadline_needs_is_refused() -> None:
    from agileml.config.job import from_values

    values = job(max_price=0.2, policy="expected_cost", deadline=2.0)
    with pytest.raises(
        ConfigError,
        match=r"market.max_price: found 0.200000 \$, expected at least 0.209000 \$, what a machine",
    ):
        first_decision(set_up(from_values(values), "job", "run", 0))
