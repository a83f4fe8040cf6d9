"""Data-parallel training of any torch.nn.Module.

All parameters lie in one dense table; a unit computes the gradient of its share of the clock's minibatch, as a part of
the mean over the whole minibatch; the shards' optimizer takes the step. A step equals that of one process of plain
torch on the same minibatch, up to rounding (except batch norm, which sees only the items of its unit).

Buffers: those that `state_dict()` has (running statistics of batch norm) are tables of steps. Every unit starts a
clock from the same values; the next clock's are these plus the mean of the units' changes, weighted by their items.
Buffers that `state_dict()` does not have are constants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from agileml.application import Application, Array, InputError, Settings, Table, Unit, Updates
from agileml.apps.torch.data import DataSet, Examples, ExampleSlice, Minibatches, concatenated, load_data
from agileml.apps.torch.export import exported, optimizer_state, torch_state
from agileml.apps.torch.flat import PARAMETERS, FlatModule
from agileml.apps.torch.names import called, function_named, loss_named
from agileml.apps.torch.step import Batch, Ready, Stepper, seeded
from agileml.config.section import Section, validate
from agileml.config.text import ConfigError

# torch's random generator and its threads belong to the process: units of one process take turns.
_TORCH = threading.RLock()
ITEMS_AT_ONCE = 256  # when the test split is evaluated
CHECKED_ITEMS = 8  # at most, of the batches that are tried before the start

StreamReady = Callable[[str, Array, int, int], None]


class ModuleConfig(Section):
    """The section `model`. `batch_size`: items of a clock over all workers; None: `clocks_per_pass` clocks a pass."""

    module: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    loss: str = "cross_entropy"
    augment: str | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=1)] = 1


class TorchModule(Application):
    """`torch`: an nn.Module, a loss and a data set, named in the config or given here.

    build: makes the module. loss: (output, target) -> the mean over the items, or the name of one in
    names.LOSSES. dataset: (train, test) or train, each a torch Dataset or a tuple of arrays (input, ...,
    target), or a function that returns it. augment: (input, ...) -> (input, ...), for training only.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        build: Callable[[], nn.Module] | None = None,
        loss: Callable[..., Any] | str | None = None,
        dataset: Any = None,
        augment: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(settings or Settings())
        self._own = {"build": build, "loss": loss, "dataset": dataset, "augment": augment}
        self.model = validate(ModuleConfig, self.settings.model, ("model",))
        if build is None and self.model.module is None and settings is not None:
            raise ConfigError("missing, expected package.file:function", key=("model", "module"))

    def with_settings(self, settings: Settings) -> TorchModule:
        """The same for a job: what a run makes of an instance that the user made."""
        return TorchModule(settings, **self._own)

    def __reduce__(self) -> Any:
        return _restored, (self.settings, self._own)  # neither module nor data travel

    # -- what it is made of -----------------------------------------------------------------------------------

    @cached_property
    def data(self) -> DataSet:
        """All items. Raises InputError, ConfigError."""
        data = load_data(self.settings, self._own["dataset"])
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
        with _TORCH, seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            if self._own["build"] is not None:
                return FlatModule(called(self._own["build"], "build"), "build")
            assert self.model.module is not None
            build = function_named(self.model.module, "model.module")
            return FlatModule(called(build, "model.module", **self.model.arguments), "model.module")

    @cached_property
    def _stepper(self) -> Stepper:
        return self._stepper_of(self.flat)

    def _stepper_of(self, flat: FlatModule) -> Stepper:
        named = self._own["loss"] or self.model.loss
        loss = loss_named(named) if isinstance(named, str) else named
        if self.model.device == "cuda" and not torch.cuda.is_available():
            raise InputError(
                "model.device: found cuda, expected auto or cpu: this machine has no CUDA device for the run "
                "(machines.gpus reserves one)"
            )
        if self.model.device == "cpu" or not torch.cuda.is_available():
            return Stepper(flat, loss)
        from agileml.apps.torch.cuda import CudaStepper

        return CudaStepper(flat, loss)

    @cached_property
    def _augment(self) -> Callable[..., Any] | None:
        if self._own["augment"] is not None or self.model.augment is None:
            return self._own["augment"]
        return function_named(self.model.augment, "model.augment")

    @cached_property
    def minibatches(self) -> Minibatches:
        """The items that the units of each clock take."""
        count = len(self.data.train)
        batch = self.model.batch_size or -(-count // self.settings.clocks_per_pass)
        return Minibatches(self.settings, count, batch)

    def check(self) -> None:
        """Try one training batch, and one of the test split, with a module of its own. Raises InputError, and the
        user's own errors with a note of what was tried.

        Where the machines' CUDA devices are not here, batches are put together but not computed with
        (`device: cuda`), or computed with on the CPU (`auto`).
        """
        has_device = torch.cuda.is_available()
        stepper = self._stepper_of(self._built()) if has_device or self.model.device != "cuda" else None
        share = self.minibatches.share(0)
        numbers = self.minibatches.numbers(Unit(0, 0), share)[:CHECKED_ITEMS]
        numbers = numbers if len(numbers) else share.numbers[:1]  # fewer items in a clock than units
        with _TORCH, seeded(self.settings.seed, self.model.threads, torch.device("cpu")):
            with _tried(f"one training batch of {len(numbers)} items"):
                placed = (lambda tensor: tensor) if stepper is None else stepper.placed
                batch = self._batch(self.data.train, [numbers], self._augment, placed)
                if stepper is not None:
                    tables = {table.name: stepper.flat.values(table) for table in stepper.flat.tables()}
                    stepper.use(tables)
                    gradient, loss = stepper.gradient(batch, len(numbers))
                    if gradient is None:
                        raise InputError(
                            f"model.loss: the first {len(numbers)} items have the loss {loss}, expected a finite number"
                        )
                    stepper.flat.buffer_changes(tables, 1.0)
            test = self.data.test
            if test is not None and len(test):
                items = min(len(test), CHECKED_ITEMS)
                with _tried(f"one test batch of {items} items"):
                    batch = self._batch(test, [np.arange(items)], None, placed)
                    if stepper is not None:
                        stepper.module.eval()
                        stepper.output(batch)

    # -- the application ----------------------------------------------------------------------------------------

    def tables(self) -> Sequence[Table]:
        return self.flat.tables()

    def initial(self, table: Table) -> Array:
        # Once units were computed the module holds what they read.
        is_fresh = "_stepper" not in self.__dict__ and not self.flat.is_emptied
        fresh = self.flat if is_fresh else self._built()
        return fresh.gathered() if table.name == PARAMETERS else fresh.values(table)

    def started(self) -> None:
        # A machine that only keeps cuts has no use for the module's own parameters; others read those of a clock.
        if "_stepper" not in self.__dict__ and _TORCH.acquire(blocking=False):
            try:
                if "_stepper" not in self.__dict__:
                    self.flat.empty()
            finally:
                _TORCH.release()

    def load(self, slice_index: int) -> ExampleSlice:
        return self.minibatches.share(slice_index)

    def process(self, unit: Unit, items: ExampleSlice, parameters: Mapping[str, Array]) -> Updates:
        return self._updates([unit], [items], parameters, None)

    def process_many(
        self,
        units: Sequence[Unit],
        items: Sequence[Any],
        rows: Mapping[str, Array],
        parameters: Mapping[str, Array],
    ) -> Updates:
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
        """The units' share of the mean gradient over the clock's minibatch, by one backward."""
        numbers = [self.minibatches.numbers(u, share) for u, share in zip(units, items, strict=True)]
        numbers = [found for found in numbers if len(found)]
        if not numbers:  # fewer items in a clock than units
            return Updates({})
        first, stepper = units[0], self._stepper
        stream = None if ready is None else _to_stream(ready)
        with _TORCH, seeded(self._seed(first), self.model.threads, stepper.device):
            stepper.use(parameters)
            batch = self._batch(self.data.train, numbers, self._augment, stepper.placed)
            gradient, loss = stepper.gradient(batch, self.minibatches.batch, stream)
            if gradient is None:
                return Updates({}, loss, batch.items)
            changes = self.flat.buffer_changes(parameters, batch.items / self.minibatches.batch)
        return Updates({PARAMETERS: gradient.reshape(1, -1), **changes}, loss, batch.items)

    def _seed(self, unit: Unit) -> int:
        """The seed of a unit's dropout and augmentation."""
        key = (self.settings.seed, unit.clock, unit.slice, unit.part)
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _batch(
        self,
        examples: Examples,
        numbers: Sequence[Array],
        augment: Callable[..., Any] | None,
        placed: Callable[[Tensor], Tensor],
    ) -> Batch:
        *inputs, target = concatenated([examples.take(found) for found in numbers])
        if augment is not None:
            found = augment(*inputs)
            inputs = list(found) if isinstance(found, tuple | list) else [found]
        return Batch(tuple(map(placed, inputs)), placed(target), len(target))

    # -- the result -----------------------------------------------------------------------------------------------

    def as_model(self, parameters: Mapping[str, Array]) -> dict[str, Tensor]:
        return exported(parameters, self.flat.module)

    def optimizer_state(
        self, slots: Sequence[Mapping[str, Array]], optimizer: Mapping[str, Any], clocks: int
    ) -> dict[str, Any]:
        return optimizer_state(self.flat, slots, optimizer, clocks)

    def module_with(self, parameters: Mapping[str, Array]) -> nn.Module:
        """A new module that holds these parameters, on the CPU."""
        module = self._built().module
        module.load_state_dict(torch_state(parameters, module), strict=False)
        return module

    def evaluate(self, parameters: Mapping[str, Array]) -> dict[str, float]:
        """`test_loss`, and `test_accuracy` where outputs are scores of classes; nothing without a test split."""
        test = self.data.test
        if test is None or not len(test):
            return {}
        loss, right, judged = 0.0, 0, 0
        with _TORCH, seeded(self.settings.seed, self.model.threads, self._stepper.device):
            self._stepper.use({name: np.ascontiguousarray(table) for name, table in parameters.items()})
            self._stepper.module.eval()
            for start in range(0, len(test), ITEMS_AT_ONCE):
                numbers = np.arange(start, min(start + ITEMS_AT_ONCE, len(test)))
                batch = self._batch(test, [numbers], None, self._stepper.placed)
                output, mean = self._stepper.output(batch)
                loss += mean * batch.items
                if output.ndim == 2 and batch.target.ndim == 1 and not batch.target.is_floating_point():
                    right += int((output.argmax(1) == batch.target).sum())
                    judged += batch.items
        found = {"test_loss": loss / len(test)}
        return found | ({"test_accuracy": right / judged} if judged else {})

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "data": data.name,
            "train_items": len(data.train),
            "test_items": len(data.test) if data.test is not None else 0,
            "batch_size": self.minibatches.batch,
            "parameters": sum(parameter.numel() for _, parameter in self.flat.parameters),
            **data.facts,
        }


def _restored(settings: Settings, own: dict[str, Any]) -> TorchModule:
    return TorchModule(settings, **own)


@contextmanager
def _tried(what: str) -> Iterator[None]:
    """Add to errors of the user's code what was tried."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        error.add_note(what)
        raise


def _to_stream(ready: StreamReady) -> Callable[[Array], Ready]:
    def with_array(array: Array) -> Ready:
        return lambda start, stop: ready(PARAMETERS, array, start, stop)

    return with_array
