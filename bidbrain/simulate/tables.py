"""`proteus simulate` from Python: the same options, tables instead of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bidbrain.config import ConfigError, load_config
from bidbrain.history.availability import read_trace
from bidbrain.simulate.experiment import as_json, compare, summarise
from bidbrain.simulate.made_history import plan_on_prices
from bidbrain.simulate.pool_plan import make_pool_plan
from bidbrain.simulate.workers import Pool


@dataclass(frozen=True)
class SimulatedTables:
    """Rows of plain values, which `pandas.DataFrame` takes as they are.

    rows: a row per scheme and job length; cost and runtime relative to all on-demand, means with 95% intervals. pairs:
    the differences between schemes on the same starts. notes: what was left out or changed, a sentence each.
    """

    rows: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    notes: tuple[str, ...]


def run(processes: int = 1, **options: Any) -> SimulatedTables:
    """Simulate jobs; `options` are the keys of a simulate config (history, made or availability, schemes, starts, ...).

    A scheme may be a class of yours. Raises the one-sentence errors of a config, a history or a policy (ValueError).
    """
    schemes = options.pop("schemes", [])
    if isinstance(schemes, str | type):
        schemes = [schemes]
    names = [each if isinstance(each, str) else f"{each.__module__}:{each.__qualname__}" for each in schemes]
    for key in ("history", "availability"):
        if isinstance(options.get(key), str | Path):
            options[key] = [options[key]]
    settings = load_config(None, options | {"schemes": names})
    if bool(settings.history or settings.made) == bool(settings.availability):
        raise ConfigError(
            "found no market or two, expected either history or made (prices), or availability (pools)"
        )
    if processes < 1:
        raise ConfigError(f"processes: found {processes}, expected at least 1")
    plan = (
        make_pool_plan(settings, [read_trace(path) for path in settings.availability])
        if settings.availability
        else plan_on_prices(settings)
    )
    with Pool(processes) as pool:
        results = plan.experiment.run(pool, lambda _: None)
    rows = as_json([summarise(result, settings.seed) for result in results])
    return SimulatedTables(rows, as_json(compare(results, settings.seed)), plan.notes)
