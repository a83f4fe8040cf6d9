"""An optimizer of torch over a flat module, and its state as two tables of numbers.

`optimizer` holds every state tensor of the parameters' dtype, `optimizer_scalars` everything else as float64: for each
parameter whether it has a state at all, then its step counts and other numbers. Both hold one parameter after the
other, so the state of some neighbours is a piece of each. One step on tensors without memory finds out which tensors
and numbers a state has.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import signature
from itertools import accumulate, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Array, InputError, Parts, Table, Update
from agileml.apps.torch.flat import DTYPES, PARAMETERS, FlatModule

FORMS = {"fused", "foreach", "capturable"}  # ways of computing the same step
STATE, NUMBERS = "optimizer", "optimizer_scalars"
IS_THERE = ""  # the key of the flag that says whether a parameter has a state
# A group's settings, by our names: torch's.
TORCH_NAMES = {"learning_rate": "lr", "weight_decay": "weight_decay"}


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]], sections: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The parameter groups of torch: parameters that no section names, then those of each section."""
    members: list[list[nn.Parameter]] = [[] for _ in range(len(sections) + 1)]
    for name, parameter in named:
        matching = (
            number
            for number, section in enumerate(sections, 1)
            if any(fnmatchcase(name, pattern) for pattern in section["parameters"])
        )
        members[next(matching, 0)].append(parameter)
    own = [{theirs: s[ours] for ours, theirs in TORCH_NAMES.items() if s[ours] is not None} for s in sections]
    return [{"params": params, **more} for params, more in zip(members, [{}, *own], strict=True)]


@dataclass(frozen=True)
class StateTensor:
    """One entry of a parameter's state: elements [start, start + size) of a table."""

    parameter: int
    key: str
    table: str
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype | None  # None: a Python number
    is_whole: bool = False  # a number that the class keeps as an int, such as a count of steps

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def kept(self, part: Array) -> Tensor | float:
        """The entry as the class keeps it, of what lies in the table."""
        if self.dtype is None:
            number = float(part[0])
            return int(number) if self.is_whole and number.is_integer() else number
        return torch.from_numpy(part.copy()).reshape(self.shape).to(self.dtype)


@dataclass(frozen=True)
class TorchOptimizer:
    """The section `optimizer` of a job with `kind: torch`, for a module. Raises InputError."""

    flat: FlatModule
    section: Mapping[str, Any]

    @cached_property
    def _class(self) -> type[torch.optim.Optimizer]:
        name = self.section["name"]
        module, _, attribute = name.rpartition(":")
        try:
            found = getattr(importlib.import_module(module or "torch.optim"), attribute, None)
        except ImportError as error:
            raise InputError(f"optimizer.name: {name} cannot be imported: {error}") from None
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
            raise InputError(
                f"optimizer.name: found {name!r}, expected a class of torch.optim, such as AdamW, or "
                "package.module:Class"
            )
        return found

    def over(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over these parameters, which stand for the module's in order: its fused form where torch has
        one for them and `arguments` do not choose another. Raises InputError."""
        return self._over_groups(self._groups(self._named(parameters)))

    def _over_groups(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        given = self.section["arguments"]
        # Fused SGD with dampening could not begin a parameter's momentum later than others', see `begin_momentum`.
        has_choice = not FORMS & given.keys() and not given.get("dampening")
        if "fused" in signature(self._class).parameters and has_choice:
            with suppress(RuntimeError, InputError):
                return self._made(groups, {**given, "fused": True})
        return self._made(groups, given)

    def begin_momentum(self, optimizer: torch.optim.Optimizer, stepped: Sequence[nn.Parameter]) -> None:
        """Before a step of these parameters: torch's fused SGD wants the momentum of all or of none. From zeros it
        makes what a first step does, the gradient itself."""
        usual = optimizer.defaults
        if not isinstance(optimizer, torch.optim.SGD) or not usual["fused"] or usual["dampening"]:
            return
        new = [p for p in stepped if not optimizer.state.get(p)]
        if usual["momentum"] and len(new) < len(stepped):
            for parameter in new:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def _made(self, groups: Sequence[Mapping[str, Any]], own: Mapping[str, Any]) -> torch.optim.Optimizer:
        arguments = {"lr": self.section["learning_rate"], **own}
        made = self._class
        try:
            return made([dict(group) for group in groups], **arguments)
        except (TypeError, ValueError) as error:
            called = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
            raise InputError(
                f"optimizer.arguments: {self.section['name']}({called}) failed: {error}"
            ) from None

    def _named(self, parameters: Iterable[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
        """Parameters that stand for the trained ones, with the names of these."""
        return [(name, p) for (name, _), p in zip(self.flat.parameters, parameters, strict=True)]

    def _groups(self, named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
        """The groups that have parameters: those that no section names, then those of each section."""
        return [group for group in parameter_groups(named, self.section["groups"]) if group["params"]]

    @cached_property
    def layout(self) -> tuple[StateTensor, ...]:
        """Every entry of every parameter's state. Raises InputError."""
        name = self.section["name"]
        try:
            stepped = self._stepped("meta")
        except InputError:
            raise
        except Exception:  # it may look at numbers, which such tensors do not have
            try:
                stepped = self._stepped("cpu")
            except Exception as error:
                raise InputError(
                    f"optimizer.name: a step of {name} failed ({type(error).__name__}: {error}), expected an optimizer "
                    "that steps by the gradients alone"
                ) from None
        ends = {STATE: 0, NUMBERS: 0}
        found = []
        for number, state in enumerate(stepped):
            found.append(StateTensor(number, IS_THERE, NUMBERS, ends[NUMBERS], (), None))
            ends[NUMBERS] += 1
            for key, value in sorted(state.items()):
                if value is None:
                    continue
                if not isinstance(value, Tensor | int | float):
                    raise InputError(
                        f"optimizer.name: {name} keeps {key!r} as {type(value).__name__}, expected tensors and numbers"
                    )
                dtype = value.dtype if isinstance(value, Tensor) else None
                shape = tuple(value.shape) if isinstance(value, Tensor) else ()
                table = STATE if dtype == self.flat.dtype and shape else NUMBERS
                is_whole = isinstance(value, int)
                entry = StateTensor(number, key, table, ends[table], shape, dtype, is_whole)
                ends[table] += entry.size
                found.append(entry)
        return tuple(found)

    def _stepped(self, device: str) -> list[dict[str, Any]]:
        """The state of each parameter after a step of ones along ones: of zeros a class may think that there is no
        gradient. Raises InputError for one that is elsewhere too."""
        parameters = [
            nn.Parameter(torch.ones(p.shape, dtype=p.dtype, device=device)) for _, p in self.flat.parameters
        ]
        arguments = self.section["arguments"]
        optimizer = self._made(
            self._groups(self._named(parameters)),
            {key: value for key, value in arguments.items() if key not in FORMS},
        )
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        before = [dict(group) for group in optimizer.param_groups]
        optimizer.step()
        keys = [_kept(optimizer.state[parameter]) for parameter in parameters]
        optimizer.step()
        states = [optimizer.state[parameter] for parameter in parameters]
        later = {key for state, first in zip(states, keys, strict=True) for key in _kept(state) - first}
        for old, new in zip(before, optimizer.param_groups, strict=True):
            later |= {
                key for key in new if key not in old or (new[key] is not old[key] and new[key] != old[key])
            }
        if later:
            raise InputError(
                f"optimizer.name: {self.section['name']} keeps {min(later)!r} for a whole group or from its second "
                "step on, expected state of each parameter, all from the first step on: no other is copied to machines "
                "that join"
            )
        return states

    def beside(self, tables: Sequence[Table]) -> list[Table]:
        """A module's tables with its parameters resident, and those of the state behind them. Raises InputError."""
        parameters, *buffers = tables
        return [replace(parameters, resident=True), *buffers, *self._tables()]

    def _tables(self) -> list[Table]:
        sizes = {STATE: 0, NUMBERS: 0}
        for entry in self.layout:
            sizes[entry.table] += entry.size
        dtypes = {STATE: DTYPES[self.flat.dtype], NUMBERS: "float64"}
        return [
            Table(name, 1, size, dtypes[name], update=Update.NONE, may_be_infinite=True, resident=True)
            for name, size in sizes.items()
            if size
        ]

    def share_ends(self, partitions: int) -> dict[str, list[int]]:
        """Where each partition ends in the parameters and in the tables of the state: behind whole parameters, as near
        as they come to shares of equal size."""
        stops = [0, *(span.end for span in self.flat.spans)]
        goals = [self.flat.elements * number / partitions for number in range(1, partitions)]
        counts = [min(range(len(stops)), key=lambda count: abs(stops[count] - goal)) for goal in goals]
        counts.append(len(self.flat.spans))
        ends = {PARAMETERS: [stops[count] for count in counts]}
        for table in self._tables():
            behind = [0] * len(stops)  # by the number of parameters before it
            for entry in self.layout:
                if entry.table == table.name:
                    behind[entry.parameter + 1] = entry.start + entry.size
            filled = list(accumulate(behind, max))
            ends[table.name] = [filled[count] for count in counts]
        return ends

    # -- the state of an optimizer --------------------------------------------------------------------------------

    def read(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        table: str,
        start: int,
        stop: int,
    ) -> Array:
        """Elements [start, stop) of a table, as a new array; zeros for parameters without a state."""
        whole = torch.empty(stop - start, dtype=self.dtype_of(table))
        for at, piece in self.pieces(optimizer, parameters, table, start, stop):
            whole[at : at + piece.numel()].copy_(piece)
        array: Array = whole.numpy()
        return array

    def dtype_of(self, table: str) -> torch.dtype:
        """The dtype of a table of the state."""
        return self.flat.dtype if table == STATE else torch.float64

    def pieces(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[nn.Parameter],
        table: str,
        start: int,
        stop: int,
    ) -> Iterator[tuple[int, Tensor]]:
        """(place behind `start`, flat tensor) of all that lies in elements [start, stop) of a table, in its dtype."""
        dtype = self.dtype_of(table)
        entries, ends = self._entries[table]
        for entry in islice(entries, bisect_right(ends, start), None):
            if entry.start >= stop:
                return
            flat = self._value(entry, optimizer.state.get(parameters[entry.parameter])).detach().reshape(-1)
            first, last = max(entry.start, start), min(entry.start + flat.numel(), stop)
            if first < last:
                yield first - start, flat[first - entry.start : last - entry.start].to(dtype)

    @cached_property
    def _entries(self) -> dict[str, tuple[Sequence[StateTensor], Sequence[int]]]:
        """The entries of each table in their order, and where each of them ends. A cut asks for every partition, and
        what lies in one is found without a look at all of the others."""
        found: dict[str, tuple[Sequence[StateTensor], Sequence[int]]] = {}
        for table in (STATE, NUMBERS):
            entries = [entry for entry in self.layout if entry.table == table]
            found[table] = (entries, [entry.start + entry.size for entry in entries])
        return found

    def _value(self, entry: StateTensor, state: Mapping[str, Any] | None) -> Tensor:
        """An entry of a parameter's state; zeros where it has none."""
        if entry.key == IS_THERE:
            return torch.tensor(float(bool(state)), dtype=torch.float64)
        if not state:
            return torch.zeros(1, dtype=self.dtype_of(entry.table)).expand(entry.size)
        value = state[entry.key]
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)

    def load(self, optimizer: torch.optim.Optimizer, values: Mapping[str, Parts]) -> None:
        """Give an optimizer the state that the tables hold; its parameters are the module's, in groups. Of a parameter
        whose part is not given it has no state."""
        state: dict[int, dict[str, Any]] = {}
        others: list[tuple[int, str, Tensor]] = []  # of another dtype than the parameters
        is_there = False
        for entry in self.layout:
            if entry.key == IS_THERE:
                flag = piece_of(values[NUMBERS], entry.start, entry.start + 1)
                is_there = flag is not None and bool(flag[0])
                continue
            if not is_there:
                continue
            part = piece_of(values[entry.table], entry.start, entry.start + entry.size)
            assert part is not None, entry  # it comes with the flag
            place, found = self._place[entry.parameter], entry.kept(part)
            state.setdefault(place, {})[entry.key] = found
            if isinstance(found, Tensor) and found.dtype != self.flat.dtype and entry.key != "step":
                others.append((place, entry.key, found))
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        # torch gives all but steps the parameters' dtype: moments that a class keeps in bfloat16 would be other
        # numbers on the machines that joined.
        parameters = [p for group in optimizer.param_groups for p in group["params"]] if others else []
        for place, key, found in others:
            own = optimizer.state[parameters[place]]
            own[key] = found.to(own[key].device)

    @cached_property
    def _place(self) -> dict[int, int]:
        """By the number of a parameter in the module, its number in the optimizer's state dict."""
        marks = [nn.Parameter(torch.empty(0)) for _ in self.flat.parameters]
        order = [id(p) for group in self._groups(self._named(marks)) for p in group["params"]]
        return {number: order.index(id(mark)) for number, mark in enumerate(marks)}

    def state_dict(self, values: Mapping[str, Array], factor: float) -> dict[str, Any]:
        """The state dict of the optimizer over all parameters of the module, for optimizer.pt, with these tables.

        Those that need no gradient have no state. factor: of the learning rates.
        """
        trained = self.over([parameter for _, parameter in self.flat.parameters])
        self.load(trained, {name: [(0, values[name].reshape(-1))] for name in values})
        try:
            optimizer = self._over_groups(self._groups(self.flat.module.named_parameters()))
            optimizer.state.update(trained.state)
        except InputError:  # the class takes only some parameters, as Muon takes matrices, and so will theirs
            optimizer = trained
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
            group["lr"] = group["lr"] * factor
        return optimizer.state_dict()


def _kept(state: Mapping[str, Any]) -> set[str]:
    return {key for key, value in state.items() if value is not None}


def piece_of(parts: Parts, start: int, stop: int) -> Array | None:
    """Elements [start, stop) of a flat table that is given in parts; None where not all of them are given."""
    if start == stop:
        return np.empty(0)
    found = [
        array[max(start - at, 0) : stop - at] for at, array in parts if at < stop and start < at + array.size
    ]
    if sum(piece.size for piece in found) < stop - start:
        return None
    return found[0] if len(found) == 1 else np.concatenate(found)
