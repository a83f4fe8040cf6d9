"""Messages survive being cut and read, for any sizes; damaged frames raise WireError and nothing else."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.net import wire
from agileml.net.links import connection_ids
from tests.thorough import examples

ORIGIN = wire.Origin(b"worker-1", recipient=7, link=9)


def put_together(messages: list[list[bytes]]) -> tuple[wire.MessageHead, list[bytes]]:
    """What the receiver does, in its plainest form."""
    head = wire.read(messages[0][0])
    assert isinstance(head, wire.MessageHead)
    frames = iter(messages[0][1:])
    parts = iter(messages[1:])
    arrays = []
    index = 0
    for place, size, inline in zip(head.places, head.sizes, head.inline, strict=True):
        if inline is not None:
            arrays.append(inline.tobytes())
        elif place is wire.ArrayPlace.FRAME:
            arrays.append(next(frames))
        else:
            whole = b""
            while len(whole) < size:
                envelope, chunk = next(parts)
                assert wire.read(envelope) == wire.MessagePart(7, 9, 3, index)
                index += 1
                assert len(chunk) <= head.frame_bytes
                whole += chunk
            arrays.append(whole)
    assert next(frames, None) is None and next(parts, None) is None
    return head, arrays


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(
    st.binary(max_size=50),
    st.lists(st.integers(0, 200_000), max_size=8),
    st.sampled_from([wire.INLINE_BYTES + 1, 40_000, 65_536]),
)
def test_a_message_is_whole_after_cutting(header: bytes, sizes: list[int], frame_bytes: int) -> None:
    rng = np.random.default_rng(len(sizes))
    arrays = [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    cut = [[bytes(frame) for frame in frames] for frames in wire.cut(ORIGIN, 3, header, arrays, frame_bytes)]
    head, back = put_together(cut)
    assert (head.sender, head.header, head.number) == ("worker-1", header, 3)
    assert back == [array.tobytes() for array in arrays]


def test_many_small_arrays_do_not_make_a_huge_first_frame() -> None:
    arrays = [np.zeros(wire.INLINE_BYTES, np.uint8)] * 100
    (frames,) = wire.cut(ORIGIN, 1, b"", arrays, wire.FRAME_BYTES)
    assert len(frames[0]) < 2 * wire.INLINE_TOTAL_BYTES
    assert len(frames) == 1 + 100 - wire.INLINE_TOTAL_BYTES // wire.INLINE_BYTES


@pytest.mark.parametrize("array", [np.zeros((3, 4))[:, ::2], np.asfortranarray(np.zeros((3, 4)))])
def test_arrays_that_are_not_contiguous_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not C-contiguous"):
        list(wire.cut(ORIGIN, 1, b"", [array], wire.FRAME_BYTES))


def test_a_header_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="the most is"):
        list(wire.cut(ORIGIN, 1, b"x" * (wire.MAX_HEADER_BYTES + 1), [], wire.FRAME_BYTES))


@pytest.mark.parametrize("dtype", ["?", "i1", "f2", "f4", "f8", "c16"])
def test_every_dtype_lies_as_its_bytes(dtype: str) -> None:
    for array in (np.ones((2, 3), dtype), np.ones((), dtype), np.ones((0, 4), dtype)):
        assert wire.as_bytes(array).tobytes() == array.tobytes()


def test_damaged_frames_are_refused() -> None:
    rng = random.Random(3)
    ((first, *_), *parts) = wire.cut(
        ORIGIN, 1, b"header", [np.zeros(100, np.uint8), np.zeros(90_000, np.uint8)], 40_000
    )
    assert isinstance(first, bytes)
    refused = 0
    for frame in (first, bytes(parts[0][0])):
        for _ in range(5_000):
            damaged = bytearray(frame)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            if rng.random() < 0.3:
                del damaged[rng.randrange(len(damaged)) :]
            try:
                assert isinstance(wire.read(bytes(damaged)), wire.MessageHead | wire.MessagePart)
            except wire.WireError:
                refused += 1
    assert refused > 2_000
    for size in range(64):
        with pytest.raises(wire.WireError):
            wire.read(rng.randbytes(size))


def test_a_connection_is_older_only_than_later_ones_of_its_own_process() -> None:
    ours, theirs = connection_ids(), connection_ids()
    first, second, other = next(ours), next(ours), next(theirs)
    assert wire.is_older(first, second)
    assert not wire.is_older(second, first)
    assert not wire.is_older(first, first)
    assert not wire.is_older(first, other)  # whatever was drawn, and whatever their clocks say
    assert not wire.is_older(other, first)
