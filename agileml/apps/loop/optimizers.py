"""Optimizers and schedules of torch, read: which section of a config takes the same steps, at which rates."""

from __future__ import annotations

import copy
import glob
import math
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from agileml.application import InputError
from agileml.apps.loop.instances import instances_of
from agileml.apps.loop.own_optimizers import arguments_of, plain

# By section key, torch's name. All but the first two are the same for all groups.
OF_GROUP = {"learning_rate": "lr", "weight_decay": "weight_decay"}
TORCH = "torch"  # the kind of a section whose steps an optimizer of torch takes
OVERRIDDEN = ("step", "state_dict")  # of a schedule, in the loop
# Settings that the engine has no step for.
OFF = {"amsgrad": False, "maximize": False, "dampening": 0, "lr_decay": 0, "initial_accumulator_value": 0}


def section_of(optimizer: Any, module: nn.Module, *, is_resident: bool = False) -> dict[str, Any]:
    """The section `optimizer` of a config whose steps are those of `optimizer` over the module's parameters.

    is_resident: a section of kind `torch`, by which an optimizer of this class steps where each machine computes.
    Raises InputError: without it another optimizer than SGD, Adagrad, Adam and AdamW; settings that have no section,
    parameters that are not the module's, state from earlier steps, hooks of its step.
    """
    if is_resident and not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"prepare(): found an optimizer of type {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    kind = TORCH if is_resident else _kind(optimizer, 0)
    check_new(optimizer, "prepare()")
    check_hooks(optimizer)
    names = _names_by_group(optimizer, module)
    if is_resident:
        return _of_torch(optimizer, names)
    first, *others = optimizer.param_groups
    section = {"kind": kind, **_settings(kind, first)}
    shared = {key: value for key, value in section.items() if key not in OF_GROUP}
    groups = []
    for number, (group, members) in enumerate(zip(others, names[1:], strict=True), 1):
        own = {"kind": _kind(optimizer, number), **_settings(kind, group)}
        for key, value in shared.items():
            if own[key] != value:
                raise InputError(
                    f"prepare(): parameter group {number} of the optimizer has {key} {own[key]} and group 0 {value}, "
                    f"expected groups that differ in {' and '.join(OF_GROUP.values())} alone"
                )
        if members:
            # Names are patterns in a config.
            groups.append(
                {"parameters": [glob.escape(name) for name in members], **{key: own[key] for key in OF_GROUP}}
            )
    return {**section, "groups": groups} if groups else section


def brought_section(section: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The section that a loop or class brings to a config. asked: the config's own of kind `torch`, or nothing."""
    return {**section, "sharded": asked["sharded"]} if asked else dict(section)


def _of_torch(optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The section of kind `torch`. names: of each group's parameters."""
    made = type(optimizer)
    usual = signature(made).parameters
    settings = [
        {key: value for key, value in group.items() if key in usual and key not in ("params", "lr")}
        for group in optimizer.param_groups
    ]
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    if wrong := [rate for rate in rates if not rate > 0 or not math.isfinite(rate)]:
        raise InputError(f"prepare(): found an optimizer with lr={wrong[0]:g}, expected more than 0")
    groups = []
    for number, (group, members) in enumerate(zip(settings[1:], names[1:], strict=True), 1):
        for key, value in group.items():
            if key != "weight_decay" and value != settings[0][key]:
                raise InputError(
                    f"prepare(): parameter group {number} of the optimizer has {key} {value} and group 0 "
                    f"{settings[0][key]}, expected groups that differ in lr and weight_decay alone"
                )
        if members:
            shown = optimizer.param_groups[number]
            own = {"weight_decay": float(shown["weight_decay"])} if "weight_decay" in shown else {}
            parameters = [glob.escape(name) for name in members]
            groups.append({"parameters": parameters, "learning_rate": rates[number], **own})
    found = {key: value for key, value in settings[0].items() if value != usual[key].default}
    name, arguments = _name_of(made), {key: plain(key, value) for key, value in found.items()}
    if ":" in name:  # torch's own have all their settings in their groups
        arguments = arguments_of(optimizer, arguments)
    section = {"kind": TORCH, "name": name, "learning_rate": rates[0], "arguments": arguments}
    return {**section, "groups": groups} if groups else section


def _name_of(made: type[torch.optim.Optimizer]) -> str:
    """The name of an optimizer's class in a config."""
    if getattr(torch.optim, made.__name__, None) is made:
        return made.__name__
    if made.__module__ == "__main__" or "." in made.__qualname__:
        raise InputError(
            f"prepare(): found an optimizer of the class {made.__qualname__} of {made.__module__}, expected one of a "
            "module that machines can import"
        )
    return f"{made.__module__}:{made.__name__}"


def check_new(optimizer: torch.optim.Optimizer, where: str) -> None:
    """Raise InputError for an optimizer that has taken steps, whose state would get lost. where: it was found."""
    if any(state.get("step", 1) for state in optimizer.state.values() if state):  # Adagrad begins with one
        raise InputError(
            f"{where}: found an optimizer that has taken steps, expected a new one; to go on from a checkpoint, "
            "resume the run"
        )


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError for hooks of the optimizer's step, which would never be called."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InputError(
            "optimizer: found a hook of its step, expected none: the machines that hold the parameters take the steps, "
            "without this object"
        )


def _kind(optimizer: Any, group: int) -> str:
    """The kind of a config's section that takes the steps of the group of this number."""
    name = type(optimizer).__name__
    match type(optimizer):
        case torch.optim.SGD:
            return "momentum" if any(each["momentum"] for each in optimizer.param_groups) else "sgd"
        case torch.optim.Adagrad:
            return "adagrad"
        case torch.optim.AdamW:
            return "adamw"
        case torch.optim.Adam:
            return "adamw" if optimizer.param_groups[group].get("decoupled_weight_decay") else "adam"
    raise InputError(
        f"prepare(): found an optimizer of type {name}, expected torch.optim.SGD, Adagrad, Adam or AdamW: the "
        "machines that hold the parameters take its steps (any other with exchange: allreduce and "
        "optimizer: {kind: torch})"
    )


def _settings(kind: str, group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one parameter group under the names of a config."""
    for name, value in OFF.items():
        if group.get(name, value) != value:
            raise InputError(
                f"prepare(): found an optimizer with {name}={group[name]}, expected {name}={value}"
            )
    rate = float(group.get("initial_lr", group["lr"]))
    found: dict[str, Any] = {"learning_rate": rate, "weight_decay": float(group["weight_decay"])}
    if not rate > 0 or not math.isfinite(rate):
        raise InputError(f"prepare(): found an optimizer with lr={rate:g}, expected more than 0")
    if kind == "momentum":
        found |= {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
    if kind in ("adam", "adamw"):
        beta1, beta2 = map(float, group["betas"])
        found |= {"beta1": beta1, "beta2": beta2}
    if kind in ("adagrad", "adam", "adamw"):
        found["epsilon"] = float(group["eps"])
    return found


def _names_by_group(optimizer: torch.optim.Optimizer, module: nn.Module) -> list[list[str]]:
    """The names of each group's parameters that are trained: those without elements are not. Raises InputError if they
    are not the module's."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found = []
    for number, group in enumerate(optimizer.param_groups):
        if foreign := [p for p in group["params"] if id(p) not in names]:
            raise InputError(
                f"prepare(): the optimizer's group {number} has a parameter of shape {tuple(foreign[0].shape)} that is "
                "none of the model's, expected an optimizer over the parameters of this model"
            )
        found.append([names[id(p)] for p in group["params"] if p.requires_grad and p.numel()])
    trained = {name for members in found for name in members}
    trainable = (name for name, p in module.named_parameters() if p.requires_grad and p.numel())
    if missing := [name for name in trainable if name not in trained]:
        raise InputError(
            f"prepare(): the model's parameter {missing[0]!r} needs a gradient and is in no group of the optimizer, "
            "expected it in one, or requires_grad_(False)"
        )
    return found


@dataclass
class TorchSchedule:
    """A schedule of torch.optim.lr_scheduler as factors of the optimizer's rates, by how often it was stepped.

    It steps a copy of the schedule over an optimizer of its own. Raises InputError for a schedule that depends on more
    than the number of steps, changes more than the rate, or changes the groups' rates by different factors.
    """

    schedule: Any
    optimizer: torch.optim.Optimizer
    _factors: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if isinstance(self.schedule, ReduceLROnPlateau) or not isinstance(self.schedule, LRScheduler):
            raise InputError(
                f"prepare(): found a schedule of type {type(self.schedule).__name__}, expected one of "
                "torch.optim.lr_scheduler that depends on the number of steps alone"
            )
        if self.schedule.optimizer is not self.optimizer:
            raise InputError(
                "prepare(): the schedule is over another optimizer, expected the one that is prepared"
            )
        self.check_new("prepare()")
        self._first = [_numbers(group) for group in self.optimizer.param_groups]
        self._copy = self._copied()
        self._groups = self._copy.optimizer.param_groups
        self._before = self._beside()
        self._factors = [self._factor()]

    def check_new(self, where: str) -> None:
        """Raise InputError for a schedule that has taken steps. where: it was found."""
        if (taken := max(getattr(part, "last_epoch", 0) for part in _parts(self.schedule))) > 0:
            raise InputError(
                f"{where}: found a schedule that has taken {taken} steps, as one that is loaded from a checkpoint, "
                "expected a new one: its steps follow from the clock, also where a run is resumed and where a machine "
                "that joins runs the script"
            )

    def _copied(self) -> Any:
        """The schedule as it was, over an optimizer of its own. A function that is a method of the user's keeps its
        object, which may hold the model, the data and open files. Raises InputError for one that cannot be copied."""
        # The schedule reads and writes the settings of the groups alone: one number stands for the parameters of each.
        groups = [{**group, "params": [nn.Parameter(torch.zeros(1))]} for group in self._first]
        own = torch.optim.SGD([group["params"][0] for group in groups], lr=1.0)
        own.param_groups = groups
        memo: dict[int, Any] = {id(self.optimizer): own}
        for function in _functions(self.schedule):
            if isinstance(function, MethodType):
                memo[id(function.__self__)] = function.__self__
        try:
            copied = copy.deepcopy(self.schedule, memo)
        except Exception as error:  # whatever an object of the user's raises
            raise InputError(
                f"prepare(): {type(self.schedule).__name__} cannot be copied ({type(error).__name__}: "
                f"{' '.join(str(error).split())}), expected a schedule of functions of the number of steps"
            ) from error
        for name in OVERRIDDEN:
            vars(copied).pop(name, None)
        return copied

    def state(self, steps: int) -> Any:
        """The schedule's state dict after so many of its steps."""
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copied = self._copied()
            for _ in range(steps):
                copied.step()
            return copied.state_dict()

    def factor(self, steps: int) -> float:
        """The factor of the rates after so many steps of the schedule."""
        with self._lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a schedule whose optimizer takes no steps
            while len(self._factors) <= steps:
                self._step()
                if self._beside() != self._before:
                    raise InputError(
                        f"prepare(): {type(self.schedule).__name__} changes more than the learning rate, expected a "
                        "schedule of the rate alone (cycle_momentum=False)"
                    )
                self._factors.append(self._factor())
            return self._factors[steps]

    def _step(self) -> None:
        try:
            self._copy.step()
        except Exception as error:  # torch's own, and what the user's functions raise
            reason = " ".join(str(error).split())
            raise InputError(
                f"prepare(): {type(self.schedule).__name__} fails after {len(self._factors) - 1} steps "
                f"({type(error).__name__}: {reason}), expected a rate for every step of the run"
            ) from error

    def _beside(self) -> list[Any]:
        """The settings of the groups that no schedule may change."""
        changing = ("lr", "initial_lr", "params")
        return [
            {name: value for name, value in group.items() if name not in changing} for group in self._groups
        ]

    def _factor(self) -> float:
        factors = [float(group["lr"]) / float(group["initial_lr"]) for group in self._groups]
        if max(factors) - min(factors) > 1e-9 * max(abs(factor) for factor in factors):
            raise InputError(
                f"prepare(): {type(self.schedule).__name__} changes the rates of the groups by different factors "
                f"({', '.join(f'{factor:g}' for factor in factors)} after {len(self._factors)} steps), expected one "
                "factor for all"
            )
        if not math.isfinite(factors[0]) or factors[0] < 0:
            raise InputError(
                f"prepare(): {type(self.schedule).__name__} gives the factor {factors[0]:g} after "
                f"{len(self._factors)} steps, expected a number of at least 0"
            )
        return factors[0]


def check_schedules(optimizer: torch.optim.Optimizer, given: TorchSchedule | None) -> None:
    """Raise InputError for a schedule over the optimizer that is no part of the one that was given: its step would
    change the rates of one machine alone."""
    known = set() if given is None else {id(part) for part in _parts(given.schedule)}
    for found in instances_of(LRScheduler):
        if id(found) in known or vars(found).get("optimizer") is not optimizer:
            continue
        name = type(found).__name__
        if isinstance(found, ReduceLROnPlateau):
            raise InputError(
                f"loader: found a {name} over the optimizer, expected a schedule that depends on the number of steps "
                "alone, and is given to prepare(..., schedule=...): the machines that hold the parameters take the "
                "steps, and know no metric of the loop's"
            )
        raise InputError(
            f"loader: found a {name} over the optimizer: a schedule must be given to prepare(..., schedule=...), "
            "because the machines that hold the parameters take the steps"
        )


def _parts(schedule: Any) -> Iterator[Any]:
    """A schedule, and those that it is made of."""
    yield schedule
    for value in vars(schedule).values():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, LRScheduler):
                yield from _parts(each)


def _functions(schedule: Any) -> Iterator[Any]:
    """The user's functions that a schedule calls, or one that it is made of."""
    yield from getattr(schedule, "lr_lambdas", ())
    for part in getattr(schedule, "_schedulers", ()):
        yield from _functions(part)


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a group's settings. A rate that is a tensor becomes a number: schedules write to tensors in place."""
    return {name: float(group[name]) if isinstance(group[name], Tensor) else group[name] for name in group}


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each parameter group the settings that the class has, but for the rate."""
    names = optimizer.defaults.keys() - {"lr"}
    return [{name: group.get(name) for name in names} for group in optimizer.param_groups]


def set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    """Let the groups show their rates at a clock: what they began with, times the factor."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
