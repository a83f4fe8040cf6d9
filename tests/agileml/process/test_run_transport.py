"""The transport of a run takes every timeout that a config may have."""

from __future__ import annotations

import pytest

from agileml.config.job import LEAST_TIMEOUT_S, LONGEST_TIMEOUT_S
from agileml.net.keys import KeyPair
from agileml.process.run_transport import open_transport


@pytest.mark.parametrize("timeout_s", [LEAST_TIMEOUT_S, LONGEST_TIMEOUT_S])
def test_a_transport_opens_with_the_least_and_the_longest_timeout(timeout_s: float) -> None:
    with open_transport("one", "timeouts", "127.0.0.1", KeyPair.generate(), timeout_s) as transport:
        transport.connect(transport.address)
