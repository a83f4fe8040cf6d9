"""Messages of the data plane as bytes: frozen dataclasses to a msgpack header and raw arrays, and back.

A `Codec` knows a fixed set of dataclasses and enums. `encode` turns a message into a header (bytes) and its arrays, in
order; `decode` gives the message back, equal and of the same types. Nothing is pickled: a header can only name
registered types, fields that they declare and values of the kinds below, so the worst that input from the
network can do is to raise `CodecError`.

Values: None, bool, int of any size, float, str, bytes, members of registered enums, registered dataclasses, tuples and
dicts of such values, numpy arrays of the dtypes in `DTYPES`. NumPy scalars become the Python numbers they
stand for. Lists and sets are refused: a message is immutable.

Header: one msgpack array [tag of the type, field, field, ...] in declared order. A tag is the CRC of the type's name
and field names, so two programs whose messages differ refuse each other instead of mixing up fields. Values that
msgpack cannot express are extensions (`_DATACLASS`, `_ENUM`, `_BIG_INT`, `_ARRAY`).
"""

import dataclasses
import enum
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgpack
import numpy as np

from agileml.net.codec_arrays import DTYPES, CodecError, pack_reference, unpack_reference
from agileml.net.codec_schema import field_kinds, reachable_types

MAX_HEADER_BYTES = 16 << 20
MAX_ELEMENTS = 1 << 18  # of one tuple, dict or dataclass
MAX_DEPTH = 16  # dataclasses within dataclasses
MAX_INT_BYTES = 1 << 18  # a set of the most units that a clock may have is a number of 128 KB
# Of all such ints of a message: their low zeros do not travel, so a short header may name many.
MAX_INTS_BYTES = 1 << 28
MAX_SIGNATURES = 4096

_NO_ARRAY = np.empty(0, np.uint8)
_DATACLASS, _ENUM, _ARRAY, _BIG_INT = 1, 2, 4, 5
_ZEROS_BYTES = 4  # of an int: how many of its low bytes are zero, ahead of the others
_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


@dataclasses.dataclass(frozen=True)
class _Record:
    """How to take one dataclass apart and put it together."""

    name: str
    tag: int
    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    build: Callable[[tuple[Any, ...]], Any]
    kinds: tuple[tuple[type, ...] | None, ...]  # what each field may hold; None: anything
    accepted: set[tuple[type, ...]]  # types of rows that passed the check before


class Codec:
    """Encodes and decodes the given dataclasses, and every dataclass and enum that their annotations name.

    The caller lists types that annotations hide behind `Any`, `object` or a protocol. Threads may share a codec.
    Raises TypeError for a type that cannot travel: neither a frozen dataclass nor an enum, annotations that do not
    resolve, a field annotated as a list or set, two types with one tag.
    """

    def __init__(self, types: Iterable[type]) -> None:
        self._by_type: dict[type, _Record] = {}
        self._by_tag: dict[int, _Record] = {}
        self._members: dict[type, dict[Any, msgpack.ExtType]] = {}
        self._member_of: dict[bytes, enum.Enum] = {}
        for found in (known := reachable_types(types)):
            if issubclass(found, enum.Enum):
                self._register_enum(found)
            else:
                self._register_dataclass(found, known)

    def encode(self, message: object) -> tuple[bytes, list[np.ndarray]]:
        """Give the header of a message and its arrays, C-contiguous, in the order in which the header counts them.

        Contiguous arrays are not copied, so they must not change until they are sent. Raises CodecError.
        """
        arrays: list[np.ndarray] = []
        header = self._pack_record(message, arrays, 0)
        if len(header) > MAX_HEADER_BYTES:
            raise CodecError(
                f"{type(message).__name__}: a header of {len(header)} bytes, the most is {MAX_HEADER_BYTES}; "
                "large data travels as numpy arrays"
            )
        return header, arrays

    def decode(self, header: bytes | memoryview, arrays: Sequence[np.ndarray] = ()) -> Any:
        """Give the message back. Raises CodecError for anything that `encode` of the same types did not make.

        arrays: as `encode` gave them, or each as its bytes (uint8, one dimension, contiguous); then the message
        holds views of those bytes, or copies where the bytes are not aligned for their dtype.
        Fields are checked against their annotations one level deep: that a tuple is one, not what it holds.
        """
        reading = _Reading(self, arrays)
        message = self._decode(header, reading)
        if reading.taken != len(arrays):
            raise CodecError(
                f"{type(message).__name__}: {len(arrays)} arrays came, the header uses {reading.taken}"
            )
        return message

    def outline(self, header: bytes | memoryview) -> Any:
        """Decode a header whose arrays have not arrived: the message holds empty arrays. Raises CodecError."""
        return self._decode(header, _Outline(self, ()))

    @staticmethod
    def _decode(header: bytes | memoryview, reading: "_Reading") -> Any:
        if len(header) > MAX_HEADER_BYTES:
            raise CodecError(f"a header of {len(header)} bytes, the most is {MAX_HEADER_BYTES}")
        try:
            return reading.record(header)
        except CodecError:
            raise
        except RecursionError as error:
            raise CodecError("header is nested too deep") from error
        except Exception as error:  # errors of msgpack, TypeError for keys that cannot be hashed, ...
            raise CodecError(f"no valid header ({type(error).__name__}: {error})") from error

    # Registration

    def _register_dataclass(self, cls: type, known: dict[type, None]) -> None:
        names = tuple(field.name for field in dataclasses.fields(cls))
        tag = zlib.crc32(f"{cls.__name__}({','.join(names)})".encode())
        if tag in self._by_tag:
            raise TypeError(f"{cls.__name__} and {self._by_tag[tag].name} cannot be told apart: rename one")
        record = _Record(
            cls.__name__,
            tag,
            names,
            _getter(names),
            _builder(cls),
            field_kinds(cls, known, DTYPES),
            set(),
        )
        self._by_tag[tag] = self._by_type[cls] = record

    def _register_enum(self, cls: type[enum.Enum]) -> None:
        self._members[cls] = {}
        for member in cls:
            wire = zlib.crc32(f"{cls.__name__}.{member.name}".encode()).to_bytes(4, "little")
            if wire in self._member_of:
                raise TypeError(f"{member} and {self._member_of[wire]} cannot be told apart: rename one")
            self._member_of[wire] = member
            self._members[cls][member] = msgpack.ExtType(_ENUM, wire)

    # Encoding

    def _pack_record(self, message: object, arrays: list[np.ndarray], depth: int) -> bytes:
        record = self._by_type.get(type(message))
        if record is None:
            raise CodecError(f"{type(message).__name__} is no registered message type")
        if depth > MAX_DEPTH:
            raise CodecError(f"{type(message).__name__}: dataclasses nested more than {MAX_DEPTH} deep")
        values = record.values(message)
        row: list[Any] = [record.tag, *values]
        if not _PLAIN.issuperset(map(type, values)):
            for place, value in enumerate(values):
                if type(value) not in _PLAIN:
                    row[place + 1] = self._lower_field(record, place, value, arrays, depth)
        try:
            packed: bytes = msgpack.packb(row, default=_beyond_64_bits)
        except CodecError as error:
            raise CodecError(f"{type(message).__name__}: {error}") from None
        except (ValueError, OverflowError, TypeError) as error:  # UnicodeEncodeError is a ValueError
            raise CodecError(f"{type(message).__name__}: {error}") from error
        return packed

    def _lower_field(
        self, record: _Record, place: int, value: Any, arrays: list[np.ndarray], depth: int
    ) -> Any:
        try:
            return self._lower(value, arrays, depth)
        except CodecError as error:
            raise CodecError(f"{record.name}.{record.names[place]}: {error}") from None
        except RecursionError as error:
            raise CodecError(f"{record.name}.{record.names[place]}: nested too deep") from error

    def _lower(self, value: Any, arrays: list[np.ndarray], depth: int) -> Any:
        """Turn a value into what msgpack packs without losing its type."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple:
            _check_length(value)
            if _PLAIN.issuperset(map(type, value)):
                return value
            return [self._lower(item, arrays, depth) for item in value]
        if kind in self._members:
            packed = self._members[kind].get(value)
            if packed is None:
                raise CodecError(f"{value!r} is no named member of {kind.__name__}")
            return packed
        if kind is dict:
            _check_length(value)
            return {
                self._lower_key(key, arrays, depth): self._lower(item, arrays, depth)
                for key, item in value.items()
            }
        if isinstance(value, np.ndarray):
            return msgpack.ExtType(_ARRAY, pack_reference(value, arrays))
        if kind in self._by_type:
            return msgpack.ExtType(_DATACLASS, self._pack_record(value, arrays, depth + 1))
        if isinstance(value, np.bool_ | np.integer | np.floating) and value.dtype in DTYPES:
            return value.item()
        raise CodecError(f"holds a {kind.__name__}, which cannot travel{_advice(kind)}")

    def _lower_key(self, key: Any, arrays: list[np.ndarray], depth: int) -> Any:
        lowered = self._lower(key, arrays, depth)
        # `_lower` makes a list of a tuple that holds more than plain values; a key must stay a tuple.
        return _as_tuple(lowered) if type(lowered) is list else lowered


class _Reading:
    """One call of `decode`: the arrays that came and how many the header has used so far."""

    __slots__ = ("arrays", "codec", "depth", "ints_bytes", "taken")

    def __init__(self, codec: Codec, arrays: Sequence[np.ndarray]) -> None:
        self.codec = codec
        self.arrays = arrays
        self.taken = 0
        self.depth = 0
        self.ints_bytes = 0

    def record(self, header: bytes | memoryview) -> Any:
        row = msgpack.unpackb(
            header,
            use_list=False,
            strict_map_key=False,
            ext_hook=self.extension,
            max_array_len=min(len(header), MAX_ELEMENTS),
            max_map_len=min(len(header), MAX_ELEMENTS),
        )
        if type(row) is not tuple or not row:
            raise CodecError("header is no message: a tuple of a type's tag and its fields is expected")
        record = self.codec._by_tag.get(row[0]) if type(row[0]) is int else None
        if record is None:
            raise CodecError(
                f"unknown message type (tag {row[0]!r}): not of this program or of another version"
            )
        values = row[1:]
        signature = tuple(map(type, values))
        if signature not in record.accepted:
            _check_fields(record, values, signature)
        try:
            return record.build(values)
        except Exception as error:  # a message's own checks, in __post_init__
            raise CodecError(f"{record.name}: {error}") from error

    def extension(self, code: int, data: bytes) -> Any:
        if code == _ENUM:
            member = self.codec._member_of.get(data)
            if member is None:
                raise CodecError(f"unknown enum member ({data[:8].hex()})")
            return member
        if code == _ARRAY:
            return self.array(data)
        if code == _DATACLASS:
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise CodecError(f"dataclasses nested more than {MAX_DEPTH} deep")
            inner = self.record(data)
            self.depth -= 1
            return inner
        if code == _BIG_INT:
            zeros = int.from_bytes(data[:_ZEROS_BYTES], "little")
            if (size := zeros + len(data) - _ZEROS_BYTES) > MAX_INT_BYTES:
                raise CodecError(f"an int of {size} bytes, the most is {MAX_INT_BYTES}")
            self.ints_bytes += zeros + len(data)
            if self.ints_bytes > MAX_INTS_BYTES:
                raise CodecError(f"ints of {self.ints_bytes} bytes, the most is {MAX_INTS_BYTES}")
            return int.from_bytes(data[_ZEROS_BYTES:], "little", signed=True) << 8 * zeros
        raise CodecError(f"unknown extension {code}")

    def array(self, data: bytes) -> np.ndarray:
        array = unpack_reference(data, self.arrays, self.taken)
        self.taken += 1
        return array


class _Outline(_Reading):
    """Reads a header whose arrays have not arrived."""

    __slots__ = ()

    def array(self, data: bytes) -> np.ndarray:
        return _NO_ARRAY


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


def _builder(cls: Any) -> Callable[[tuple[Any, ...]], Any]:
    """A function from a row of values to an instance. It calls the constructor, so the message's own checks run."""
    fields = dataclasses.fields(cls)
    if any(field.kw_only for field in fields):
        names = tuple(field.name for field in fields)
        return lambda values: cls(**dict(zip(names, values, strict=True)))
    return lambda values: cls(*values)


def _check_length(value: Any) -> None:
    if len(value) > MAX_ELEMENTS:
        raise CodecError(f"{len(value)} elements in one {type(value).__name__}, the most is {MAX_ELEMENTS}")


def _advice(kind: type) -> str:
    if issubclass(kind, list | set | frozenset):
        return " (use a tuple)"
    if dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum):
        return " (register it)"
    return ""


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if type(value) is list else value


def _beyond_64_bits(value: Any) -> msgpack.ExtType:
    """Pack an int of more than 64 bits; msgpack calls this for values that it has no form for.

    Without its low zeros: most such ints are sets of a few units in a row, of which a message may have thousands.
    """
    if type(value) is not int:
        raise CodecError(f"holds a {type(value).__name__}, which cannot travel")
    size = value.bit_length() // 8 + 1
    if size > MAX_INT_BYTES:
        raise CodecError(f"an int of {size} bytes, the most is {MAX_INT_BYTES}")
    zeros = ((value & -value).bit_length() - 1) // 8
    rest = (value >> 8 * zeros).to_bytes(size - zeros, "little", signed=True)
    return msgpack.ExtType(_BIG_INT, zeros.to_bytes(_ZEROS_BYTES, "little") + rest)


def _check_fields(record: _Record, values: tuple[Any, ...], signature: tuple[type, ...]) -> None:
    if len(values) != len(record.names):
        raise CodecError(f"{record.name}: {len(values)} fields came, it has {len(record.names)}")
    for name, kind, allowed in zip(record.names, signature, record.kinds, strict=True):
        if allowed is not None and kind not in allowed:
            expected = " or ".join(sorted(one.__name__ for one in allowed))
            raise CodecError(f"{record.name}.{name}: a {kind.__name__} came, expected is {expected}")
    if len(record.accepted) < MAX_SIGNATURES:
        record.accepted.add(signature)
