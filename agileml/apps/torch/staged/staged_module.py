"""A module in stages: which partitions hold which layers, and computing one stage's share of a unit.

The layers are those that `pipeline.stages` cuts between; each partition holds the parameters of consecutive layers. A
unit is a microbatch: its items go through the stages forward, its gradients back, and each stage has the updates of its
own partitions. Any cut has the bits of the whole module, dropout included.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agileml.application import Array, InputError, StageOutput, StagePlan, Unit, Updates, Wire
from agileml.apps.torch.flat import FlatModule, TensorSpan, borrowed
from agileml.apps.torch.names import ModuleConfig, loss_named
from agileml.apps.torch.objective import Loss
from agileml.apps.torch.seeding import alone, in_turn, seeded
from agileml.apps.torch.staged.layer_order import check_order, end_before, first_layers, places_to_cut
from agileml.apps.torch.staged.stage_buffers import StageBuffers
from agileml.apps.torch.trial import placed_batch
from agileml.config.text import ConfigError
from pipeline.stages.cut import StageCode, cut
from pipeline.stages.layering import Fact, StageError
from pipeline.stages.measure import measured_profile
from pipeline.stages.passes import Pass, StageCompute
from pipeline.stages.traced import TracedModel, trace_model

if TYPE_CHECKING:
    from agileml.apps.torch.module import TorchModule


@dataclass(frozen=True)
class Microbatch:
    """The items of a unit. key: of its random numbers. share: of the clock's items. load: the batch."""

    items: int
    key: int
    share: float
    load: Callable[[], Any]

    def parts(self) -> tuple[tuple[Any, ...], Any]:
        """(inputs, target). Raises InputError for a batch of another form."""
        batch = self.load()
        if not isinstance(batch, Sequence) or len(batch) < 2:
            raise InputError(
                f"pipeline: found a batch of type {type(batch).__name__}, expected (input, ..., target)"
            )
        *inputs, target = batch
        return tuple(inputs), target


Borders = tuple[tuple[int, ...], ...]  # of each table, where the partitions end
Read = Callable[[Unit, Any], Microbatch]  # a unit and its slice's items


class StagedModule:
    """The layers of a module, for microbatches like the example. Raises InputError for what cannot be in stages."""

    def __init__(self, flat: FlatModule, loss: Loss, read: Read, example: Microbatch, threads: int) -> None:
        if flat.row_parameters:
            raise InputError(
                f"pipeline: the module has an embedding with sparse=True ({flat.row_parameters[0][0]}), expected "
                "none: a stage holds its layers as a whole"
            )
        self.flat, self.loss, self.threads = flat, loss, threads
        self._read, self._example = read, example
        try:
            with alone(threads):
                self.traced: TracedModel = trace_model(flat.module, example.parts()[0])
        except StageError as error:
            raise InputError(f"pipeline: {error}") from None
        held = {span.name for spans in flat.spans_of_buffers.values() for span in spans}
        if lost := self.traced.changed - held:
            raise InputError(
                f"pipeline: forward changes the buffer {min(lost)!r}, expected only buffers that the state dict holds: "
                "others do not move with a stage"
            )
        changed = {node: name for node, name in self.traced.buffers.items() if name in self.traced.changed}
        layers = first_layers(self.traced, self.traced.parameters, flat.spans)
        self._buffer_layers = {
            table.name: first_layers(self.traced, changed, flat.spans_of_buffers[table.name])
            for table in flat.tables()[1:]
        }
        self._starts = places_to_cut(layers, list(self._buffer_layers.values()))
        if not self._starts and len(set(layers)) > 1:
            check_order("parameter", flat.spans, layers)
            for name, each in self._buffer_layers.items():
                check_order("buffer", flat.spans_of_buffers[name], each)

    @property
    def most_partitions(self) -> int:
        """Groups of parameters between which the module can be cut."""
        return len(self._starts) + 1

    def borders(self, most: int) -> Borders:
        """The ends of the partitions in each table, at most so many: as even in groups of parameters as can be."""
        count = min(most, self.most_partitions)
        firsts = [0, *self._starts]
        begins = [firsts[p * len(firsts) // count] for p in range(count)]
        spans = self.flat.spans
        found = (*(spans[begin - 1].end for begin in begins[1:]), spans[-1].end)
        ends = self._layer_ends(found)
        of_buffers = (
            tuple(end_before(self.flat.spans_of_buffers[name], layers, end) for end in ends)
            for name, layers in self._buffer_layers.items()
        )
        return found, *of_buffers

    def plan(self, most: int, repeats: int = 3) -> StagePlan:
        """The partitions, and the seconds that their layers take here. Raises InputError for what stages do not have
        the gradients of."""
        example, borders = self._example, self.borders(most)
        try:
            with alone(self.threads):
                inputs, target = example.parts()
                measured = measured_profile(
                    self.traced,
                    self.loss,
                    inputs,
                    (target,),
                    model=type(self.flat.module).__name__,
                    batch=example.items,
                    repeats=repeats,
                )
        except StageError as error:
            raise InputError(f"pipeline: {error}") from None
        seconds = [layer.compute_s for layer in measured.layers]
        ends = self._layer_ends(borders[0])
        codes = cut(self.traced, ends)
        sent = tuple(sum(fact.size_bytes for fact in code.outgoing) for code in codes)
        return StagePlan(borders, tuple(sum(seconds[a:b]) for a, b in pairwise((0, *ends))), sent)

    def stage(self, borders: Sequence[Sequence[int]], first: int, stop: int) -> TorchStage:
        """The stage that holds the partitions first .. stop - 1."""
        ends = self._layer_ends(borders[0])
        cuts = [end for end in (ends[first - 1] if first else 0, ends[stop - 1]) if end]
        places = cut(self.traced, sorted({*cuts, len(self.traced.layers)}))
        edges = [(0, *each)[first : stop + 1] for each in borders]
        return TorchStage(self, places[1 if first else 0], edges, self._read)

    def whole_unit(
        self, units: Sequence[Unit], shares: Sequence[Any], parameters: Mapping[str, Array]
    ) -> Updates:
        """A unit through all layers in one process: the bits of any number of stages."""
        assert len(units) == 1, "a pipeline is deterministic: units are added one by one"
        unit, items = units[0], shares[0]
        stage = self._whole
        names = [table.name for table in self.flat.tables()]
        stage.use([tuple(parameters[name].reshape(-1) for name in names)])
        output = stage.forward(unit, items, (), defer=False)
        stage.backward(unit, ())
        (blocks,) = stage.updates(unit)
        updates = zip(names, blocks, strict=True)
        found = {name: block.reshape(1, -1) for name, block in updates if block is not None}
        return Updates(found, output.loss, output.examples)

    @cached_property
    def _whole(self) -> TorchStage:
        return self.stage(self.borders(1), 0, 1)

    def _layer_ends(self, borders: Sequence[int]) -> list[int]:
        """The layer behind the last one of each partition."""
        begins = {self.flat.spans[at].start: layer for at, layer in self._starts.items()}
        return [begins[border] for border in borders[:-1]] + [len(self.traced.layers)]


@dataclass
class _UnderWay:
    """A unit between its forward and its updates."""

    kept: Pass
    share: float
    buffers: list[tuple[Array | None, ...]]  # updates of each partition's
    own: list[Tensor | None]


class TorchStage:
    """Computes some layers of a module. `edges`: where its partitions begin in each table, and their end."""

    def __init__(
        self, module: StagedModule, code: StageCode, edges: Sequence[Sequence[int]], read: Read
    ) -> None:
        self.code, self.edges = code, list(edges[0])
        self._buffers = StageBuffers(module.flat, module.traced, code, edges[1:])
        self._reads_items = bool(code.inputs) or code.is_last
        self._module, self._read = module, read
        self._compute = StageCompute(module.traced, code, loss=module.loss if code.is_last else None)
        spans = {span.name: span for span in module.flat.spans}
        self._spans = [spans.get(name) for name in code.parameters]
        self._own = [s for s in module.flat.spans if self.edges[0] <= s.start < self.edges[-1]]
        self._weights: list[Tensor] = []
        self._memory: list[Array] | None = None  # of weights that are overwritten
        self._under_way: dict[Unit, _UnderWay] = {}

    def forget(self) -> None:
        """Forget units under way."""
        self._under_way.clear()

    def overwrite(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        """As `use`, but units under way go back with these: they lie where the ones before lay."""
        if self._memory is None:
            self._memory = [np.array(block) for block, *_ in blocks]
            self._point(self._memory)
        for memory, (block, *_) in zip(self._memory, blocks, strict=True):
            memory[:] = block  # torch does not see it, so that autograd does not refuse what it saved
        self._buffers.use([block[1:] for block in blocks])

    def use(self, blocks: Sequence[tuple[Array, ...]]) -> None:
        """Take parameters and buffers for the next forwards: of each partition a flat block of each table. Units under
        way go back with the parameters that they came with."""
        self._point([block for block, *_ in blocks])
        self._buffers.use([block[1:] for block in blocks])

    def _point(self, blocks: Sequence[Array]) -> None:
        """Let the weights of the next forwards be views of the parameters' blocks."""
        tensors = [borrowed(block) for block in blocks]
        values = self._module.traced.values
        self._weights = []
        for name, span in zip(self.code.parameters, self._spans, strict=True):
            if span is None:
                self._weights.append(values[name].detach())  # frozen: the same on every machine
                continue
            at, start = self._place(span)
            here = tensors[at][start : start + span.stop - span.start]
            self._weights.append(here.view(span.shape).requires_grad_())

    def forward(self, unit: Unit, items: Any, incoming: Sequence[Wire], *, defer: bool) -> StageOutput:
        """The forward of a unit, whose slice has these items. defer: `backward` may put gradients of weights off."""
        with alone(self._module.threads):
            batch = self._read(unit, items)
            given, target = batch.parts() if self._reads_items else ((), None)
            inputs = self._module.traced.flat_inputs(given) if self._reads_items else []
            facts = self.code.incoming
            values = [_tensor(wire, fact) for wire, fact in zip(incoming, facts, strict=True)]
            targets = (target,) if self.code.is_last else ()
            self._compute.buffers = self._buffers.fresh()
            kept = self._compute.forward(self._weights, values, inputs, targets, batch.key, defer=defer)
            changes = self._buffers.changes(self._compute.buffers, batch.share)
            self._under_way[unit] = _UnderWay(kept, batch.share, changes, [])
            if self.code.is_last:
                return StageOutput((), float(kept.outgoing[0].detach()) * batch.items, batch.items)
            return StageOutput(tuple(_wire(value) for value in kept.outgoing))

    def backward(self, unit: Unit, gradients: Sequence[Wire | None]) -> list[Wire | None]:
        """From the gradients of its outputs to those of its inputs; the last stage takes those of its loss."""
        with alone(self._module.threads):
            one = self._under_way[unit]
            if self.code.is_last:
                roots: list[Tensor | None] = [torch.full_like(one.kept.outgoing[0], one.share)]
            else:
                pairs = zip(gradients, self.code.outgoing, strict=True)
                roots = [None if wire is None else _tensor(wire, fact) for wire, fact in pairs]
            into, one.own = self._compute.backward(one.kept, roots)
            return [None if value is None else _wire(value) for value in into]

    def updates(self, unit: Unit) -> list[tuple[Array | None, ...]]:
        """The updates of a unit: of each partition a flat block of each table, None where no buffer changes. Computes
        gradients that were put off."""
        with alone(self._module.threads):
            one = self._under_way.pop(unit)
            for place, gradient in self._compute.deferred(one.kept).items():
                one.own[place] = gradient
            blocks = [torch.zeros(b - a, dtype=self._module.flat.dtype) for a, b in pairwise(self.edges)]
            found = dict(zip(self.code.parameters, one.own, strict=True))
            for span in self._own:
                at, start = self._place(span)
                gradient = found.get(span.name)
                if gradient is None:  # no loss reaches it: the optimizer leaves it alone
                    blocks[at][start : start + span.end - span.start] = -0.0
                else:
                    blocks[at][start : start + span.stop - span.start].view(span.shape).copy_(gradient)
            return [(block.numpy(), *own) for block, own in zip(blocks, one.buffers, strict=True)]

    def _place(self, span: TensorSpan) -> tuple[int, int]:
        """(partition of this stage, where the parameter begins in its block)."""
        at = bisect_right(self.edges, span.start) - 1
        return at, span.start - self.edges[at]


# Numbers of a dtype that numpy lacks travel as whole numbers of the same size.
_BITS = {torch.bfloat16: torch.int16, torch.complex32: torch.int32}
_BITS |= {dtype: torch.uint8 for name, dtype in vars(torch).items() if name.startswith("float8_")}


def _wire(tensor: Tensor) -> Wire:
    """A tensor as it lies in memory: a sum over another layout has other bits."""
    dense = tensor.detach()
    strides = torch.empty_like(dense, device="meta", memory_format=torch.preserve_format).stride()
    flat = torch.empty(dense.numel(), dtype=dense.dtype)
    flat.as_strided(dense.shape, strides).copy_(dense)
    bits = _BITS.get(flat.dtype)
    return Wire((flat if bits is None else flat.view(bits)).numpy(), strides)


def _tensor(wire: Wire, fact: Fact) -> Tensor:
    return borrowed(wire.values).view(fact.dtype).as_strided(fact.shape, wire.strides)


def staged_module(app: TorchModule, own: Mapping[str, Any], flat: FlatModule) -> StagedModule:
    """The stages of a job. own: the objects that the user gave instead of names. Raises ConfigError, InputError."""
    settings, model, whole = app.settings, app.model, app.minibatches.batch
    loss = _loss(model, own, is_evaluated=app.evaluates_every() is not None)
    units = settings.slices * settings.units_per_slice
    if whole % units:
        raise ConfigError(
            f"found {whole} items in a clock, expected a multiple of the {units} units that go through the stages",
            key=("model", "batch_size"),
        )

    def read(unit: Unit, items: Any) -> Microbatch:
        request = app.minibatches.request([unit], [items], None)

        def load() -> Any:
            with in_turn():
                (tree,) = app.loader.batches(request)
                with seeded(request.seed, model.threads, torch.device("cpu")):
                    return placed_batch(tree, request.items, app.augment, None).tree

        return Microbatch(request.items, request.seed, request.items / whole, load)

    example = read(Unit(0, 0, 0, settings.units_per_slice), app.minibatches.share(0))
    return StagedModule(flat, loss, read, example, model.threads)


def _loss(model: ModuleConfig, own: Mapping[str, Any], *, is_evaluated: bool) -> Loss:
    """The loss of a job in stages. Raises ConfigError for keys of `model` that stages do not have."""
    step = "a step" if own["step"] is not None else model.step
    for key, found in (
        ("step", step),
        ("autocast", model.autocast),
        ("micro_batch", model.micro_batch),
        ("evaluate_every", model.evaluate_every if is_evaluated else None),
        ("device", model.device if model.device == "cuda" else None),
    ):
        if found is not None:
            raise ConfigError(
                f"found {found} with a pipeline, expected none: {_REASONS[key]}", key=("model", key)
            )
    named = own["loss"] or model.loss
    return loss_named(named) if isinstance(named, str) else named


_REASONS = {
    "step": "the last stage computes the loss from the model's output",
    "autocast": "stages compute in the parameters' own precision",
    "micro_batch": "a unit is a microbatch already, and units_per_slice makes them smaller",
    "evaluate_every": "no machine has the whole model while it trains",
    "device": "stages compute on the CPU",
}
