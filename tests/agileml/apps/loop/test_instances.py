"""Objects found by their class, beside threads that go on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from agileml.apps.loop.instances import instances_of


class Mask(nn.Parameter):
    """A parameter of a user's class."""


class Masked(Mask):
    """And of one below it."""


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_those_of_the_class_and_of_subclasses() -> None:
    parameter, mask, masked, plain = (
        nn.Parameter(torch.zeros(2)),
        Mask(torch.zeros(2)),
        Masked(torch.zeros(2)),
        torch.zeros(2),
    )
    found = {id(each) for each in instances_of(nn.Parameter)}
    assert {id(parameter), id(mask), id(masked)} <= found
    assert id(plain) not in found
    assert id(parameter) not in {id(each) for each in instances_of(Mask)}
    schedule = LambdaLR(torch.optim.SGD([parameter], lr=0.1), lambda _: 1.0)
    assert any(each is schedule for each in instances_of(LRScheduler))


def test_other_threads_make_tuples_meanwhile(many_switches: None) -> None:
    """A tuple that is being made from a generator grows in place, which fails while somebody else holds it."""
    over = threading.Event()
    failed: list[BaseException] = []

    def make_tuples() -> None:
        try:
            while not over.is_set():
                assert len(tuple(number for number in range(2000))) == 2000
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=make_tuples) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        instances_of(nn.Parameter)
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
