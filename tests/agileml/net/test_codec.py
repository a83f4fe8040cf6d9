"""The codec gives back what went in, and raises CodecError for anything else."""

import dataclasses
import enum
import random
from typing import Any, Literal, NewType

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from agileml.net import codec as codec_module
from agileml.net.codec import Codec
from agileml.net.codec_arrays import DTYPES, CodecError
from tests.thorough import examples

NodeId = NewType("NodeId", str)


class Stage(enum.Enum):
    ONE = 1
    TWO = "two"


class Priority(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Span:
    first: int
    end: int


@dataclasses.dataclass(frozen=True, slots=True)
class Push:
    epoch: int
    partition: int
    clock: int
    units: tuple[int, int]
    who: NodeId
    array: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    share: float
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be in 0..1, not {self.share}")


@dataclasses.dataclass(frozen=True)
class Nothing:
    pass


@dataclasses.dataclass(frozen=True)
class Everything:
    value: Any
    span: Span
    stage: Stage | None
    priority: Priority
    spans: tuple[Span, ...]
    by_key: dict[tuple[str, int], Span]
    shares: dict[NodeId, tuple[int, ...]]


CODEC = Codec([Everything, Push, Checked, Nothing])


def there_and_back(message: object) -> Any:
    header, arrays = CODEC.encode(message)
    as_bytes = [np.frombuffer(array.tobytes(), np.uint8) for array in arrays]
    return CODEC.decode(header, as_bytes)


def same(left: Any, right: Any) -> bool:
    """Equality of value and of type, all the way down; NaN equals NaN of the same bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return all(map(same, left.keys(), right.keys())) and all(map(same, left.values(), right.values()))
    if isinstance(left, float):
        return np.float64(left).tobytes() == np.float64(right).tobytes()
    return bool(left == right)


spans = st.builds(Span, st.integers(), st.integers(-(2**4096), 2**4096))
arrays = npst.arrays(
    st.sampled_from(DTYPES), npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**4096), 2**4096)
    | st.builds(lambda units, first: units << first, st.integers(-(2**70), 2**70), st.integers(0, 9000))
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([*Stage, *Priority])
)
keys = st.recursive(st.integers() | st.text(), lambda inner: st.tuples(inner, inner), max_leaves=3)
values = st.recursive(
    plain | spans | arrays,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
messages = st.builds(
    Everything,
    value=values,
    span=spans,
    stage=st.sampled_from([None, *Stage]),
    priority=st.sampled_from(Priority),
    spans=st.lists(spans, max_size=3).map(tuple),
    by_key=st.dictionaries(st.tuples(st.text(), st.integers()), spans, max_size=3),
    shares=st.dictionaries(st.text(), st.lists(st.integers()).map(tuple), max_size=3),
)


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(messages)
def test_what_goes_in_comes_out(message: Everything) -> None:
    assert same(there_and_back(message), message)


@settings(deadline=None, derandomize=True, max_examples=examples(200))
@given(st.binary(max_size=200), st.lists(arrays, max_size=2))
def test_random_bytes_are_refused(header: bytes, arrays: list[np.ndarray]) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(header, arrays)


def test_damaged_headers_give_a_message_or_a_codec_error() -> None:
    """Flips, cuts and doublings of real headers get deeper into the decoder than random bytes do."""
    rng = random.Random(7)
    message = Everything(
        (1, 2.5, "x", b"y", np.arange(3), Nothing()), Span(1, 1 << 200), Stage.TWO, Priority.LOW,
        (Span(1, 2),), {("a", 1): Span(3, 4)}, {NodeId("n"): (1, 2)},
    )  # fmt: skip
    header, sent = CODEC.encode(message)
    refused = 0
    for _ in range(20_000):
        damaged = bytearray(header)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        if rng.random() < 0.2:
            del damaged[rng.randrange(len(damaged)) :]
        try:
            decoded = CODEC.decode(bytes(damaged), sent)
        except CodecError:
            refused += 1
        else:
            assert type(decoded) in (Everything, Push, Checked, Nothing, Span)
    assert refused > 10_000


def test_values_of_all_types_are_exact() -> None:
    mask = (1 << 4096) - 1
    message = Push(mask, -mask, True, (1, 2), NodeId("n1"), np.zeros((), np.float32))  # type: ignore[arg-type]
    header, sent = CODEC.encode(dataclasses.replace(message, clock=3))
    back = CODEC.decode(header, sent)
    assert (back.epoch, back.partition, back.clock, back.units) == (mask, -mask, 3, (1, 2))
    assert back.array.shape == () and back.array.dtype == np.float32
    assert there_and_back(Nothing()) == Nothing()
    assert there_and_back(Checked(share=1)) == Checked(share=1)


def test_a_short_header_does_not_fill_the_memory() -> None:
    """Low zeros of an int do not travel: these would be 400 MB."""
    header, sent = CODEC.encode(Push(1, 2, 3, (1 << 1_600_000,) * 2_000, NodeId("n"), np.zeros(2)))
    assert len(header) < 100_000
    with pytest.raises(CodecError, match=r"ints of .* bytes, the most is 268435456"):
        CODEC.decode(header, sent)


def test_arrays_travel_by_reference_and_come_back_as_views() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    header, sent = CODEC.encode(Push(1, 2, 3, (0, 1), NodeId("n"), array))
    assert sent[0] is array
    raw = np.frombuffer(array.tobytes(), np.uint8)
    back = CODEC.decode(header, [raw]).array
    assert np.shares_memory(back, raw) and np.array_equal(back, array)
    strided = np.arange(24, dtype=np.int64).reshape(4, 6)[:, ::2]
    assert np.array_equal(there_and_back(Push(1, 2, 3, (0, 1), NodeId("n"), strided)).array, strided)


def test_bytes_that_are_not_aligned_are_copied_into_an_aligned_array() -> None:
    array = np.arange(5, dtype=np.float64)
    header, _ = CODEC.encode(Push(1, 2, 3, (0, 1), NodeId("n"), array))
    raw = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:]
    back = CODEC.decode(header, [raw]).array
    assert back.flags.aligned and np.array_equal(back, array)


def test_numpy_scalars_become_python_numbers() -> None:
    back = there_and_back(Span(np.int64(7), np.uint8(200)))  # type: ignore[arg-type]
    assert back == Span(7, 200) and type(back.first) is int


@dataclasses.dataclass(frozen=True)
class Stranger:
    number: int


def push(**changes: Any) -> Push:
    return dataclasses.replace(Push(1, 2, 3, (0, 1), NodeId("n"), np.zeros(2)), **changes)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Stranger(1), "Stranger is no registered message type"),
        (push(units=[1, 2]), r"Push.units: holds a list, which cannot travel \(use a tuple\)"),
        (push(who={1}), r"Push.who: holds a set, which cannot travel"),
        (push(who=Stranger(1)), r"Push.who: holds a Stranger, which cannot travel \(register it\)"),
        (push(who="\ud800"), "Push: .*surrogates"),
        (push(array=np.array([object()])), "Push.array: an array of dtype object"),
        (push(array=np.zeros(2, ">f4")), "Push.array: an array of dtype >f4"),
        (push(array=np.ma.zeros(2)), "Push.array: a MaskedArray"),
        (push(units=tuple(range(codec_module.MAX_ELEMENTS + 1))), "Push.units: 262145 elements in one tuple"),
        (push(epoch=1 << (8 << 18)), "Push: an int of 262145 bytes"),
        (push(who=b"x" * (codec_module.MAX_HEADER_BYTES + 1)), "Push: a header of .* bytes, the most is"),
    ],
)
def test_what_cannot_travel_is_named(message: object, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        CODEC.encode(message)


def test_a_tuple_without_end_is_refused() -> None:
    nested: tuple[Any, ...] = ()
    for _ in range(5000):
        nested = (nested, Stage.ONE)
    with pytest.raises(CodecError, match="nested too deep"):
        CODEC.encode(Everything(nested, Span(0, 1), None, Priority.LOW, (), {}, {}))


def header_of(message: object, **fields: Any) -> bytes:
    """A header as another program could make it, with other values in place of the message's own."""
    row = list(msgpack.unpackb(CODEC.encode(message)[0]))
    for place, field in enumerate(dataclasses.fields(message), 1):  # type: ignore[arg-type]
        row[place] = fields.get(field.name, row[place])
    return bytes(msgpack.packb(row))


@pytest.mark.parametrize(
    ("header", "arrays", "text"),
    [
        (b"", [], "no valid header"),
        (msgpack.packb([]), [], "header is no message"),
        (msgpack.packb({"a": 1}), [], "header is no message"),
        (msgpack.packb([123, 4]), [], r"unknown message type \(tag 123\)"),
        (msgpack.packb(["x"]), [], r"unknown message type \(tag 'x'\)"),
        (CODEC.encode(Span(1, 2))[0] + b"\0", [], "extra data"),
        (header_of(Span(1, 2), first="one"), [], "Span.first: a str came, expected is int"),
        (header_of(push(), units=5), [np.zeros(2)], "Push.units: a int came, expected is tuple"),
        (header_of(Checked(share=0), share=2), [], "Checked: share must be in 0..1, not 2"),
        (header_of(Span(1, 2), first=msgpack.ExtType(2, b"abcd")), [], "unknown enum member"),
        (header_of(Span(1, 2), first=msgpack.ExtType(9, b"abcd")), [], "unknown extension 9"),
        (header_of(Span(1, 2), first=msgpack.ExtType(4, b"a")), [], "array reference is cut short"),
        (header_of(Span(1, 2), first=msgpack.ExtType(5, bytes(300004))), [], "an int of 300000 bytes"),
        (header_of(Span(1, 2), first=msgpack.ExtType(5, b"\xff" * 4)), [], "an int of 4294967295 bytes"),
        (CODEC.encode(push())[0], [], "header names array 0, expected is 0 of the 0 that came"),
        (CODEC.encode(push())[0], [np.zeros(2), np.zeros(1)], "2 arrays came, the header uses 1"),
        (CODEC.encode(push())[0], [np.zeros(3)], "an array of 24 bytes .* the header says 16 bytes"),
        (CODEC.encode(push())[0], [np.zeros(15, np.uint8)], "an array of 15 bytes"),
        (b"x" * (codec_module.MAX_HEADER_BYTES + 1), [], "a header of .* the most is"),
    ],
)
def test_malformed_input_is_named(header: bytes, arrays: list[np.ndarray], text: str) -> None:
    with pytest.raises(CodecError, match=text):
        CODEC.decode(header, arrays)


def test_dataclasses_nested_too_deep_are_refused() -> None:
    inner = msgpack.packb([msgpack.unpackb(CODEC.encode(Span(1, 2))[0])[0], 1, 2])
    for _ in range(40):
        inner = msgpack.packb(
            [msgpack.unpackb(inner, ext_hook=msgpack.ExtType)[0], msgpack.ExtType(1, inner), 2]
        )
    with pytest.raises(CodecError, match="nested more than 16 deep"):
        CODEC.decode(inner)


@dataclasses.dataclass
class Mutable:
    number: int


@dataclasses.dataclass(frozen=True)
class HoldsList:
    numbers: list[int]


@dataclasses.dataclass(frozen=True)
class Hidden:
    number: int = dataclasses.field(init=False, default=1)


@pytest.mark.parametrize(
    ("cls", "text"),
    [
        (Mutable, "Mutable must be frozen"),
        (HoldsList, "HoldsList.numbers is a list: use a tuple"),
        (Hidden, "Hidden.number is no argument of __init__"),
        (int, "neither a dataclass nor an enum"),
        (dataclasses.make_dataclass("Span", [("first", int), ("end", int)], frozen=True), "told apart"),
    ],
)
def test_types_that_cannot_be_messages_are_refused_at_the_start(cls: type, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Codec([Span, cls])
