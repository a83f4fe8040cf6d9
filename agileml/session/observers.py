"""The callbacks of a run: the user's own, and those that its config asks for."""

from __future__ import annotations

from collections.abc import Sequence

from agileml.config.job import JobConfig
from agileml.config.text import ConfigError, nearest
from agileml.core.protocol.job import Job
from agileml.driver.best_model import BestRule
from agileml.driver.stop_signal import StopSignal
from agileml.events.observed import Evaluated, StopDecided
from agileml.events.run import ClockDone, Warned
from agileml.events.schema import RunEvent
from agileml.runs.callbacks import Callback, Callbacks, EarlyStopping
from agileml.runs.folder import RunFolder
from agileml.runs.loggers.files import LOGGERS
from agileml.runs.loggers.services import TRACKERS
from agileml.runs.progress import Progress


def observers(config: JobConfig, job: Job, own: Sequence[Callback]) -> Callbacks:
    """The callbacks of a run. Raises ConfigError if the application does not measure the metric of early stopping,
    or a logger cannot begin."""
    found = [*own, *({**LOGGERS, **TRACKERS}[name]() for name in dict.fromkeys(config.log))]
    if (rule := config.early_stopping) is not None:
        _check_metric("early_stopping", rule.metric, job)
        found.append(EarlyStopping(rule.metric, rule.patience, rule.mode, rule.least_change))
    for callback in own:
        if type(callback) is EarlyStopping:  # by another metric it would never end the run
            _check_metric("early_stopping", callback.metric, job)
    return Callbacks(found, job.optimizer.rate_at)


def best_rule(config: JobConfig, job: Job) -> BestRule | None:
    """The rule that picks the best parameters; None if the config asks for none. Raises ConfigError as `observers`."""
    if config.keep_best is None:
        return None
    _check_metric("keep_best", config.keep_best.metric, job)
    return BestRule(config.keep_best.metric, config.keep_best.mode)


def _check_metric(section: str, metric: str, job: Job) -> None:
    if job.pipeline is not None:
        raise ConfigError(
            "found with a pipeline, expected none: no machine has the whole model while it trains",
            key=(section,),
        )
    if metric in job.metrics:
        return
    expected = (
        nearest(metric, job.metrics)
        if job.metrics
        else "expected an application that evaluates while it trains: a torch module with model.evaluate_every"
    )
    raise ConfigError(f"found {metric}, {expected}", key=(section, "metric"))


def observe(
    callbacks: Callbacks, config: JobConfig, folder: RunFolder, progress: Progress, stop_signal: StopSignal
) -> None:
    """Pass the run's events to the callbacks from now on, and end the run when one of them returns a reason."""

    def warn(sentence: str) -> None:
        folder.events.write(Warned(sentence))
        progress.say(sentence)

    def on_event(event: RunEvent) -> None:
        reason = callbacks.on_event(event)
        if reason is not None and not stop_signal.is_asked:
            stop_signal.ask()
            clock = event.clock if isinstance(event, ClockDone | Evaluated) else 0
            folder.events.write(StopDecided(clock, reason))
            progress.say(f"stops: {reason}")

    callbacks.warn = warn
    callbacks.start(folder.path, config.model_dump(mode="json"))
    folder.events.on_event, folder.events.on_line_lost = on_event, progress.say
