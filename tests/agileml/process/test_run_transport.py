"""The transport of a run takes every timeout that a config may have, and its codec every number of units."""

from __future__ import annotations

import secrets
from itertools import pairwise
from pathlib import Path

import pytest

from agileml.config.balance import MOST_SLICES, MOST_UNITS
from agileml.config.job import LEAST_TIMEOUT_S, LONGEST_TIMEOUT_S
from agileml.core.protocol.messages import Ack, Announce, Promise, ShardState
from agileml.core.protocol.view import INITIAL, View
from agileml.net.keys import KeyPair
from agileml.process.run_transport import heartbeat_times, open_transport, run_codec, socket_folder
from straggler.coverage import aligned_subtrees, span


@pytest.mark.parametrize("timeout_s", [LEAST_TIMEOUT_S, LONGEST_TIMEOUT_S])
def test_a_transport_opens_with_the_least_and_the_longest_timeout(timeout_s: float) -> None:
    with open_transport("one", "timeouts", "127.0.0.1", KeyPair.generate(), timeout_s) as transport:
        transport.connect(transport.address)


def test_a_first_answer_may_take_as_long_as_a_peer_may_be_silent() -> None:
    """With 10 s, machines that began on a busy host were taken for lost after 5 s, though nothing was wrong."""
    assert [heartbeat_times(timeout_s).unreachable_s for timeout_s in (1.0, 5.0, 10.0)] == [5.0, 5.0, 10.0]


def test_a_temporary_directory_with_a_long_name_holds_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As batch systems have it: a run ended with a traceback once its controller started."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "long" * 17)
    assert socket_folder("0123456789ab") == Path("/tmp/" + "long" * 17 + "/proteus-0123456789ab")
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "long" * 18)
    assert socket_folder("0123456789ab") == Path("/tmp/proteus-0123456789ab")
    with open_transport("one", secrets.token_hex(6), "127.0.0.1", KeyPair.generate(), 1.0) as transport:
        transport.connect(transport.address)


@pytest.mark.parametrize("bundle", [span(0, MOST_UNITS), 1 << (MOST_UNITS - 1)], ids=["all", "last"])
def test_bundles_of_the_most_units_travel(bundle: int) -> None:
    counted = Ack(1, 0, 5, bundle)
    header, _ = run_codec().encode(counted)
    assert run_codec().decode(header) == counted


def test_a_view_of_the_most_slices_travels() -> None:
    one, share, before = ("m12-r3",), (("m12-r3", span(0, MOST_SLICES)),), ("m12-r3",) * MOST_SLICES
    told = Announce(View(1, 1, one, one, one, share, before, 0, (), 1, INITIAL), 3)
    header, _ = run_codec().encode(told)
    assert run_codec().decode(header) == told


def test_a_promise_has_room_for_the_bundles_of_many_units_partitions_and_machines() -> None:
    """Its machine would be given up if the message were too long, then the next owner, and the run would end."""
    units, machines, partitions = 1 << 16, 48, 64
    edges = [units * number // machines for number in range(machines + 1)]
    bundles = [bundle for a, b in pairwise(edges) for bundle in aligned_subtrees(span(a, b))]
    state = ShardState(5, ((5, tuple(bundles)),))
    promise = Promise(3, tuple((partition, state) for partition in range(partitions)), (), (), ())
    header, _ = run_codec().encode(promise)
    assert len(header) < 1 << 20
    assert run_codec().decode(header) == promise
