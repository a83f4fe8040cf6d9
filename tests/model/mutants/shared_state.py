"""The optimizer's state is shared out, and a change loses a part of it or mixes two clocks."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.change import change_plan
from agileml.core.exchange import shared_state
from agileml.core.exchange.reducer import Reducer
from agileml.core.protocol.messages import Role, Source, SourceKind
from tests.model.mutants.mutant import replaces


@replaces(change_plan._is_torn, mode="allreduce-sharded", caught_by=13)
def owners_at_two_clocks_go_on(original, job, states):
    """A clock is computed again from the parameters of two."""
    return False


@replaces(shared_state.fetches, mode="allreduce-sharded", caught_by=0)
def a_new_owner_has_the_values_already(original, view, sources, copies):
    """It has no state of the optimizer for them."""
    return [
        (node, replace(fetch, source=Source(SourceKind.SHARD, node)))
        if fetch.role is Role.OWNER
        and fetch.source.kind is SourceKind.SHARD
        and node in copies[fetch.partition]
        else (node, fetch)
        for node, fetch in original(view, sources, copies)
    ]


@replaces(Reducer._gather, mode="allreduce-sharded", caught_by=0)
def a_machine_goes_on_before_it_has_the_values(original, self, clock, resident, now_s):
    """What others have stepped is missing in what it computes with."""
    original(self, clock, resident, now_s)
    self._is_gathering = False
    self._apply_held(now_s)
