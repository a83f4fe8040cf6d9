"""The optimizer of a loop: it shows the rates of the present clock, and is else as it was at prepare().

Machines take its steps by what was prepared, and know of no change of this object.
"""

from __future__ import annotations

from collections.abc import Sequence

from agileml.application import InputError
from agileml.apps.loop.optimizers import check_hooks, check_new, check_schedules, set_rates, settings_of
from agileml.apps.loop.prepared import Prepared


class OptimizerAsPrepared:
    """Checks the optimizer of a loop, and sets its rates."""

    def __init__(self, prepared: Prepared) -> None:
        self._prepared, self._optimizer = prepared, prepared.optimizer
        groups = self._optimizer.param_groups
        self._at_first = [float(group["lr"]) for group in groups]
        self._rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
        self._settings = settings_of(self._optimizer)

    def show_rates(self, factor: float) -> None:
        """Let its groups and its schedule show the rates at a factor."""
        set_rates(self._optimizer, self._rates, factor)
        if self._prepared.schedule is not None:
            self._prepared.schedule.schedule._last_lr = self._at(factor)

    def check_at_loop(self) -> None:
        """Raise InputError where it or its schedule was changed between prepare() and the loop, as by the state of a
        checkpoint."""
        schedule, scaler = self._prepared.schedule, self._prepared.scaler
        check_schedules(self._optimizer, schedule)
        check_new(self._optimizer, "loader")
        if schedule is not None:
            schedule.check_new("loader")
        if scaler is not None and scaler.state_dict()["_growth_tracker"]:
            raise InputError(
                "loader: found a scaler that has taken steps, expected it as at prepare(); to go on from a checkpoint, "
                "resume the run"
            )
        self._check_groups("loader", self._at_first)

    def check_at_step(self, factor: float) -> None:
        """Raise InputError where the loop has changed it."""
        self._check_groups("optimizer.step()", self._at(factor))

    def _at(self, factor: float) -> list[float]:
        return [rate * factor for rate in self._rates]

    def _check_groups(self, where: str, expected: Sequence[float]) -> None:
        optimizer = self._optimizer
        check_hooks(optimizer)
        if (count := len(optimizer.param_groups)) != len(self._rates):
            raise InputError(
                f"{where}: found {count} parameter groups, expected the {len(self._rates)} of prepare()"
            )
        for group, rate in zip(optimizer.param_groups, expected, strict=True):
            if (found := float(group["lr"])) != rate:
                raise InputError(
                    f"{where}: found the learning rate {found:g}, expected {rate:g}: a schedule must be given "
                    "to prepare(..., schedule=...), because the machines that hold the parameters take the steps"
                )
        for number, (now, before) in enumerate(zip(settings_of(optimizer), self._settings, strict=True)):
            if changed := next((name for name in before if now[name] != before[name]), None):
                raise InputError(
                    f"{where}: found {changed}={now[changed]} in parameter group {number}, expected "
                    f"{before[changed]} as at prepare(): the machines that hold the parameters take the steps"
                )
