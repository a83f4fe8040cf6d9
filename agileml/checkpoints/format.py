"""One partition's part of a cut as a safetensors file, and back.

Tensors `block.<table>` and `slot.<slot>.<table>` hold parameters and optimizer state, numbered in the order of the
application's tables. The metadata's `cut` is JSON: all but the arrays. Any reader of safetensors opens it.

The header is written here and not by the library, which joins all arrays into a second copy before it writes: a cut may
be as large as the memory that is left. Arrays are written as they are, and those read back are views of one buffer.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from agileml.application import Array
from agileml.checkpoints.errors import DamagedError
from agileml.core.parameters.loss_scale import LossScale, ScaleChange
from agileml.core.protocol.messages import ClockReport, Cut
from agileml.core.protocol.view import CutId
from straggler.coverage import parse, show

FORMAT = 1
CHUNK_BYTES = 8 << 20
MOST_SLOTS = 1024  # of state that an optimizer keeps for each table

DTYPES = {
    "BOOL": "?",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
}
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_ALIGNMENT = 64  # of the first array, which must be at a multiple of 8


@dataclass(frozen=True)
class Encoded:
    """A file to write: its size is known, and its bytes still lie in the arrays."""

    header: bytes
    arrays: tuple[Array, ...]
    size_bytes: int

    def chunks(self) -> Iterator[memoryview]:
        """Yield the content in order, in pieces of at most `CHUNK_BYTES`; may be called again."""
        yield memoryview(self.header)
        for array in self.arrays:
            little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
            content = little.reshape(-1).view(np.uint8).data
            for start in range(0, len(content), CHUNK_BYTES):
                yield content[start : start + CHUNK_BYTES]


def encode(name: CutId, partition: int, cut: Cut) -> Encoded:
    """The file of one part. Arrays must be of the dtypes in `DTYPES`, and stay unchanged until it is written."""
    assert cut.clock == name.clock, (cut.clock, name)
    assert all(len(slot) == len(cut.blocks) for slot in cut.state)
    tensors = {f"block.{table}": block for table, block in enumerate(cut.blocks)}
    for slot, arrays in enumerate(cut.state):
        tensors |= {f"slot.{slot}.{table}": array for table, array in enumerate(arrays)}
    # Wide elements first, so that every array begins at a multiple of its element's size.
    order = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    header: dict[str, Any] = {"__metadata__": {"cut": json.dumps(_about(name, partition, cut))}}
    end = 0
    for key, array in order:
        start, end = end, end + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("<")]
        header[key] = {"dtype": dtype, "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGNMENT)
    head = _LENGTH.pack(len(text)) + text
    return Encoded(head, tuple(array for _, array in order), len(head) + end)


def decode(content: Array, name: CutId, partition: int) -> Cut:
    """Read a part from the bytes of a file; its arrays are views of `content` (uint8). Raises DamagedError."""
    try:
        return _decoded(content, name, partition)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise DamagedError(f"is not a part of a checkpoint: {why}") from error


def _decoded(content: Array, name: CutId, partition: int) -> Cut:
    (length,) = _LENGTH.unpack_from(content[: _LENGTH.size].tobytes())
    data = content[_LENGTH.size + length :]
    header = json.loads(content[_LENGTH.size : _LENGTH.size + length].tobytes())
    about = json.loads(header["__metadata__"]["cut"])
    found = about["format"], about["clock"], about["epoch"], about["partition"]
    if found != (FORMAT, name.clock, name.epoch, partition):
        raise ValueError(f"format, clock, epoch, partition are {found}")

    def tensor(key: str) -> Array:
        entry = header[key]
        dtype, shape = np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if not 0 <= start <= end <= len(data) or end - start != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{key} of shape {shape} does not lie in {len(data)} bytes at {start} to {end}")
        return data[start:end].view(dtype).reshape(shape)

    tables = range(about["tables"])
    if about["slots"] > MOST_SLOTS:  # without tables no array is looked for in vain
        raise ValueError(f"{about['slots']} slots, the most is {MOST_SLOTS}")
    return Cut(
        clock=about["clock"],
        blocks=tuple(tensor(f"block.{table}") for table in tables),
        state=tuple(
            tuple(tensor(f"slot.{slot}.{table}") for table in tables) for slot in range(about["slots"])
        ),
        counted=tuple(
            (clock, tuple(parse(units) for units in bundles)) for clock, bundles in about["counted"]
        ),
        progress=tuple(
            ClockReport(clock, float(loss), examples, float(at_s), tuple(map(float, metrics)), _scale(scale))
            for (clock, loss, examples, at_s, *metrics), scale in zip(
                about["progress"], about.get("loss_scales", [None] * len(about["progress"])), strict=True
            )
        ),
    )


def _about(name: CutId, partition: int, cut: Cut) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "clock": name.clock,
        "epoch": name.epoch,
        "partition": partition,
        "tables": len(cut.blocks),
        "slots": len(cut.state),
        "counted": [[clock, [show(units) for units in bundles]] for clock, bundles in cut.counted],
        "progress": [
            [p.clock, _number(p.loss), int(p.examples), _number(p.at_s), *map(_number, p.metrics)]
            for p in cut.progress
        ],
        "loss_scales": [None if p.loss_scale is None else _scale_numbers(p.loss_scale) for p in cut.progress],
    }


def _scale_numbers(scale: LossScale) -> list[Any]:
    return [scale.scale, scale.good_clocks, scale.skipped, scale.change.value]


def _scale(numbers: list[Any] | None) -> LossScale | None:
    if numbers is None:
        return None
    scale, good_clocks, skipped, change = numbers
    return LossScale(scale, good_clocks, skipped, ScaleChange(change))


def _number(value: float) -> float | str:
    value = float(value)  # not NumPy's
    return value if math.isfinite(value) else str(value)  # JSON has no NaN, float() reads this back
