"""One pool of bundles, from which two draw the same, or nobody draws what is missing. PROTOCOL: SSP, ASP."""

from __future__ import annotations

from dataclasses import replace

from agileml.core.node.piecewise import PiecewiseWorker
from agileml.core.pool.bundles import BundlePool
from agileml.core.pool.worker import PoolWorker
from agileml.core.protocol.deal import Deal
from tests.model.mutants.mutant import replaces


@replaces(BundlePool.draw, mode="asppool", caught_by=0)
def who_asks_again_draws_again(original, self, worker, message):
    """An answer that was lost takes its bundle with it: nobody computes that."""
    self._answers.pop(worker, None)
    found = original(self, worker, replace(message, number=0))
    return replace(found, number=message.number) if found is not None else None


@replaces(PoolWorker.drawn, mode="ssppool", caught_by=3)
def what_was_begun_goes_on_whatever_was_drawn(original, self, message):
    """The bundle that was drawn instead is computed by nobody."""
    if self._begun:
        message = replace(message, clock=self._begun[0].key[0], bundle=self._begun[0].key[1])
    original(self, message)


@replaces(PiecewiseWorker.params, mode="asppool", caught_by=2)
def parameters_of_another_bundle_of_the_clock_serve(original, self, message):
    """A late answer has the rows of the bundle before."""
    if self._now is not None:
        message = replace(message, unit=self._now.unit)
    original(self, message)


@replaces(Deal.assignments, mode="asppool", caught_by=2)
def the_pool_of_a_view_has_all_units_of_open_clocks(original, self, clock):
    """Bundles that overlap in part with what is counted, or that some partition refuses for ever."""
    if self.job.draw_units is None:
        return original(self, clock)
    return tuple((worker, bundle) for worker, bundles in self._share.items() for bundle in bundles)
