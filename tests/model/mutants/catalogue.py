"""All mutants, in the order of the protocol's rules."""

from __future__ import annotations

from tests.model.mutants import (
    allreduce,
    async_pipelines,
    changes,
    clocks,
    cuts,
    fences,
    helping,
    norms,
    overlap,
    pipelines,
    plans,
    pools,
    repeats,
    replicas,
    resident,
    shared_state,
    supersteps,
)
from tests.model.mutants.mutant import Mutant

MUTANTS = tuple(
    value
    for module in (
        fences,
        clocks,
        changes,
        cuts,
        allreduce,
        plans,
        norms,
        overlap,
        helping,
        resident,
        shared_state,
        pipelines,
        replicas,
        async_pipelines,
        supersteps,
        pools,
        repeats,
    )
    for value in vars(module).values()
    if isinstance(value, Mutant)
)
