"""Whether the model catches a mutant: schedules are run with the rule broken until one fails."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain

from tests.model.mutants.catalogue import MUTANTS
from tests.model.mutants.mutant import Mutant
from tests.model.run import run_one, time_limit

SEEDS = 5000


@dataclass(frozen=True)
class Verdict:
    """`seed` is the one that failed (None: none of them did), `how` the sentence of the invariant."""

    seed: int | None
    how: str
    seconds: float


def try_mutant(mutant: Mutant, seeds: int = SEEDS) -> Verdict:
    """Break the rule in this process and run schedules, the recorded seed first, until one fails.

    Raises the error of a replacement that does not fit the engine.
    """
    started_s = time.perf_counter()
    recorded = () if mutant.caught_by is None else (mutant.caught_by,)
    with mutant.applied():
        for seed in chain(recorded, (seed for seed in range(seeds) if seed not in recorded)):
            try:
                with time_limit():
                    run_one(seed, mutant.mode, orderly=mutant.orderly)
            except Exception as error:
                if mutant.is_misfit(error):
                    raise
                how = f"{type(error).__name__}: {str(error)[:300]}"
                return Verdict(seed, how, time.perf_counter() - started_s)
    return Verdict(None, "", time.perf_counter() - started_s)


def try_named(name: str, seeds: int) -> Verdict:
    """The same for a mutant's name, which goes to another process, unlike a mutant."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    return try_mutant(mutant, seeds)
