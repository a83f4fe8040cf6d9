"""The model is worth what it catches: rules of the protocol, broken one at a time.

`make test` tries those that the first seed catches; `make test-all` and `python -m tests.model.mutants` try all.
"""

from __future__ import annotations

import pytest

from agileml.core.node.server import Server
from tests.model.mutants.catalogue import MUTANTS
from tests.model.mutants.mutant import Mutant, replaces
from tests.model.mutants.trial import SEEDS, try_mutant

EARLY = 1


def is_early(mutant: Mutant) -> bool:
    return mutant.caught_by is not None and mutant.caught_by < EARLY


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=[] if is_early(mutant) else pytest.mark.slow)
        for mutant in MUTANTS
        if not mutant.safe
    ],
    ids=lambda mutant: mutant.name,
)
def test_the_model_catches(mutant):
    verdict = try_mutant(mutant, SEEDS if not is_early(mutant) else 10 * EARLY)
    print(f"\n{mutant.name}: seed {verdict.seed}, {verdict.how[:120]}")
    assert verdict.seed is not None, mutant.why


def test_there_are_enough_of_them_that_no_run_can_miss():
    assert len([mutant for mutant in MUTANTS if not mutant.safe]) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_rule_holds_again_afterwards():
    for mutant in MUTANTS:
        with mutant.applied():
            pass
    assert try_mutant(_nothing_broken, seeds=1).seed is None


def test_a_replacement_that_does_not_fit_is_an_error_and_catches_nothing():
    with pytest.raises(AttributeError, match="no_such_name"):
        try_mutant(_misfit, seeds=1)
    with pytest.raises(TypeError, match="_of_other_arguments"):
        try_mutant(_of_other_arguments, seeds=1)


@replaces(Server.push, mode="bsp")
def _nothing_broken(original, *arguments, **named):
    """Nothing."""
    return original(*arguments, **named)


@replaces(Server.push, mode="bsp")
def _of_other_arguments(original, self):
    """Nothing: it is not called as the engine calls its target."""
    return original(self)


@replaces(Server.push, mode="bsp")
def _misfit(original, self, *arguments, **named):
    """Nothing: the replacement itself fails."""
    return self.no_such_name
