"""The file that `proteus pipeline` reads."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from pipeline.yaml_text import YamlTextError, read_yaml

MOST_THREADS = 1024  # of a process; far beyond it OpenMP finds no memory for them


class RunError(ValueError):
    """A pipeline that cannot be run as asked; the message is one sentence."""


class Mode(StrEnum):
    """FLUSH: synchronous, one update per minibatch of several microbatches. STASH: PipeDream's, one update per
    minibatch, no flush. NONE: as STASH without keeping weights for the backward."""

    FLUSH = "flush"
    STASH = "stash"
    NONE = "none"


class Order(StrEnum):
    """The order of the actions between two flushes."""

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TorchOptimizerConfig(BaseModel):
    """An optimizer of torch.optim, by the name of its class; all other keys are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str = "SGD"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments besides the parameters."""
        return dict(self.model_extra or {})


class PipelineConfig(_Strict):
    """A training by a pipeline.

    training: package.file:function or path/file.py:function that returns (model, loss, minibatch), where
    loss(output, *targets) is the mean over the items and minibatch(number) returns (inputs, targets), two tuples, for
    number = 1, 2, ... workers: processes; stages and replicas: auto lets the planner choose. microbatches: equal parts
    of a minibatch (flush). epoch: minibatches after which the pipeline empties (stash, none; by default never).
    in_flight: minibatches, with a flush microbatches, per replica of the first stage (default NOAM). memory: of each
    worker, for the planner.
    """

    training: str
    minibatches: PositiveInt = 100
    mode: Mode = Mode.FLUSH
    order: Order = Order.ONE_F_ONE_B
    microbatches: PositiveInt = 4
    workers: PositiveInt | None = None
    stages: PositiveInt | Literal["auto"] = "auto"
    replicas: tuple[PositiveInt, ...] | Literal["auto"] = "auto"
    vertical_sync: bool = False
    double_buffered: bool = False
    in_flight: PositiveInt | None = None
    epoch: PositiveInt | None = None
    recompute: Literal["never", "auto", "always"] = "never"
    memory: str | None = None
    optimizer: TorchOptimizerConfig = TorchOptimizerConfig(kind="SGD", lr=0.01)  # type: ignore[call-arg]
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS)] = 1
    plan: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        flushes = self.mode is Mode.FLUSH
        if self.order is Order.ZERO_BUBBLE and not flushes:
            raise ValueError(
                "order zero-bubble is for mode flush: without a flush there is no bubble to fill"
            )
        if self.vertical_sync and self.double_buffered:
            raise ValueError("vertical_sync and double_buffered exclude each other")
        if (self.vertical_sync or self.double_buffered) and self.mode is not Mode.STASH:
            raise ValueError("vertical_sync and double_buffered are for mode stash")
        if self.epoch is not None and flushes:
            raise ValueError(
                "epoch is for modes stash and none: with a flush the pipeline empties every minibatch"
            )
        if self.plan is not None and (self.stages != "auto" or self.replicas != "auto"):
            raise ValueError("plan says stages and replicas itself: leave those keys out")
        if self.replicas != "auto" and self.stages not in ("auto", len(self.replicas)):
            raise ValueError(
                f"stages is {self.stages} and replicas has {len(self.replicas)} numbers, one per stage"
            )
        most, of = self.minibatches * self.parts, "minibatches x microbatches" if flushes else "minibatches"
        if self.in_flight is not None and self.in_flight > most:
            raise ValueError(f"in_flight is {self.in_flight}, expected at most {of} = {most}")
        made = sum(self.replicas) if self.replicas != "auto" else self.stages
        if self.workers is not None and made not in ("auto", self.workers):
            raise ValueError(f"workers is {self.workers}, but stages and replicas make {made}")
        return self

    @model_validator(mode="after")
    def _leaves_to_the_planner(self) -> Self:
        """Refuse keys that only the planner heeds where there is nothing for it to plan."""
        if self.plan is not None and self.recompute != "never":
            raise ValueError("plan says itself which stages recompute: leave recompute out")
        is_given = self.plan is not None or self.stages != "auto" or self.replicas != "auto"
        if is_given and self.memory is not None:
            raise ValueError("memory is for the planner: leave it out beside stages, replicas or plan")
        if is_given and self.recompute == "auto":
            raise ValueError(
                "recompute auto is for the planner: beside stages or replicas say never or always"
            )
        if self.recompute == "auto" and self.memory is None:
            raise ValueError("recompute auto goes by memory: say how much each worker has")
        return self

    @property
    def parts(self) -> int:
        """Microbatches of a minibatch."""
        return self.microbatches if self.mode is Mode.FLUSH else 1


def check_open(config: PipelineConfig) -> None:
    """Raises RunError for a config that leaves nothing to the planner."""
    for key in ("plan", "stages", "replicas"):
        if (value := getattr(config, key)) not in (None, "auto"):
            found = list(value) if isinstance(value, tuple) else value
            raise RunError(f"{key} is {found}: leave that key out for a plan by the planner")


def read_config(path: Path, changes: dict[str, Any] | None = None) -> PipelineConfig:
    """The config of a YAML file, with some keys changed. Raises RunError, whose sentence names file and key."""
    try:
        raw = read_yaml(path)
    except YamlTextError as error:
        raise RunError(str(error)) from None
    if not isinstance(raw, dict):
        raise RunError(f"{path} must be keys and values, found {type(raw).__name__}")
    return _validated(raw | (changes or {}), path)


def saved_config(path: Path) -> PipelineConfig:
    """The config in a run's folder. Raises RunError, whose sentence names file and key."""
    try:
        raw = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is not JSON: {error}") from None
    return _validated(raw, path)


def _validated(raw: object, path: Path) -> PipelineConfig:
    try:
        return PipelineConfig.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        found = f", found {first['input']!r}" if where and first["type"] != "missing" else ""
        raise RunError(f"{path}: {where + ': ' if where else ''}{reason}{found}") from None
