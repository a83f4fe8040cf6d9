"""A module's parameters as one flat array: where each lies, and pointing them there.

Parameters lie in the order of `named_parameters()`, each from a multiple of 16 elements (64 bytes of float32): so no
two share a cache line, and a sum over one does not depend on where it lies. Gaps are zero and stay zero. A tied
parameter is there once. Buffers that `state_dict()` has lie the same way in two more tables: numbers with fractions in
`buffers` (float64 if one of them is), whole numbers and flags in `counters` (float64 holds them exactly up to 2^53).
The weight of an embedding with `sparse=True` is a table of its own under its own name, read by row; the parameters
without these may be none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agileml.application import Array, InputError, Range, Table, Update
from agileml.apps.tied_memory import check_memory
from agileml.core.parameters.layout import ALIGNMENT

PARAMETERS, BUFFERS, COUNTERS = "parameters", "buffers", "counters"
MOST_EXACT = 2**53  # the whole numbers up to it are float64's
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


@dataclass(frozen=True)
class TensorSpan:
    """One tensor: elements [start, stop) of the flat array, zeros up to `end` where the next one starts."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def stop(self) -> int:
        """Where its own elements end."""
        return self.start + prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """Its view of a flat tensor."""
        return flat[self.start : self.stop].view(self.shape)


def lay_out(shapes: Iterable[tuple[str, Sequence[int]]]) -> tuple[TensorSpan, ...]:
    """Tensors one after the other, each from a multiple of ALIGNMENT elements."""
    spans: list[TensorSpan] = []
    start = 0
    for name, shape in shapes:
        end = start + -(-prod(shape) // ALIGNMENT) * ALIGNMENT
        spans.append(TensorSpan(name, tuple(shape), start, end))
        start = end
    return tuple(spans)


@dataclass(frozen=True)
class ConstantBuffer:
    """The value of a buffer that is not saved, and how often it was written to."""

    name: str
    value: Any
    version: int

    def is_same(self, now: ConstantBuffer) -> bool:
        """The same numbers: a buffer that forward computes anew counts as the same where it comes out equal."""
        if self.value is now.value:
            return self.version == now.version
        if not isinstance(self.value, Tensor) or not isinstance(now.value, Tensor):
            return False
        is_alike = (self.value.dtype, self.value.device) == (now.value.dtype, now.value.device)
        return is_alike and self.value._version == self.version and torch.equal(self.value, now.value)


class FlatModule:
    """A module and where its tensors lie. Raises InputError for a module that cannot be laid out."""

    def __init__(self, module: nn.Module, source: str) -> None:
        self.module = module
        self.is_emptied = False  # the module does not hold what it was built with any more
        trainable = _trainable(module, source)
        self.dtype = trainable[0][1].dtype
        by_row = _read_by_row(module)
        self.parameters = [(name, p) for name, p in trainable if id(p) not in by_row]
        self.row_parameters = [(name, p) for name, p in trainable if id(p) in by_row]
        self.spans = lay_out((name, parameter.shape) for name, parameter in self.parameters)
        saved = self._saved = set(module.state_dict(keep_vars=True))
        persistent = [(name, buffer) for name, buffer in module.named_buffers() if name in saved]
        self._constants = [name for name, _ in module.named_buffers() if name not in saved]
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self.buffers = lay_out((n, b.shape) for n, b in persistent if b.dtype.is_floating_point)
        self.counters = lay_out((n, b.shape) for n, b in persistent if not b.dtype.is_floating_point)
        for name, buffer in persistent:
            if buffer.layout is not torch.strided:
                raise InputError(
                    f"{source}: buffer {name!r} is a sparse tensor, expected a dense one in what the state dict holds"
                )
            if not buffer.is_meta and bool(torch.isnan(buffer).any()):
                raise InputError(
                    f"{source}: buffer {name!r} has a NaN, expected numbers in what the state dict holds "
                    "(register_buffer(..., persistent=False) keeps any that stay)"
                )
            if buffer.is_complex():
                raise InputError(
                    f"{source}: buffer {name!r} has dtype {_dtype(buffer)}, expected real numbers"
                )
            if (number := _lost_number(buffer)) is not None:
                raise InputError(
                    f"{source}: buffer {name!r} has the number {number}, expected whole numbers up to 2^53 in what the "
                    "state dict holds (register_buffer(..., persistent=False) keeps any number that stays)"
                )
        has_wide = any(b.dtype == torch.float64 for _, b in persistent)
        self._buffers_dtype = "float64" if has_wide else DTYPES[self.dtype]

    @property
    def spans_of_buffers(self) -> Mapping[str, tuple[TensorSpan, ...]]:
        """By table, where the buffers lie in it."""
        return {BUFFERS: self.buffers, COUNTERS: self.counters}

    @property
    def elements(self) -> int:
        """Elements of the parameters' table, gaps included."""
        return self.spans[-1].end if self.spans else 0

    def tables(self) -> list[Table]:
        """The tables, each of one row, those that are read by row last; each only where it holds something."""
        dtype = DTYPES[self.dtype]
        found = []
        if self.spans:
            ranges = tuple(Range(span.name, span.end) for span in self.spans)
            found.append(Table(PARAMETERS, 1, self.elements, dtype, ranges=ranges))
        if self.buffers and self.buffers[-1].end:
            wide = self._buffers_dtype
            found.append(
                Table(BUFFERS, 1, self.buffers[-1].end, wide, update=Update.STEP, may_be_infinite=True)
            )
        if self.counters and self.counters[-1].end:
            found.append(Table(COUNTERS, 1, self.counters[-1].end, "float64", update=Update.STEP))
        for name, parameter in self.row_parameters:
            whole = (Range(name, parameter.numel()),)
            rows, columns = parameter.shape
            found.append(Table(name, rows, columns, dtype, sparse=True, ranges=whole))
        return found

    def values(self, table: Table) -> Array:
        """The present values of the module's tensors, as a new table; of a table that is read by row they are the
        module's own, read-only."""
        if table.sparse:
            return self._row_values(table.name)
        flat = torch.zeros(table.columns, dtype=torch.from_numpy(np.empty(0, table.dtype)).dtype)
        with torch.no_grad():
            for span, tensor in self.tensors(table.name):
                span.of(flat).copy_(tensor)
        return flat.numpy().reshape(1, -1)

    def _row_values(self, name: str) -> Array:
        parameter = dict(self.row_parameters)[name]
        with torch._C.DisableTorchFunctionSubclass():
            array: Array = parameter.detach().cpu().contiguous().numpy()
        array.flags.writeable = False
        return array

    def gathered(self) -> Array:
        """The parameters' table as `values` has it, read-only, and from now on the memory that they lie in.

        Tensor by tensor, so that they are there once.
        """
        flat = torch.zeros(self.elements, dtype=self.dtype)
        with torch.no_grad():
            for span, (_, parameter) in zip(self.spans, self.parameters, strict=True):
                span.of(flat).copy_(parameter)
                parameter.data = span.of(flat)
        array = flat.numpy().reshape(1, -1)
        array.flags.writeable = False
        return array

    def empty(self) -> None:
        """Let go of the parameters' memory; `point` gives them another."""
        self.is_emptied = True
        with torch._C.DisableTorchFunctionSubclass():  # what is read by row refuses all else
            for _, parameter in (*self.parameters, *self.row_parameters):
                parameter.data = torch.zeros((), dtype=self.dtype).expand(parameter.shape)

    def tensors(self, table: str) -> list[tuple[TensorSpan, Tensor]]:
        """The tensors of a table and where each lies in it."""
        if table == PARAMETERS:
            return [(span, tensor) for span, (_, tensor) in zip(self.spans, self.parameters, strict=True)]
        if table in (by_row := dict(self.row_parameters)):
            (span,) = lay_out([(table, by_row[table].shape)])
            return [(span, by_row[table])]
        spans = self.buffers if table == BUFFERS else self.counters
        return [(span, self.module.get_buffer(span.name)) for span in spans]

    def constants(self) -> list[ConstantBuffer]:
        """The buffers that are not saved, by their names: `module.to()` and forward may put others in their place."""
        found = []
        for name in self._constants:
            owner, _, key = name.rpartition(".")
            buffer = getattr(self.module.get_submodule(owner), key, None)
            found.append(ConstantBuffer(name, buffer, buffer._version if isinstance(buffer, Tensor) else 0))
        return found

    def versions(self) -> list[tuple[str, int]]:
        """How often each parameter was written to, frozen ones too but none that is read by row."""
        return [(name, parameter._version) for name, parameter in (*self.parameters, *self._frozen)]

    def check_versions(self, versions: Sequence[tuple[str, int]]) -> None:
        """Raise InputError if a parameter was written to since `versions` was asked."""
        for before, now in zip(versions, self.versions(), strict=True):
            if before != now:
                raise changed_parameter(now[0])

    def sums(self) -> dict[str, str]:
        """The sum of each parameter's elements, frozen ones too but none that is read by row: it also shows changes
        that torch does not count, as those of `parameter.data`."""
        numbers = ((name, p.detach()) for name, p in (*self.parameters, *self._frozen) if not p.is_complex())
        # As text NaN equals itself.
        return {name: repr(p.sum(dtype=torch.float64).item()) for name, p in numbers}

    def late_parameter(self) -> str | None:
        """A parameter that needs a gradient and did not when the module was laid out; None: there is none."""
        known = {id(parameter) for _, parameter in (*self.parameters, *self.row_parameters)}
        found = ((name, p) for name, p in self.module.named_parameters() if p.requires_grad and p.numel())
        return next((name for name, parameter in found if id(parameter) not in known), None)

    def check_names(self) -> None:
        """Raise InputError if the module has other parameters or saved buffers than when it was laid out."""
        if strange := sorted(self._saved ^ set(self.module.state_dict(keep_vars=True))):
            what = "removed" if strange[0] in self._saved else "made"
            raise InputError(
                f"model.module: forward {what} {strange[0]!r}, expected all parameters and saved buffers to be there "
                "before the first forward, and to stay"
            )

    def point(self, flat: Tensor) -> None:
        """Let the parameters be views of a flat tensor: nothing is copied."""
        for span, (_, parameter) in zip(self.spans, self.parameters, strict=True):
            parameter.data = span.of(flat)

    def move(self, flat: Tensor) -> None:
        """The same, with the values that the parameters have. It need not be on their device."""
        with torch.no_grad():
            for span, (_, parameter) in zip(self.spans, self.parameters, strict=True):
                span.of(flat).copy_(parameter)
        self.point(flat)

    def set_buffers(self, tables: Mapping[str, Array]) -> None:
        """Copy what `buffers` and `counters` hold into the module's buffers."""
        with torch.no_grad():
            for name in (BUFFERS, COUNTERS):
                if name in tables:
                    flat = torch.from_numpy(np.array(tables[name]).reshape(-1))
                    for span, buffer in self.tensors(name):
                        buffer.copy_(span.of(flat) if name == BUFFERS else span.of(flat).round())

    def buffer_changes(self, before: Mapping[str, Array], share: float) -> dict[str, Array]:
        """(the module's buffers - before) x share, for each table of buffers in which something changed.

        Raises InputError for a buffer that was infinite and is not any more: the mean of changes is not defined.
        """
        changes = {}
        for table in self.tables():
            if table.name not in (BUFFERS, COUNTERS):
                continue
            now = self.values(table)
            start = before[table.name] if table.name == BUFFERS else np.rint(before[table.name])
            if (now == start).all():
                continue
            changes[table.name] = share_of_change(now, start, share, self.spans_of_buffers[table.name])
        return changes


def share_of_change(
    now: Array, before: Array, share: float, spans: Sequence[TensorSpan], start: int = 0
) -> Array:
    """(now - before) x share of the elements of a table of buffers from `start` on.

    Raises InputError for a buffer that is NaN, and for one that was infinite and is not any more: the mean of changes
    is not defined.
    """

    def name_of(is_wrong: Array) -> str:
        at = start + int(np.flatnonzero(is_wrong)[0])
        return next(span.name for span in spans if span.start <= at < span.end)

    if (is_none := np.isnan(now)).any():
        raise InputError(
            f"model.module: the buffer {name_of(is_none)!r} is NaN after forward, expected numbers in what the state "
            "dict holds (a variance of one item is NaN: a slice has a part of the clock's batch alone)"
        )
    is_same = now == before  # infinities too, whose difference is not a number
    if (is_changed := ~is_same & ~np.isfinite(before)).any():
        raise InputError(
            f"model.module: forward changed the buffer {name_of(is_changed)!r} from an infinite number to another, "
            "expected infinite numbers that stay: the next clock starts from the mean of the machines' changes"
        )
    change = np.where(is_same, 0, (now - np.where(is_same, 0, before)) * share)
    return np.ascontiguousarray(change, now.dtype)


def changed_parameter(name: str) -> InputError:
    """The error for a parameter that something else than the optimizer's step has changed."""
    return InputError(
        f"model.module: forward or the loop changed parameter {name!r}, expected trained parameters that only the "
        "optimizer changes and frozen ones that stay (a buffer of the state dict may change in forward)"
    )


def _trainable(module: nn.Module, source: str) -> list[tuple[str, nn.Parameter]]:
    if not isinstance(module, nn.Module):
        raise InputError(f"{source}: made a {type(module).__name__}, expected a torch.nn.Module")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise InputError(
                f"{source}: {name!r} has no shape yet, expected a module without lazy layers (or one that has seen an "
                "input)"
            )
        if tensor.is_meta:
            raise InputError(
                f"{source}: {name!r} has no numbers (its device is meta), expected a module with all of them "
                '(to_empty(device="cpu") and an initialisation of its own)'
            )
    found = [(name, p) for name, p in module.named_parameters() if p.requires_grad and p.numel()]
    if not found:
        raise InputError(
            f"{source}: the module has no parameter that needs a gradient, expected at least one"
        )
    first_name, first = found[0]
    for name, parameter in found:
        if parameter.dtype not in DTYPES:
            raise InputError(
                f"{source}: parameter {name!r} has dtype {_dtype(parameter)}, expected float32 or float64"
            )
        if parameter.dtype != first.dtype:
            raise InputError(
                f"{source}: parameter {first_name!r} has dtype {_dtype(first)} and {name!r} {_dtype(parameter)}, "
                "expected one dtype (module.float() makes them float32)"
            )
    check_memory(module, found, source)
    return found


def _read_by_row(module: nn.Module) -> set[int]:
    """The ids of the weights of embeddings that torch gives sparse gradients."""
    return {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse
    }


def _lost_number(buffer: Tensor) -> int | None:
    """A whole number of the buffer that float64, and so the table of counters, does not hold; None: there is none."""
    if buffer.dtype not in (torch.int64, torch.uint64) or buffer.is_meta:
        return None
    numbers = buffer.detach().cpu().numpy().reshape(-1)
    large = numbers[(numbers > MOST_EXACT) | (numbers < -MOST_EXACT)].tolist()
    return next((number for number in large if int(float(number)) != number), None)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


class _Borrowed:
    """An array's memory without its read-only flag; keeps the array alive."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def borrowed(array: Array) -> Tensor:
    """A flat tensor over the memory of a read-only array. torch has no read-only tensors: do not write to it."""
    return torch.from_numpy(np.asarray(_Borrowed(array.reshape(-1))))
