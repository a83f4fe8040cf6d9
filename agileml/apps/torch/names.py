"""The section `model` of a torch job, and what its names stand for: functions of the user's files, torch's losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal
from weakref import WeakValueDictionary

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional

from agileml.application import InputError, LossScaleRule, Settings
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.objective import Objective, OutputLoss, UserStep
from agileml.apps.user_code import function_named
from agileml.config.section import Section
from agileml.config.text import ConfigError, nearest

LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
}
# By id, those of modules that the user's functions have returned.
_made = WeakValueDictionary[int, nn.Parameter]()


class LossScaleConfig(Section):
    """How the scale of the losses follows the clocks, with float16: the numbers of torch.amp.GradScaler."""

    initial: Annotated[float, Field(gt=0, le=2.0**127)] = 65536.0
    growth: Annotated[float, Field(gt=1)] = 2.0
    backoff: Annotated[float, Field(gt=0, lt=1)] = 0.5
    interval: Annotated[int, Field(ge=1)] = 2000

    def rule(self) -> LossScaleRule:
        """The same as the engine takes it."""
        return LossScaleRule(**self.model_dump())


class ModuleConfig(Section):
    """The section `model`. `batch_size`: items of a clock over all workers; None: `clocks_per_pass` clocks a pass."""

    module: str | None = None
    script: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    loss: str = "cross_entropy"
    step: str | None = None
    metrics: dict[str, str] = Field(default_factory=dict)
    evaluate_every: Literal["pass"] | Annotated[int, Field(ge=1)] | None = None
    augment: str | None = None
    collate: str | None = None
    loader_processes: Annotated[int, Field(ge=0)] = 0
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    autocast: Literal["bfloat16", "float16"] | None = None
    loss_scale: LossScaleConfig | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] = 1

    def scale_rule(self, dtype: torch.dtype) -> LossScaleRule | None:
        """How losses are scaled where forward computes in float16; None otherwise. dtype: of the parameters. Raises
        ConfigError."""
        if self.autocast != "float16":
            if self.loss_scale is None:
                return None
            raise ConfigError(
                f"found with autocast {self.autocast or 'none'}, expected float16: other numbers need no scale",
                key=("model", "loss_scale"),
            )
        if dtype == torch.float64:
            raise ConfigError(
                "found float16 with parameters of float64, expected float32 ones: autocast leaves float64 as it is",
                key=("model", "autocast"),
            )
        return (self.loss_scale or LossScaleConfig()).rule()

    def is_on_cuda(self, settings: Settings) -> bool:
        """This process computes on a CUDA device. Where the job's machines have none, `auto` takes none in one process
        either, which would have other bits."""
        may = self.device == "cuda" or (self.device == "auto" and settings.has_devices)
        return may and torch.cuda.is_available()

    def check_device(self, device: torch.device) -> None:
        """Raise InputError where units want a CUDA device and this process computes on another one. The process that
        started the machines may have none, and evaluates their result on the CPU."""
        if self.device == "cuda" and device.type != "cuda":
            raise InputError(
                "model.device: found cuda, expected auto or cpu: this machine has no CUDA device for the run "
                "(machines.gpus reserves one)"
            )


def objective_of(step: Callable[..., Any] | None, loss: Callable[..., Any] | str) -> Objective:
    """The user's step, or else a loss of (output, target), which may be a name. Raises InputError."""
    if step is not None:
        return UserStep(step)
    return OutputLoss(loss_named(loss) if isinstance(loss, str) else loss)


def loss_named(name: str) -> Callable[..., Any]:
    """One of LOSSES, or `package.file:function`. Raises InputError."""
    if name in LOSSES:
        return LOSSES[name]
    if ":" in name:
        return function_named(name, "model.loss")
    raise InputError(f"model.loss: found {name!r}, {nearest(name, LOSSES)}, or package.file:function")


def built(own: Callable[..., Any] | None, model: ModuleConfig) -> FlatModule:
    """The module that the user's own function makes, or else the one that the config names. Raises InputError."""
    key = "model.module" if own is None else "build"
    if own is not None:
        flat = FlatModule(called(own, key), key)
    else:
        assert model.module is not None
        function = function_named(model.module, key)
        flat = FlatModule(called(function, key, **model.arguments), key)
    _check_is_new(flat.module, key)
    # As from_pretrained returns it. In a module that is in train mode each part keeps the mode that it was built in.
    if not flat.module.training:
        flat.module.train()
    return flat


def _check_is_new(module: nn.Module, key: str) -> None:
    """Raise InputError for a module that a call before has returned too: a batch may have been tried with it."""
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        if _made.get(id(parameter)) is parameter:
            raise InputError(
                f"{key}: made a module with the parameter {name!r} of the one before, expected all that is trained to "
                "be made anew by each call: a process needs more than one"
            )
    _made.update((id(parameter), parameter) for parameter in trained.values())


def called(function: Callable[..., Any], key: str, *arguments: Any, **named: Any) -> Any:
    """Call the user's function. Raises InputError with the error of the function."""
    try:
        return function(*arguments, **named)
    except InputError:
        raise
    except Exception as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        raise InputError(f"{key}: {name}() failed: {type(error).__name__}: {error}") from error
