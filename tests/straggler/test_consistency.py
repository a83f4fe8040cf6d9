"""What a worker may read: BSP exactly its clock, SSP up to `slack` older, ASP anything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from straggler.consistency import Asp, Bsp, Elastic, Read, Ssp, consistency

CLOCKS = st.integers(0, 20)


@settings(deadline=None, derandomize=True)
@given(CLOCKS, CLOCKS, st.booleans())
def test_bsp_reads_its_own_clock_and_no_other(clock: int, version: int, previous: bool) -> None:
    answer = Bsp().read(clock, version, has_previous=previous)
    read = {Read.CURRENT: version, Read.PREVIOUS: version - 1}.get(answer, clock)
    assert read == clock
    assert (answer is Read.WAIT) == (version < clock)
    assert (answer is Read.BEHIND) == (version > clock and not (version == clock + 1 and previous))


@settings(deadline=None, derandomize=True)
@given(CLOCKS, CLOCKS, st.integers(1, 4), st.booleans())
def test_ssp_waits_only_for_what_is_older_than_its_slack(
    clock: int, version: int, slack: int, previous: bool
) -> None:
    answer = Ssp(slack).read(clock, version, has_previous=previous)
    # Thesis 2.2: at clock t it sees all updates of clocks before t - slack (0-based).
    assert (answer is Read.WAIT) == (version < clock - slack)
    assert answer is not Read.PREVIOUS
    # Until then the clock may be open at another partition, whose later clocks wait for it.
    assert (answer is Read.BEHIND) == (version > clock + 1 + slack)


@settings(deadline=None, derandomize=True)
@given(CLOCKS, CLOCKS, st.booleans())
def test_asp_never_waits(clock: int, version: int, previous: bool) -> None:
    assert Asp().read(clock, version, has_previous=previous) is Read.CURRENT


@settings(deadline=None, derandomize=True)
@given(CLOCKS, CLOCKS, st.booleans())
def test_in_a_superstep_nobody_waits_for_a_clock(clock: int, version: int, previous: bool) -> None:
    assert Elastic(4).read(clock, version, has_previous=previous) is Read.CURRENT


def test_policies_by_name() -> None:
    assert consistency("bsp") == Bsp()
    assert consistency("ssp", 0) == Bsp()
    assert consistency("ssp", 2) == Ssp(2)
    assert consistency("asp") == Asp()
    for kind, slack in (("bulk", 0), ("ssp", -1)):
        with pytest.raises(ValueError, match="is none of bsp, ssp"):
            consistency(kind, slack)
