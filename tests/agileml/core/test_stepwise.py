"""The log of a run with supersteps, taken once more in one process."""

from __future__ import annotations

import numpy as np
import pytest

from agileml.core.parameters.learning_rate import Steps
from agileml.core.parameters.minibatch_steps import per_minibatch
from agileml.core.parameters.optimizer import Adam, Sgd
from agileml.core.protocol.superstep_messages import StepTaken
from agileml.core.sequential import run_sequential
from agileml.core.stepwise import StepsMissingError, Stepwise, serial, steps_of
from agileml.events.run import StepsLogged
from tests.model.toy import toy_job

CLOCKS, UNITS = 3, 8


def stepwise(steps, algorithm="sgd"):
    toy, job = toy_job("elastic", algorithm, UNITS, 1, 1, CLOCKS)
    return Stepwise(toy, job.optimizer, 1, steps).train().tables


def logged(partition, timeline, first, positions, reads=None):
    return StepsLogged(partition, timeline, first, tuple(positions), tuple((r,) for r in reads or positions))


@pytest.mark.parametrize("algorithm", ["sgd", "momentum", "adam"])
def test_one_machine_reads_all_before_and_one_partition_or_three_give_the_same_bits(algorithm):
    one = stepwise([serial(CLOCKS * UNITS)], algorithm)
    three = stepwise([[StepTaken(p, (p,) * 3) for p in range(CLOCKS * UNITS)]] * 3, algorithm)
    for name in one:
        assert one[name].tobytes() == three[name].tobytes()
    assert (one["count"][:, 0] == CLOCKS).all()


def test_steps_that_all_read_the_beginning_of_a_clock_are_the_clock_itself():
    """With SGD and a rate that is a clock's divided by its units, means of units add up to the clock's gradient."""
    positions = range(CLOCKS * UNITS)
    found = stepwise([[StepTaken(p, (p // UNITS * UNITS,)) for p in positions]])
    toy, job = toy_job("elastic", "sgd", UNITS, 1, 1, CLOCKS)
    once = Sgd(learning_rate=job.optimizer.rate_at(0) * UNITS)
    whole = run_sequential(toy, optimizer=once, clocks=CLOCKS)
    np.testing.assert_allclose(found["dense"], whole["dense"], rtol=1e-4)


def test_an_adam_counts_steps_and_schedules_count_clocks():
    adam = per_minibatch(Adam(learning_rate=1.0, schedule=Steps(every=2, by=0.5)), UNITS)
    assert [adam.rate_at(step) for step in (0, UNITS, 2 * UNITS - 1, 2 * UNITS)] == [1.0, 1.0, 1.0, 0.5]
    plain = Adam(learning_rate=1.0)
    assert per_minibatch(plain, UNITS) is plain


def test_steps_of_a_later_timeline_replace_those_that_it_undid():
    events = [
        logged(0, 3, 2, [7, 6]),
        logged(0, 1, 0, [0, 1, 2, 3]),
        logged(0, 1, 4, [4]),
    ]
    assert [step.position for step in steps_of(events, (4,))[0]] == [0, 1, 7, 6]
    assert [step.position for step in steps_of(reversed(events), (5,))[0]] == [0, 1, 7, 6, 4]


def test_a_log_with_a_hole_or_of_other_partitions_is_a_sentence():
    with pytest.raises(StepsMissingError, match="found no step 2 of partition 0, expected 4"):
        steps_of([logged(0, 1, 0, [0, 1]), logged(0, 1, 3, [3])], (4,))
    with pytest.raises(StepsMissingError, match="found steps of partition 1, expected 1 partitions"):
        steps_of([logged(1, 1, 0, [0])], (1,))
    with pytest.raises(StepsMissingError, match="expected steps that come before it"):
        stepwise([[StepTaken(0, (1,)), StepTaken(1, (0,))]])
