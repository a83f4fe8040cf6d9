"""Each item arrives once, whatever answers are lost and senders die."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agileml.net.events import Address
from agileml.net.outbox import Done, Outbox, OutboxReader

FIRST, SECOND = (Address("controller", "127.0.0.1", f"tcp://127.0.0.1:{port}", "", port) for port in (1, 2))


class Asked:
    """A sender: what the reader says of another's items counts nothing."""

    def __init__(self, address: Address) -> None:
        self.address, self.items, self.dropped = address, Outbox[int](), 0

    def ask(self, done: Done | None) -> tuple[int, tuple[int, ...]]:
        if done is not None and done.sender == self.address:
            self.dropped += len(self.items.drop(done.count))
        return self.items.pending()


@given(st.lists(st.sampled_from(["happens", "asks", "asks in vain", "dies"])))
def test_each_item_arrives_once_unless_its_sender_dies_with_it(steps: list[str]) -> None:
    sender, reader = Asked(FIRST), OutboxReader[int]()
    log: list[int] = []
    told: list[int] = []  # what must have arrived
    for number, step in enumerate(steps):
        match step:
            case "happens":
                sender.items.append(number)
            case "asks":
                first, items = sender.ask(reader.done)
                told += [item for item in items if item not in told]
                log += reader.take(sender.address, first, items)
            case "asks in vain":  # the answer is lost
                sender.ask(reader.done)
            case "dies":
                sender = Asked(SECOND if sender.address == FIRST else FIRST)
                reader.done = None  # an address is never used again; here there are two
    assert log == told
    assert sender.dropped <= len(log)


def test_a_caller_that_takes_what_is_pending_need_not_say_so() -> None:
    items = Outbox[int]()
    items.append(0)
    assert items.pending() == (0, (0,))
    items.append(1)
    assert items.drop(None) == [0]
    assert items.pending() == (1, (1,))
    assert items.drop(2) == [1]
    assert items.drop(2) == []
