"""The demands of the exchange of updates on a config's other keys."""

from __future__ import annotations

from agileml.config.text import ConfigError, show


def check_exchange(
    exchange: str, backend: str, *, deterministic: bool, consistency: str, is_trusted: bool, gpus: float
) -> None:
    """Raises ConfigError where the keys do not go together."""
    if exchange != "allreduce":
        if backend != "gloo":
            raise ConfigError(
                f"found {backend} with exchange: {exchange}, expected gloo: no group adds up there",
                key=("allreduce_backend",),
            )
        return
    if deterministic:
        raise ConfigError(
            "found true with exchange: allreduce, expected false: the order in which an all-reduce adds up "
            "depends on the machines",
            key=("deterministic",),
        )
    if consistency != "bsp":
        raise ConfigError(
            f"found allreduce with consistency {consistency}, expected servers: an all-reduce is "
            "a clock of everybody, which is bsp",
            key=("exchange",),
        )
    if backend != "nccl":
        return
    if gpus < 1:
        raise ConfigError(
            f"found {gpus:g} with allreduce_backend: nccl, expected at least 1: NCCL wants a device for each machine",
            key=("machines", "gpus"),
        )
    if not is_trusted:
        raise ConfigError(
            "found false with allreduce_backend: nccl, expected true: NCCL listens on the network without keys",
            key=("trusted_network",),
        )


def check_overlap(overlap: bool | str, exchange: str, consistency: str) -> None:
    """Raises ConfigError where parameters cannot be pulled while others are computed with."""
    if exchange == "allreduce":
        raise ConfigError(
            f"found {show(overlap)} with exchange: allreduce, expected false: each machine has all parameters there "
            "and pulls none",
            key=("overlap",),
        )
    if consistency != "bsp":
        raise ConfigError(
            f"found {show(overlap)} with consistency {consistency}, expected false: only in bsp does a clock wait for "
            "the parameters that it has just updated",
            key=("overlap",),
        )
