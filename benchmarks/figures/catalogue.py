"""All figures, and those that cannot be redrawn here."""

from __future__ import annotations

from benchmarks.figures import (
    agileml,
    flexrr,
    flexrr_runs,
    ibatch,
    lbbsp,
    market,
    pipelines,
    plan_costs,
    plans,
    training,
)
from benchmarks.figures.figure import Figure, Unable

FIGURES: tuple[Figure, ...] = (
    *flexrr.FIGURES,
    *flexrr_runs.FIGURES,
    training.CONVERGENCE,
    *lbbsp.FIGURES,
    *market.FIGURES,
    *agileml.FIGURES,
    *pipelines.FIGURES,
    *plans.FIGURES,
    training.STASHING,
    *plan_costs.FIGURES,
    *ibatch.FIGURES,
)

UNABLE = (
    Unable("flexrr-3.7 b", "iterations to converge, LDA", "a replay trains by gradients; LDA draws samples"),
    Unable("lb-bsp 10, 11", "a shared cluster's load", "the trace of Google's cluster is not there"),
    Unable(
        "lb-bsp 12, 13",
        "GPUs' times, a link that switches",
        "needs those GPUs: of their times only the ranges of batches are printed",
    ),
    Unable(
        "lb-bsp 14",
        "overhead at 32 to 96 workers",
        "the share of an iteration that deciding takes; the iteration's length is not printed",
    ),
    Unable("pipedream-5.9 to 5.12", "time to accuracy", "needs GPUs, ImageNet and WMT16"),
    Unable("pipedream-5.13 b", "hybrids without pipelining", "which configurations they are is not printed"),
    Unable("pipedream-table-5.2", "the clusters", "a table of hardware: nothing to compute"),
    Unable(
        "ibatch 6, 7",
        "sparse gradients, and where time goes",
        "what a sparse push holds is not printed, and shares of time are only drawn",
    ),
)


def chosen(only: str | None) -> tuple[Figure, ...]:
    """The figures whose names begin with one of the words of `only`, split at commas; None: all."""
    if only is None:
        return FIGURES
    words = tuple(word.strip() for word in only.split(",") if word.strip())
    return tuple(figure for figure in FIGURES if figure.name.startswith(words))
