"""Collectives that add tensors up over a group of machines: gloo on the host, NCCL on CUDA devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from agileml.application import InputError

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


class PendingSum(Protocol):
    """A sum or a broadcast in progress."""

    def wait(self) -> object:
        """Return once the given tensor holds its result. Raises RuntimeError when the group failed."""


class Collectives(Protocol):
    """Process groups of one kind. All tensors are in host memory."""

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        """Form a process group with the other members."""

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        """Start to add up each tensor in place."""

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Tensor]]) -> list[PendingSum]:
        """Start to send each tensor from the member of this rank to all others, in place."""

    def give_up(self, group: Any) -> None:
        """Abandon the sums of a group."""


def _from(rank: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return options


class Gloo:
    """Over connections between hosts; only their end or the timeout interrupts a sum."""

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=member.host)]
        options._threads = GLOO_THREADS
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupGloo(store, member.rank, member.size, options)

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        return [group.allreduce([tensor]) for tensor in tensors]

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Tensor]]) -> list[PendingSum]:
        return [group.broadcast([tensor], _from(rank)) for rank, tensor in parts]

    def give_up(self, group: Any) -> None:
        pass  # `abort` does nothing for gloo


class Nccl:
    """Between CUDA devices, one per machine: gradients go to the device and are added there, and the sum comes back.

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
        self._up = torch.cuda.Stream(self._device)
        self._down = torch.cuda.Stream(self._device)

    def open(self, member: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(store, member.rank, member.size, options)

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        found: list[PendingSum] = []
        with torch.cuda.stream(self._up):
            for tensor in tensors:
                there = tensor.to(self._device, non_blocking=True)
                found.append(_OnDevice(tensor, there, group.allreduce([there]), self._down))
        return found

    def begin_broadcasts(self, group: Any, parts: Sequence[tuple[int, Tensor]]) -> list[PendingSum]:
        found: list[PendingSum] = []
        with torch.cuda.stream(self._up):
            for rank, tensor in parts:
                there = tensor.to(self._device, non_blocking=True)
                found.append(_OnDevice(tensor, there, group.broadcast([there], _from(rank)), self._down))
        return found

    def give_up(self, group: Any) -> None:
        group.abort()  # otherwise the device would wait for a dead peer


@dataclass(frozen=True)
class _OnDevice:
    """A sum on a device that is copied to the host."""

    here: Tensor
    there: Tensor
    work: Any
    down: torch.cuda.Stream

    def wait(self) -> None:
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self.down):
            self.work.wait()  # also raises errors of the group (TORCH_NCCL_BLOCKING_WAIT)
            self.here.copy_(self.there, non_blocking=True)
            arrived.record(self.down)
        arrived.synchronize()


def collectives(backend: Backend) -> Collectives:
    """The collectives of the backend that a config names. Raises InputError."""
    return Nccl() if backend == "nccl" else Gloo()
