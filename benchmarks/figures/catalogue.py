"""All figures, and those that cannot be redrawn here."""

from __future__ import annotations

from benchmarks.figures import flexrr, lbbsp, market, pipelines, plan_costs, plans, training
from benchmarks.figures.figure import Figure, Unable

FIGURES: tuple[Figure, ...] = (
    *flexrr.FIGURES,
    *training.FIGURES,
    *lbbsp.FIGURES,
    *market.FIGURES,
    *pipelines.FIGURES,
    *plans.FIGURES,
    *plan_costs.FIGURES,
)

_HOSTS = "needs root and eight hosts with shaped links on one machine; measured by hand"
UNABLE = (
    Unable(
        "flexrr-3.7", "iterations to converge", "needs minutes of training for each scheme; measured by hand"
    ),
    Unable("agileml-4.10 to 4.13", "stages on 64 machines, 1 Gbit/s", _HOSTS),
    Unable("agileml-4.14", "scaling from 4 to 64 machines", _HOSTS),
    Unable("agileml-4.15", "60 machines join and leave", _HOSTS),
    Unable(
        "lb-bsp table 3",
        "predictors of speed",
        "the paper's traces are not there; on made ones measured by hand",
    ),
    Unable(
        "lb-bsp 8 to 13",
        "waiting and time per update",
        "its trace takes minutes of training nets; measured by hand",
    ),
    Unable(
        "ibatch",
        "speedups of VGG19 and others",
        "no layer profile is printed, and the models' own are not there",
    ),
    Unable("pipedream-5.13", "time to accuracy", "needs GPUs and ImageNet"),
    Unable(
        "pipedream-5.15", "predicted and measured throughput", "needs GPUs; on two processes measured by hand"
    ),
    Unable("pipedream-5.16 to 5.18", "memory, communication and depth", "need GPUs"),
    Unable("pipedream-table-5.2", "the clusters", "a table of hardware: nothing to compute"),
)


def chosen(only: str | None) -> tuple[Figure, ...]:
    """The figures whose names begin with one of the words of `only`, split at commas; None: all."""
    if only is None:
        return FIGURES
    words = tuple(word.strip() for word in only.split(",") if word.strip())
    return tuple(figure for figure in FIGURES if figure.name.startswith(words))
