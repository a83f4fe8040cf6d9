"""configs/stragglers_*.yaml: the runs to simulate. Unknown keys and bad values are errors that name their path."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from straggler.flexrr.groups import helper_groups, most_helpers
from straggler.flexrr.protocol import FlexRrParameters
from straggler.simulate.outcome import Departure, Network
from straggler.simulate.patterns import Cluster, parse_pattern
from straggler.simulate.schemes import Experiment, SchemeKind, parse_scheme
from straggler.yaml_text import YamlTextError, read_yaml

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]
MOST = 1_000_000  # of anything that is counted: each has its place in memory


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FlexRrConfig(_Strict):
    """Table 3.1 (see `FlexRrParameters`)."""

    group_size: int = Field(default=FlexRrParameters.group_size, ge=0)
    initial: Share = 0.025
    follow_up: Share = 0.05
    checks: int = Field(default=100, ge=1, le=MOST)
    threshold: Positive = 0.20
    checkpoint: Share = 0.75
    replication: Share = 1.0
    average_weight: Share = 0.5

    def with_usual(self, group_size: int) -> FlexRrConfig:
        """These parameters, with this size of a group unless they name one."""
        named = "group_size" in self.model_fields_set
        return self if named else self.model_copy(update={"group_size": group_size})

    def parameters(self) -> FlexRrParameters:
        """As the protocol takes them."""
        return FlexRrParameters(**self.model_dump())


class NetworkConfig(_Strict):
    """See `Network`."""

    delay_s: NotNegative = 0.001
    loss: float = Field(default=0.0, ge=0, lt=1)
    resend_s: Positive = 0.05


class DepartureConfig(_Strict):
    """See `Departure`; a machine takes all its workers along."""

    worker: int | None = Field(None, ge=0)
    machine: int | None = Field(None, ge=0)
    at_s: NotNegative
    notice: bool = False
    detect_s: NotNegative = 0.3

    @model_validator(mode="after")
    def _one_of_both(self) -> DepartureConfig:
        if (self.worker is None) == (self.machine is None):
            raise ValueError("name either a worker or a machine")
        return self


class StragglerConfig(_Strict):
    """One table and one figure: every scheme on every pattern (or with every variant), over several seeds."""

    title: str = ""
    workers: int = Field(64, ge=1, le=MOST)
    machines: int = Field(8, ge=1, le=MOST)
    iterations: int = Field(20, ge=1, le=MOST)
    iteration_s: Positive = 1.0
    units: int = Field(1000, ge=1, le=MOST)
    patterns: list[str] = Field(["slow-worker:200"], min_length=1)
    schemes: list[str] = Field(["bsp", "ssp:1", "bsp-rr", "flexrr"], min_length=1)
    seeds: int = Field(3, ge=1, le=MOST)
    seed: int = Field(0, ge=0)
    check_s: NotNegative = 0.0
    flexrr: FlexRrConfig = Field(default_factory=FlexRrConfig, validate_default=True)
    network: NetworkConfig = NetworkConfig()
    departures: list[DepartureConfig] = []
    variants: dict[str, FlexRrConfig] = {}
    variants_of: str = "flexrr"

    @field_validator("flexrr", "variants", mode="after")
    @classmethod
    def _usual_groups_fit(cls, value: Any, info: ValidationInfo) -> Any:
        """A group size that nobody names is the usual one, or what these machines allow."""
        workers, machines = info.data.get("workers"), info.data.get("machines")
        if workers is None or machines is None:
            return value  # refused
        usual = min(FlexRrParameters.group_size, most_helpers(workers, machines))
        if isinstance(value, FlexRrConfig):
            return value.with_usual(usual)
        return {label: variant.with_usual(usual) for label, variant in value.items()}

    @model_validator(mode="before")
    @classmethod
    def _variants_change_flexrr(cls, values: Any) -> Any:
        """A variant names the keys of `flexrr` that it changes."""
        if isinstance(values, dict) and isinstance(values.get("variants"), dict):
            base = values.get("flexrr") or {}
            values = dict(values)
            values["variants"] = {
                str(label): {**base, **changes}
                if isinstance(changes, dict) and isinstance(base, dict)
                else changes
                for label, changes in values["variants"].items()
            }
        return values

    @model_validator(mode="after")
    def _all_can_run(self) -> StragglerConfig:
        cluster = Cluster(self.workers, self.machines, self.iteration_s)
        for departure in self.departures:
            if departure.machine is not None and departure.machine >= self.machines:
                raise ValueError(
                    f"departures: machine is {departure.machine}; expected one below {self.machines}"
                )
        patterns = [parse_pattern(pattern) for pattern in self.patterns]
        for pattern in patterns:
            pattern.shares(cluster)
        schemes = [parse_scheme(scheme) for scheme in self.schemes]
        _check_once("schemes", [str(scheme) for scheme in schemes])
        _check_once("patterns", [str(pattern) for pattern in patterns])
        for parameters in (self.flexrr, *self.variants.values()):
            self.experiment(parameters)
            if any(scheme.kind in (SchemeKind.FLEXRR, SchemeKind.BSP_RR) for scheme in schemes):
                helper_groups(self.workers, self.machines, parameters.group_size)
        return self

    def experiment(self, flexrr: FlexRrConfig | None = None) -> Experiment:
        """The settings of a run, with other FlexRR parameters if given."""
        departures = tuple(
            Departure(worker, departure.at_s, departure.notice, departure.detect_s)
            for departure in self.departures
            for worker in (
                range(departure.machine, self.workers, self.machines)
                if departure.machine is not None
                else (departure.worker,)
            )
            if worker is not None
        )
        return Experiment(
            Cluster(self.workers, self.machines, self.iteration_s),
            self.iterations,
            self.units,
            (flexrr or self.flexrr).parameters(),
            Network(**self.network.model_dump()),
            departures,
            self.check_s,
        )


def _check_once(key: str, names: list[str]) -> None:
    """Raise ValueError for a name that is given twice: its runs would count as seeds of one."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key}: found {name} twice; expected each once")


def read_config(path: Path | None, **overrides: Any) -> StragglerConfig:
    """Read a YAML file (none: the defaults) with overrides; ValueError is one sentence with file and key."""
    values: Any = {}
    where = str(path) if path else "options"
    if path is not None:
        try:
            values = read_yaml(path)
        except YamlTextError as error:
            raise ValueError(str(error)) from None
        if not isinstance(values, dict):
            raise ValueError(f"{path} holds {type(values).__name__}; expected keys and values")
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        return StragglerConfig.model_validate({**values, **given})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = f"is no key; expected one of {', '.join(_keys_at(first['loc']))}"
        elif first["type"] != "value_error":
            message = f"is {first['input']!r}: {message}"
        raise ValueError(f"{where}: {key}{' ' if key else ''}{message}") from error


def _keys_at(location: tuple[int | str, ...]) -> list[str]:
    inner: dict[str, type[BaseModel]] = {
        "flexrr": FlexRrConfig,
        "variants": FlexRrConfig,
        "network": NetworkConfig,
        "departures": DepartureConfig,
    }
    model = inner[str(location[0])] if len(location) > 1 else StragglerConfig
    return sorted(model.model_fields)
