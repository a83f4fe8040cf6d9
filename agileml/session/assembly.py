"""Builds the fleet and the market that a config names.

The rooms below know the protocols only (`cluster.fleet.Fleet`, `market.service.MarketBackend`); a new fleet is named
here, a new cloud in `clouds`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agileml.config.market import CloudMarketConfig
from agileml.process.spec import RunSpec
from agileml.session.clouds import kind_of
from agileml.session.places import check_shadows

if TYPE_CHECKING:
    from agileml.cluster.fleet import Fleet
    from agileml.market.service import MarketBackend
    from agileml.market.setup import MarketSetup


def fleet_for(spec: RunSpec, setup: MarketSetup | None = None, completed: int = 0) -> Fleet:
    """Build the fleet that the config names. setup: of its market, if it has one. completed: clocks done before.

    Raises ClusterError when an address does not answer within 3 s, ConfigError, FolderError.
    """
    check_shadows(Path.cwd())
    if setup is not None:
        from agileml.market.fleet import MarketFleet

        config = spec.config
        sizes = {"clocks": config.clocks, "reliable": config.machines.reliable, "completed": completed}
        return MarketFleet(setup, _backend(spec, setup), **sizes)
    from agileml.cluster.fleet import ExistingFleet, LocalFleet
    from agileml.cluster.ray_cluster import reach

    if spec.config.address is None:
        return LocalFleet(spec)
    return ExistingFleet(spec, reach(spec.config.address))


def _backend(spec: RunSpec, setup: MarketSetup) -> MarketBackend:
    if isinstance(spec.config.market, CloudMarketConfig):
        return kind_of(spec.config.market).backend(setup, spec)
    from agileml.market.played import PlayedBackend

    return PlayedBackend(setup, spec.config)
