"""The wire format: a message is one head, then the parts of its large arrays. Pure; no sockets.

A message is a header (opaque bytes) and arrays (bytes in order, without dtypes). Its *head* is one ZeroMQ message:
a first frame with the envelope, the header and the small arrays in line, then one frame for each array of up to
`frame_bytes`. Each larger array follows as *parts* of `frame_bytes`, each a ZeroMQ message of its own (envelope,
bytes). ZeroMQ hands a message over only when all of it has arrived, so separate parts let the receiver assemble an
array while the rest of it is still on its way.

Every envelope names the recipient's incarnation (another process of the run may take over a port), the link (one
connection of one sender) and the message's number on that link, so that the receiver never joins pieces of two messages
after a connection broke. A sender has two links: small messages take the express link and overtake large ones.
"""

import dataclasses
import enum
import struct
from collections.abc import Iterator, Sequence

import numpy as np

FRAME_BYTES = 2 << 20
INLINE_BYTES = 32 << 10  # an array up to this size lies in the head
INLINE_TOTAL_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 1 << 36
MAX_NAME_BYTES = 255
MAX_ARRAYS = 1 << 16
MAX_FRAME_BYTES = 64 << 20  # of any frame; a longer one closes its connection
COUNT_BITS = (
    24  # low bits of a link: how many connections its process made before; the bits above name the process
)
_ALIGNMENT = 16

_MAGIC = b"PRO1"
# magic, recipient's incarnation, link, number of the message on the link
_ENVELOPE = struct.Struct("<4sQQQ")
# kind, bytes of the sender's name, arrays, bytes of the header, bytes of a frame
_HEAD = struct.Struct("<BBHxxIIxx")
_PART = struct.Struct("<BxxxI")  # kind, number of the part
_HEAD_KIND, _PART_KIND, _EXPRESS_KIND = 1, 2, 3  # the last one: a head of an express link


class WireError(Exception):
    """Bytes that are neither a head nor a part. The text says what is wrong."""


class ArrayPlace(enum.Enum):
    """Where an array travels."""

    INLINE = "in the head's first frame"
    FRAME = "in a frame of its own"
    PARTS = "in parts after the head"


@dataclasses.dataclass(frozen=True, slots=True)
class MessageHead:
    """The first frame of a message."""

    recipient: int
    link: int
    number: int
    sender: str
    header: bytes
    places: tuple[ArrayPlace, ...]
    sizes: tuple[int, ...]  # bytes of each array
    inline: tuple[np.ndarray | None, ...]  # uint8 views of the frame; None where the array travels elsewhere
    frame_bytes: int
    express: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MessagePart:
    """The first frame of a part."""

    recipient: int
    link: int
    number: int
    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The constant part of the envelopes of one link."""

    sender: bytes
    recipient: int
    link: int
    express: bool = False


def places(sizes: Sequence[int], frame_bytes: int) -> tuple[ArrayPlace, ...]:
    """Say where each array travels; both ends compute it from the sizes."""
    found = []
    inline = 0
    for size in sizes:
        if size <= INLINE_BYTES and inline + size <= INLINE_TOTAL_BYTES:
            found.append(ArrayPlace.INLINE)
            inline += size
        else:
            found.append(ArrayPlace.FRAME if size <= frame_bytes else ArrayPlace.PARTS)
    return tuple(found)


def is_older(link: int, newest: int) -> bool:
    """True when one process made both connections, and gave up `link` before it made `newest`."""
    return link < newest and link >> COUNT_BITS == newest >> COUNT_BITS


def as_bytes(array: np.ndarray) -> np.ndarray:
    """View an array as its bytes, shape (nbytes,). Raises ValueError where it is not C-contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of shape {array.shape} is not C-contiguous")
    return array.reshape(-1).view(np.uint8)


def cut(
    origin: Origin, number: int, header: bytes, arrays: Sequence[np.ndarray], frame_bytes: int
) -> Iterator[list[bytes | np.ndarray]]:
    """Give the ZeroMQ messages (lists of frames) of one message, the head first. Arrays are not copied unless in line.

    Raises ValueError for a header or arrays beyond the limits of this module.
    """
    sizes = [array.nbytes for array in arrays]
    if len(header) > MAX_HEADER_BYTES or len(arrays) >= MAX_ARRAYS or sum(sizes) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"a header of {len(header)} bytes and {len(arrays)} arrays of {sum(sizes)} bytes together; the most is "
            f"{MAX_HEADER_BYTES}, {MAX_ARRAYS - 1} and {MAX_MESSAGE_BYTES}"
        )
    envelope = _ENVELOPE.pack(_MAGIC, origin.recipient, origin.link, number)
    kind = _EXPRESS_KIND if origin.express else _HEAD_KIND
    first = (
        envelope + _HEAD.pack(kind, len(origin.sender), len(arrays), len(header), frame_bytes) + origin.sender
    )
    if not arrays:
        yield [first + header]
        return
    where = places(sizes, frame_bytes)
    raw = [as_bytes(array) for array in arrays]
    pieces = [first, struct.pack(f"<{len(sizes)}Q", *sizes), header]
    offset = sum(map(len, pieces))
    for array, place in zip(raw, where, strict=True):
        if place is ArrayPlace.INLINE:
            padding = -offset % _ALIGNMENT
            pieces += [b"\0" * padding, array.tobytes()]
            offset += padding + array.nbytes
    frames: list[bytes | np.ndarray] = [b"".join(pieces)]
    frames += [array for array, place in zip(raw, where, strict=True) if place is ArrayPlace.FRAME]
    yield frames
    index = 0
    for array, place in zip(raw, where, strict=True):
        if place is ArrayPlace.PARTS:
            for start in range(0, array.nbytes, frame_bytes):
                yield [envelope + _PART.pack(_PART_KIND, index), array[start : start + frame_bytes]]
                index += 1


def read(frame: bytes) -> MessageHead | MessagePart:
    """Read the first frame of a ZeroMQ message. Raises WireError."""
    try:
        magic, recipient, link, number = _ENVELOPE.unpack_from(frame)
        kind = frame[_ENVELOPE.size]
        if magic != _MAGIC:
            raise WireError(f"starts with {magic!r}, not with {_MAGIC!r}: not of this program or version")
        if kind in (_HEAD_KIND, _EXPRESS_KIND):
            head = _read_head(frame, recipient, link, number)
            return dataclasses.replace(head, express=True) if kind == _EXPRESS_KIND else head
        if kind == _PART_KIND:
            return MessagePart(recipient, link, number, _PART.unpack_from(frame, _ENVELOPE.size)[1])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise WireError(f"{len(frame)} bytes that are cut short or damaged ({error})") from error
    raise WireError(f"unknown kind {kind}")


def _read_head(frame: bytes, recipient: int, link: int, number: int) -> MessageHead:
    _, name_bytes, count, header_bytes, frame_bytes = _HEAD.unpack_from(frame, _ENVELOPE.size)
    offset = _ENVELOPE.size + _HEAD.size
    sender = frame[offset : offset + name_bytes].decode()
    offset += name_bytes
    if not count:
        if len(frame) != offset + header_bytes:
            raise WireError(f"{len(frame)} bytes, its envelope says {offset + header_bytes}")
        return MessageHead(recipient, link, number, sender, frame[offset:], (), (), (), frame_bytes)
    if not 0 < frame_bytes <= MAX_FRAME_BYTES:
        raise WireError(f"frames of {frame_bytes} bytes, the most is {MAX_FRAME_BYTES}")
    sizes = struct.unpack_from(f"<{count}Q", frame, offset)
    offset += 8 * count
    if sum(sizes) > MAX_MESSAGE_BYTES:
        raise WireError(f"arrays of {sum(sizes)} bytes, the most is {MAX_MESSAGE_BYTES}")
    header = frame[offset : offset + header_bytes]
    offset += header_bytes
    where = places(sizes, frame_bytes)
    inline: list[np.ndarray | None] = []
    for size, place in zip(sizes, where, strict=True):
        if place is not ArrayPlace.INLINE:
            inline.append(None)
            continue
        offset += -offset % _ALIGNMENT
        if offset + size > len(frame):
            raise WireError(f"{len(frame)} bytes, cut short in an array")
        inline.append(np.frombuffer(frame, np.uint8, size, offset))
        offset += size
    if offset != len(frame):
        raise WireError(f"{len(frame)} bytes, its envelope says {offset}")
    return MessageHead(recipient, link, number, sender, header, where, sizes, tuple(inline), frame_bytes)
