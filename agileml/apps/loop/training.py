"""A training without a loop: a class of which two methods must be written, and the application that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler

from agileml.application import InputError, Settings
from agileml.apps.loop.optimizers import TorchSchedule, brought_section, section_of
from agileml.apps.torch.data import Examples
from agileml.apps.torch.evaluation import ACCURACY, LOSS, Evaluation, OwnEvaluation
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.objective import Judged, OutputLoss, right_places
from agileml.apps.torch.step import Stepper
from agileml.config.text import ConfigError

KEYS = {
    "arguments",
    "autocast",
    "batch_size",
    "device",
    "evaluate_every",
    "loader_processes",
    "loss_scale",
    "micro_batch",
    "threads",
}


class Training:
    """The user's model, data and training step. Every machine makes an instance and calls its methods.

    `model.arguments` of the config are the arguments of the class. A batch is what the data set's items make together:
    (input, ..., target), a mapping, or any tree of tensors.
    """

    def build(self) -> nn.Module:
        """The module. torch's random numbers begin with the run's seed."""
        raise NotImplementedError

    def datasets(self) -> Any:
        """(train, test) or train: each a torch Dataset with a length, or a tuple of arrays (input, ..., target). Random
        numbers of torch, NumPy and Python begin with the run's seed."""
        raise NotImplementedError

    def loss(self, module: nn.Module, batch: Any) -> Tensor:
        """A batch's mean loss: cross-entropy of (input, ..., target), or the loss that `module(**batch)` returns."""
        return _usual(module, batch).loss

    def evaluate(self, module: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Metrics of a test batch: each the mean over its items, or a pair of a sum and its weight.

        `test_loss`, and `test_accuracy` where outputs are scores of classes.
        """
        if type(self).loss is not Training.loss:
            return {LOSS: self.loss(module, batch)}
        judged = _usual(module, batch)
        right = right_places(judged.output, judged.target)
        found: dict[str, Any] = {LOSS: judged.loss}
        return found if right is None else found | {ACCURACY: (right.sum(), right.numel())}

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """SGD, Adagrad, Adam or AdamW of torch.optim over the module's parameters, any other where the config has
        `optimizer: {kind: torch}`: AdamW."""
        return torch.optim.AdamW(module.parameters())

    def schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        """A schedule of the rate that is stepped once a clock: none."""
        return None


def _usual(module: nn.Module, batch: Any) -> Judged:
    return OutputLoss(cross_entropy)(module, batch)


class TrainingModule(TorchModule):
    """`torch` by a class of the user's."""

    def __init__(
        self, settings: Settings | None = None, training: type[Training] | Training = Training
    ) -> None:
        """training: the class, made with `model.arguments`, or an instance."""
        super().__init__(settings, build=nn.Identity)
        if wrong := sorted(self.model.model_fields_set - KEYS):
            raise ConfigError(
                f"found with a class of the training's own, expected only {', '.join(sorted(KEYS))}",
                key=("model", wrong[0]),
            )
        self._given = training
        made = self._made(training)
        self._own |= {"build": made.build, "dataset": made.datasets, "step": made.loss}
        self._training = made

    def _made(self, training: type[Training] | Training) -> Training:
        if isinstance(training, Training):
            return training
        try:
            return training(**self.model.arguments)
        except TypeError as error:
            raise ConfigError(
                f"found {', '.join(self.model.arguments) or 'none'}, expected the arguments of {training.__name__} "
                f"({error})",
                key=("model", "arguments"),
            ) from error

    def with_settings(self, settings: Settings) -> TrainingModule:
        return TrainingModule(settings, self._given)

    def __reduce__(self) -> Any:
        return TrainingModule, (self.settings, self._given)

    @cached_property
    def _optimizer(self) -> tuple[Mapping[str, Any], TorchSchedule | None]:
        module = self._built().module
        optimizer = self._training.optimizer(module)
        section = section_of(optimizer, module, is_resident=bool(self.settings.optimizer))
        found = self._training.schedule(optimizer)
        return section, None if found is None else TorchSchedule(found, optimizer)

    def brings(self) -> Mapping[str, Any]:
        section, schedule = self._optimizer
        more = {} if schedule is None else {"schedule": {"kind": "application"}}
        return {"optimizer": brought_section({**section, **more}, self.settings.optimizer)}

    def learning_rate_factor(self, clock: int) -> float:
        schedule = self._optimizer[1]
        return 1.0 if schedule is None else schedule.factor(clock)

    @cached_property
    def _metric_names(self) -> tuple[str, ...]:
        return self._measured_names()  # only evaluate() knows them

    def evaluation_with(self, stepper: Stepper, test: Examples) -> Evaluation:
        return OwnEvaluation(stepper, test, {}, self._at_once, self._training.evaluate, self.model.autocast)


def application_of(training: Any) -> TrainingModule:
    """Raises InputError for a class that is not whole."""
    kind = training if isinstance(training, type) else type(training)
    lacks = [name for name in ("build", "datasets") if getattr(kind, name) is getattr(Training, name)]
    if lacks:
        raise InputError(f"application: {kind.__name__} lacks {' and '.join(f'{name}()' for name in lacks)}")
    return TrainingModule(None, training)
