"""A live job on its market: its plan, cloud, trainer, clock and journal, and the state folded from the journal."""

from __future__ import annotations

from bidbrain.live.cloud import Cloud
from bidbrain.live.job import JobPlan, Log, Timekeeper, Trainer
from bidbrain.live.journal import Record
from bidbrain.live.state import JobState


class LiveJob:
    """The parts of a job that its service works with. Only `put` changes the state."""

    def __init__(self, plan: JobPlan, cloud: Cloud, trainer: Trainer, time: Timekeeper, journal: Log) -> None:
        self.plan = plan
        self.cloud = cloud
        self.trainer = trainer
        self.time = time
        self.state = JobState(plan.setting, journal.records)
        self._journal = journal

    def put(self, record: Record) -> None:
        """Journal a record, and apply it to the state."""
        self._journal.append(record)
        self.state.apply(record)
