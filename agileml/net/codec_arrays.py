"""Arrays of a message: references in the header, bytes in frames of their own.

A reference is [place among the message's arrays, code of the dtype, number of dimensions, length of each dimension].
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

MAX_DIMENSIONS = 32

# Little endian, as they lie in memory on every machine that Ray supports. The code of a dtype is its place here.
DTYPES: tuple[np.dtype[Any], ...] = tuple(
    map(
        np.dtype,
        ["?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"],
    )
)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_HEAD = struct.Struct("<IBB")  # place among the arrays, code of the dtype, dimensions


class CodecError(Exception):
    """A message that cannot be encoded, or input that is no message. The text says what is wrong and where."""


def pack_reference(array: np.ndarray, arrays: list[np.ndarray]) -> bytes:
    """Append the array to `arrays` and give the reference that stands for it in the header. Raises CodecError."""
    code = _DTYPE_CODES.get(array.dtype)
    if code is None:
        raise CodecError(f"an array of dtype {array.dtype}, which cannot travel")
    if type(array) is not np.ndarray:
        raise CodecError(f"a {type(array).__name__}, which cannot travel (use a plain numpy array)")
    packed = _HEAD.pack(len(arrays), code, array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape)
    # np.ascontiguousarray would give an array without dimensions one.
    arrays.append(array if array.flags.c_contiguous else array.copy(order="C"))
    return packed


def unpack_reference(data: bytes, arrays: Sequence[np.ndarray], expected: int) -> np.ndarray:
    """Give the array of `arrays` that a reference names, in its dtype and shape.

    expected: the place that the reference must name, since a header uses its arrays in order. Raises CodecError.
    """
    if len(data) < _HEAD.size:
        raise CodecError("array reference is cut short")
    index, code, dimensions = _HEAD.unpack_from(data)
    if dimensions > MAX_DIMENSIONS or len(data) != _HEAD.size + 8 * dimensions:
        raise CodecError(f"array reference of {len(data)} bytes does not hold {dimensions} dimensions")
    if code >= len(DTYPES):
        raise CodecError(f"unknown dtype {code}")
    if index != expected or index >= len(arrays):
        raise CodecError(f"header names array {index}, expected is {expected} of the {len(arrays)} that came")
    return _shaped(arrays[index], DTYPES[code], struct.unpack_from(f"<{dimensions}Q", data, _HEAD.size))


def _shaped(array: np.ndarray, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    if array.dtype == dtype and array.shape == shape:
        return array
    needed = math.prod(shape) * dtype.itemsize
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous or array.nbytes != needed:
        raise CodecError(
            f"an array of {array.nbytes} bytes ({array.dtype}, shape {array.shape}) came, "
            f"the header says {needed} bytes ({dtype}, shape {shape})"
        )
    typed = array.view(dtype)
    if not typed.flags.aligned:
        typed = typed.copy()
    return typed.reshape(shape)
