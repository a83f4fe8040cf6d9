"""The user's own training loop, made elastic.

    trainer = agileml.Trainer("job.yaml")
    model, optimizer, loader = trainer.prepare(model, optimizer, dataset, batch_size=256)
    for batch in loader:
        loss = compute(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

The process that starts the run does not go through the loop: where the loop begins, it trains on machines, and goes on
after the loop with the trained model. Every machine runs the script up to the loop and goes through it with its share
of the batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from weakref import WeakSet

from agileml.application import Application, InputError
from agileml.apps.loop.module import ScriptModule
from agileml.apps.loop.prepared import Every, Prepared, prepared_from, with_evaluation
from agileml.apps.loop.script import current
from agileml.apps.loop.source import FunctionSource, ScriptSource
from agileml.apps.loop.steps import Loop, PassOverData, loop_of
from agileml.apps.loop.training import Training, application_of
from agileml.apps.torch.export import torch_state
from agileml.config.job import from_values
from agileml.config.text import ConfigError, Document
from agileml.runs.callbacks import Callback
from agileml.runs.folder import MODEL
from agileml.session.result import Result
from agileml.session.session import run

_trained = WeakSet[ModuleType]()  # scripts, as main modules, that have started a run


class Trainer:
    """A run of the user's own loop.

    config: the path of a YAML file, a mapping as a file would hold it, or None; settings replace its top keys.
    sequential, resume, change_optimizer, name, overwrite, callbacks: as `agileml.run` has them.

    Where a machine runs the script, its arguments do not count: the run has its config already.
    Raises ConfigError.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path | None = None,
        *,
        sequential: bool = False,
        resume: str | Path | None = None,
        change_optimizer: bool = False,
        name: str | None = None,
        overwrite: bool = False,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> None:
        self._result: Result | None = None
        self._machine = current()
        self._loop: Loop | StartingLoader | None = None
        self._options: dict[str, Any] = {
            "sequential": sequential,
            "resume": resume,
            "change_optimizer": change_optimizer,
            "overwrite": overwrite,
            "callbacks": callbacks,
        }
        if self._machine is None:
            is_file = isinstance(config, str | Path)
            self._name = name or (Path(str(config)).stem if is_file else "run")
            values = Document.read(Path(str(config))).values if is_file else config or {}
            assert isinstance(values, Mapping)
            self._values = {"application": "torch", **values, **settings}
            # The number of clocks may be known only with the data; all else that is wrong is told now.
            from_values({"clocks": 2**62, **self._values})

    def prepare(
        self,
        model: Any,
        optimizer: Any,
        dataset: Any,
        *,
        batch_size: int | None = None,
        schedule: Any = None,
        schedule_every: Every = "batch",
        clip_norm: float | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        scaler: Any = None,
    ) -> tuple[Any, Any, Any]:
        """(model, optimizer, loader) to train with: the same model and optimizer, and a loader of this machine's
        batches.

        optimizer: torch.optim.SGD, Adagrad, Adam or AdamW over all parameters of the model that need a gradient; any
        torch.optim.Optimizer where the config has `optimizer: {kind: torch}`.
        dataset: a torch Dataset with a length, or a tuple of arrays (input, ..., target). batch_size: items of a clock,
        over all machines together; None: `model.batch_size` of the config. schedule: of torch.optim.lr_scheduler over
        the optimizer; schedule_every: "batch" or "pass", how often the loop calls its step(). clip_norm: the norm that
        the gradient of all machines together is limited to. collate: a list of items -> a batch. scaler: a
        torch.amp.GradScaler that the loop uses as usual; its numbers hold for the clocks of all machines together.

        Raises InputError.
        """
        self._check_is_own("prepare()")
        self._check_is_first()
        default = self._machine.batch_size if self._machine is not None else self._in_config("batch_size")
        found = prepared_from(
            model,
            optimizer,
            dataset,
            default if batch_size is None else batch_size,
            schedule=schedule,
            schedule_every=schedule_every,
            clip_norm=clip_norm,
            collate=collate,
            scaler=scaler,
            is_resident=self._machine.is_resident if self._machine is not None else self._is_resident(),
        )
        if self._loop is not None:
            raise InputError("prepare(): found a second call, expected one model with one optimizer")
        self._loop = StartingLoader(self, found) if self._machine is None else loop_of(self._machine, found)
        return model, optimizer, self._loop

    def evaluate_on(
        self,
        test: Any,
        measure: Callable[[Any, Any], Mapping[str, Any]],
        *,
        every: int | Literal["pass"] = "pass",
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        """Evaluate while the loop trains: the machines share the items, all at the parameters that a clock began with.

        test: as `dataset` of `prepare`, which comes before. measure: from (model, batch), in eval mode and without
        gradients, to metrics by name, each the mean over the items of the batch or a pair of a sum and its weight.
        every: clocks, or "pass".

        Raises InputError.
        """
        if self._loop is None:
            raise InputError(
                "evaluate_on(): found no prepare() before it, expected the model that is evaluated"
            )
        self._loop.evaluate_on(lambda prepared: with_evaluation(prepared, test, measure, every, collate))

    def passes(self, count: int | None = None) -> Iterator[int]:
        """The numbers of the passes over the data, of which each goes once through the loader: for a loop around a
        loop.

        count: how many there are; None: as many as the clocks of the config hold.
        """
        if self._loop is None:
            raise InputError("passes(): found no prepare() before it, expected the data that passes go over")
        return self._loop.passes(count)

    @property
    def clock(self) -> int:
        """The clock of the present batch, from 0, the same on every machine: what a loop anneals goes by it. Behind the
        loop all clocks of the run. A counter of the loop's own is each machine's."""
        if self._loop is None:
            raise InputError(
                "trainer.clock: found no prepare() before it, expected the loop whose clocks count"
            )
        return self._loop.clock

    @property
    def result(self) -> Result | None:
        """Of the run, once it is over. Raises InputError behind a loop that was left early on a machine."""
        if self._machine is not None and self._machine.is_prepared:
            raise InputError(
                "trainer.result: the script left its loop before the run was over, expected a loop that ends when the "
                "loader does (early_stopping of the config ends a run earlier)"
            )
        return self._result

    def run(self, what: Callable[[], Any] | Training | type[Training]) -> Result:
        """Train by a function that makes a Trainer, prepares and loops, as a script does: for notebooks. Or by a class
        without a loop: an `agileml.Training`."""
        self._check_is_own("run()")
        if self._machine is not None:
            raise InputError(
                "run(): found it in a script that machines run as far as its loop, expected prepare() and the loop in "
                "the script itself, or the script as it is started by Python"
            )
        if isinstance(what, Training) or (isinstance(what, type) and issubclass(what, Training)):
            return self._run(application_of(what))
        return self._run(ScriptModule(source=FunctionSource(what)))

    def _check_is_own(self, call: str) -> None:
        """Raise InputError where a machine runs the function and this trainer was made outside of it: it would begin a
        run within the run."""
        if self._machine is None and current() is not None:
            raise InputError(
                f"{call}: found a Trainer that was made outside of the function that trains, expected the function to "
                "make its own: trainer = agileml.Trainer()"
            )

    def _check_is_first(self) -> None:
        """Raise InputError where the script has trained already: machines would run it to its first loop again."""
        if self._machine is None and sys.modules["__main__"] in _trained:
            raise InputError(
                "prepare(): found a second training in one script, expected one, as machines run a script from its "
                "first line to its first loop; for several, as a sweep over rates, give each as a function to "
                "agileml.Trainer(...).run(train)"
            )

    def _in_config(self, key: str) -> Any:
        section = self._values.get("model", {})
        return section.get(key) if isinstance(section, Mapping) else None

    def _is_resident(self) -> bool:
        section = self._values.get("optimizer")
        return isinstance(section, Mapping) and section.get("kind") == "torch"

    def _run(self, application: Application, **more: Any) -> Result:
        if hasattr(main := sys.modules["__main__"], "__file__"):  # a notebook's functions do not run anew
            _trained.add(main)
        self._result = run({**self._values, **more}, application, name=self._name, **self._options)
        return self._result


class StartingLoader(PassOverData):
    """The loader in the process that starts a run: iterating over it trains on the machines, and yields no batch."""

    def __init__(self, trainer: Trainer, prepared: Prepared) -> None:
        self._trainer, self._prepared = trainer, prepared

    @property
    def clock(self) -> int:
        """0 before the run, and all of its clocks behind it."""
        return 0 if self._trainer.result is None else int(self._trainer.result.summary["clocks"])

    def evaluate_on(self, add: Callable[[Prepared], Prepared]) -> None:
        """Add an evaluation to what was prepared. Raises InputError now, before a machine starts, if it cannot work."""
        self._prepared = add(self._prepared)

    def __iter__(self) -> Iterator[Any]:
        if "clocks" not in self._trainer._values:
            raise InputError(
                "loader: found a config without clocks, expected how many batches the loop goes through, as in "
                "agileml.Trainer(clocks=500), or `for number in trainer.passes(3):` around it"
            )
        self._train(None)
        return iter(())

    def passes(self, count: int | None) -> Iterator[int]:
        """Train on the machines; yields no number."""
        self._train(count)
        return iter(())

    def _train(self, passes: int | None) -> None:
        trainer = self._trainer
        if trainer.result is not None:
            raise InputError(
                "loader: found a second loop, expected one; for several passes write `for number in "
                "trainer.passes(3):` around it"
            )
        more = {}
        if passes is not None:
            more["clocks"] = passes * len(self)
            if (given := trainer._values.get("clocks", more["clocks"])) != more["clocks"]:
                raise ConfigError(
                    f"found {given}, but {passes} passes over the data take {more['clocks']}; expected one of them",
                    key=("clocks",),
                )
        here = self._prepared.data.train
        result = trainer._run(ScriptModule(source=_script(), is_shown=False, here=here), **more)
        # The file also has what was not trained, which machines made from the run's seed: it may be another here.
        model = self._prepared.model
        model.load_state_dict(torch_state(result.folder / MODEL, model))


def _script() -> ScriptSource:
    """The script that Python was started with. Raises InputError."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None:
        raise InputError(
            "loader: found no script that machines could run, expected one, or in a notebook a function: "
            "trainer.run(train)"
        )
    source = ScriptSource.read(path)
    package = getattr(main, "__package__", None) or ""  # of python -m
    return ScriptSource(source.text, source.path, tuple(sys.argv[1:]), package)
