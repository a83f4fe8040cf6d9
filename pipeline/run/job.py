"""Everything that a run is made of, from its config: model, data, stages, schedule, optimizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pipeline.profile.user_model import LoadError, load_function
from pipeline.run.config import Mode, Order, PipelineConfig, RunError
from pipeline.run.tensor_files import digest, read_tensors
from pipeline.run.tree import slice_of
from pipeline.run.weights import StageWeights
from pipeline.run.worker import Ends, Item, Worker
from pipeline.schedule.actions import Schedule
from pipeline.schedule.policies import flush, one_f_one_b
from pipeline.schedule.versions import Trace, Versions, trace
from pipeline.stages.cut import StageCode, cut
from pipeline.stages.passes import Loss, StageCompute
from pipeline.stages.traced import TracedModel, trace_model

Minibatch = tuple[tuple[Any, ...], tuple[Any, ...]]
_KEY = 0xD1B54A32D192ED03
_MASK = (1 << 63) - 1
KEPT_MINIBATCHES = 4  # a worker of several in flight may be behind another one of the same process


@dataclass(frozen=True)
class StageShape:
    """The stages of a run: the end of each in the model, and its number of replicas. recompute: per stage."""

    ends: tuple[int, ...]
    replicas: tuple[int, ...]
    recompute: tuple[bool, ...]
    forward_s: tuple[float, ...] | None = None
    backward_s: tuple[float, ...] | None = None


class Job:
    """A config with the model, the loss and the data that it names. Raises RunError, LoadError, StageError."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        # Every worker calls the function, and must get the same weights and data from it.
        torch.manual_seed(config.seed)
        np.random.seed(config.seed & 0xFFFFFFFF)
        random.seed(config.seed)
        made = load_function(config.training)()
        if not isinstance(made, tuple) or len(made) != 3 or not isinstance(made[0], nn.Module):
            raise LoadError(
                f"{config.training} must return (model, loss, minibatch), found {type(made).__name__}"
            )
        self.model: nn.Module = made[0]
        self.loss: Loss = made[1]
        self._minibatch: Callable[[int], Minibatch] = made[2]
        first = self.minibatch(1)
        if not _same(first, self.minibatch(1)):
            raise RunError(
                f"minibatch(1) of {config.training} made two unlike minibatches, expected the same one for the same "
                "number: every stage calls it for itself"
            )
        self.batch = self._items_of(first)
        if self.batch % config.parts:
            raise RunError(
                f"a minibatch of {self.batch} items cannot be cut into {config.parts} equal microbatches: "
                f"change microbatches, or the batch of {config.training}"
            )

        if config.parts > 1:
            self._check_targets(first[1])

    @property
    def microbatch_items(self) -> int:
        """Items of one microbatch."""
        return self.batch // self.config.parts

    @cached_property
    def traced(self) -> TracedModel:
        """The model's layers, for inputs of one microbatch."""
        inputs, _ = self.microbatch(1, 0)
        return trace_model(self.model, inputs)

    def load(self, path: Path) -> None:
        """Take weights and buffers from a file that `write_tensors` wrote. Raises RunError where it is not of this
        model."""
        try:
            found = read_tensors(path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read: {error}") from None
        values = self.traced.values
        for name in sorted(found.keys() | values.keys()):
            there, here = (
                f"{v.dtype} of shape {list(v.shape)}" if (v := each.get(name)) is not None else "nothing"
                for each in (found, values)
            )
            if there != here:
                raise RunError(
                    f"{path} is of another model: it has {there} as {name}, and {self.config.training} makes {here}"
                )
        with torch.no_grad():
            for name, value in found.items():
                values[name].copy_(value)

    def state_dict(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of the user's own model: a tied weight under each of its names, no constants of the recording.

        tensors: by the names of `traced.values`.
        """
        names = {id(value): name for name, value in self.traced.values.items()}
        found: dict[str, Tensor] = {}
        taken: set[int] = set()
        for name, own in self.model.state_dict(keep_vars=True).items():
            if isinstance(own, Tensor):
                value = tensors.get(names.get(id(own), name), own)
                found[name] = value.clone() if id(value) in taken else value
                taken.add(id(value))
        return found

    def data_digest(self) -> str:
        """A digest of the first minibatch's tensors."""
        tensors = [t for t in pytree.tree_leaves(self._kept(1)) if isinstance(t, Tensor)]
        return digest({str(number): tensor for number, tensor in enumerate(tensors)})

    def check_data(self, wanted: str) -> None:
        """Raise RunError where this process has other data than the one whose digest this is."""
        if self.data_digest() != wanted:
            raise RunError(
                f"minibatch(1) of {self.config.training} is another one than where the run began, expected the same "
                "minibatches in every process: give random generators a seed"
            )

    def minibatch(self, number: int) -> Minibatch:
        """The user's minibatch. Raises RunError where it has another form."""
        try:
            made = self._minibatch(number)
        except Exception as error:  # the user's own code
            raise RunError(
                f"minibatch({number}) of {self.config.training} failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(made, tuple) or len(made) != 2:
            raise RunError(
                f"minibatch({number}) of {self.config.training} must return (inputs, targets), found {made!r:.60}"
            )
        inputs, targets = (part if isinstance(part, tuple) else (part,) for part in made)
        return inputs, targets

    def microbatch(self, number: int, part: int) -> Minibatch:
        """Microbatch `part` (from 0) of a minibatch: tensors whose first dimension is the batch are cut."""
        inputs, targets = self._kept(number)
        if self.config.parts == 1:
            return inputs, targets
        each, batch = self.microbatch_items, self.batch

        def cut_out(value: Any) -> Any:
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch:
                return value[part * each : (part + 1) * each]
            return value

        return pytree.tree_map(cut_out, inputs), pytree.tree_map(cut_out, targets)

    def codes(self, shape: StageShape) -> tuple[StageCode, ...]:
        """The stages. Raises StageError, RunError."""
        found = cut(self.traced, shape.ends)
        for stage, code in enumerate(found):
            self._check_buffers(stage, shape, code)
        return found

    def schedule(self, shape: StageShape) -> Trace:
        """The lists of the whole run, with the version of the weights that each action uses."""
        config, count = self.config, self.config.minibatches
        if config.mode is Mode.FLUSH:
            made = flush(
                shape.replicas,
                count * config.parts,
                config.parts,
                zero_bubble=config.order is Order.ZERO_BUBBLE,
                in_flight=config.in_flight,
                forward_s=shape.forward_s,
                backward_s=shape.backward_s,
            )
            return trace(made, Versions.STASHING)
        drains = list(range(config.epoch, count, config.epoch)) if config.epoch else []
        made = one_f_one_b(
            shape.replicas,
            count,
            in_flight=config.in_flight,
            drains=drains,
            forward_s=shape.forward_s,
            backward_s=shape.backward_s,
        )
        return trace(made, self.versions)

    @property
    def versions(self) -> Versions:
        """How forward and backward find their weights."""
        if self.config.mode is Mode.NONE:
            return Versions.NONE
        if self.config.double_buffered:
            return Versions.DOUBLE_BUFFERED
        return Versions.VERTICAL_SYNC if self.config.vertical_sync else Versions.STASHING

    def item(self, schedule: Schedule, place: int) -> Item:
        """The item that a place (1-based) of the schedule computes."""
        parts = self.config.parts
        number, within = (place - 1) // parts + 1, (place - 1) % parts
        leaf = slice_of(within, parts, max(schedule.replicas))
        key = (self.config.seed * _KEY + number * 1_000_003 + leaf * 7_919) * _KEY & _MASK

        def load() -> tuple[Sequence[Any], Sequence[Any]]:
            inputs, targets = self.microbatch(number, leaf)
            return self.traced.flat_inputs(inputs), targets

        return Item(leaf, 1.0 / parts, key, load)

    def worker(
        self, traced: Trace, shape: StageShape, codes: Sequence[StageCode], number: int, ends: Ends
    ) -> Worker:
        """Worker `number` of the schedule. Raises RunError."""
        stage = traced.schedule.stage_of(number)
        code = codes[stage]
        compute = StageCompute(
            self.traced, code, loss=self.loss if code.is_last else None, recompute=shape.recompute[stage]
        )
        keeps = self.config.mode is not Mode.NONE
        last_use = {version: place for place, version in enumerate(traced.uses[number])} if keeps else {}
        values = {name: self.traced.values[name] for name in code.parameters}
        if number != traced.schedule.first_workers[stage]:  # the first replica trains the model's own memory
            values = {n: v.detach().clone().requires_grad_(v.requires_grad) for n, v in values.items()}
        weights = StageWeights(values, code.parameters, self.optimizer, last_use)
        return Worker(traced, number, compute, weights, lambda b: self.item(traced.schedule, b), ends)

    def optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of the config over some parameters. Raises RunError."""
        kind, arguments = self.config.optimizer.kind, self.config.optimizer.arguments
        made = getattr(torch.optim, kind, None)
        if not isinstance(made, type) or not issubclass(made, torch.optim.Optimizer) or kind == "Optimizer":
            raise RunError(f"optimizer.kind: torch.optim has no optimizer {kind!r}")
        if kind == "LBFGS":
            raise RunError(
                "optimizer.kind: LBFGS evaluates the loss several times in a step, which a pipeline cannot"
            )
        try:
            return made(parameters, **arguments)
        except (TypeError, ValueError) as error:
            raise RunError(f"optimizer: {kind} does not take {arguments}: {error}") from None

    @lru_cache(maxsize=KEPT_MINIBATCHES)  # noqa: B019 - one job lives as long as its process
    def _kept(self, number: int) -> Minibatch:
        return self.minibatch(number)

    def _items_of(self, minibatch: Minibatch) -> int:
        tensors = [t for t in pytree.tree_leaves(minibatch[0]) if isinstance(t, Tensor) and t.dim()]
        if not tensors:
            raise RunError(f"minibatch(1) of {self.config.training} has no tensor among its inputs")
        return int(tensors[0].shape[0])

    def _check_targets(self, targets: tuple[Any, ...]) -> None:
        """Raise RunError where a minibatch is cut into microbatches and its targets are not: the first dimension of the
        inputs is time, say."""
        tensors = [t for t in pytree.tree_leaves(targets) if isinstance(t, Tensor) and t.dim()]
        if tensors and all(t.shape[0] != self.batch for t in tensors):
            raise RunError(
                f"minibatch(1) of {self.config.training} has {self.batch} items by the first dimension of its first "
                f"input, and {tensors[0].shape[0]} by that of its first target, expected as many: a minibatch is cut "
                "into microbatches along it"
            )

    def _check_buffers(self, stage: int, shape: StageShape, code: StageCode) -> None:
        changed = [f"buffer {name}" for name in code.buffers if name in self.traced.changed]
        changed += [f"parameter {name}" for name in code.parameters if name in self.traced.rewritten]
        if changed and shape.replicas[stage] > 1:
            raise RunError(
                f"stage {stage + 1} has {shape.replicas[stage]} replicas, and its forward changes the {changed[0]}, "
                "whose order over replicas is not defined: give that stage one replica"
            )


def _same(one: Minibatch, other: Minibatch) -> bool:
    """The tensors of two minibatches are equal, NaN to itself."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=False)
    both = ((a, b) for a, b in pairs if isinstance(a, Tensor) and isinstance(b, Tensor))
    return all(a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in both)
