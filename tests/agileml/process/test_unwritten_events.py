"""Events reach the log once each, whatever answers are lost and controllers die."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agileml.core.protocol.commands import Happened
from agileml.events.run import Warned
from agileml.net.events import Address
from agileml.process.unwritten_events import EventReader, UnwrittenEvents, Written

FIRST, SECOND = (Address("controller", "127.0.0.1", f"tcp://127.0.0.1:{port}", "", port) for port in (1, 2))


def happened(number: int) -> Happened:
    return Happened(Warned(str(number)), float(number))


class Asked:
    """A controller's process as the driver asks it: what it says of another's events counts nothing."""

    def __init__(self, address: Address) -> None:
        self.address, self.events, self.dropped = address, UnwrittenEvents(), 0

    def ask(self, written: Written | None) -> tuple[int, tuple[Happened, ...]]:
        if written is not None and written.head == self.address:
            self.dropped += len(self.events.drop(written.count))
        return self.events.tell()


@given(st.lists(st.sampled_from(["happens", "asks", "asks in vain", "dies"])))
def test_each_event_is_written_once_unless_its_controller_dies_with_it(steps: list[str]) -> None:
    head, reader = Asked(FIRST), EventReader()
    log: list[Happened] = []
    told: list[Happened] = []  # what the log must have
    for number, step in enumerate(steps):
        match step:
            case "happens":
                head.events.append(happened(number))
            case "asks":
                first, events = head.ask(reader.written)
                told += [event for event in events if event not in told]
                log += reader.take(head.address, first, events)
            case "asks in vain":  # the answer is lost
                head.ask(reader.written)
            case "dies":
                head = Asked(SECOND if head.address == FIRST else FIRST)
                reader.written = None  # an address is never used again; here there are two
    assert log == told
    assert head.dropped <= len(log)


def test_a_caller_that_takes_what_it_is_told_need_not_say_so() -> None:
    events = UnwrittenEvents()
    events.append(happened(0))
    assert events.tell() == (0, (happened(0),))
    events.append(happened(1))
    assert events.drop(None) == [happened(0)]
    assert events.tell() == (1, (happened(1),))
    assert events.drop(2) == [happened(1)]
    assert events.drop(2) == []
