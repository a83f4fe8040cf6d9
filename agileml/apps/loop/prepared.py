"""The objects that a loop trains with, as `trainer.prepare` takes them: checked, and read as the engine needs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

from agileml.application import InputError, LossScaleRule, Settings
from agileml.apps.loop.optimizers import TorchSchedule, section_of
from agileml.apps.torch.data import DataSet, DatasetExamples, Examples, TensorExamples, load_data
from agileml.apps.torch.evaluation import Measure
from agileml.apps.torch.flat import FlatModule

Every = Literal["batch", "pass"]


@dataclass(frozen=True)
class LoopEvaluation:
    """An evaluation while the loop trains: its items, the function that measures a batch, and the clocks in between."""

    test: Examples
    measure: Measure
    every: int | Literal["pass"]


@dataclass(frozen=True)
class Prepared:
    """A model, its optimizer and its data. section: `optimizer` of a config. batch_size: items of a clock.

    trained: the parameters that needed a gradient at prepare(), but for those that are read by row.
    per_pass: the schedule is stepped once a pass, not once a clock. scaler: torch's, if the loop has one that is
    enabled; loss_scale: its numbers.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data: DataSet
    batch_size: int
    section: Mapping[str, Any]
    trained: frozenset[str]
    schedule: TorchSchedule | None = None
    per_pass: bool = False
    evaluation: LoopEvaluation | None = None
    scaler: torch.amp.GradScaler | None = None
    loss_scale: LossScaleRule | None = None

    @property
    def evaluates_every(self) -> int | None:
        """Clocks from one evaluation to the next; None: none."""
        if self.evaluation is None:
            return None
        return self.clocks_per_pass if self.evaluation.every == "pass" else self.evaluation.every

    @property
    def dataset(self) -> Any:
        """The training items as a torch Dataset, the user's own where there is one."""
        train = self.data.train
        if isinstance(train, DatasetExamples):
            return train.dataset
        assert isinstance(train, TensorExamples), "what prepare() takes"
        return TensorDataset(*train.tensors)

    @property
    def clocks_per_pass(self) -> int:
        """Clocks in which every training item comes once."""
        return -(-len(self.data.train) // self.batch_size)

    def factor(self, clock: int) -> float:
        """The factor of the learning rates at a clock."""
        return 1.0 if self.schedule is None else self.schedule.factor(self.schedule_steps(clock))

    def schedule_steps(self, clock: int) -> int:
        """The schedule's steps before a clock."""
        return clock // self.clocks_per_pass if self.per_pass else clock


@contextmanager
def as_at_prepare(model: nn.Module, trained: frozenset[str]) -> Iterator[None]:
    """The context in which a model is laid out: what the script has frozen since prepare(), to train it later, has a
    place as well. trained: the names of what needed a gradient there."""
    frozen = [p for name, p in model.named_parameters() if name in trained and not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


def prepared_from(
    model: Any,
    optimizer: Any,
    dataset: Any,
    batch_size: int | None,
    *,
    schedule: Any = None,
    schedule_every: Every = "batch",
    clip_norm: float | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    scaler: Any = None,
    is_resident: bool = False,
) -> Prepared:
    """is_resident: the optimizer steps where machines compute. Raises InputError for anything that cannot be trained
    with: one sentence."""
    flat = FlatModule(model, "prepare()")
    section = section_of(optimizer, model, is_resident=is_resident)
    if schedule_every not in ("batch", "pass"):
        raise InputError(f'prepare(): found schedule_every={schedule_every!r}, expected "batch" or "pass"')
    if clip_norm is not None:
        if not isinstance(clip_norm, int | float) or not 0 < clip_norm < math.inf:
            raise InputError(f"prepare(): found clip_norm={clip_norm!r}, expected a number of more than 0")
        section["clip_norm"] = float(clip_norm)
    factors = None
    if schedule is not None:
        factors = TorchSchedule(schedule, optimizer)
        section["schedule"] = {"kind": "application"}
    # `evaluate_on` brings the items of its own.
    data = replace(load_data(Settings(), dataset, collate), test=None)
    if batch_size is None:
        raise InputError(
            "prepare(): found no batch_size, expected the items of a clock, over all machines together"
        )
    if type(batch_size) is not int or not 1 <= batch_size <= len(data.train):
        raise InputError(
            f"prepare(): found batch_size={batch_size!r}, expected a whole number from 1 to the {len(data.train)} "
            "items of the data set"
        )
    rule = scale_rule(scaler)
    return Prepared(
        model,
        optimizer,
        data,
        batch_size,
        section,
        frozenset(name for name, _ in flat.parameters),
        factors,
        schedule_every == "pass",
        scaler=None if rule is None else scaler,
        loss_scale=rule,
    )


def scale_rule(scaler: Any) -> LossScaleRule | None:
    """The numbers of torch's scaler of losses; None without one that is enabled. Raises InputError for one that cannot
    be followed."""
    if scaler is None:
        return None
    if not isinstance(scaler, torch.amp.GradScaler):
        raise InputError(
            f"prepare(): found a scaler of type {type(scaler).__name__}, expected a torch.amp.GradScaler"
        )
    if not scaler.is_enabled():
        return None
    state = scaler.state_dict()
    if state["_growth_tracker"]:
        raise InputError(
            "prepare(): found a scaler that has taken steps, expected a new one; to go on from a checkpoint, resume "
            "the run"
        )
    rule = LossScaleRule(
        state["scale"], state["growth_factor"], state["backoff_factor"], state["growth_interval"]
    )
    if not (rule.initial > 0 and rule.growth > 1 and 0 < rule.backoff < 1 and rule.interval >= 1):
        raise InputError(
            f"prepare(): found a scaler with {rule}, expected a growth of more than 1 and a backoff between 0 and 1"
        )
    return rule


def with_evaluation(
    prepared: Prepared, test: Any, measure: Any, every: Any, collate: Callable[[list[Any]], Any] | None
) -> Prepared:
    """Raises InputError for what cannot be evaluated: one sentence."""
    try:
        data = load_data(Settings(), test, collate)
    except InputError as error:
        raise InputError(f"evaluate_on(): {error}") from None
    if data.test is not None:
        raise InputError(
            "evaluate_on(): found a training set and a test set, expected the items to evaluate on alone"
        )
    if not callable(measure):
        raise InputError(
            f"evaluate_on(): found a {type(measure).__name__}, expected a function of (model, batch) that returns "
            "metrics by name"
        )
    if every != "pass" and (type(every) is not int or every < 1):
        raise InputError(
            f'evaluate_on(): found every={every!r}, expected "pass" or a number of clocks of at least 1'
        )
    return replace(prepared, evaluation=LoopEvaluation(data.train, measure, every))
