"""Data-parallel training of any torch.nn.Module.

All parameters lie in one dense table; a unit computes the gradient of its share of the clock's minibatch, as a part of
the mean over the whole minibatch; the shards' optimizer takes the step. A step equals that of one process of plain
torch on the same minibatch, up to rounding (except batch norm, which sees only the items of its unit).

Buffers: those that `state_dict()` has (running statistics of batch norm) are tables of steps. Every unit starts a
clock from the same values; the next clock's are these plus the mean of the units' changes, weighted by their items.
Buffers that `state_dict()` does not have are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Application, Array, InputError, LossScaleRule, Settings, Table, Unit, Updates
from agileml.apps.files.formats.sections import PINNED
from agileml.apps.torch.batches.loader import Loader
from agileml.apps.torch.batches.minibatches import ExampleSlice, Minibatches
from agileml.apps.torch.data import DataSet, DatasetExamples, Examples, groups_of, load_data
from agileml.apps.torch.evaluation import ACCURACY, LOSS, Evaluation, means
from agileml.apps.torch.export import exported, optimizer_state, state_of
from agileml.apps.torch.flat import PARAMETERS, FlatModule
from agileml.apps.torch.names import ModuleConfig, built, objective_of
from agileml.apps.torch.resident.replica import TorchReplica
from agileml.apps.torch.resident.state import TorchOptimizer
from agileml.apps.torch.seeding import TORCH, seeded, seeded_for_data
from agileml.apps.torch.staged.staged_module import StagedModule, staged_module
from agileml.apps.torch.step import Stepper
from agileml.apps.torch.trial import try_batches
from agileml.apps.torch.units import StreamReady, UnitComputation
from agileml.apps.user_code import function_named
from agileml.config.optimizer import BY_ROW, TorchConfig
from agileml.config.section import validate
from agileml.config.text import ConfigError

ITEMS_AT_ONCE = 256  # when the test split is evaluated


class TorchModule(Application):
    """`torch`: an nn.Module, a loss and a data set, named in the config or given here.

    build: makes the module. loss: (output, target) -> the mean over the items, or the name of one in
    names.LOSSES. step: (module, batch) -> the mean loss, instead of `loss`. dataset: (train, test) or train, each a
    torch Dataset or a tuple of arrays (input, ..., target), or a function that returns it. augment: (input, ...) ->
    (input, ...), for training only; a batch of another form is handed over whole. collate: a list of a Dataset's items
    -> a batch. metrics: by name, (output, target) -> the mean over the items, or a pair of a sum and its weight.
    """

    waits_for_parameters = True

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        build: Callable[[], nn.Module] | None = None,
        loss: Callable[..., Any] | str | None = None,
        dataset: Any = None,
        augment: Callable[..., Any] | None = None,
        step: Callable[[nn.Module, Any], Tensor] | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    ) -> None:
        super().__init__(settings or Settings())
        own = {"build": build, "loss": loss, "dataset": dataset, "augment": augment, "step": step}
        self._own: dict[str, Any] = {**own, "collate": collate, "metrics": metrics}
        self.model = validate(ModuleConfig, self.settings.model, ("model",))
        self.threads = self.model.threads  # of torch, while units are computed
        if build is None and self.model.module is None and settings is not None:
            raise ConfigError("missing, expected package.file:function", key=("model", "module"))

    def with_settings(self, settings: Settings) -> TorchModule:
        """A copy for a job, made by a run from an instance of the user's."""
        return TorchModule(settings, **self._own)

    def as_sent(self) -> TorchModule | None:
        """With the list of the data set's files, so that all machines have the same; None where there is none."""
        if self._own["dataset"] is not None or self.settings.data.get("kind") not in PINNED:
            return None
        train, test = self.data.train, self.data.test
        assert isinstance(train, DatasetExamples)
        held_out = test.dataset if isinstance(test, DatasetExamples) else None
        return TorchModule(self.settings, **{**self._own, "dataset": (train.dataset, held_out)})

    def __reduce__(self) -> Any:
        return _restored, (self.settings, self._own)  # neither module nor data travel

    # -- what it is made of -----------------------------------------------------------------------------------

    @cached_property
    def data(self) -> DataSet:
        """All items. Raises InputError, ConfigError."""
        # A split that a function of the user's draws must be the same in every process.
        with TORCH, seeded(self.settings.seed, torch.get_num_threads(), torch.device("cpu")):
            return self._checked(load_data(self.settings, self._own["dataset"], self._function("collate")))

    def _checked(self, data: DataSet) -> DataSet:
        if (batch := self.model.batch_size) is not None and batch > len(data.train):
            raise ConfigError(
                f"found {batch}, expected at most the {len(data.train)} items that {data.name} has to train on",
                key=("model", "batch_size"),
            )
        if len(data.train) < self.settings.slices:
            raise InputError(
                f"data: {data.name} has {len(data.train)} training items, expected at least one for each of "
                f"the {self.settings.slices} slices"
            )
        return data

    @cached_property
    def flat(self) -> FlatModule:
        """The module that units are computed with. Raises InputError."""
        return self._built()

    def _built(self) -> FlatModule:
        """The module as every machine builds it."""
        with TORCH, seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            return built(self._own["build"], self.model)

    @cached_property
    def stepper(self) -> Stepper:
        """Computes gradients with the module."""
        return self._stepper_of(self.flat)

    def _stepper_of(self, flat: FlatModule) -> Stepper:
        objective = objective_of(self._function("step"), self._own["loss"] or self.model.loss)
        if not self.model.is_on_cuda(self.settings):
            return Stepper(flat, objective, self.model.autocast)
        from agileml.apps.torch.cuda import CudaStepper

        return CudaStepper(
            flat,
            objective,
            self.model.autocast,
            is_deterministic=self.settings.is_deterministic,
            is_alone=self.settings.is_alone,
        )

    def _function(self, key: str) -> Callable[..., Any] | None:
        """A function of the user's: the one given to this instance, else the one that the config names."""
        named = getattr(self.model, key)
        if self._own[key] is not None or named is None:
            return self._own[key]
        return function_named(named, f"model.{key}")

    @cached_property
    def augment(self) -> Callable[..., Any] | None:
        return self._function("augment")

    @cached_property
    def loader(self) -> Loader:
        return Loader(self._taking, self.model.loader_processes, seeded_for_data)

    def _taking(self) -> Callable[[Array], Any]:
        return self.data.train.take

    @cached_property
    def minibatches(self) -> Minibatches:
        """The items that the units of each clock take."""
        train = self.data.train
        return Minibatches(self.settings, len(train), self._batch_size, groups_of(train))

    @property
    def _batch_size(self) -> int:
        """Items of a clock."""
        return self.model.batch_size or -(-len(self.data.train) // self.settings.clocks_per_pass)

    def check(self) -> None:
        # Where the machines' CUDA devices are not here, batches are put together but not computed with (`cuda`), or
        # computed with on the CPU (`auto`).
        has_device = torch.cuda.is_available() or self.model.device != "cuda"
        stepper = self._stepper_of(self._to_try()) if has_device else None
        first = self.minibatches.first_slice
        numbers = self.minibatches.numbers(Unit(0, first), self.minibatches.share(first))
        with TORCH, seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            try_batches(self.data, numbers, stepper, self.augment, self._trials)

    # Of the training batch that is tried before any machine starts.
    _trials = 1

    def _to_try(self) -> FlatModule:
        """A module whose values may change."""
        return self._built()

    # -- the application ----------------------------------------------------------------------------------------

    def tables(self) -> Sequence[Table]:
        by_row = self.flat.row_parameters
        if by_row and self.settings.optimizer:
            raise ConfigError(
                f"found torch with an embedding of sparse=True ({by_row[0][0]}), expected one of {', '.join(BY_ROW)}: "
                "servers step the rows that a clock reads",
                key=("optimizer", "kind"),
            )
        tables = self.flat.tables()
        return tables if self._rule is None else self._rule.beside(tables)

    @cached_property
    def _rule(self) -> TorchOptimizer | None:
        """The optimizer of torch that steps the parameters where they are, if the job has one."""
        if not self.settings.optimizer:
            return None
        own = self.brings().get("optimizer")  # a loop or a class of the user's has it
        return TorchOptimizer(
            self.flat, TorchConfig.model_validate(own).model_dump() if own else self.settings.optimizer
        )

    def share_ends(self, partitions: int) -> Mapping[str, Sequence[int]]:
        assert self._rule is not None, "asked for only where an optimizer of torch steps"
        return self._rule.share_ends(partitions)

    def replica(self, rate_at: Callable[[int], float]) -> TorchReplica:
        assert self._rule is not None, "asked for only where tables are resident"
        threads, scaling, is_alone = self.model.threads, self.loss_scale(), self.settings.is_alone
        return TorchReplica(self.stepper, self._rule, rate_at, TORCH, threads, scaling, is_alone=is_alone)

    def loss_scale(self) -> LossScaleRule | None:
        return self.model.scale_rule(self.flat.dtype)

    def initial(self, table: Table) -> Array:
        if not table.update.is_by_units:
            return super().initial(table)
        # Once units were computed the module holds what they read.
        is_fresh = "stepper" not in self.__dict__ and not self.flat.is_emptied
        fresh = self.flat if is_fresh else self._built()
        return fresh.gathered() if table.name == PARAMETERS else fresh.values(table)

    def warm_up(self) -> None:
        self.loader.start()

    def ended(self) -> None:
        if "loader" in self.__dict__:
            self.loader.stop()

    def started(self) -> None:
        # A machine that only keeps cuts has no use for the module's own parameters; others read those of a clock.
        if "stepper" not in self.__dict__ and TORCH.acquire(blocking=False):
            try:
                if "stepper" not in self.__dict__:
                    self.flat.empty()
            finally:
                TORCH.release()

    def load(self, slice_index: int) -> ExampleSlice:
        return self.minibatches.share(slice_index)

    def reads(self, unit: Unit, items: ExampleSlice) -> Mapping[str, Array]:
        return self._computation.reads(unit, items)

    @cached_property
    def _computation(self) -> UnitComputation:
        return UnitComputation(self)

    def process(self, unit: Unit, items: ExampleSlice, parameters: Mapping[str, Array]) -> Updates:
        return self._updates([unit], [items], parameters, None)

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates | None:
        if self.flat.row_parameters:
            return None  # each unit has looked up its rows in batches of its own
        return self._updates(units, items, parameters, None)

    def process_streaming(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        parameters: Mapping[str, Array],
        ready: StreamReady,
    ) -> Updates:
        """As `process_many`; `ready(table, values, start, stop)` is called as elements [start, stop) become final.

        `values` is the flat array of the updates that will be returned. The calls come in the order of backward, do
        not overlap and cover the table of parameters; tables of buffers come with the return alone.
        """
        return self._updates(units, items, parameters, ready)

    def _updates(
        self,
        units: Sequence[Unit],
        items: Sequence[ExampleSlice],
        parameters: Mapping[str, Array],
        ready: StreamReady | None,
    ) -> Updates:
        """The units' share of the mean gradient over the clock's minibatch, by one backward for each micro batch."""
        if self.settings.is_staged:
            return self._staged.whole_unit(units, items, parameters)
        return self._computation.updates(units, items, parameters, ready)

    def use_threads(self, count: int) -> None:
        self.threads = count

    def stages(self) -> StagedModule:
        return self._staged

    @cached_property
    def _staged(self) -> StagedModule:
        return staged_module(self, self._own, self._built())

    # -- the result -----------------------------------------------------------------------------------------------

    def as_model(self, parameters: Mapping[str, Array]) -> dict[str, Tensor]:
        return exported(parameters, self.flat)

    def optimizer_state(
        self, slots: Sequence[Mapping[str, Array]], optimizer: Mapping[str, Any], clocks: int, factor: float
    ) -> dict[str, Any]:
        return optimizer_state(self.flat, slots, optimizer, clocks, factor)

    def module_with(self, parameters: Mapping[str, Array]) -> nn.Module:
        """A new module that holds these parameters, on the CPU."""
        flat = self._built()
        flat.module.load_state_dict(state_of(parameters, flat), strict=False)
        return flat.module

    @property
    def test(self) -> Examples | None:
        return self.data.test  # the items that are evaluated

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        """`test_loss`, and `test_accuracy` where outputs are scores of classes; nothing without a test split."""
        test = self.test
        if test is None or not len(test):
            return {}
        with TORCH, seeded(self.settings.seed, self.model.threads, self.stepper.device):
            self.stepper.use({name: np.ascontiguousarray(table) for name, table in parameters.items()})
            return means(self.evaluation_with(self.stepper, test).of(0, len(test)))

    def metrics(self) -> tuple[str, ...]:
        return self._metric_names if self.evaluates_every() else ()

    @cached_property
    def _metric_names(self) -> tuple[str, ...]:
        """The names of the metrics. Raises InputError, and the user's own errors."""
        if self.model.device == "cuda":  # there may be none here, and all processes must have the same names
            return (LOSS, ACCURACY, *self._metric_functions)
        return self._measured_names()

    def _measured_names(self) -> tuple[str, ...]:
        """The names of what one test batch is measured by: whether outputs are scores of classes shows only there."""
        assert self.test is not None
        with TORCH, seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            return tuple(self.evaluation_with(self._stepper_of(self._built()), self.test).of_first())

    def evaluates_every(self) -> int | None:
        every = self.model.evaluate_every
        if every is None:
            return None
        if self.test is None or not len(self.test):
            raise ConfigError(
                f"found {every} without test data, expected a data set (train, test)",
                key=("model", "evaluate_every"),
            )
        return -(-self.minibatches.count // self.minibatches.batch) if every == "pass" else every

    @cached_property
    def _metric_functions(self) -> dict[str, Callable[..., Any]]:
        own = self._own["metrics"] or {}
        if self._function("step") is not None and (own or self.model.metrics):
            raise ConfigError(
                "found metrics with a step, expected one of them: a metric is a function of (output, target), and a "
                "step returns the loss alone",
                key=("model", "metrics"),
            )
        named = {name: function_named(at, f"model.metrics.{name}") for name, at in self.model.metrics.items()}
        return named | own

    @property
    def _at_once(self) -> int:
        """Test items that are evaluated together."""
        return min(ITEMS_AT_ONCE, self.model.micro_batch or ITEMS_AT_ONCE)

    def evaluation_with(self, stepper: Stepper, test: Examples) -> Evaluation:
        """The evaluation that measures test items with this stepper."""
        return Evaluation(stepper, test, self._metric_functions, self._at_once)

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.name,
            "train_items": len(data.train),
            "test_items": len(self.test) if self.test is not None else 0,
            "batch_size": self.minibatches.batch,
            "parameters": sum(parameter.numel() for _, parameter in self.flat.parameters),
            **data.facts,
        }


def _restored(settings: Settings, own: dict[str, Any]) -> TorchModule:
    return TorchModule(settings, **own)
