"""The demands of `consistency.kind: elastic` on a config's other keys."""

from __future__ import annotations

from agileml.config.text import ConfigError


def check_supersteps(*, clip_norm: float | None, helping: bool, workers: int | str, gpus: float) -> None:
    """Raises ConfigError where the keys do not go together with supersteps."""
    if clip_norm is not None:
        raise ConfigError(
            f"found {clip_norm:g} with consistency elastic, expected bsp or ssp: with supersteps every minibatch is a "
            "step of its own, taken before the gradient of all partitions is known",
            key=("optimizer", "clip_norm"),
        )
    if helping:
        raise ConfigError(
            "found helping with consistency elastic, expected bsp or ssp: with supersteps a slow machine gets fewer "
            "minibatches and gives none away",
            key=("helping",),
        )
    if workers not in ("auto", 1):
        raise ConfigError(
            f"found {workers} with consistency elastic, expected 1: a machine computes one minibatch at a time",
            key=("machines", "workers"),
        )
    if gpus > 1:
        raise ConfigError(
            f"found {gpus:g} with consistency elastic, expected at most 1: a machine computes one minibatch at a time",
            key=("machines", "gpus"),
        )
