"""Links between processes of one host: tensors in shared memory, and a socket that rings.

The receiver makes the memory, a file in a folder that only this user can enter, and listens beside it. A message lies
in one slot from `send` to `release`; the receiver computes on it where it lies. The lowest free slot is taken, so only
as many slots are ever touched as messages were in use at a time.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline.run.links import LinkError, Tensors, dense_strides
from pipeline.stages.layering import Fact

_LINE = 64
_RING = struct.Struct("<qq")  # slot, number of the message
_SPIN_S = 50e-6
_CONNECT_S = 300.0  # a worker that dies ends the run at once: this is for one that starts on a busy host


def slot_bytes(facts: Sequence[Fact]) -> int:
    """Bytes of one message of such tensors, with its head."""
    return _head_bytes(facts) + sum(_round_up(fact.size_bytes) for fact in facts)


def _head_bytes(facts: Sequence[Fact]) -> int:
    return _round_up(8 * (1 + len(facts) * _words(facts)))


def _words(facts: Sequence[Fact]) -> int:
    """Words of 8 bytes for each tensor in the head: whether it is there, and its strides."""
    return 1 + max((len(fact.shape) for fact in facts), default=0)


class _Memory:
    """Slots for messages of known tensors. Each has a state, and for each tensor whether it is there and strides."""

    def __init__(self, path: Path, facts: Sequence[Fact], slots: int, *, make: bool) -> None:
        self.facts, self.slots = list(facts), slots
        self._head_bytes, self._words = _head_bytes(self.facts), _words(self.facts)
        offset, self._offsets = self._head_bytes, []
        for fact in self.facts:
            self._offsets.append(offset)
            offset += _round_up(fact.size_bytes)
        self.slot_bytes = slot_bytes(self.facts)
        size = max(self.slot_bytes * slots, _LINE)
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if make else 0)
        file = os.open(path, flags, 0o600)
        try:
            if make:
                os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.place = self._bytes.untyped_storage().data_ptr()
        words = np.frombuffer(self._map, np.int64)
        step = self.slot_bytes // 8
        self._heads = [words[slot * step : slot * step + self._head_bytes // 8] for slot in range(slots)]
        self._flat = [
            [
                self._bytes[at + offset : at + offset + fact.size_bytes].view(fact.dtype)
                for fact, offset in zip(self.facts, self._offsets, strict=True)
            ]
            for at in range(0, self.slot_bytes * slots, self.slot_bytes)
        ]
        self._strides: dict[tuple[int, int], tuple[int, ...]] = {}

    def is_free(self, slot: int) -> bool:
        return not self._heads[slot][0]

    def free(self, slot: int) -> None:
        self._heads[slot][0] = 0

    def write(self, slot: int, tensors: Sequence[Tensor | None]) -> None:
        head = self._heads[slot]
        head[0] = 1
        padded = [*tensors, *[None] * (len(self.facts) - len(tensors))]
        for number, (tensor, fact) in enumerate(zip(padded, self.facts, strict=True)):
            at = 1 + number * self._words
            head[at] = tensor is not None
            if tensor is None:
                continue
            stride = tensor.stride() if tensor.is_contiguous() else dense_strides(tensor)
            head[at + 1 : at + 1 + len(stride)] = stride
            self._flat[slot][number].as_strided(fact.shape, stride).copy_(tensor.detach())

    def read(self, slot: int) -> Tensors:
        head, found = self._heads[slot], []
        for number, fact in enumerate(self.facts):
            at = 1 + number * self._words
            stride = tuple(head[at + 1 : at + 1 + len(fact.shape)].tolist())
            found.append(self._flat[slot][number].as_strided(fact.shape, stride) if head[at] else None)
        return found


class SharedReceiver:
    """The receiving end at `path`, a name without ending in a private folder."""

    def __init__(self, path: Path, facts: Sequence[Fact], slots: int) -> None:
        self._name = path.name
        self._memory = _Memory(path.with_suffix(".memory"), facts, slots, make=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(path.with_suffix(".part")))
        self._listening.listen(1)
        os.rename(path.with_suffix(".part"), path.with_suffix(".ring"))  # from here on a sender finds it
        self._ring: socket.socket | None = None
        self._slots: dict[int, int] = {}
        self.foreign = self._memory.place

    def receive(self, number: int) -> Tensors:
        slot, found = _RING.unpack(self._rung())
        if found != number:
            raise LinkError(f"link {self._name}: message {found} came where {number} was due")
        self._slots[number] = slot
        return self._memory.read(slot)

    def release(self, number: int) -> None:
        self._memory.free(self._slots.pop(number))

    def _rung(self) -> bytes:
        if self._ring is None:
            self._ring, _ = self._listening.accept()
        until = time.perf_counter() + _SPIN_S
        while time.perf_counter() < until:
            try:
                return self._whole(self._ring.recv(_RING.size, socket.MSG_DONTWAIT))
            except BlockingIOError:
                continue
        return self._whole(self._ring.recv(_RING.size))

    def _whole(self, data: bytes) -> bytes:
        if len(data) != _RING.size:
            raise LinkError(f"link {self._name}: the worker at the other end is gone")
        return data


class SharedSender:
    """The sending end at `path`; waits until the receiver is there."""

    def __init__(self, path: Path, facts: Sequence[Fact], slots: int) -> None:
        self._name = path.name
        self._ring = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        until = time.monotonic() + _CONNECT_S
        while True:
            try:
                self._ring.connect(str(path.with_suffix(".ring")))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise LinkError(
                        f"link {self._name}: no worker at the other end after {_CONNECT_S:g} s"
                    ) from None
                time.sleep(0.01)
        self._memory = _Memory(path.with_suffix(".memory"), facts, slots, make=False)
        self._touched = 0  # slots

    @property
    def touched_bytes(self) -> int:
        """Memory of the receiver that this process has touched, and that counts as its own as well."""
        return self._touched * self._memory.slot_bytes

    def send(self, number: int, tensors: Sequence[Tensor | None]) -> None:
        slot = self._free_slot()
        self._touched = max(self._touched, slot + 1)
        self._memory.write(slot, tensors)
        try:
            self._ring.send(_RING.pack(slot, number))
        except OSError as error:
            raise LinkError(f"link {self._name}: the worker at the other end is gone") from error

    def _free_slot(self) -> int:
        while True:
            for slot in range(self._memory.slots):
                if self._memory.is_free(slot):
                    return slot
            # More messages than the schedule has in flight: only sums of replicas far apart.
            time.sleep(20e-6)


def _round_up(size: int) -> int:
    return -(-size // _LINE) * _LINE
