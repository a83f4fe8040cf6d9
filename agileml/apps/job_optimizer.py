"""The optimizer of a job, built from the config, the user's schedule function and the parameters' names."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from agileml.application import Application, InputError, Table, Update
from agileml.apps.user_code import imported, other_module, split_name
from agileml.config.job import JobConfig
from agileml.config.optimizer import FunctionConfig, GroupConfig, OwnScheduleConfig, SgdConfig, TorchConfig
from agileml.config.text import ConfigError, show
from agileml.core.parameters.groups import GroupedOptimizer
from agileml.core.parameters.layout import ALIGNMENT
from agileml.core.parameters.learning_rate import Schedule
from agileml.core.parameters.optimizer import Optimizer, optimizer

KEY = ("optimizer", "schedule", "function")
TRIED_CLOCKS = 100_000  # of a schedule that is found step by step: more would take seconds
TRIED_APART = 10_000  # of a function, spread over the run


@dataclass(frozen=True)
class FunctionSchedule:
    """A factor of the learning rate that a function of the user's computes from the clock."""

    function: Callable[[int], float]

    def factor(self, clock: int) -> float:
        """The factor of `clock` (0-based)."""
        return float(self.function(clock))


def completed(config: JobConfig, application: Application) -> JobConfig:
    """The config with the sections that the application brings.

    Raises ConfigError where the config has an optimizer and the application brings another.
    """
    brought = application.brings()
    if not brought:
        if isinstance(config.optimizer, TorchConfig) and config.optimizer.name is None:
            raise ConfigError(
                "missing, expected a class of torch.optim, such as AdamW, or package.module:Class",
                key=("optimizer", "name"),
            )
        return config
    found = config.changed(**brought)
    asked = config.optimizer
    is_left_open = isinstance(asked, TorchConfig) and asked == TorchConfig(sharded=asked.sharded)
    if not is_left_open and asked not in (found.optimizer, SgdConfig()):
        raise ConfigError(
            f"found {_shown(config.optimizer)}, but the application brings {_shown(found.optimizer)}; expected one "
            "optimizer, the same on every machine",
            key=("optimizer",),
        )
    return found


def _shown(section: Any) -> str:
    values = section.model_dump(exclude_defaults=True, exclude={"groups"})
    return ", ".join(
        [section.kind, *(f"{key} {show(value)}" for key, value in values.items() if key != "kind")]
    )


def job_optimizer(config: JobConfig, application: Application, tables: Sequence[Table]) -> Optimizer:
    """Raises ConfigError, InputError: a function that is not there or returns no number, a pattern without a match."""
    section = config.optimizer
    settings: dict[str, Any] = section.model_dump(exclude={"groups"})
    if isinstance(section, TorchConfig):  # the replica has the rest; here is the rate of a clock
        settings = {"kind": "sgd", "learning_rate": section.learning_rate, "schedule": settings["schedule"]}
    if isinstance(section.schedule, FunctionConfig):
        settings["schedule"] = _schedule(section.schedule.function, (0, config.clocks - 1))
    elif isinstance(section.schedule, OwnScheduleConfig):
        application.learning_rate_factor(0)
        settings["schedule"] = FunctionSchedule(application.learning_rate_factor)
    default = optimizer(**settings)
    if default.is_layerwise:
        _check_layers(config, tables)
    names = [part.name for table in tables for part in table.ranges]
    if not names:
        if section.groups:
            raise ConfigError(
                f"found groups with {config.application}, expected an application whose parameters have names",
                key=("optimizer", "groups"),
            )
        return GroupedOptimizer(default, {}) if default.is_layerwise else default
    by_name: dict[str, Optimizer] = {}
    for number, group in enumerate(section.groups):
        rule = optimizer(**(settings | _own(group)))
        matching = [name for name in names if any(fnmatchcase(name, p) for p in group.parameters)]
        if not matching:
            raise ConfigError(
                f"found {', '.join(group.parameters)}, expected patterns of which one matches a parameter, such as "
                f"{names[0]}",
                key=("optimizer", "groups", number, "parameters"),
            )
        by_name |= {name: rule for name in matching if name not in by_name}
    return GroupedOptimizer(default, by_name)


def check_schedule(config: JobConfig, application: Application) -> None:
    """Raise ConfigError or InputError where the schedule ends, or is none, within the run: that the application brings,
    or a function of the user's."""
    schedule, clocks = config.optimizer.schedule, config.clocks
    if isinstance(schedule, OwnScheduleConfig):
        application.learning_rate_factor(min(clocks, TRIED_CLOCKS) - 1)
    elif isinstance(schedule, FunctionConfig):
        _schedule(schedule.function, range(0, clocks, max(1, clocks // TRIED_APART)))


def _check_layers(config: JobConfig, tables: Sequence[Table]) -> None:
    """Raise ConfigError where the norms of layers cannot be added up."""
    key = ("optimizer", "kind")
    found = f"found {config.optimizer.kind} with {config.application}"
    for table in tables:
        if table.update is not Update.GRADIENT:
            continue
        if table.sparse:
            raise ConfigError(
                f"{found}, whose table {table.name!r} is updated by row, expected another kind: the norm of a "
                "layer needs all of its rows",
                key=key,
            )
        for part in table.ranges[:-1]:
            if part.stop % ALIGNMENT:
                raise ConfigError(
                    f"{found}, whose parameter {part.name!r} ends at element {part.stop}, expected ranges that "
                    f"end at multiples of {ALIGNMENT}",
                    key=key,
                )


def _own(group: GroupConfig) -> dict[str, Any]:
    return group.model_dump(exclude={"parameters"}, exclude_none=True)


def _schedule(name: str, clocks: Iterable[int]) -> Schedule:
    """The user's function, tried for these clocks."""
    parts = split_name(name)
    if parts is None:
        raise ConfigError(f"found {name!r}, expected package.file:function", key=KEY)
    module, attribute = parts
    function = getattr(imported(name, module, ".".join(KEY)), attribute, None)
    if not callable(function):
        raise ConfigError(
            f"found {name}, but module {module} has no function {attribute!r}{other_module(module)}", key=KEY
        )
    for clock in clocks:
        try:
            found = function(clock)
        except Exception as error:
            raise InputError(
                f"{'.'.join(KEY)}: {name}({clock}) failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
            raise ConfigError(
                f"{name}({clock}) returned {found!r}, expected a factor of the learning rate, at least 0",
                key=KEY,
            )
    return FunctionSchedule(function)
