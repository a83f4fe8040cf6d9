"""Going on with a run from Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agileml.application import Application
from agileml.config.job import JobConfig
from agileml.session.result import Result


@dataclass(frozen=True)
class Resumption:
    """Resumes a run that wrote checkpoints. `run`: starts a run, as `agileml.run`. `application`: the user's own
    instance, None for the config's."""

    run: Callable[..., Result]
    config: JobConfig
    application: Application | None
    name: str

    def __call__(self, **overrides: Any) -> Result:
        """Run from the newest checkpoint; overrides are keys of the config and arguments of `run`."""
        assert self.config.checkpoint is not None
        changes = "optimizer" in overrides
        if changes:
            before = self.config.optimizer.model_dump(mode="json")
            overrides["optimizer"] = {**before, **overrides["optimizer"]}
        more = {"out": None, "change_optimizer": changes, **overrides}
        place = self.config.checkpoint.path
        return self.run(self.config, self.application, name=self.name, resume=place, **more)
