"""`proteus aws plan --offline` and `--history`: costs without AWS, and what recorded prices say of a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agileml.cli import main
from bidbrain.aws.stack.template import REGION, STACK, text

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "aws.yaml"
HEADER = "timestamp,instance_type,availability_zone,product,price\n"
PRICES = {"c5.xlarge": "0.06", "m5.xlarge": "0.09"}


@pytest.fixture
def proteus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`proteus aws plan` of the example config on a computer without any of AWS' settings."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["aws", "plan", str(CONFIG), *arguments])
        said = capsys.readouterr()
        assert int(ended.value.code or 0) == code, said.err
        return said.out if code == 0 else said.err

    return run


def recording(folder: Path, days: int = 14) -> Path:
    """Prices of two types that stay as they are; the last row only says how long they were watched."""
    rows = [f"2026-03-{day:02d}T00:00:00Z" for day in (1, days)]
    lines = [
        f"{at},{kind},us-east-1{zone},Linux/UNIX,{price}\n"
        for at in rows
        for kind, price in PRICES.items()
        for zone in "ab"
    ]
    file = folder / "prices.csv"
    # One row a day keeps the recording without holes.
    daily = [
        f"2026-03-{day:02d}T12:00:00Z,m5.xlarge,us-east-1c,Linux/UNIX,0.1{day:02d}\n"
        for day in range(1, days)
    ]
    file.write_text(HEADER + "".join(sorted(lines + daily)))
    return file


def test_offline_says_template_rights_and_the_most_it_may_cost(proteus: Callable[..., str]) -> None:
    said = proteus("--offline")
    assert text(STACK) in said and '"Sid": "Buy"' in said and "proteus-demo-ACCOUNT-us-east-1" in said
    assert "up to 7 x m5.xlarge, spot (its on-demand price" in said
    told = json.loads(proteus("--offline", "--json"))
    by_what = {each["what"]: each["per_h"] for each in told["costs_micro_usd_per_h"]}
    assert by_what["head, m5.large"] == 96_000 and by_what["up to 7 x m5.xlarge, spot"] == 7 * 192_000
    assert told["template"] == text(STACK) and "forecast" not in told


def test_recorded_prices_say_cost_spread_evictions_and_pools(
    proteus: Callable[..., str], tmp_path: Path
) -> None:
    file = recording(tmp_path)
    found = json.loads(proteus("--offline", "--json", "--history", str(file)))["forecast"]
    assert found["finished"] == found["starts"] >= 10
    held = sum(each["machine_hours"] * each["usd_per_h"] for each in found["pools"])
    reliable = 0.192 * found["hours"]
    assert found["usd"] == pytest.approx(held + reliable, rel=0.02), "machine hours at their prices"
    assert found["usd_p10"] <= found["usd"] * 1.0001 and found["usd"] <= found["usd_p90"] * 1.0001
    assert {each["pool"].split("@")[0] for each in found["pools"]} == {"c5.xlarge"}, "a third cheaper"
    lost = sum(each["machine_hours"] * each["lost_per_h"] for each in found["pools"])
    assert found["evictions"] == pytest.approx(lost, abs=1e-4)
    said = proteus("--offline", "--history", str(file))
    assert "10th to 90th percentile" in said and "First decision: " in said and "c5.xlarge@us-east-1" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("market.types=[zz9.large]", "no on-demand price is known for the machine type 'zz9.large'"),
        (
            "market.types=[c4.xlarge]",
            "--history: unknown type 'c4.xlarge': the history has c5.xlarge, m5.xlarge",
        ),
        ("market.job_hours=400", "--history: the recording is too short for a job of market.job_hours 400"),
    ],
)
def test_what_the_files_do_not_hold_is_one_sentence(
    proteus: Callable[..., str], tmp_path: Path, change: str, said: str
) -> None:
    error = proteus("--offline", "--history", str(recording(tmp_path)), "--set", change, code=2)
    assert error.startswith("proteus: ") and error.count("\n") == 1 and said in error


def test_a_hole_of_the_recording_is_said(proteus: Callable[..., str], tmp_path: Path) -> None:
    file = recording(tmp_path)
    days = [f"2026-03-{day:02d}" for day in (6, 7, 8)]
    file.write_text(
        "".join(line for line in file.read_text().splitlines(True) if not line.startswith(tuple(days)))
    )
    said = proteus("--offline", "--history", str(file))
    assert "a hole 2026-03-05T12:00:00Z/2026-03-09T12:00:00Z (96 h): no job starts in it" in said


def test_a_pool_that_ends_before_the_recording_is_said(proteus: Callable[..., str], tmp_path: Path) -> None:
    file = recording(tmp_path)
    lines = file.read_text().splitlines(True)
    gone = "2026-03-14T00:00:00Z,c5.xlarge,us-east-1b"
    file.write_text("".join(line for line in lines if not line.startswith(gone)))
    said = proteus("--offline", "--history", str(file))
    assert (
        "c5.xlarge@us-east-1b has no row after 2026-03-01T00:00:00Z, 13.0 days before the recording ends"
        in said
    )


@pytest.mark.parametrize("price", ["€0.06", "0.06 EUR", "nan", "-0.06", ""])
def test_a_price_that_is_no_amount_of_dollars_names_its_line(
    proteus: Callable[..., str], tmp_path: Path, price: str
) -> None:
    file = recording(tmp_path)
    file.write_text(file.read_text().replace(",0.09\n", f",{price}\n", 1))
    error = proteus("--offline", "--history", str(file), code=2)
    assert "prices.csv line " in error and "price" in error and error.count("\n") == 1


def test_a_file_that_is_not_there(proteus: Callable[..., str], tmp_path: Path) -> None:
    error = proteus("--offline", "--history", str(tmp_path / "none.csv"), code=2)
    assert "none.csv: no such file" in error and error.count("\n") == 1


def test_without_credentials_the_sentence_names_the_way_out(proteus: Callable[..., str]) -> None:
    error = proteus(code=2)
    assert "no AWS credentials were found" in error and "--offline" in error and error.count("\n") == 1


def test_a_region_that_is_not_billed_in_dollars_wants_its_prices_said(proteus: Callable[..., str]) -> None:
    china = ("--set", "market.region=cn-north-1", "--set", "market.zones=[cn-north-1a]")
    error = proteus("--offline", *china, code=2)
    assert "market.on_demand" in error and "AWS bills cn-north-1 in CNY" in error and error.count("\n") == 1


WEST = '{"us-west-2": {"zones": ["us-west-2a"]}}'


def test_offline_says_what_other_regions_take(proteus: Callable[..., str]) -> None:
    said = proteus("--offline", "--set", f"market.regions={WEST}")
    assert text(REGION) in said and text(STACK) in said
    assert "IAM policy of role proteus-demo-head in us-west-2:" in said
    assert "IAM policy of the person who runs proteus aws, in the other regions:" in said
    assert "arn:aws:ec2:us-west-2:ACCOUNT:subnet/*" in said and "vpc/VPC" in said


def test_a_region_that_is_none_is_one_sentence(proteus: Callable[..., str]) -> None:
    wrong = '{"us-east-1": {"zones": ["us-east-1a"]}}'
    said = proteus("--offline", "--set", f"market.regions={wrong}", code=2)
    assert "regions" in said and "expected others than us-east-1, which is market.region" in " ".join(
        said.split()
    )
