"""The specification of a run that every process gets when it starts. Long because it is the one place where keys of a
config become rules of the engine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from agileml.application import Application, LossScaleRule, Settings, StagePlan, Table
from agileml.apps import build
from agileml.apps.files.places import is_address
from agileml.apps.job_optimizer import check_schedule, completed, job_optimizer
from agileml.checkpoints.opening import open_store
from agileml.checkpoints.store import CheckpointStore, FolderStore
from agileml.config.helping import HelpingConfig, helping_settings, may_help
from agileml.config.job import JobConfig
from agileml.config.optimizer import only_modules
from agileml.config.plan import (
    DisconnectConfig,
    DiskFullConfig,
    EventConfig,
    FreezeConfig,
    JoinConfig,
    KillConfig,
    KillControllerConfig,
    KillManyConfig,
    KillReliableConfig,
    NoticeConfig,
    ShortNoticeConfig,
    SlowConfig,
    SpeedConfig,
)
from agileml.config.pool import has_pool
from agileml.config.text import ConfigError, show
from agileml.core.compute.contract import checked_tables
from agileml.core.controller.controller import ControllerSettings
from agileml.core.cuts.rule import CutRule
from agileml.core.exchange import (
    Exchange,
    PoolExchange,
    SharedStateExchange,
    SuperstepExchange,
    exchange_of,
    stage_exchange,
)
from agileml.core.node.retry import Timers
from agileml.core.parameters.layout import MOST_ROWS, Layout, partitions_for
from agileml.core.parameters.loss_scale import with_loss_scale
from agileml.core.protocol.job import Job, MakeBalancer, Overlap, PipelineMode, PipelineRules
from agileml.core.protocol.plan import PlannedEvent, PlannedFault, PlannedJoin, PlannedNotice
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Fault, Tier
from straggler.consistency import Consistency, Elastic, consistency
from straggler.flexrr.protocol import FlexRrParameters
from straggler.lbbsp.auto import AutoBalance
from straggler.lbbsp.policy import LbBsp
from straggler.lbbsp.remedy import Remedy
from straggler.speed.predictors import RestartingEma

PATHS = {"path", "test"}  # keys of `data` that name files
MOST_PARTITIONS = 64  # of a job with a pipeline: each costs a message per clock

# By `balance`: how many times as fast a machine must be as another for a change to share out work by speed.
ALIKE = {"static": math.inf, "auto": 1.25, "pool": 1.25, "lbbsp": 1.0}
HOLD = 0.01  # the share of a clock that another plan must be expected to save, beyond what may be noise

# Errors and timeouts then reach the thread that waits for a sum; otherwise a watchdog of torch ends the process.
NCCL_VARIABLES = {"TORCH_NCCL_BLOCKING_WAIT": "1"}

# Ray hides the devices that a machine does not reserve; newer ones where they are told to.
HIDING_VARIABLES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}

# A workspace of this size lets cuBLAS give the same bits each time.
CUBLAS_VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@dataclass(frozen=True)
class RunSpec:
    """A job and the name of its run. `application`: an instance of the user's, None for the config's own.

    `folder`: the base of the config's relative paths, which need not be the current folder. `resume`: the checkpoints
    to resume from, a folder or s3://bucket/prefix. `unit_s`: seconds of a unit, on machines of a market that stand for
    slower ones; 0 for the config's. `restarts`: how often the head of this run died before; `least_epoch`: the newest
    epoch until then. `stages`: the layers of a pipeline, measured once where the run begins. `may_change_optimizer`: a
    resume takes the optimizer's settings from this config, not from the checkpoint. `hides_devices`: Ray hides the
    devices of its nodes, of which machines reserve none.
    """

    run: str
    config: JobConfig
    application: Application | None = None
    folder: str | None = None
    resume: str | None = None
    unit_s: float = 0.0
    restarts: int = 0
    least_epoch: int = 0
    stages: StagePlan | None = None
    may_change_optimizer: bool = False
    hides_devices: bool = False

    def machine_name(self, number: int) -> str:
        """The name of the `number`-th machine to start, from 0. No other machine of the run ever has it."""
        return f"m{number}-r{self.restarts}" if self.restarts else f"m{number}"

    def settings(self) -> Settings:
        """The settings that the application gets."""
        config = self.config
        data = dict(config.data)
        for key in PATHS & data.keys():
            data[key] = self._placed(data[key])
        return Settings(
            data=data,
            model=config.model,
            seed=config.seed,
            slices=config.slices,
            clocks_per_pass=config.clocks_per_pass,
            optimizer=config.optimizer.model_dump() if config.optimizer.kind == "torch" else {},
            is_deterministic=config.deterministic,
            is_alone=config.machines.max == 1,
            is_staged=config.pipeline is not None,
            units_per_slice=config.units_per_slice,
            has_devices=not self.hides_devices,
        )

    def _placed(self, path: Any) -> Any:
        """A path or a list of them from this run's folder; addresses, and values of other types, as they are."""
        if isinstance(path, list):
            return [self._placed(each) for each in path]
        if self.folder is None or not isinstance(path, str) or is_address(path):
            return path
        placed = os.path.join(self.folder, path)  # with its last slash, if it has one
        # A data set of Hugging Face's goes by a folder or by a name.
        is_name = self.config.data.get("kind") == "huggingface" and not os.path.exists(placed)
        return path if is_name else placed

    def measured(self, application: Application) -> RunSpec:
        """This spec with the layers of the application measured, if the config has a pipeline. Raises ConfigError."""
        pipeline = self.config.pipeline
        if pipeline is None:
            return self
        stages = application.stages()
        if stages is None:
            raise ConfigError(
                f"found with application {self.config.application}, expected one that has stages",
                key=("pipeline",),
            )
        if pipeline.stages != "auto" and pipeline.stages > stages.most_partitions:
            raise ConfigError(
                f"found {pipeline.stages}, expected at most {stages.most_partitions}: the model has so many layers "
                "with parameters between which it can be cut",
                key=("pipeline", "stages"),
            )
        if isinstance(pipeline.replicas, tuple) and len(pipeline.replicas) > stages.most_partitions:
            raise ConfigError(
                f"found {len(pipeline.replicas)} stages, expected at most {stages.most_partitions}: the model has so "
                "many layers with parameters between which it can be cut",
                key=("pipeline", "replicas"),
            )
        return replace(self, stages=stages.plan(self.config.partitions or MOST_PARTITIONS))

    def build(self) -> Application:
        """The application of this process. Raises InputError."""
        if self.application is not None:
            return self.application.with_settings(self.settings())
        return build(self.config.application, self.settings())

    def settled(self, application: Application) -> RunSpec:
        """The spec that machines get: this one with the decisions of the application that was built from it. Raises
        ConfigError, InputError."""
        config = completed(self.config, application)
        check_schedule(config, application)
        return replace(self, config=config, application=application.as_sent() or self.application)

    def job(self, application: Application) -> Job:
        """The rules of the run."""
        config = completed(self.config, application)
        tables = checked_tables(application)
        chosen = _exchange(config)
        if chosen.has_replicas and (sparse := [table.name for table in tables if table.sparse]):
            raise ConfigError(
                f"found allreduce, expected servers: {config.application} has sparse tables ({', '.join(sparse)}), "
                "of which a worker reads and updates a few rows",
                key=("exchange",),
            )
        if config.optimizer.kind == "torch" and not any(table.resident for table in tables):
            raise only_modules(config.application)
        wanted = _consistency(config)
        _check_loss_scale(config, application.loss_scale())
        _check_slack(config, application.most_slack(), wanted.slack)
        layout = self._layout(tables, application)
        return Job(
            layout=layout,
            optimizer=job_optimizer(config, application, tables),
            consistency=wanted,
            slices=config.slices,
            parts=config.units_per_slice,
            clocks=config.clocks,
            deterministic=config.deterministic,
            exchange=stage_exchange(PipelineMode(config.pipeline.weights)) if config.pipeline else chosen,
            balancer=balancer(config),
            alike=ALIKE[config.balance.kind],
            overlap=_overlap(config, application, tables),
            helping=helping(config),
            metrics=tuple(application.metrics()),
            holds_every=application.evaluates_every() if config.keep_best else None,
            loss_scale=application.loss_scale(),
            pipeline=self._pipeline(layout),
            draw_units=(config.pool_units or config.slices * config.units_per_slice)
            if has_pool(config)
            else None,
        )

    def _layout(self, tables: tuple[Table, ...], application: Application) -> Layout:
        config = self.config
        if config.pipeline is not None:
            assert self.stages is not None, "the layers of a pipeline are not measured"
            return Layout(tables, len(self.stages.seconds), borders=self.stages.borders)
        overlaps = bool(config.overlap)
        partitions = config.partitions or partitions_for(tables, config.machines.max, overlaps=overlaps)
        _check_rows(tables, partitions)
        ends = application.share_ends(partitions) if config.optimizer.sharded else {}
        return Layout(
            with_loss_scale(tables, application.loss_scale(), partitions),
            partitions,
            gathers=overlaps,
            ends=tuple((name, tuple(each)) for name, each in ends.items()),
        )

    def _pipeline(self, layout: Layout) -> PipelineRules | None:
        wanted = self.config.pipeline
        if wanted is None:
            return None
        assert self.stages is not None, "the layers of a pipeline are not measured"
        most = None if wanted.stages == "auto" else wanted.stages
        puts_off = wanted.order == "zero-bubble"
        mode = PipelineMode(wanted.weights)
        if wanted.replicas != "auto":
            follows = wanted.replicas == 1 and self.config.balance.kind == "auto"
            return PipelineRules(
                self.stages.seconds, most, puts_off, mode, wanted.replicas, follows_speeds=follows
            )
        sizes = self.stages.sent_bytes, tuple(layout.partition_bytes)
        return PipelineRules(self.stages.seconds, most, puts_off, mode, None, *sizes)

    def stores(self) -> list[CheckpointStore]:
        """The stores of checkpoints: first the one that this run writes to, then the one that it resumes from."""
        base = Path(self.folder) if self.folder is not None else None
        paths = [self.config.checkpoint.path if self.config.checkpoint else None, self.resume]
        found: dict[str, CheckpointStore] = {}
        for path in (path for path in paths if path is not None):
            store = open_store(path, base)
            is_folder = isinstance(store, FolderStore)  # links and .. give a folder several names
            found.setdefault(str(Path(store.where).resolve()) if is_folder else store.where, store)
        return list(found.values())

    def timers(self) -> Timers:
        """How often a node reports and repeats its requests."""
        return Timers(
            status_s=self.config.heartbeat.interval_s, retry_s=max(2.0, self.config.heartbeat.timeout_s)
        )

    @property
    def pace_s(self) -> float:
        """Seconds of a unit on a machine of the usual speed; 0 for as long as it takes."""
        return self.unit_s or self.config.pace.unit_s

    def speed_of(self, machine: str, tier: Tier) -> float:
        """The speed that a machine has by the config, as a multiple of the usual."""
        speeds = self.config.pace.speeds
        number, _, _ = machine.partition("-")
        return speeds.get(number, speeds.get(tier.value, 1.0))

    def plan(self) -> tuple[PlannedEvent, ...]:
        """The config's plan as the controller runs it."""
        found: list[PlannedEvent] = []
        for event in self.config.plan:
            planned = _planned(event)
            # The plan has the names of the run's first start.
            if isinstance(planned, PlannedFault) and planned.machine:
                planned = replace(planned, machine=self.machine_name(int(planned.machine[1:])))
            found.append(planned)
        return tuple(found)

    def waiting_machines(self) -> dict[Tier, int]:
        """How many machines of each tier the plan will join; they start before clock 1."""
        found = dict.fromkeys(Tier, 0)
        for event in self.plan():
            if isinstance(event, PlannedJoin):
                found[event.tier] += event.count
        return found

    def controller_settings(self, expected: int) -> ControllerSettings:
        """The controller's share of the config."""
        config = self.config
        return ControllerSettings(
            rule=StageRule(
                config.stage_thresholds,
                3 if config.pipeline else config.stage if isinstance(config.stage, int) else None,
                config.active_fraction,
            ),
            auto_stage=TrialRule() if config.stage == "auto" and config.pipeline is None else None,
            cuts=CutRule(config.cuts.every_s, config.cuts.max_clocks),
            timeout_s=config.heartbeat.timeout_s,
            silent_limit_s=config.heartbeat.silent_limit_s,
            expected=expected,
            seed=config.seed,
            checkpoint_every_s=config.checkpoint.every_s if config.checkpoint else None,
            max_failures=config.max_failures,
            ready_limit_s=config.machines.wait_s,
        )


def _exchange(config: JobConfig) -> Exchange:
    if config.consistency.kind == "elastic":
        return SuperstepExchange()
    # A machine that is always alone owns every partition, so there is nothing to share.
    if config.optimizer.sharded and config.machines.max > 1:
        return SharedStateExchange()
    return PoolExchange() if has_pool(config) else exchange_of(config.exchange)


def balancer(config: JobConfig) -> MakeBalancer | None:
    """The policy that plans the units of each clock; None where the shares of the view hold."""
    if config.consistency.kind != "bsp" or config.pipeline is not None:
        return None
    if config.balance.kind == "lbbsp":
        return lambda units, home, sums_of: LbBsp(units, RestartingEma, home=home, hold=HOLD, sums_of=sums_of)
    options = [Remedy.STATIC]
    if config.balance.kind == "auto" and config.helping in (False, "auto"):
        options.append(Remedy.SHARES)
    if config.helping == "auto" and helping(config) is not None:
        options.append(Remedy.HELP)
    if len(options) == 1:
        return None
    return lambda units, home, sums_of: AutoBalance(units, home, options, sums_of)


def _overlap(config: JobConfig, application: Application, tables: Sequence[Table]) -> Overlap:
    """Whether clocks are computed while their parameters are on their way. Raises ConfigError if they cannot be.

    With `auto` it is off where it cannot be on.
    """
    sparse = [table.name for table in tables if table.sparse]
    if config.overlap == "auto":
        helps = isinstance(config.helping, HelpingConfig)
        fits = config.exchange == "servers" and config.consistency.kind == "bsp" and not helps
        return Overlap.AUTO if fits and not sparse and application.waits_for_parameters else Overlap.OFF
    if config.overlap is False:
        return Overlap.OFF
    shown = show(config.overlap)
    if sparse:
        raise ConfigError(
            f"found {shown}, expected false: {config.application} has sparse tables ({', '.join(sparse)}), whose rows "
            "are chosen before anything can be pulled",
            key=("overlap",),
        )
    if not application.waits_for_parameters:
        raise ConfigError(
            f"found {shown}, expected false: {config.application} reads all its parameters at once; a torch module "
            "reads them layer by layer",
            key=("overlap",),
        )
    return Overlap.ON if config.overlap is True else Overlap(config.overlap)


def _consistency(config: JobConfig) -> Consistency:
    section = config.consistency
    if section.kind != "elastic":
        return consistency(section.kind, section.slack)
    assert section.range is not None and section.objective is not None
    return Elastic(section.range, section.objective)


def helping(config: JobConfig) -> FlexRrParameters | None:
    """How machines help each other; None where they never do."""
    settings = helping_settings(config.helping)
    can = may_help(
        config.consistency.kind, config.exchange, config.overlap, is_pipeline=config.pipeline is not None
    )
    if settings is None or (config.helping == "auto" and not can):
        return None
    return FlexRrParameters(**settings.model_dump())


def _check_loss_scale(config: JobConfig, rule: LossScaleRule | None) -> None:
    """Raise ConfigError where the losses are scaled and a clock has no sum by which all decide alike."""
    if rule is None:
        return
    if config.consistency.kind not in ("bsp", "ssp"):
        raise ConfigError(
            f"found {config.consistency.kind} with losses that are scaled (float16), expected bsp or ssp: every push "
            "is a step by itself there, and an overflow must stop the whole clock",
            key=("consistency", "kind"),
        )
    if config.pipeline is not None:
        raise ConfigError(
            "found with losses that are scaled (float16), expected none: stages compute in the parameters' own "
            "precision",
            key=("pipeline",),
        )


def _check_rows(tables: Sequence[Table], partitions: int) -> None:
    """Raise ConfigError where a partition would have more rows of a sparse table than it can number."""
    for table in tables:
        if table.sparse and table.rows > partitions * MOST_ROWS:
            raise ConfigError(
                f"found {partitions} with the table {table.name!r} of {table.rows} rows, expected at least "
                f"{-(-table.rows // MOST_ROWS)}: a partition has at most {MOST_ROWS} rows of a table",
                key=("partitions",),
            )


def _check_slack(config: JobConfig, most: int | None, asked: int | None) -> None:
    """Raise ConfigError if reads may be older than the application can bear. None: any number of clocks."""
    if most is not None and (asked is None or asked > most):
        expected = f"bsp, or ssp with a slack up to {most}" if most else "bsp"
        raise ConfigError(
            f"found {config.consistency.kind}{f' with slack {asked}' if asked else ''}, expected {expected}: "
            f"{config.application} replaces what it read before",
            key=("consistency",),
        )


def _planned(event: EventConfig) -> PlannedEvent:
    """An event of a config as the controller takes it."""
    when: dict[str, Any] = {"at_clock": event.at_clock, "at_s": event.at_s}
    match event:
        case JoinConfig():
            return PlannedJoin(count=event.join, tier=Tier(event.tier), **when)
        case NoticeConfig():
            return PlannedNotice(count=_number(event.notice), warning_s=event.warning_s, **when)
        case ShortNoticeConfig():
            return PlannedNotice(count=_number(event.short_notice), warning_s=event.warning_s, **when)
        case KillConfig():
            return PlannedFault(kind=Fault.KILL, count=event.kill, **when)
        case KillManyConfig():
            return PlannedFault(kind=Fault.KILL, count=_number(event.kill_many), **when)
        case KillReliableConfig():
            return PlannedFault(kind=Fault.KILL_RELIABLE, count=event.kill_reliable, **when)
        case SlowConfig():
            return PlannedFault(
                kind=Fault.SLOW, count=event.slow, seconds=event.seconds, factor=event.factor, **when
            )
        case FreezeConfig():
            return PlannedFault(kind=Fault.FREEZE, count=event.freeze, seconds=event.seconds, **when)
        case DisconnectConfig():
            return PlannedFault(kind=Fault.CUT, count=event.cut, seconds=event.seconds, **when)
        case SpeedConfig():
            return PlannedFault(kind=Fault.SPEED, machine=event.machine, factor=1 / event.speed, **when)
        case DiskFullConfig():
            return PlannedFault(kind=Fault.DISK_FULL, seconds=event.seconds, **when)
        case KillControllerConfig():
            return PlannedFault(kind=Fault.KILL_CONTROLLER, **when)
        case _:
            raise AssertionError(event)


def _number(count: int | Literal["all"]) -> int | None:
    return None if count == "all" else count


def variables_of(config: JobConfig) -> dict[str, str]:
    """The environment variables that every process of a run needs before it starts.

    The process keeps the memory of freed arrays: a fresh page costs more than the addition that fills it. Deterministic
    runs fix the threads of BLAS, so that sums do not depend on the number of cores, and the workspace of cuBLAS.
    """
    variables = {
        "MALLOC_TRIM_THRESHOLD_": "-1",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TOP_PAD_": str(1 << 26),
        # Heaps of other threads hold 64 MB each, and malloc returns them whatever the other variables say.
        "MALLOC_ARENA_MAX": "1",
        **HIDING_VARIABLES,
    }
    if config.deterministic:
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        variables |= CUBLAS_VARIABLES
    if config.allreduce_backend == "nccl":
        variables |= NCCL_VARIABLES
    return variables


def variables_here(config: JobConfig) -> dict[str, str]:
    """The same on this computer, where interpreter and files are those of this process: only the user's folder may be
    missing from the path."""
    path = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    return {**variables_of(config), "PYTHONPATH": path.rstrip(os.pathsep)}
