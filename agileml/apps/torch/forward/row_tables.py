"""Embeddings of which only the rows that a batch looks up are where the module computes.

The weight of an `nn.Embedding(sparse=True)` or `nn.EmbeddingBag(sparse=True)` is a table that is read by row. Its
parameter becomes a `RowParameter`: torch hands every function that gets it as an argument over to the class, which
answers look-ups from the rows that are here and refuses everything else.

The rows that a batch needs are recorded before they are pulled: its forward runs on rows of zeros as far as the last
look-up, and the ids are noted. The forward that computes must look up the same ids, or some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from agileml.application import Array, InputError
from agileml.apps.torch.flat import FlatModule, borrowed
from agileml.apps.torch.forward.linear import is_compiled

_LOOK_UPS = {functional.embedding, functional.embedding_bag}
_GETTERS = [
    "shape",
    "dtype",
    "device",
    "requires_grad",
    "ndim",
    "is_leaf",
    "layout",
    "grad",
    "grad_fn",
    "is_sparse",
    "is_meta",
    "is_cuda",
    "retains_grad",
]
# Calls that ask about a tensor and not for its values, and torch's own modules' and optimizers' for its gradient.
_ABOUT = {getattr(Tensor, name).__get__ for name in _GETTERS} | {
    Tensor.grad.__set__,
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.is_floating_point,
    Tensor.is_complex,
    Tensor.stride,
    Tensor.data_ptr,
    Tensor.element_size,
}


class _LookedUpAll(BaseException):
    """The last look-up of a forward is noted. Not an Exception: user code must not take it for an error of its own."""


@dataclass
class _LookUpCounter:
    """Counts the look-ups of a forward, and ends it after the last one. last: None if their number is not known."""

    last: int | None
    count: int = 0

    def note(self) -> None:
        self.count += 1
        if self.count == self.last:
            raise _LookedUpAll


@dataclass
class RowTable:
    """The rows of one table that are here: `values` (rows, columns) of `ids`, ascending; None: all rows.

    looked_up: the ids that were looked up since they were forgotten.
    """

    name: str
    rows: int
    values: Tensor
    ids: Tensor | None = None
    looked_up: list[Tensor] = field(default_factory=list)
    counter: _LookUpCounter | None = None

    def look_up(self, function: Callable[..., Tensor], ids: Tensor, settings: Mapping[str, Any]) -> Tensor:
        """The result of `embedding` or `embedding_bag`. Raises InputError for an id whose row is not here."""
        if settings.get("max_norm") is not None:
            raise InputError(
                f"model.module: {self.name!r} has a max_norm, which changes rows in forward, expected none with "
                "sparse=True: only the optimizer changes them"
            )
        padding = settings.get("padding_idx")
        padding = padding + self.rows if padding is not None and padding < 0 else padding
        if self.counter is not None:
            self.looked_up.append(ids.detach().reshape(-1).to("cpu", torch.int64, copy=True))
            self.counter.note()
            ids, values, padding = torch.zeros_like(ids), self.values.new_zeros(1, self.values.shape[1]), None
        else:
            ids, values = self._places(ids), self.values
            padding = padding if padding is None else self._place_of(padding)
        return function(ids, values, **{**settings, "padding_idx": padding, "sparse": True})

    def _places(self, ids: Tensor) -> Tensor:
        """Where the rows of these ids are in `values`."""
        if self.ids is None or not ids.numel():
            return ids
        wanted = ids.long()
        places = torch.searchsorted(self.ids, wanted).clamp_(max=max(0, len(self.ids) - 1))
        if not len(self.ids) or not torch.equal(self.ids[places], wanted):
            missing = wanted if not len(self.ids) else wanted[self.ids[places] != wanted]
            raise InputError(
                f"model.module: {self.name!r} looks up row {int(missing.reshape(-1)[0])}, which the batch did not look "
                "up before its parameters were here; expected ids that depend on the batch alone (for test items: "
                "trainer.evaluate_on)"
            )
        return places

    def _place_of(self, row: int) -> int | None:
        if self.ids is None:
            return row
        place = int(torch.searchsorted(self.ids, row))
        return place if place < len(self.ids) and int(self.ids[place]) == row else None

    def looked_up_rows(self) -> Array:
        """The rows that were looked up, ascending. Raises InputError for one that there is not."""
        together = torch.cat(self.looked_up).numpy() if self.looked_up else np.empty(0, np.int64)
        rows = np.unique(together)
        if rows.size and (rows[0] < 0 or rows[-1] >= self.rows):
            wrong = rows[0] if rows[0] < 0 else rows[-1]
            raise InputError(
                f"model.module: {self.name!r} looks up row {wrong}, expected rows from 0 to {self.rows - 1}"
            )
        return rows

    def update(self) -> tuple[Array, Array] | None:
        """(rows, gradients) of the rows that a loss reaches through a look-up, ascending; None: there are none."""
        gradient = self.values.grad
        if gradient is None:
            return None
        gradient = gradient.coalesce()
        places = gradient.indices()[0]
        rows = places if self.ids is None else self.ids[places]
        return rows.cpu().numpy(), gradient.values().cpu().numpy()


class RowParameter(nn.Parameter):
    """The weight of an embedding whose rows are in a RowTable."""

    table: RowTable

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        settings = dict(kwargs or {})
        if func in _LOOK_UPS and len(args) == 2 and isinstance(args[1], RowParameter):
            with torch._C.DisableTorchFunctionSubclass():
                return args[1].table.look_up(func, args[0], settings)
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **settings)
        named = next((each for each in (*args, *settings.values()) if isinstance(each, RowParameter)), None)
        name = f" {named.table.name!r}" if named is not None else ""
        raise InputError(
            f"model.module: {getattr(func, '__name__', func)} uses the weight{name} of an embedding with sparse=True "
            "as a whole, expected look-ups of its rows alone (sparse=False: every machine reads all of it)"
        )


class RowTables:
    """The row tables of a module where it computes. Raises InputError for a module that cannot have any."""

    def __init__(self, flat: FlatModule, device: torch.device) -> None:
        self._device = device
        self._tables: dict[str, RowTable] = {}
        self._last: dict[str, int] = {}  # look-ups of a forward, by its kind
        self._parameters = [parameter for _, parameter in flat.row_parameters]
        if flat.row_parameters and any(map(is_compiled, flat.module.modules())):
            raise InputError(
                f"model.module: found a compiled module with an embedding of sparse=True ({flat.row_parameters[0][0]}) "
                "in it, expected one of both: a compiled forward reads weights as a whole"
            )
        for name, parameter in flat.row_parameters:
            with torch._C.DisableTorchFunctionSubclass():
                values = parameter.detach()
            self._tables[name] = parameter.table = RowTable(name, len(values), values)
            parameter.__class__ = RowParameter

    def __bool__(self) -> bool:
        return bool(self._tables)

    def use(self, tables: Mapping[str, Array], rows: Mapping[str, Array] | None) -> None:
        """Take the rows of a clock, in this order; rows None: all."""
        for (name, table), parameter in zip(self._tables.items(), self._parameters, strict=True):
            values, ids = tables[name], None if rows is None else rows[name]
            if ids is not None and len(ids) != len(values):
                raise InputError(
                    f"model.module: a batch looked up {len(ids)} rows of {name!r} and before {len(values)}, expected "
                    "ids that depend on the batch alone"
                )
            with torch._C.DisableTorchFunctionSubclass():
                if parameter.stride() != (0, 0):  # its own values are of no use any more
                    parameter.data = parameter.new_zeros(1).expand(parameter.shape)
                table.values = borrowed(values).view(values.shape).to(self._device).requires_grad_()
            table.ids = None if ids is None else torch.from_numpy(ids.astype(np.int64)).to(self._device)

    def record_look_ups(self, forward: Callable[[], object], kind: str) -> None:
        """Note which rows a forward looks up, without their values. Forwards of one kind look up equally often."""
        counter = _LookUpCounter(self._last.get(kind))
        for table in self._tables.values():
            table.counter = counter
        try:
            with suppress(_LookedUpAll), torch.no_grad():
                forward()
                self._last[kind] = max(counter.count, self._last.get(kind, 0))
        finally:
            for table in self._tables.values():
                table.counter = None

    def looked_up(self) -> dict[str, Array]:
        """The rows that were heard of since this was asked last, ascending, by table. Raises InputError."""
        rows = {name: table.looked_up_rows() for name, table in self._tables.items()}
        for table in self._tables.values():
            table.looked_up.clear()
        return rows

    def forget_gradients(self) -> None:
        """A new gradient begins."""
        for table in self._tables.values():
            table.values.grad = None

    def updates(self) -> dict[str, tuple[Array, Array]]:
        """(rows, gradients) by table, where a loss reaches one."""
        found = {name: table.update() for name, table in self._tables.items()}
        return {name: update for name, update in found.items() if update is not None}
