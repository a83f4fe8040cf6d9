"""`torch` with `model.script`: the application that runs a loop of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from agileml.application import Array, InputError, LossScaleRule, Settings, Table, Unit, Updates
from agileml.apps.loop.optimizers import brought_section
from agileml.apps.loop.prepared import Prepared, as_at_prepare
from agileml.apps.loop.script import Script
from agileml.apps.loop.source import ScriptSource, UserCode
from agileml.apps.loop.stepper import LoopCudaStepper, LoopStepper, no_objective
from agileml.apps.torch.batches.minibatches import ExampleSlice
from agileml.apps.torch.batches.trees import is_same
from agileml.apps.torch.data import DataSet, Examples
from agileml.apps.torch.evaluation import Evaluation, OwnEvaluation, measured_by
from agileml.apps.torch.flat import FlatModule
from agileml.apps.torch.module import TorchModule
from agileml.apps.torch.objective import evaluating
from agileml.apps.torch.seeding import in_turn, seeded
from agileml.apps.torch.step import Stepper
from agileml.apps.torch.trial import MOST_ITEMS, placed_batch
from agileml.apps.torch.units import StreamReady
from agileml.config.text import ConfigError

KEYS = {"script", "batch_size", "loss_scale", "micro_batch", "loader_processes", "device", "threads"}


class ScriptModule(TorchModule):
    """A script or a function whose loop trains.

    Every process of the run that needs the model runs it as far as the loop, under the run's seed; where units are
    computed, its loop goes on from there.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        source: UserCode | None = None,
        items: int | None = None,
        *,
        is_shown: bool = True,
        here: Examples | None = None,
    ) -> None:
        """source: None for the one that the config names. items: of the data set where the run was started, if known.

        is_shown: what the script prints before its loop is shown; it is not where it was shown before. here: the data
        set that the script has made in this process by itself.
        """
        super().__init__(settings, build=_of_script)
        self._source = source
        self._items = items
        self._script: Script | None = None
        self._is_spent = False  # its loop has run with a batch that was none of the training's
        self._is_shown, self._here = is_shown, here
        self._clock = 0
        if wrong := sorted(self.model.model_fields_set - KEYS):
            raise ConfigError(
                f"found with a loop of the script's own, expected only {', '.join(sorted(KEYS))}",
                key=("model", wrong[0]),
            )
        if self.settings.data:
            raise ConfigError(
                "found with a loop of the script's own, expected none: prepare() has the data set",
                key=("data",),
            )
        if self.settings.is_staged:
            raise ConfigError(
                "found with a loop of the script's own, expected none: the last stage computes the loss from the "
                "model's output, and does not run a loop",
                key=("pipeline",),
            )

    def with_settings(self, settings: Settings) -> ScriptModule:
        return ScriptModule(settings, self._source, self._items, is_shown=self._is_shown, here=self._here)

    def __reduce__(self) -> Any:
        return ScriptModule, (self.settings, self.source, self._items)

    def as_sent(self) -> ScriptModule:
        """The same as machines get it: with the text of the script, and the number of items to expect."""
        return ScriptModule(self.settings, self.source, len(self.data.train))

    # -- the script -------------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> UserCode:
        """The user's code. Raises InputError."""
        if self._source is not None:
            return self._source
        assert self.model.script is not None
        return ScriptSource.read(self.model.script)

    @property
    def script(self) -> Script:
        """The script that runs in this process."""
        if self._script is None:
            batch_size, is_resident = self.model.batch_size, bool(self.settings.optimizer)
            self._script = Script(self.source, batch_size, self.threads, is_resident=is_resident)
            self._script.is_quiet = not self._is_shown
        return self._script

    @property
    def prepared(self) -> Prepared:
        """The objects of its loop. Raises InputError, and what the script raises."""
        if self._script is None or not self._script.is_prepared:
            with in_turn(), seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
                found = self.script.prepared()
            self.script.is_quiet = False
            self._check(found)
        return self.script.prepared()

    def _check(self, found: Prepared) -> None:
        given = self.model.batch_size
        if given is not None and given != found.batch_size:
            raise ConfigError(
                f"found {given}, but prepare() has {found.batch_size}; expected one of them",
                key=("model", "batch_size"),
            )
        scale = None if self.model.loss_scale is None else self.model.loss_scale.rule()
        if scale != found.loss_scale and (scale is not None or self._items is not None):
            raise InputError(
                f"prepare(): found {_shown(found.loss_scale)} and {_shown(scale)} where the run was started, expected "
                "the same on every machine (torch disables a GradScaler of cuda where there is no such device)"
            )
        items = len(found.data.train)
        if self._items is not None and items != self._items:
            raise InputError(
                f"prepare(): the data set has {items} items here and had {self._items} where the run was started, "
                "expected the same data set on every machine"
            )

    def _renew(self) -> None:
        """Begin the script anew."""
        if self._script is not None:
            self._script.stop()
        self._script, self._is_spent, self._is_shown = None, False, False
        for name in ("data", "flat", "stepper", "minibatches", "_computation", "_rule"):
            self.__dict__.pop(name, None)

    # -- what it is made of -----------------------------------------------------------------------------------

    @cached_property
    def data(self) -> DataSet:
        return self._checked(self.prepared.data)

    @property
    def _batch_size(self) -> int:
        return self.prepared.batch_size

    def _built(self) -> FlatModule:
        model = self._fresh_model()
        with as_at_prepare(model, self.prepared.trained):
            return FlatModule(model, "prepare()")

    def _fresh_model(self) -> nn.Module:
        if "flat" not in self.__dict__:
            return self.prepared.model
        again = ScriptModule(self.settings, self.source, self._items, is_shown=False)
        try:
            return again.prepared.model
        finally:
            again.ended()

    def _stepper_of(self, flat: FlatModule) -> Stepper:
        with as_at_prepare(flat.module, self.prepared.trained):
            stepper = self._new_stepper(flat)
        stepper.script = self.script
        stepper.is_tried = self._is_spent
        stepper.turn_of = self._turn
        return stepper

    def _new_stepper(self, flat: FlatModule) -> LoopStepper:
        if not self.model.is_on_cuda(self.settings):
            return LoopStepper(flat, no_objective)
        return LoopCudaStepper(
            flat,
            no_objective,
            is_deterministic=self.settings.is_deterministic,
            is_alone=self.settings.is_alone,
        )

    def _turn(self) -> tuple[int, int, int, float]:
        found, clock = self.prepared, self._clock
        return clock, clock // found.clocks_per_pass, found.schedule_steps(clock), found.factor(clock)

    def use_threads(self, count: int) -> None:
        super().use_threads(count)
        if self._script is not None:
            self._script.threads = count

    def loss_scale(self) -> LossScaleRule | None:
        return self.prepared.loss_scale

    def brings(self) -> dict[str, Any]:
        section = {**self.settings.model, "batch_size": self.prepared.batch_size}
        if self.prepared.loss_scale is not None:
            section["loss_scale"] = asdict(self.prepared.loss_scale)
        return {
            "optimizer": brought_section(self.prepared.section, self.settings.optimizer),
            "model": section,
        }

    def learning_rate_factor(self, clock: int) -> float:
        return self.prepared.factor(clock)

    # -- the application --------------------------------------------------------------------------------------

    def check(self) -> None:
        self.prepared.factor(self._clock)
        self.script.is_quiet = self._is_spent = True
        self._check_items()
        super().check()
        self.script.is_quiet = False

    def _check_items(self) -> None:
        """Raise InputError where this process has other items than machines: behind the loop it would measure the model
        on items that it was trained on."""
        if self._here is None:
            return
        if len(self._here) == len(self.data.train):
            numbers = np.unique(np.linspace(0, len(self._here) - 1, MOST_ITEMS).astype(np.int64))
            here, again, there = (
                self._taken(of, numbers) for of in (self._here, self._here, self.data.train)
            )
            # Where no two of its own are alike, nobody can say.
            if is_same(here, there) or not is_same(here, again):
                return
        raise InputError(
            "prepare(): the data set has other items here than on machines, which run the script after "
            "torch.manual_seed(seed), expected the same ones: random_split and the like need a seed of the script's "
            "own, torch.manual_seed(0) before them"
        )

    def _taken(self, examples: Examples, numbers: Array) -> Any:
        with in_turn(), seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            return examples.take(numbers)

    _trials = 3  # what follows step() in the loop runs with the next batch, and shows with the third what it does again

    def _to_try(self) -> FlatModule:
        return self.flat  # the script is begun anew before it trains

    def initial(self, table: Table) -> Array:
        if self._is_spent:
            self._renew()
        return super().initial(table)

    def _updates(
        self,
        units: Sequence[Unit],
        items: Sequence[ExampleSlice],
        parameters: Mapping[str, Array],
        ready: StreamReady | None,
    ) -> Updates:
        self._clock = units[0].clock
        return super()._updates(units, items, parameters, ready)

    @property
    def test(self) -> Examples | None:
        evaluation = self.prepared.evaluation
        return None if evaluation is None else evaluation.test

    def evaluates_every(self) -> int | None:
        return self.prepared.evaluates_every

    def metrics(self) -> tuple[str, ...]:
        return self._metric_names

    @cached_property
    def _metric_names(self) -> tuple[str, ...]:
        """The names of the script's metrics, found by measuring one item."""
        evaluation, module = self.prepared.evaluation, self.prepared.model
        if evaluation is None:
            return ()
        with in_turn(), seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            # Where a stepper has taken the model to a device, the item must follow.
            batch = placed_batch(evaluation.test.take(np.arange(1)), 1, None, self.__dict__.get("stepper"))
            try:
                with evaluating(module):
                    return tuple(measured_by(evaluation.measure, module, batch))
            except InputError:
                raise
            except Exception as error:
                error.add_note("evaluate_on(): one test item")
                raise

    def evaluation_with(self, stepper: Stepper, test: Examples) -> Evaluation:
        evaluation = self.prepared.evaluation
        assert evaluation is not None, "only what was prepared is evaluated"
        return OwnEvaluation(stepper, test, {}, self._at_once, evaluation.measure, None)

    def ended(self) -> None:
        super().ended()
        if self._script is not None:
            self._script.stop()


def _shown(rule: LossScaleRule | None) -> str:
    return "no GradScaler that is enabled" if rule is None else f"a GradScaler of {rule}"


def _of_script() -> nn.Module:
    raise AssertionError("the script makes the module")
