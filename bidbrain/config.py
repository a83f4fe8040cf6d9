"""The schema of `proteus simulate`: options of the command line and keys of configs/simulate_*.yaml are the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from bidbrain.files.yaml_text import YamlTextError, read_yaml

DEFAULT_SCHEMES = ["on_demand", "standard_checkpoint", "standard_agileml", "proteus", "renewal"]
POOL_SCHEMES = ["on_demand", "static_checkpoint", "elastic", "spot_2026", "expected_cost"]

MOST = 1_000_000  # of any figure: beyond it sums are no int64


class ConfigError(ValueError):
    """A configuration cannot be run; the message is one sentence."""


class SimulateConfig(BaseModel):
    """The options of a simulation. Money in dollars, times in hours or seconds as the names say, intervals FROM/TO."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    history: list[Path] = []
    # Without a history: prices of this character, by `seed`.
    made: Literal["calm", "turbulent", "smooth"] | None = None
    types: list[str] = []
    zones: list[str] = []
    product: str = "Linux/UNIX"
    on_demand: dict[str, float] = {}
    vcpus: dict[str, int] = {}
    train: str | None = None
    evaluate: str | None = None
    allow_overlap: bool = False
    job_hours: list[float] = [20.0]
    job_vcpus: int = Field(512, gt=0, le=MOST)
    cap: float = Field(1.5, ge=1.0, le=1000.0)
    starts: int = Field(1000, gt=0, le=MOST)
    schemes: list[str] = []
    seed: int = Field(0, ge=0)
    rules: Literal["hourly_2016", "per_second", "per_second_paid"] | None = None
    reliable: int = Field(3, ge=0, le=MOST)
    reliable_type: str | None = None
    boot_s: int = Field(120, ge=0, lt=3600)
    lambda_s: int = Field(60, ge=0, le=MOST)
    sigma_s: int = Field(0, ge=0, le=MOST)
    phi: float = Field(1.0, ge=0.0, le=1.0)
    min_delta: float = Field(0.0, ge=0.0, le=MOST)
    grant_delay_s: int = Field(0, ge=0, lt=3600)
    slot_vcpus: int | None = Field(None, gt=0, le=MOST)
    # The traffic of a machine, both ways; paid between zones and regions, on-demand machines being in the zone `home`.
    traffic_gb_per_h: float = Field(0.0, ge=0.0, le=MOST)
    traffic_usd_per_gb: dict[str, float] = {}
    home: str | None = None
    availability: list[Path] = []
    spot_share: float = Field(0.3, gt=0.0, le=MOST)
    spot_shares: dict[str, float] = {}
    deadline: float | None = Field(None, ge=1.0, le=MOST)
    nodes: int = Field(16, gt=0, le=MOST)
    out: Path | None = None
    ledger: int = Field(0, ge=0, le=MOST)
    processes: int | None = Field(None, gt=0, le=1024)

    def as_yaml(self) -> str:
        """The settings as YAML, without those that do not change results."""
        return yaml.safe_dump(self.model_dump(mode="json", exclude={"processes", "out"}), sort_keys=False)

    @field_validator("history", "availability")
    @classmethod
    def _at_home(cls, paths: list[Path]) -> list[Path]:
        return [Path(os.path.expanduser(path)) for path in paths]

    @field_validator("out")
    @classmethod
    def _out_at_home(cls, path: Path | None) -> Path | None:
        return None if path is None else Path(os.path.expanduser(path))

    @field_validator("job_hours")
    @classmethod
    def _hours(cls, hours: list[float]) -> list[float]:
        if not hours or any(not 0 < each <= 10_000 for each in hours):
            raise ValueError("job lengths are hours above 0, at least one")
        if len(set(hours)) != len(hours):
            raise ValueError("a job length is given twice")
        return hours

    @field_validator("schemes", "types", "zones")
    @classmethod
    def _once(cls, names: list[str]) -> list[str]:
        if len(set(names)) != len(names):
            raise ValueError("a name is given twice")
        return names

    @field_validator("traffic_usd_per_gb")
    @classmethod
    def _not_negative(cls, prices: dict[str, float]) -> dict[str, float]:
        for route, price in prices.items():
            if not 0 <= price <= MOST:
                raise ValueError(f"{route} is {price}, expected dollars per GB, 0 to {MOST:,}")
        return prices

    @field_validator("on_demand", "vcpus", "spot_shares")
    @classmethod
    def _positive(cls, figures: dict[str, float]) -> dict[str, float]:
        for name, figure in figures.items():
            if not 0 < figure <= MOST:
                raise ValueError(f"{name} is {figure}, expected a figure above 0, at most {MOST:,}")
        return figures


def refuse_without_effect(config: SimulateConfig, keys: Iterable[str], market: str) -> None:
    """Raise ConfigError for an option among `keys` that says something: on this market nothing comes of it."""
    for key in keys:
        if (found := getattr(config, key)) != SimulateConfig.model_fields[key].default:
            raise ConfigError(f"{key}: found {found}, expected it left out: nothing comes of it {market}")


def load_config(path: Path | None, overrides: dict[str, Any]) -> SimulateConfig:
    """Read a YAML file (or none) and put the options of the command line over it; raises ConfigError."""
    values: dict[str, Any] = {}
    if path is not None:
        values = _read_yaml(path)
    values |= overrides
    try:
        return SimulateConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        source = f"{path}: " if path is not None and first["loc"][0] not in overrides else ""
        if first["type"] == "extra_forbidden":
            known = ", ".join(SimulateConfig.model_fields)
            raise ConfigError(f"{source}unknown key {where!r} (known are {known})") from None
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{source}{where}: {message} (found {first['input']!r})") from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = read_yaml(path)
    except YamlTextError as error:
        raise ConfigError(str(error)) from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected keys with values at the top")
    folder = path.parent
    for key in ("history", "availability"):
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
        if isinstance(values.get(key), list):
            # Paths in a config are relative to the folder that the command runs in, or else to the config's.
            values[key] = [
                each if os.path.exists(str(each)) else str(_beside(folder, str(each))) for each in values[key]
            ]
    return values


def _beside(folder: Path, name: str) -> Path:
    return folder / name if os.path.exists(folder / name) else Path(name)
