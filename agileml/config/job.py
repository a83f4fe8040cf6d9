"""The schema of `configs/*.yaml`: one frozen `JobConfig` per run.

    config = load("configs/mf.yaml", ["clocks=200", "optimizer.kind=adam"])

All that can be checked without opening the data or a connection is checked here; each error is one
`ConfigError` with the file and line (or the `--set` flag), the key, what was found and what is expected.
The application checks the sections `data` and `model` (with `section.validate`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agileml.config.balance import Balance, BalanceConfig, Partitions, check_balance, check_units
from agileml.config.checkpoint_location import below_home, location
from agileml.config.exchange import check_exchange, check_overlap
from agileml.config.helping import Helping, HelpingConfig, check_helping
from agileml.config.machines import MachinesConfig, PaceConfig, check_threads
from agileml.config.market import Market, check_with
from agileml.config.optimizer import OptimizerConfig, SgdConfig, check_optimizer
from agileml.config.pipeline import PipelineConfig, check_pipeline
from agileml.config.plan import MachineCounts, Plan, check_faults, machines_over_time
from agileml.config.pool import check_pool
from agileml.config.section import Positive, PositiveInt, Section, validate
from agileml.config.supersteps import check_supersteps
from agileml.config.text import ConfigError, Document, Key, apply_flags, dump_yaml, located, nearest, show

__all__ = ["ConfigError", "JobConfig", "dump", "from_values", "load"]

SAME_BITS = ("bsp", "elastic")  # kinds of consistency with `deterministic`
WORDS = {"balance": "kind", "helping": None}  # sections that may be one word, and the key that it stands for
APPLICATIONS = ("kmeans", "lda", "mf", "mlr", "torch")


def _settings(value: Any) -> Any:
    """Only values that YAML can hold, so that the resolved config loads back equal."""

    def check(item: Any, key: Key) -> None:
        if isinstance(item, dict):
            for name, below in item.items():
                if not isinstance(name, str):
                    raise ConfigError(f"found the key {show(name)}, expected keys of text", key=key)
                check(below, (*key, name))
        elif isinstance(item, list):
            for index, below in enumerate(item):
                check(below, (*key, index))
        elif not (item is None or isinstance(item, bool | int | str | float)):
            raise ConfigError(
                f"found {show(item)}, expected text, a number, true, false, a list or keys", key=key
            )
        elif isinstance(item, float) and not math.isfinite(item):
            raise ConfigError(f"found {show(item)}, expected a finite number", key=key)

    if isinstance(value, dict):
        check(value, ())
    return value


def _stage(value: Any) -> Any:
    if isinstance(value, bool):  # True == 1, but no user means that
        raise ConfigError(f"found {show(value)}, expected auto, thresholds, 1, 2 or 3")
    return value


def _overlap(value: Any) -> Any:
    if isinstance(value, bool) or value in ("auto", "batches"):
        return value
    raise ConfigError(f"found {show(value)}, expected auto, batches, true or false")


Settings = Annotated[dict[str, Any], BeforeValidator(_settings)]


MOST_RANGE = 10_000  # each superstep is planned from so many end times of each machine


class ConsistencyConfig(Section):
    """How old a read may be: bsp, exactly this clock; ssp, up to `slack` clocks older; asp, any; elastic, none from
    before the superstep, in which each machine makes 1 to `range` steps, as many as `objective` finds best."""

    kind: Literal["bsp", "ssp", "asp", "elastic"] = "bsp"
    slack: Annotated[int, Field(ge=0)] = 0
    range: Annotated[int, Field(ge=1, le=MOST_RANGE)] | None = None
    objective: Literal["rate", "wait"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _elastic_has_defaults(cls, values: Any) -> Any:
        """`range` and `objective` are there with elastic, and not given otherwise."""
        if isinstance(values, dict) and values.get("kind") == "elastic":
            return {"range": 15, "objective": "rate"} | values
        return values

    @model_validator(mode="after")
    def _slack_is_for_ssp(self) -> Self:
        if self.slack and self.kind != "ssp":
            raise ConfigError(
                f"found {self.slack} with kind {self.kind}, expected a slack with kind ssp only",
                key=("slack",),
            )
        for name, given in (("range", self.range), ("objective", self.objective)):
            if (given is not None) is not (self.kind == "elastic"):
                raise ConfigError(
                    f"found {show(given)} with kind {self.kind}, expected {name} with kind elastic only",
                    key=(name,),
                )
        return self


class CutsConfig(Section):
    """A cut (a whole copy at one clock) starts every `every_s` seconds, or every `max_clocks` if that is sooner."""

    every_s: Positive = 1.0
    max_clocks: PositiveInt = 64


LEAST_TIMEOUT_S, LONGEST_TIMEOUT_S = 0.005, 60.0  # that the transport's own heartbeats can keep


class HeartbeatConfig(Section):
    """A machine that has been silent for `timeout_s` is lost.

    The run waits `silent_limit_s` for a silent machine that holds the only copy of a partition.
    """

    interval_s: Positive = 0.1
    timeout_s: Positive = 1.0
    silent_limit_s: Positive = 300.0

    @model_validator(mode="after")
    def _timeout_spans_beats(self) -> Self:
        if self.silent_limit_s < self.timeout_s:
            raise ConfigError(
                f"found {self.silent_limit_s:g}, expected at least timeout_s = {self.timeout_s:g}",
                key=("silent_limit_s",),
            )
        if self.timeout_s < 2 * self.interval_s:
            raise ConfigError(
                f"found {self.timeout_s:g}, expected at least twice interval_s = {self.interval_s:g}",
                key=("timeout_s",),
            )
        if not LEAST_TIMEOUT_S <= self.timeout_s <= LONGEST_TIMEOUT_S:
            raise ConfigError(
                f"found {self.timeout_s:g}, expected {LEAST_TIMEOUT_S:g} to {LONGEST_TIMEOUT_S:g}",
                key=("timeout_s",),
            )
        return self


def _location(path: str) -> str:
    try:
        location(path)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return path


class CheckpointConfig(Section):
    """Every `every_s` seconds the committed cut is written to `path`; the `keep` newest checkpoints stay."""

    path: Annotated[str, AfterValidator(_location)]
    every_s: Positive = 60.0
    keep: PositiveInt = 2


class EarlyStoppingConfig(Section):
    """The run ends when the metric has not improved by more than `least_change` for `patience` evaluations in a row."""

    metric: str = "test_loss"
    patience: PositiveInt = 3
    mode: Literal["min", "max"] = "min"
    least_change: Annotated[float, Field(ge=0)] = 0.0


class KeepBestConfig(Section):
    """The parameters that were best by a metric, of those evaluated while it trains and at the end, stay in a file."""

    metric: str = "test_loss"
    mode: Literal["min", "max"] = "min"


def _application(name: str) -> str:
    if name in APPLICATIONS or re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name):
        return name
    near = nearest(name, APPLICATIONS)
    hint = f"{near} or package.module:Class"
    raise ConfigError(f"found {show(name)}, {hint}")


def _thresholds(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ConfigError(f"found {show(value)}, expected the threshold of stage 2 first, then stage 3's")
    return value


class JobConfig(Section):
    """One training job. Lists of YAML are tuples here; `data` and `model` stay as they were written."""

    application: Annotated[str, AfterValidator(_application)]
    data: Settings = Field(default_factory=dict)
    model: Settings = Field(default_factory=dict)
    optimizer: OptimizerConfig = SgdConfig()

    clocks: PositiveInt
    clocks_per_pass: PositiveInt = 64
    slices: PositiveInt
    units_per_slice: PositiveInt = 1
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    deterministic: bool
    consistency: ConsistencyConfig = ConsistencyConfig()
    exchange: Literal["servers", "allreduce"] = "servers"
    allreduce_backend: Literal["gloo", "nccl"] = "gloo"
    trusted_network: bool = False
    balance: Balance = BalanceConfig()
    pool_units: PositiveInt | None = None  # the share of a machine
    overlap: Annotated[bool | Literal["auto", "batches"], BeforeValidator(_overlap)] = False
    helping: Helping = False
    pipeline: PipelineConfig | None = None

    machines: MachinesConfig = MachinesConfig()
    pace: PaceConfig = PaceConfig()
    stage: Annotated[Literal["auto", "thresholds", 1, 2, 3], BeforeValidator(_stage)] = "auto"
    stage_thresholds: Annotated[
        tuple[Positive, Positive], Field(strict=False), AfterValidator(_thresholds)
    ] = (1.0, 15.0)
    active_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    partitions: Partitions | None = None  # see `layout.partitions_for`
    cuts: CutsConfig = CutsConfig()
    heartbeat: HeartbeatConfig = HeartbeatConfig()
    checkpoint: CheckpointConfig | None = None
    max_failures: Annotated[int, Field(ge=0)] = 3
    plan: Plan = ()
    market: Market = None
    verify: bool = False
    early_stopping: EarlyStoppingConfig | None = None
    keep_best: KeepBestConfig | None = None
    log: Annotated[
        tuple[Literal["csv", "jsonl", "mlflow", "tensorboard", "wandb"], ...], Field(strict=False)
    ] = ()
    profile: bool = False
    out: Annotated[str | None, AfterValidator(below_home)] = None
    address: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow(cls, values: Any) -> Any:
        """`slices` and `deterministic` follow other keys where they are not given."""
        if not isinstance(values, dict):
            return values
        most = _inside(values, "machines", "max", MachinesConfig().max)
        if isinstance(most, int) and most >= 1:
            values.setdefault("slices", 1 << (most - 1).bit_length())
        else:  # machines.max itself is wrong, which has its own error
            values.setdefault("slices", 1)
        has_bits = _inside(values, "consistency", "kind", "bsp") in SAME_BITS
        values.setdefault("deterministic", has_bits and values.get("exchange") != "allreduce")
        if values.get("market") is not None and isinstance(values.setdefault("machines", {}), dict):
            values["machines"] = {"transient": 0, **values["machines"]}
        return values

    @model_validator(mode="after")
    def _keys_agree(self) -> Self:
        most = self.machines.max
        check_units(self.slices, self.units_per_slice, most)
        check_threads(self.machines, deterministic=self.deterministic)
        if self.deterministic and self.consistency.kind not in SAME_BITS:
            raise ConfigError(
                f"found true with consistency {self.consistency.kind}, expected false: only bsp gives the same bits, "
                "and elastic those of its log",
                key=("deterministic",),
            )
        check_exchange(
            self.exchange,
            self.allreduce_backend,
            deterministic=self.deterministic,
            consistency=self.consistency.kind,
            is_trusted=self.trusted_network,
            gpus=self.machines.gpus,
        )
        if self.overlap in (True, "batches"):
            check_overlap(self.overlap, self.exchange, self.consistency.kind)
        self._check_shares()
        check_optimizer(self.optimizer, self.application, self.exchange, self.consistency.kind, self.machines)
        reliable = self.machines.reliable
        start = self.start if self.market is None else MachineCounts(reliable, most - reliable)  # at most
        machines_over_time(self.plan, start, most, self.clocks)
        check_faults(self.plan, self.pace.unit_s, self.address if self.market is None else None)
        if self.pace.unit_s and getattr(self.market, "paced", False):
            raise ConfigError(
                f"found {self.pace.unit_s:g} with market.paced, expected one of them", key=("pace", "unit_s")
            )
        if self.verify and not self.deterministic:
            raise ConfigError(
                "found true without deterministic, expected false: only deterministic runs can be compared",
                key=("verify",),
            )
        if self.market is not None:
            check_with(
                self.market,
                transient=self.machines.transient,
                plan=[event.kind for event in self.plan],
                address=self.address is not None,
                checkpoint=self.checkpoint is not None,
                is_one_host=self.exchange == "allreduce" and not self.trusted_network and most > 1,
            )
        return self

    def _check_shares(self) -> None:
        """Raise ConfigError where consistency does not go together with how work is shared out and measured."""
        check_balance(
            self.balance,
            self.consistency.kind,
            is_pipeline=self.pipeline is not None,
            helps=isinstance(self.helping, HelpingConfig),
        )
        check_pool(self)
        if self.consistency.kind == "elastic":
            check_supersteps(
                clip_norm=self.optimizer.clip_norm,
                helping=isinstance(self.helping, HelpingConfig),
                workers=self.machines.workers,
                gpus=self.machines.gpus,
            )
        if self.keep_best is not None and self.consistency.kind != "bsp":
            raise ConfigError(
                f"found with consistency {self.consistency.kind}, expected bsp: only there is one version of the "
                "parameters evaluated",
                key=("keep_best",),
            )
        if self.helping:
            check_helping(self.helping, self.consistency.kind, self.exchange, self.balance.kind, self.overlap)

    @model_validator(mode="after")
    def _pipeline_agrees(self) -> Self:
        check_pipeline(self)
        return self

    @property
    def start(self) -> MachineCounts:
        """The machines at the start."""
        return MachineCounts(self.machines.reliable, self.machines.transient)


def _inside(values: Mapping[str, Any], section: str, key: str, default: Any) -> Any:
    found = values.get(section, {})
    if isinstance(found, Section):
        return getattr(found, key)
    return found.get(key, default) if isinstance(found, Mapping) else default


def load(
    path: str | Path, overrides: Sequence[str] = (), changes: Mapping[str, Any] | None = None
) -> JobConfig:
    """The config of a file, with `changes` in place of its top keys and `--set` flags (`key.path=value`) applied.

    Defaults that follow other keys follow these, too. Raises ConfigError.
    """
    document = Document.read(Path(path))
    for name, value in (changes or {}).items():
        document.put(name, _copied(value))
    return _validated(apply_flags(document, overrides, WORDS))


def from_values(
    values: Mapping[str, Any], overrides: Sequence[str] = (), *, source: str = "config"
) -> JobConfig:
    """The config of a mapping as a file would hold it; `source` names it in errors. Raises ConfigError."""
    return _validated(apply_flags(Document(source, _copied(values)), overrides, WORDS))


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, PurePath):  # as Python has paths, and no file
        return str(value)
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _validated(document: Document) -> JobConfig:
    try:
        return validate(JobConfig, document.values)
    except ConfigError as error:
        raise document.blame(error) from None


def locate(error: ConfigError, path: str | Path, overrides: Sequence[str] = ()) -> ConfigError:
    """An error that an application raised for a key of this config, with the file and line it came from."""
    return located(error, Path(path), overrides, WORDS)


def dump(config: JobConfig) -> str:
    """The config with every default written out, as YAML that `load` reads back equal."""
    return dump_yaml(config.model_dump(mode="json"))
