"""The ways in which the contributions of a clock come together: parameter servers, an all-reduce, stages of a pipeline.

Everything that only the all-reduce needs lies here: the sums of a machine (`reducer`), the copies that a membership
change starts from (`replicas`; `shared_state` where machines share the optimizer's state out) and the pause between
two clocks before one (`pause`). Begin with `agileml.core.protocol.exchange`, which says what the engine asks of an
exchange, then read `parameter_servers`; the rest of the engine never asks which exchange it has.
"""

from agileml.core.exchange.allreduce import ReplicaExchange, SharedStateExchange
from agileml.core.exchange.parameter_servers import ServerExchange
from agileml.core.exchange.pool import PoolExchange
from agileml.core.exchange.stages import AsyncStageExchange, StageExchange
from agileml.core.exchange.supersteps import SuperstepExchange
from agileml.core.protocol.exchange import Exchange
from agileml.core.protocol.job import PipelineMode

__all__ = [
    "AsyncStageExchange",
    "Exchange",
    "PoolExchange",
    "ReplicaExchange",
    "ServerExchange",
    "SharedStateExchange",
    "StageExchange",
    "SuperstepExchange",
    "exchange_of",
    "stage_exchange",
]

EXCHANGES: dict[str, type[Exchange]] = {"servers": ServerExchange, "allreduce": ReplicaExchange}


def exchange_of(kind: str) -> Exchange:
    """The exchange that a config names: servers or allreduce."""
    return EXCHANGES[kind]()


def stage_exchange(mode: PipelineMode) -> StageExchange:
    """The exchange of a pipeline."""
    return StageExchange() if mode is PipelineMode.FLUSH else AsyncStageExchange()
