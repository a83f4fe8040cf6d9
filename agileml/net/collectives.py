"""Collectives that add tensors up over a group of machines: gloo on the host, NCCL on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from agileml.application import Array, DeviceVector, InputError
from agileml.net.tensor_vector import TensorVector

GLOO_THREADS = 2  # concurrent sums

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class GroupMember:
    """One machine as a member of a group of machines. host: the address that it listens at."""

    epoch: int
    rank: int
    group: tuple[str, ...]
    host: str

    @property
    def size(self) -> int:
        """Machines of the group."""
        return len(self.group)


@dataclass(frozen=True)
class Term:
    """A tensor that a collective changes in place. ready: the event on its device behind which it is whole; None: it
    is."""

    tensor: Tensor
    ready: torch.cuda.Event | None = None

    @classmethod
    def of(cls, block: Array | DeviceVector) -> Term:
        """The term of a flat block, where it lies."""
        if isinstance(block, TensorVector):
            return cls(block.tensor, block.ready)
        assert isinstance(block, np.ndarray), type(block)
        return cls(torch.from_numpy(block.reshape(-1)))


class PendingSum(Protocol):
    """A sum or a broadcast in progress."""

    def wait(self) -> object:
        """Return once the given tensor holds its result. Raises RuntimeError when the group failed."""


class Collectives(Protocol):
    """Process groups of one kind. Tensors may be in the memory of the host or of this process' device: they are copied
    to where the collectives work, and back."""

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        """Form a process group with the other members."""

    def begin(self, group: Any, terms: Sequence[Term]) -> list[PendingSum]:
        """Start to add up each tensor in place."""

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Term]]) -> list[PendingSum]:
        """Start to send each tensor from the member of this rank to all others, in place."""

    def give_up(self, group: Any) -> None:
        """Abandon the sums of a group."""


Begin = Callable[[Tensor], Any]  # starts a collective over a tensor


def _sum_by(group: Any) -> Begin:
    return lambda tensor: group.allreduce([tensor])


def _broadcast_by(group: Any, rank: int) -> Begin:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return lambda tensor: group.broadcast([tensor], options)


class Gloo:
    """Over connections between hosts; only their end or the timeout interrupts a sum.

    A tensor of a CUDA device comes down to pinned memory on a stream of its own, and its sum goes up on another.
    """

    def __init__(self) -> None:
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=member.host)]
        options._threads = GLOO_THREADS
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupGloo(store, member.rank, member.size, options)

    def begin(self, group: Any, terms: Sequence[Term]) -> list[PendingSum]:
        return self._begun([(term, _sum_by(group)) for term in terms])

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Term]]) -> list[PendingSum]:
        return self._begun([(term, _broadcast_by(group, rank)) for rank, term in parts])

    def give_up(self, group: Any) -> None:
        pass  # `abort` does nothing for gloo

    def _begun(self, asked: Sequence[tuple[Term, Begin]]) -> list[PendingSum]:
        # All copies are begun before the first is waited for.
        here = [self._brought(term) for term, _ in asked]
        found: list[PendingSum] = []
        for (term, begin), (tensor, arrived) in zip(asked, here, strict=True):
            if arrived is None:
                found.append(begin(tensor))
                continue
            arrived.synchronize()
            found.append(_Elsewhere(term.tensor, tensor, begin(tensor), self._on(term.tensor.device)[1]))
        return found

    def _brought(self, term: Term) -> tuple[Tensor, torch.cuda.Event | None]:
        """The tensor on the host, and the event behind which it is there; None: it was there already."""
        tensor = term.tensor
        if tensor.device.type != "cuda":
            return tensor, None
        down = self._on(tensor.device)[0]
        if term.ready is not None:
            down.wait_event(term.ready)
        found = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(down):
            found.copy_(tensor, non_blocking=True)
            return found, down.record_event()

    def _on(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        """The streams down and up."""
        if self._streams is None:
            self._streams = torch.cuda.Stream(device), torch.cuda.Stream(device)
        return self._streams


class Nccl:
    """Between CUDA devices, one per machine. Tensors of the host go to the device and come back.

    Each direction has a stream of its own, so that partitions overlap. NCCL chooses the network interface itself
    (NCCL_SOCKET_IFNAME).
    """

    def __init__(self) -> None:
        """On the current device. Raises InputError where there is none, or torch has no NCCL."""
        if not torch.cuda.is_available():
            raise InputError(
                "allreduce_backend: found nccl, expected gloo: this machine has no CUDA device for the run "
                "(machines.gpus reserves one)"
            )
        if not dist.is_nccl_available():
            raise InputError(
                "allreduce_backend: found nccl, expected gloo: torch was built without NCCL here"
            )
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._begins = torch.cuda.Stream(self._device)
        self._ends = torch.cuda.Stream(self._device)

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(store, member.rank, member.size, options)

    def begin(self, group: Any, terms: Sequence[Term]) -> list[PendingSum]:
        return [self._begun(term, _sum_by(group)) for term in terms]

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Term]]) -> list[PendingSum]:
        return [self._begun(term, _broadcast_by(group, rank)) for rank, term in parts]

    def _begun(self, term: Term, begin: Begin) -> PendingSum:
        with torch.cuda.stream(self._begins):
            if term.ready is not None:
                self._begins.wait_event(term.ready)
            there = term.tensor.to(self._device, non_blocking=True)
            return _Elsewhere(term.tensor, there, begin(there), self._ends)

    def give_up(self, group: Any) -> None:
        group.abort()  # otherwise the device would wait for a dead peer


@dataclass(frozen=True)
class _Elsewhere:
    """A collective over `there`, which `here` is a copy of when it has ended; both may be one tensor."""

    here: Tensor
    there: Tensor
    work: Any
    stream: torch.cuda.Stream

    def wait(self) -> None:
        with torch.cuda.stream(self.stream):
            self.work.wait()  # also raises errors of the group (TORCH_NCCL_BLOCKING_WAIT)
            if self.here is not self.there:
                self.here.copy_(self.there, non_blocking=True)
            ended = self.stream.record_event()
        ended.synchronize()


def collectives(backend: Backend) -> Collectives:
    """The collectives of the backend that a config names. Raises InputError."""
    return Nccl() if backend == "nccl" else Gloo()
