"""The link between two workers: tensors in one direction, one message after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

Tensors = list[Tensor | None]


class LinkError(RuntimeError):
    """The other end is gone or sent what does not belong here. The message is one sentence."""


class Traffic(StrEnum):
    """The traffic of a link: activations to the next stage, gradients back, sums of gradients between replicas."""

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    SUMS = "sums"


class Sender(Protocol):
    """The sending end."""

    def send(self, number: int, tensors: Sequence[Tensor | None]) -> None:
        """Send message `number`; the tensors may be overwritten afterwards."""


class Receiver(Protocol):
    """The receiving end; messages come in the order in which they were sent."""

    foreign: int
    """Address of the storage that received tensors lie in (0: of their own)."""

    def receive(self, number: int) -> Tensors:
        """The next message, which must be `number`; waits for it. The tensors hold until `release`."""

    def release(self, number: int) -> None:
        """The memory of message `number` may be used again."""


class LocalLink:
    """Both ends, within one process."""

    foreign = 0

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Tensors]] = deque()

    def send(self, number: int, tensors: Sequence[Tensor | None]) -> None:
        self._waiting.append((number, [None if t is None else dense_copy(t) for t in tensors]))

    @property
    def waiting(self) -> int:
        """How many messages are there."""
        return len(self._waiting)

    def receive(self, number: int) -> Tensors:
        found, tensors = self._waiting.popleft()
        assert found == number, (found, number)
        return tensors

    def release(self, number: int) -> None:
        pass


def dense_copy(tensor: Tensor) -> Tensor:
    """A copy that fills its memory, with the strides of the original where those do."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides of `dense_copy`."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
