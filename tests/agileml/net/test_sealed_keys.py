"""The run's keys travel sealed: one process opens them, no other, and nothing that packs values takes them along."""

import copy
import pickle
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.net.keys import KeyPair
from agileml.net.sealed_keys import KeyRecipient, SealError, seal
from tests.thorough import examples

KEYS = KeyPair.generate()
MACHINE = KeyRecipient("run", "m0")
SEALED = seal(KEYS, MACHINE.public, "run", "m0")


def test_the_process_that_they_are_sealed_for_opens_them() -> None:
    assert MACHINE.open(SEALED) == KEYS
    assert KEYS.secret not in SEALED and KEYS.public not in SEALED
    assert seal(KEYS, MACHINE.public, "run", "m0") != SEALED, "two deliveries look nothing alike"


@pytest.mark.parametrize(
    "other", [KeyRecipient("run", "m0"), KeyRecipient("run", "m1")], ids=["same name", "another"]
)
def test_no_other_process_opens_them(other: KeyRecipient) -> None:
    with pytest.raises(SealError, match="sealed for another process"):
        other.open(SEALED)


@pytest.mark.parametrize(("run", "name"), [("other", "m0"), ("run", "m1"), ("run", "controller")])
def test_they_are_bound_to_a_run_and_a_machine(run: str, name: str) -> None:
    with pytest.raises(SealError):
        MACHINE.open(seal(KEYS, MACHINE.public, run, name))


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_what_was_changed_on_the_way_is_refused(at: int, by: int) -> None:
    changed = bytearray(SEALED)
    changed[at] ^= by
    with pytest.raises(SealError):
        MACHINE.open(bytes(changed))
    with pytest.raises(SealError):
        MACHINE.open(SEALED[:at])


@pytest.mark.parametrize("public", [b"", b"short", bytes(32)], ids=["empty", "short", "weak point"])
def test_a_public_key_that_is_none_is_refused(public: bytes) -> None:
    with pytest.raises(SealError, match="m0 told no public key"):
        seal(KEYS, public, "run", "m0")


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy, msgpack.packb])
def test_nothing_that_packs_values_carries_them_along(send: Callable[[object], object]) -> None:
    with pytest.raises(TypeError):
        send(KEYS)
    with pytest.raises(TypeError):
        send([KEYS, MACHINE])
