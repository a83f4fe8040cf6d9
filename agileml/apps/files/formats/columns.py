"""Columns of Arrow as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from agileml.application import InputError

EXPECTED = (
    "expected numbers, text, or lists of numbers of one length; or data.decode, which makes items of rows"
)


MOST = np.iinfo(np.int64).max


def batch_of(table: Any) -> dict[str, Any]:
    """The columns of a table of Arrow by name, each as `values_of` makes it. Raises InputError."""
    return {
        name: values_of(column.combine_chunks(), name)
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def values_of(column: Any, name: str) -> Any:
    """An array of Arrow as a tensor whose first axis counts the rows, or as a list where it has text or bytes.

    Whole numbers become int64 (uint8 stays: images), fractions float32, as in the tensors of Hugging Face's data
    sets. Lists of one length become axes, structs become mappings. Raises InputError.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        shape = getattr(kind, "shape", None)
        values = values_of(column.storage, name)
        return values if shape is None else values.reshape(len(column), *shape)
    if column.null_count:
        raise InputError(
            f"data.path: column {name} has a row without a value, expected a value in every row; or data.decode"
        )
    if types.is_dictionary(kind):
        return values_of(column.dictionary_decode(), name)
    if types.is_struct(kind):
        return {
            field.name: values_of(column.field(field.name), f"{name}.{field.name}") for field in kind.fields
        }
    if types.is_fixed_size_list(kind):
        return _reshaped(column, kind.list_size, name)
    if types.is_list(kind) or types.is_large_list(kind):
        lengths = np.unique(np.diff(column.offsets.to_numpy()))
        if len(lengths) != 1:
            raise InputError(
                f"data.path: column {name} has lists of {lengths.min()} to {lengths.max()} values, {EXPECTED}"
            )
        return _reshaped(column, int(lengths[0]), name)
    if types.is_string(kind) or types.is_large_string(kind) or _is_bytes(kind):
        return column.to_pylist()
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype == np.uint64 and (values > MOST).any():
            raise InputError(
                f"data.path: column {name} has the value {values.max()}, expected at most {MOST}: whole numbers "
                "become int64"
            )
        if values.dtype.kind in "iu" and values.dtype != np.uint8:
            values = values.astype(np.int64)
        elif values.dtype.kind == "f":
            values = values.astype(np.float32)
        return torch.from_numpy(np.array(values))  # Arrow's memory may not be written
    raise InputError(f"data.path: column {name} has the type {kind}, {EXPECTED}")


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _reshaped(lists: Any, length: int, name: str) -> torch.Tensor:
    """Lists of one length as an axis."""
    inner = values_of(lists.flatten(), name)
    if not isinstance(inner, torch.Tensor):
        raise InputError(f"data.path: column {name} has the type {lists.type}, {EXPECTED}")
    return inner.reshape(len(lists), length, *inner.shape[1:])
