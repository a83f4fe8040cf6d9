"""Who adds tensors up over a group of machines: gloo on the host, NCCL on their CUDA devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from agileml.application import InputError

GLOO_THREADS = 2  # sums that are under way at once

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class GroupMember:
    """One machine's end of a group."""

    epoch: int
    rank: int
    size: int
    host: str


class PendingSum(Protocol):
    """A sum under way."""

    def wait(self) -> object:
        """Return once the sum is in the tensor that was given. Raises RuntimeError when the group failed."""


class Collectives(Protocol):
    """Process groups of one kind. All tensors are in host memory."""

    def open(self, place: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        """Meet the others of a group."""

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        """Start to add tensors up, each in place."""

    def give_up(self, group: Any) -> None:
        """Nobody waits for a group's sums any more."""


class Gloo:
    """Over connections of the host, which nothing interrupts but their end or the timeout."""

    def open(self, place: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=place.host)]
        options._threads = GLOO_THREADS
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupGloo(store, place.rank, place.size, options)

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        return [group.allreduce([tensor]) for tensor in tensors]

    def give_up(self, group: Any) -> None:
        pass  # `abort` does nothing for gloo


class Nccl:
    """Between CUDA devices, one a machine: gradients go up again, are added there, and the sum comes down.

    Up and down have streams of their own, so that partitions overlap. NCCL chooses the network interface itself
    (NCCL_SOCKET_IFNAME).
    """

    def __init__(self) -> None:
        """On the present device. Raises InputError where there is none, or torch has no NCCL."""
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

    def open(self, place: GroupMember, store: dist.Store, timeout_s: float) -> Any:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        return dist.ProcessGroupNCCL(store, place.rank, place.size, options)

    def begin(self, group: Any, tensors: Sequence[Tensor]) -> list[PendingSum]:
        found: list[PendingSum] = []
        with torch.cuda.stream(self._up):
            for tensor in tensors:
                there = tensor.to(self._device, non_blocking=True)
                found.append(_OnDevice(tensor, there, group.allreduce([there]), self._down))
        return found

    def give_up(self, group: Any) -> None:
        group.abort()  # or the device would wait for a dead peer


@dataclass(frozen=True)
class _OnDevice:
    """A sum on a device, on its way to the host."""

    here: Tensor
    there: Tensor
    work: Any
    down: torch.cuda.Stream

    def wait(self) -> None:
        arrived = torch.cuda.Event()
        with torch.cuda.stream(self.down):
            self.work.wait()  # looks for errors of the group meanwhile (TORCH_NCCL_BLOCKING_WAIT)
            self.here.copy_(self.there, non_blocking=True)
            arrived.record(self.down)
        arrived.synchronize()


def collectives(backend: Backend) -> Collectives:
    """What a config names. Raises InputError."""
    return Nccl() if backend == "nccl" else Gloo()
