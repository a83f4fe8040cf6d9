"""The result of a run, for Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agileml.application import Application, Array, InputError
from agileml.runs.event_log import EVENTS, read_events
from agileml.runs.history import history


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: the tables by name, metrics, the summary, and the folder with everything.

    code: 0, or that of a job which a market ended before its last clock (see `bidbrain.live.job`), or 1: not verified.
    """

    parameters: Mapping[str, Array]
    metrics: Mapping[str, float]
    summary: Mapping[str, Any]
    folder: Path
    code: int = 0
    application: Application | None = field(default=None, compare=False)
    _rate_at: Callable[[int], float] = field(default=lambda clock: math.nan, compare=False)
    _again: Callable[..., Result] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        facts = [f"{self.summary['clocks']} clocks"]
        if (loss := self.summary.get("loss")) is not None:
            facts.append(f"loss {loss:.4g}")
        facts += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        return f"<Result of {', '.join(facts)}; {self.folder}>"

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """A dict for each clock, ascending: `clock` (how many are complete), `loss`, `examples`, `seconds`,
        `items_per_s`, `learning_rate`, `machines`, and the metrics of an evaluation at it. Read from events.jsonl."""
        return history(read_events(self.folder / EVENTS), self._rate_at)

    def module(self) -> Any:
        """A new torch module with the trained parameters, on the CPU. Raises InputError for other applications."""
        made = getattr(self.application, "module_with", None)
        if made is None:
            raise InputError(
                "module(): the application of this run has no torch module, expected application: torch"
            )
        return made(self.parameters)

    def resume(self, **overrides: Any) -> Result:
        """Go on from the newest checkpoint of this run; overrides replace top keys of its config, such as `clocks`.

        optimizer: a mapping of the settings that change, such as {"learning_rate": 0.001, "schedule": None}; the kind
        stays. A schedule counts from the first clock of the first run. Other overrides are arguments of `agileml.run`.

        Raises InputError when the run wrote no checkpoints, and what `agileml.run` raises.
        """
        if self._again is None:
            raise InputError(
                "resume(): this run wrote no checkpoints, expected one with the key `checkpoint`"
            )
        return self._again(**overrides)


def versions() -> dict[str, str]:
    """Versions that the result may depend on."""
    import platform
    from importlib.metadata import version

    found = {name: version(name) for name in ("ray", "numpy", "numba", "pyzmq", "scikit-learn", "torch")}
    return {"python": platform.python_version(), **found}
