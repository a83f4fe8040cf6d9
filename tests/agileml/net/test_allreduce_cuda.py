"""Sums of tensors on CUDA devices, there or by way of the host; a group that is given up leaves nobody waiting."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agileml.net.collectives import Collectives, Gloo, GroupMember, Nccl, Term
from agileml.net.tensor_vector import TensorVector
from agileml.process.spec import NCCL_VARIABLES

LIMIT_S = 120.0

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not dist.is_nccl_available(), reason="there is no CUDA device here"
)
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device at most here")


def sums(values: list[float], collectives: Nccl, group: Any) -> list[float]:
    tensors = [torch.full((1000,), value) for value in values] + [
        torch.tensor([values[0]], dtype=torch.float64)
    ]
    for work in collectives.begin(group, [Term(tensor) for tensor in tensors]):
        work.wait()
    return [float(tensor[-1]) for tensor in tensors]


@pytest.mark.parametrize("make", [Gloo, Nccl])
def test_a_vector_on_the_device_is_added_where_it_is_once_it_is_whole(make: type[Gloo | Nccl]) -> None:
    """The device is still busy with the vector when the sum begins."""
    collectives: Collectives = make()
    group = collectives.open(GroupMember(1, 0, ("m0",), "127.0.0.1"), dist.HashStore(), LIMIT_S)
    slow = torch.full((4000, 4000), 1 / 4000, device="cuda")
    flat = torch.zeros(1 << 20, device="cuda")
    for _ in range(100):
        slow = slow @ slow
    flat.add_(slow[0, 0])
    whole = TensorVector(flat)
    vectors = [whole[: 1 << 19], whole[1 << 19 :]]
    for work in collectives.begin(group, [Term.of(vector) for vector in vectors]):
        work.wait()
    torch.testing.assert_close(flat.cpu(), torch.full((1 << 20,), 1 / 4000))
    for work in collectives.begin_broadcasts(group, [(0, Term.of(vector)) for vector in vectors]):
        work.wait()
    assert flat.is_cuda
    torch.testing.assert_close(flat.cpu(), torch.full((1 << 20,), 1 / 4000))
    collectives.give_up(group)


def test_what_goes_up_comes_down_again() -> None:
    collectives = Nccl()
    group = collectives.open(GroupMember(1, 0, ("m0",), "127.0.0.1"), dist.HashStore(), LIMIT_S)
    assert sums([1.0, 2.0], collectives, group) == [1.0, 2.0, 1.0]
    assert sums([3.0], collectives, group) == [3.0, 3.0]
    collectives.give_up(group)


def serve(rank: int, port: int, pipe: Any) -> None:
    os.environ |= NCCL_VARIABLES
    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0, timeout=timedelta(seconds=LIMIT_S))
    collectives = Nccl()
    group = collectives.open(GroupMember(1, rank, ("m0", "m1"), "127.0.0.1"), store, LIMIT_S)
    pipe.send(sums([1.0 + rank, 10.0], collectives, group))
    if pipe.recv() == "wait for nobody":
        (work,) = collectives.begin(group, [Term(torch.ones(8))])
        collectives.give_up(group)
        with contextlib.suppress(RuntimeError):  # either way it is over
            work.wait()
        pipe.send("over")


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    context = multiprocessing.get_context("spawn")
    port = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False).port
    ends, children = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        children.append(context.Process(target=serve, args=(rank, port, theirs), daemon=True))
        children[-1].start()
        ends.append(ours)
    yield ends
    for child in children:
        child.kill()
        child.join()


@needs_two
def test_two_devices_add_up_and_one_that_is_left_alone_gives_up(pair: list[Any]) -> None:
    for end in pair:
        assert end.poll(LIMIT_S)
        assert end.recv() == [3.0, 20.0, 3.0]
    pair[1].send("go")
    pair[0].send("wait for nobody")
    assert pair[0].poll(LIMIT_S)
    assert pair[0].recv() == "over"
