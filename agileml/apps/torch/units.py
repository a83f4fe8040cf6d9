"""The units of a clock: their batches, the rows that these look up, their gradients, their share of the test items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agileml.application import Array, DeviceVector, Unit, Updates
from agileml.apps.torch.batches.loader import Request
from agileml.apps.torch.batches.minibatches import ExampleSlice
from agileml.apps.torch.batches.trees import copied
from agileml.apps.torch.evaluation import ACCURACY, Evaluation, Sums, add
from agileml.apps.torch.flat import PARAMETERS
from agileml.apps.torch.seeding import TORCH, seeded
from agileml.apps.torch.step import Batch, Ready
from agileml.apps.torch.trial import placed_batch

if TYPE_CHECKING:
    from agileml.apps.torch.module import TorchModule

StreamReady = Callable[[str, Array | DeviceVector, int, int], None]
NEAR = 1  # clocks from the present one whose look-ups may still be asked for


@dataclass(frozen=True)
class _Prepared:
    """Facts about a unit that need no parameters: its batches, and the rows that it looks up."""

    request: Request
    made: list[Any]
    rows: Mapping[str, Array]


class UnitComputation:
    """Computes units of an application with its stepper.

    Of a module with tables that are read by row, batches are made and their look-ups recorded when the rows are asked
    for; they are kept until the unit is computed.
    """

    def __init__(self, app: TorchModule) -> None:
        self._app = app
        self._prepared: dict[Unit, _Prepared] = {}

    def reads(self, unit: Unit, items: ExampleSlice) -> Mapping[str, Array]:
        """The rows that a unit looks up, for training and for its share of an evaluation."""
        return self._of(unit, items).rows if self._app.flat.row_parameters else {}

    def updates(
        self,
        units: Sequence[Unit],
        items: Sequence[ExampleSlice],
        parameters: Mapping[str, Array],
        ready: StreamReady | None,
    ) -> Updates:
        """The units' share of the mean gradient over the clock's minibatch, by one backward for each micro batch."""
        app = self._app
        stepper = app.stepper
        app.model.check_device(stepper.device)
        prepared = None
        if app.flat.row_parameters:
            assert len(units) == 1, "units that look rows up are computed one by one"
            prepared = self._of(units[0], items[0])
        request = (
            prepared.request if prepared else app.minibatches.request(units, items, app.model.micro_batch)
        )
        with TORCH:
            stepper.use(parameters, prepared.rows if prepared else None)
            metrics = self._evaluated(units, request.seed)
            if metrics:
                app.flat.set_buffers(parameters)  # a forward may change them in eval mode as well
            if not request.numbers:  # fewer items in a clock than units
                return Updates({}, metrics=metrics)
            made = copied(prepared.made) if prepared else self._made(request, units, items)
            with seeded(request.seed, app.threads, stepper.device) as begin:
                batches = self._placed(made, request)
                stream = None if ready is None else _to_stream(ready)
                gradient, loss = stepper.gradient(batches, app.minibatches.batch, stream, begin)
                if gradient is None:
                    return Updates({}, loss, request.items, metrics)
                changes = {}  # of a forward that overflowed none
                if math.isfinite(loss):
                    changes = app.flat.buffer_changes(parameters, request.items / app.minibatches.batch)
        found: dict[str, Array | DeviceVector] = {}
        if app.flat.spans:
            found[PARAMETERS] = gradient if isinstance(gradient, DeviceVector) else gradient.reshape(1, -1)
        of_rows = stepper.row_updates()
        updated = {name: some for name, (some, _) in of_rows.items()}
        tables = {**found, **changes, **{name: values for name, (_, values) in of_rows.items()}}
        return Updates(tables, loss, request.items, metrics, updated)

    # -- batches and look-ups -----------------------------------------------------------------------------------

    def _of(self, unit: Unit, items: ExampleSlice) -> _Prepared:
        """The facts about a unit that need no parameters; computed again if they were dropped."""
        if unit not in self._prepared:
            near = {
                one: prepared
                for one, prepared in self._prepared.items()
                if abs(one.clock - unit.clock) <= NEAR
            }
            self._prepared = {**near, unit: self._prepare(unit, items)}
        return self._prepared[unit]

    def _prepare(self, unit: Unit, items: ExampleSlice) -> _Prepared:
        app = self._app
        request = app.minibatches.request([unit], [items], app.model.micro_batch)
        stepper = app.stepper
        with TORCH:
            made = self._made(request, [unit], [items]) if request.numbers else []
            with seeded(request.seed, app.threads, stepper.device) as begin:
                # User code may change a batch in place, and sees this one again when the unit is computed.
                for number, batch in enumerate(self._placed(copied(made), request)):
                    begin(number)
                    stepper.record_look_ups(batch)
            for start, stop in self._test_items([unit]):
                with seeded(request.seed, app.threads, stepper.device) as begin:
                    self._evaluation().record_look_ups(start, stop, begin)
            return _Prepared(request, made, stepper.rows.looked_up())

    def _made(self, request: Request, units: Sequence[Unit], items: Sequence[ExampleSlice]) -> list[Any]:
        """The batches of a request; those of the next clock are made meanwhile."""
        app = self._app
        made = app.loader.batches(request)
        if app.model.loader_processes:
            following = [replace(unit, clock=unit.clock + 1) for unit in units]
            app.loader.fetch_ahead(app.minibatches.request(following, items, app.model.micro_batch))
        return made

    def _placed(self, made: Sequence[Any], request: Request) -> list[Batch]:
        app = self._app
        return [
            placed_batch(tree, len(numbers), app.augment, app.stepper)
            for tree, numbers in zip(made, request.numbers, strict=True)
        ]

    # -- evaluation ---------------------------------------------------------------------------------------------

    def _test_items(self, units: Sequence[Unit]) -> list[tuple[int, int]]:
        """(start, stop) of the test items that each of the units evaluates; nothing in a clock without evaluation."""
        app = self._app
        clock, every, test = units[0].clock, app.evaluates_every(), app.test
        if every is None or test is None or not clock or clock % every:
            return []
        of = app.settings.slices * units[0].parts
        numbers = [unit.slice * unit.parts + unit.part for unit in units]
        return [(number * len(test) // of, (number + 1) * len(test) // of) for number in numbers]

    def _evaluation(self) -> Evaluation:
        assert self._app.test is not None
        return self._app.evaluation_with(self._app.stepper, self._app.test)

    def _evaluated(self, units: Sequence[Unit], seed: int) -> dict[str, tuple[float, float]]:
        """The units' share of the test items, evaluated with the parameters of their clock, where that is due."""
        found: Sums = {}
        if test_items := self._test_items(units):
            self._app.stepper.wait_for_all()  # the user's own function may read any of them
            for start, stop in test_items:
                with seeded(seed, self._app.threads, self._app.stepper.device) as begin:
                    add(found, self._evaluation().of(start, stop, begin))
            # Outputs of varying length look like scores of classes by chance.
            if ACCURACY not in self._app.metrics():
                found.pop(ACCURACY, None)
        return found


def _to_stream(ready: StreamReady) -> Callable[[Array | DeviceVector], Ready]:
    return lambda array: lambda start, stop: ready(PARAMETERS, array, start, stop)
