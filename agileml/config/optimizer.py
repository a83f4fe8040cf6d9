"""The section `optimizer` of a config: which rule turns summed gradients into new parameters, and at what rate.

The rules themselves are in `agileml.core.parameters`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from agileml.config.machines import MachinesConfig
from agileml.config.section import Positive, PositiveInt, Section, one_of
from agileml.config.text import ConfigError

Rate = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(ge=1e-30)]  # of one far below float32 makes 0, and divides by it


class StepsConfig(Section):
    """The rate times `by` every `every` clocks, after a linear warm-up of `warmup` clocks."""

    kind: Literal["steps"] = "steps"
    every: PositiveInt
    by: Annotated[float, Field(gt=0, le=1)] = 0.1
    warmup: Annotated[int, Field(ge=0)] = 0


class CosineConfig(Section):
    """The rate down half a cosine to `final` times itself at clock `clocks`, after a linear warm-up."""

    kind: Literal["cosine"] = "cosine"
    clocks: PositiveInt
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0


class LinearConfig(CosineConfig):
    """The rate down a line to `final` times itself at clock `clocks`, after a linear warm-up."""

    kind: Literal["linear"] = "linear"  # type: ignore[assignment]


class FunctionConfig(Section):
    """The rate times a function of the user's: package.file:function, from the clock (0-based) to a number."""

    kind: Literal["function"] = "function"
    function: str


class OwnScheduleConfig(Section):
    """The rate times a factor that the application computes: the torch schedule of a script or a class."""

    kind: Literal["application"] = "application"


class GroupConfig(Section):
    """Settings of their own for the parameters whose names match one of the patterns (`*` stands for anything)."""

    parameters: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    learning_rate: Positive | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None


SCHEDULES: dict[str, type[Section]] = {
    "steps": StepsConfig,
    "cosine": CosineConfig,
    "linear": LinearConfig,
    "function": FunctionConfig,
    "application": OwnScheduleConfig,
}
_pick_schedule = one_of(SCHEDULES, "kind", default="cosine")
OptionalSchedule = Annotated[
    StepsConfig | CosineConfig | LinearConfig | FunctionConfig | OwnScheduleConfig | None,
    BeforeValidator(lambda value: None if value is None else _pick_schedule(value)),
]


class _Shaping(Section):
    """Shared by all optimizers: the gradient of all parameters together is scaled down to the norm `clip_norm`, each
    element is clipped, then weight_decay * w added. `is_layerwise`: a step needs norms of the whole layer, so all
    partitions at one clock, and tables that are dense."""

    is_layerwise: ClassVar[bool] = False
    sharded: ClassVar[bool] = False  # servers always step shares
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Positive | None = None
    clip: Positive | None = None
    schedule: OptionalSchedule = None
    groups: Annotated[tuple[GroupConfig, ...], Field(strict=False)] = ()


class SgdConfig(_Shaping):
    """w -= learning_rate * g."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: Positive = 0.1


class MomentumConfig(_Shaping):
    """m = momentum * m + g; w -= learning_rate * m, or learning_rate * (g + momentum * m) with `nesterov`."""

    kind: Literal["momentum"] = "momentum"
    learning_rate: Positive = 0.1
    momentum: Rate = 0.9
    nesterov: bool = False


class AdagradConfig(_Shaping):
    """s += g * g; w -= learning_rate * g / (sqrt(s) + epsilon) (Duchi, Hazan and Singer 2011)."""

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: Positive = 0.01
    epsilon: Epsilon = 1e-10


class AdamConfig(_Shaping):
    """Adam with bias correction (Kingma and Ba 2015, algorithm 1)."""

    kind: Literal["adam"] = "adam"
    learning_rate: Positive = 0.001
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    epsilon: Epsilon = 1e-8


class AdamWConfig(AdamConfig):
    """Adam with w *= 1 - learning_rate * weight_decay beside it (Loshchilov and Hutter 2019)."""

    kind: Literal["adamw"] = "adamw"  # type: ignore[assignment]
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class LambConfig(_Shaping):
    """Adam's direction with weight decay, by layer as long as its parameters (You et al. 2020, algorithm 2)."""

    is_layerwise: ClassVar[bool] = True
    kind: Literal["lamb"] = "lamb"
    learning_rate: Positive = 0.001
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    beta1: Rate = 0.9
    beta2: Rate = 0.999
    epsilon: Epsilon = 1e-6


class TorchConfig(Section):
    """An optimizer of torch.optim, or package.module:Class, with its own `arguments`.

    Without a name it is the one of the application's own loop or class, with the settings that it has there.
    It steps where each machine computes, so it needs an all-reduce and a torch module. `sharded`: each machine steps a
    share of the parameters, holds the optimizer's state of that share alone, and gets the others' values (ZeRO 1).
    """

    is_layerwise: ClassVar[bool] = False
    kind: Literal["torch"] = "torch"
    name: str | None = None
    sharded: bool = False
    learning_rate: Positive = 0.001
    arguments: dict[str, Any] = Field(default_factory=dict)
    clip_norm: Positive | None = None
    schedule: OptionalSchedule = None
    groups: Annotated[tuple[GroupConfig, ...], Field(strict=False)] = ()


OPTIMIZERS: dict[str, type[_Shaping | TorchConfig]] = {
    "sgd": SgdConfig,
    "momentum": MomentumConfig,
    "adagrad": AdagradConfig,
    "adam": AdamConfig,
    "adamw": AdamWConfig,
    "lamb": LambConfig,
    "torch": TorchConfig,
}
SERVED = tuple(kind for kind in OPTIMIZERS if kind != "torch")  # those that servers step
# Those that step sparse tables, too.
BY_ROW = tuple(kind for kind in SERVED if not OPTIMIZERS[kind].is_layerwise)
OptimizerConfig = Annotated[
    SgdConfig | MomentumConfig | AdagradConfig | AdamConfig | AdamWConfig | LambConfig | TorchConfig,
    BeforeValidator(one_of(OPTIMIZERS, "kind", default="sgd")),
]


def only_modules(application: str) -> ConfigError:
    """An application that no optimizer of torch can step."""
    return ConfigError(
        f"found torch with application {application}, expected {', '.join(SERVED)}: only torch modules are stepped "
        "where they are",
        key=("optimizer", "kind"),
    )


def check_optimizer(
    optimizer: OptimizerConfig,
    application: str,
    exchange: str,
    consistency: str,
    machines: MachinesConfig,
) -> None:
    """Raises ConfigError where the section does not go together with other keys of the job."""
    if optimizer.clip_norm is not None and consistency == "asp":
        raise ConfigError(
            f"found {optimizer.clip_norm:g} with consistency asp, expected bsp or ssp: asp applies every push by "
            "itself and never has the gradient of a clock",
            key=("optimizer", "clip_norm"),
        )
    if optimizer.is_layerwise and consistency not in ("bsp", "ssp"):
        raise ConfigError(
            f"found {optimizer.kind} with consistency {consistency}, expected bsp or ssp: every push is a step by "
            "itself there, taken before the norms of layers are known",
            key=("optimizer", "kind"),
        )
    if not isinstance(optimizer, TorchConfig):
        return
    if exchange != "allreduce":
        raise ConfigError(
            f"found torch with exchange: {exchange}, expected {', '.join(SERVED)}: servers step parts of "
            "parameters, optimizers of torch step whole ones on every machine (exchange: allreduce)",
            key=("optimizer", "kind"),
        )
    # One of the user's shows what it is when it is built.
    if application != "torch" and ":" not in application:
        raise only_modules(application)
    if machines.workers not in ("auto", 1):
        raise ConfigError(
            f"found {machines.workers} with optimizer.kind torch, expected 1: one process of a machine has the "
            "parameters",
            key=("machines", "workers"),
        )
    if machines.gpus > 1:
        raise ConfigError(
            f"found {machines.gpus:g} with optimizer.kind torch, expected at most 1: one process of a machine "
            "computes, on one GPU (a host with several can be as many nodes of Ray)",
            key=("machines", "gpus"),
        )
