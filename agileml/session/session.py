"""One run from config to result: machines, controller, progress, run folder."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agileml.application import Application, Array, InputError
from agileml.cluster.tokens import authentication_as_before
from agileml.config.job import ConfigError, JobConfig, dump, from_values, load
from agileml.config.market import CloudMarketConfig
from agileml.core.parameters.loss_scale import LOSS_SCALE, LossScale
from agileml.core.protocol.job import Job
from agileml.core.sequential import Trained
from agileml.driver.best_model import BestModel
from agileml.driver.last_good import write_last_good
from agileml.driver.stop_signal import StopSignal
from agileml.errors import ControllerLostError, HeadLostError, RunError
from agileml.events.run import RunFinished, RunStarted, RunStopped
from agileml.market.protocol import BoughtFleet
from agileml.process.spec import RunSpec, variables_of
from agileml.runs.callbacks import Callback
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder, StorageError, check_out
from agileml.runs.loggers.files import BEGUN
from agileml.runs.model_file import params_sha256
from agileml.runs.owner import this_process
from agileml.runs.progress import Progress, Screen
from agileml.runs.report.page import build_report
from agileml.runs.summary import summarize
from agileml.runs.supervision import Restart
from agileml.session.beside import is_ray_taken, run_beside
from agileml.session.clouds import kind_of
from agileml.session.continued import Continued, checked_clock
from agileml.session.observers import best_rule, observe, observers
from agileml.session.one_process import REPLAY_KEY, OneProcess, Replay, check_verify, read_replay, train_again
from agileml.session.places import resume_place, return_to
from agileml.session.result import Result, versions
from agileml.session.resumption import Resumption
from agileml.session.user_errors import blame_user

if TYPE_CHECKING:
    from agileml.cluster.fleet import Fleet
    from agileml.market.setup import MarketSetup


def run(
    config: JobConfig | Mapping[str, Any] | str | Path,
    application: Application | None = None,
    *,
    sequential: bool = False,
    replay: str | Path | None = None,
    name: str | None = None,
    fleet: Fleet | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    restart: Restart | None = None,
    change_optimizer: bool = False,
    **overrides: Any,
) -> Result:
    """Train as a config says, on local Ray nodes or in the cluster that `address` names.

    config: a JobConfig, a mapping as a file would hold it, or the path of a file. overrides replace its top keys.
    application: an instance of the user's own, which gets the config's settings; None builds the one that it names.
    sequential: in this process, without Ray; the reference of a deterministic job. replay: with `sequential`, the
    folder of a run with supersteps or of a pipeline without a flush, whose log says what to compute.
    fleet: where machines come from; None: local Ray nodes, or the cluster at `address`.
    resume: a folder or s3://bucket/prefix with checkpoints: resume from the newest whole one.
    change_optimizer: with `resume`, the optimizer's rate, schedule and other settings, all but its kind, are those of
    the config, though the checkpoint was written with others.
    callbacks: objects whose methods are called as the run goes on, in this process.
    overwrite: the files of an earlier run in `out` may be replaced, unless that run still goes on.
    restart: the head of the run in `out` has died; go on with it, and with its log (see `session/supervisor.py`).

    Raises ConfigError, InputError, FolderError, ClusterError, CheckpointError (bad input), RunError, StorageError.
    """
    found = _resolved(config, overrides)
    if name is None:
        name = Path(config).stem if isinstance(config, str | Path) else "run"
    if is_ray_taken() and fleet is None and not sequential:
        options = {"resume": resume, "overwrite": overwrite, "change_optimizer": change_optimizer}
        return run_beside(found, application, callbacks, name=name, **options)
    with authentication_as_before():
        if found.address is not None and fleet is None and not sequential:
            from agileml.cluster.ray_cluster import reach

            reach(found.address)  # before an application loads its data
        if replay is not None and not sequential:
            raise ConfigError(f"found {REPLAY_KEY} without --sequential, expected both", key=("consistency",))
        session = _Session(
            found, application, name, resume, overwrite, callbacks, restart, change_optimizer=change_optimizer
        )
        return session.run(fleet, sequential=sequential, replay=replay)


def _resolved(config: JobConfig | Mapping[str, Any] | str | Path, overrides: Mapping[str, Any]) -> JobConfig:
    if isinstance(config, str | Path):
        return load(config, changes=overrides)
    values = config.model_dump(mode="json") if isinstance(config, JobConfig) else dict(config)
    return from_values({**values, **overrides})


class _Session:
    """One run. Everything is checked before the folder is made."""

    def __init__(
        self,
        config: JobConfig,
        application: Application | None,
        name: str,
        resume: str | Path | None,
        overwrite: bool,
        callbacks: Sequence[Callback],
        restart: Restart | None = None,
        *,
        change_optimizer: bool = False,
    ) -> None:
        self.config, self.name, self.overwrite = config, name, overwrite
        self.continued = None if restart is None else Continued.of(Path(config.out or "."), restart)
        self.market: BoughtFleet | None = None
        self.stop_signal = StopSignal()
        self.is_whole = True
        self.clock = 0  # of the result
        self.is_reference = False  # it is the sequential run itself
        self.replay: Replay | None = None  # whose log it follows
        self._slots: tuple[int, Sequence[dict[str, Array]]] | None = None  # clocks, optimizer state
        place = resume_place(resume, change_optimizer=change_optimizer, verify=config.verify)
        run = secrets.token_hex(6)
        self.setup = self._market_setup(run) if config.market is not None else None
        unit_s = self.setup.pacing.unit_s if self.setup is not None else 0.0
        self.spec = RunSpec(
            run,
            config,
            application,
            os.getcwd(),
            place,
            unit_s,
            may_change_optimizer=change_optimizer,
            hides_devices=not config.machines.gpus,
        )
        if self.continued is not None:
            self.spec = replace(
                self.spec, restarts=self.continued.count, least_epoch=self.continued.least_epoch
            )
        with blame_user("application"):
            self.application = self.spec.build()
        with blame_user("tables()"):
            self.spec = self.spec.settled(self.application).measured(self.application)
            self.config = config = self.spec.config
            self.job: Job = self.spec.job(self.application)
        with blame_user("check()"):
            self.application.check()
        self.observers = observers(config, self.job, callbacks)
        self.best_rule = best_rule(config, self.job)
        # For the record.
        self.config = self.config.model_copy(update={"partitions": self.job.layout.partitions})
        if self.continued is None:
            series = [name for logger in config.log for name in BEGUN[logger]]
            check_out(config.out, overwrite=overwrite, series=series)

    def _market_setup(self, run: str) -> MarketSetup:
        """Set BidBrain up; on a played market also ask for a first decision. Raises ConfigError."""
        from agileml.market.setup import first_decision, set_up

        before = None if self.continued is None else self.continued.market()
        setup = set_up(self.config, self.name, run, int(time.time()), before)
        if setup.is_played:
            with blame_user("decide() of the policy"):
                first_decision(setup)  # compile the policy's code before the clock runs
        return setup

    def run(self, fleet: Fleet | None, *, sequential: bool, replay: str | Path | None) -> Result:
        self.is_reference = sequential
        if sequential:
            if self.spec.resume is not None:
                raise ConfigError("found --resume with --sequential, expected one of them", key=("resume",))
            if self.config.profile:
                raise ConfigError("found true with --sequential, expected one of them", key=("profile",))
            if replay is not None:
                self.replay = read_replay(Path(replay), self.config)
            return self._finish_in(self._sequential)
        if self.spec.resume is not None and self.continued is None:
            check_verify(self.config)
        completed = checked_clock(self.spec, self.job)
        self.continued = self.continued and self.continued.beginning_at(completed)
        if self.config.model.get("device") == "cuda" and not self.config.machines.gpus:
            raise ConfigError(
                "found cuda with machines.gpus: 0, expected machines.gpus: 1, or model.device: auto: Ray hides the "
                "devices that a machine does not reserve",
                key=("model", "device"),
            )
        if fleet is None:
            from agileml.session.assembly import fleet_for

            fleet = fleet_for(self.spec, self.setup, completed)  # try an address before anything is made
        chosen = fleet
        with self.stop_signal:
            return self._finish_in(lambda folder, progress: self._elastic(chosen, folder, progress))

    def _finish_in(self, train: Any) -> Result:
        before = self.continued
        if before is None:
            folder = RunFolder.create(self.config.out, self.name, overwrite=self.overwrite)
        else:
            folder = RunFolder.reopen(before.folder)
        try:
            folder.write_config(dump(self.config))
            started_s = folder.events.now_s if before is None else 0.0
            if before is None:
                folder.events.write(RunStarted(self.name, versions(), time.time(), this_process()))
            else:
                folder.events.write(before.event(this_process()))
                self.observers.recall(before.evaluations)
                if self.best_rule is not None:
                    self.best_rule.best = before.best()
            with Progress(self.config.clocks) as progress, self.observers.reporting_failures():
                observe(self.observers, self.config, folder, progress, self.stop_signal)
                tables = train(folder, progress)
            return_to(self.spec.folder)
            folder.events.write(RunFinished(folder.events.now_s - started_s))
            with self.observers.reporting_failures():
                result = self._write(folder, tables)
            self.observers.end(result)
            return result
        finally:
            folder.events.close()
            self._keep(folder.path)

    def _keep(self, folder: Path) -> None:
        """Copy a run's folder from a cloud's head, which will be given back, whether the run failed or not."""
        if isinstance(self.config.market, CloudMarketConfig) and not self.is_reference:
            worked, sentence = kind_of(self.config.market).keep(folder)
            if sentence:
                to = sys.stdout if worked else Screen()
                print(f"kept {sentence}" if worked else f"proteus: {sentence}", file=to)

    def _write(self, folder: RunFolder, tables: dict[str, Array]) -> Result:
        digest = self._write_model(folder, tables)
        too_large = None if self._slots is None else self._write_optimizer(folder, tables)
        with blame_user("evaluate()"):
            metrics = {key: float(value) for key, value in self.application.evaluate(tables).items()}
        with blame_user("describe()"):
            split = dict(self.application.describe())
        if (best := self._best_model(folder)) is not None:
            best.measured(self.clock, metrics, lambda: tables)
        events = read_events(folder.events.path)
        code, verified = self._verified(digest, folder.events.path)
        summary = summarize(
            events, self.config, params_sha256=digest, metrics=metrics, split=split, versions=versions()
        )
        summary |= verified
        if self.job.loss_scale is not None:
            scale = LossScale.of(tables[LOSS_SCALE])
            summary |= {"loss_scale": scale.scale, "skipped_clocks": scale.skipped}
        if self.best_rule is not None:
            summary |= self.best_rule.summary()
        if self.market is not None:
            summary["market"] = self.market.summary()
            code = self.market.code or code
        folder.write_summary(summary)
        folder.write_report(build_report(dump(self.config), events, summary))
        if too_large is not None:
            raise too_large
        again = None
        if self.config.checkpoint is not None and not self.is_reference:
            again = Resumption(run, self.config, self.spec.application, self.name)
        return Result(
            tables, metrics, summary, folder.path, code, self.application, self.job.optimizer.rate_at, again
        )

    def _write_model(self, folder: RunFolder, tables: dict[str, Array]) -> str:
        """model.safetensors as the application has it, or the tables as they are where its code fails: they have cost
        the whole run. Returns their hash."""
        try:
            with blame_user("as_model()"):
                return folder.write_model(tables, self.application.as_model(tables))
        except (InputError, RunError):
            folder.write_model(tables)
            raise

    def _write_optimizer(self, folder: RunFolder, tables: dict[str, Array]) -> StorageError | None:
        """optimizer.pt, where the application knows how to write one. Returns the error of a disk that is too small."""
        assert self._slots is not None
        clocks, slots = self._slots[0], [tables] if self.job.is_resident else self._slots[1]
        with blame_user("optimizer_state()"):
            settings = self.config.optimizer.model_dump()
            factor = self.job.rate_after(clocks) / self.config.optimizer.learning_rate
            skipped = LossScale.of(tables[LOSS_SCALE]).skipped if self.job.loss_scale is not None else 0
            steps = clocks - skipped if self.job.elastic is None else clocks * self.job.units
            state = self.application.optimizer_state(slots, settings, steps, factor)
        try:
            if state is not None:
                folder.write_optimizer(state)
        except StorageError as error:
            return error
        return None

    def _verified(self, digest: str, log: Path) -> tuple[int, dict[str, Any]]:
        """Compare the parameters of a replay with those of its run; otherwise, if the config asks for it and the run
        was whole, with those of the same training in this process. Returns the exit code, and keys of the summary."""
        if self.replay is not None and self.replay.params_sha256 is not None:
            is_same = self.replay.params_sha256 == digest
            return 0 if is_same else 1, {"same_as_replayed": is_same}
        if not self.config.verify or self.is_reference or not self.is_whole:
            return 0, {}
        stop, stages = self.stop_signal, self.spec.stages
        with blame_user("training"):
            tables = train_again(self.application, self.job, self.config, stages, log, lambda: stop.is_asked)
        verdict = None if tables is None else params_sha256(tables) == digest
        return 1 if verdict is False else 0, {"same_as_sequential": verdict}

    def _sequential(self, folder: RunFolder, progress: Progress) -> dict[str, Array]:
        best = self._best_model(folder)
        here = OneProcess(
            self.application, self.job, folder, progress, lambda: self.stop_signal.is_asked, best
        )
        with blame_user("training"):
            trained = self._trained(here)
            self.clock = here.done
            self._slots = self.clock, trained.slots
            self.is_whole = self.clock == self.config.clocks
            if not self.is_whole:
                folder.events.write(RunStopped(self.clock))
            self.application.ended()
            return trained.tables

    def _trained(self, here: OneProcess) -> Trained:
        if self.job.elastic is not None:
            return here.take_steps(self.replay)
        if self.replay is None:
            return here.train()
        assert self.spec.stages is not None
        return here.follow_stages(self.replay.stages, self.spec.stages, self.replay.clocks)

    def _best_model(self, folder: RunFolder) -> BestModel | None:
        if self.best_rule is None:
            return None
        return BestModel(self.best_rule, folder, self.job.layout, self.application.as_model)

    def _whole_slots(self, parts: Sequence[Sequence[Sequence[Array]]]) -> list[dict[str, Array]]:
        layout = self.job.layout
        return [layout.whole_slot([part[slot] for part in parts]) for slot in range(self.job.optimizer.slots)]

    def _elastic(self, fleet: Fleet, folder: RunFolder, progress: Progress) -> dict[str, Array]:
        from agileml.cluster.owned_folder import owned
        from agileml.driver.actor_group import ActorGroup
        from agileml.driver.run_loop import RunLoop
        from agileml.driver.startup import Startup
        from agileml.process.run_transport import socket_folder

        with owned(socket_folder(self.spec.run)), fleet:
            if isinstance(fleet, BoughtFleet):
                self.market = fleet
                fleet.attach(folder)
            startup = Startup(self.config.machines.wait_s, self.stop_signal, progress.say)
            self.stop_signal.arm()
            runtime_env = fleet.runtime_env(variables_of(self.config))
            group = ActorGroup(self.spec, fleet.expected, runtime_env, startup, fleet.watch_head)
            try:
                best = self._best_model(folder)
                loop = RunLoop(self.config, fleet, group, folder, progress, self.stop_signal, startup, best)
                finished = loop.run()
                self.clock = finished.clock
                self.is_whole = finished.clock == self.config.clocks
                tables = self.job.layout.whole(group.result(finished))
                if type(self.application).optimizer_state is not Application.optimizer_state:
                    self._slots = finished.clock, self._whole_slots(group.slots(finished))
                if self.market is not None:
                    self.market.ended(finished.clock)
                group.stop()
                return tables
            except HeadLostError:
                raise
            except ControllerLostError:  # it alone knows the last good cut
                fleet.check_head()
                group.stop(timeout_s=0.2)
                raise
            except RunError as error:
                fleet.check_head()
                failure = write_last_good(
                    error, group, self.job.layout, folder, self.config, versions(), self.application.as_model
                )
                group.stop(timeout_s=0.2)
                raise failure from error
            except BaseException as error:
                if isinstance(error, Exception):
                    fleet.check_head()
                group.stop(timeout_s=0.2)  # an interrupted run ends without waiting
                raise


__all__: Sequence[str] = ["Result", "RunError", "run"]
