"""Checkpoints of a running job: writes parts and manifests in the background, reads cuts that no machine has."""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable

from agileml.application import Application, Array, Update
from agileml.checkpoints import checkpoint
from agileml.checkpoints.errors import CheckpointError, NotThereError, StoreError
from agileml.checkpoints.manifest import Identity, Manifest, PartInfo, check_identity
from agileml.checkpoints.store import CheckpointStore
from agileml.core.compute.contract import initial_values
from agileml.core.cuts.checkpoint import Checkpoint, Unreadable
from agileml.core.protocol.commands import NodeEvent, PartSaved, SavePart, Seal
from agileml.core.protocol.inputs import Sealed, SealFailed
from agileml.core.protocol.job import Job
from agileml.core.protocol.messages import Cut, Saved, SaveFailed
from agileml.core.protocol.view import CutId
from agileml.process.spec import RunSpec


class MachineStores:
    """The sources of cuts that no other machine holds: the application's initial values and the checkpoints."""

    def __init__(self, spec: RunSpec, application: Application, job: Job) -> None:
        self._application = application
        self._job = job
        self._stores = spec.stores()
        self._initial: dict[str, Array] | None = None
        self.own = self._stores[0] if spec.config.checkpoint else None

    def initial(self, partition: int) -> tuple[Array, ...]:
        """The application's initial blocks of a partition; blocks of dense tables are copies."""
        layout = self._job.layout
        if self._initial is None:
            # An optimizer's state begins with zeros, of which a machine may need a part alone.
            asked = [table for table in layout.tables if table.update is not Update.NONE]
            self._initial = initial_values(self._application, asked, copied=False)
        blocks = layout.blocks(self._initial, partition)
        # A NumPy view would keep the whole table alive. Shards copy sparse tables anyway.
        return tuple(
            block if table.sparse or table.name not in self._initial else block.copy()
            for table, block in zip(layout.tables, blocks, strict=True)
        )

    def release(self) -> None:
        """Free the initial tables: a view is in force, and the machine no longer needs them."""
        self._initial = None
        self._application.started()

    def saved(self, name: CutId, partition: int) -> Cut:
        """A partition's part of a checkpoint. Raises CheckpointError."""
        for store in self._stores:
            if (manifest := checkpoint.find(store, name)) is not None:
                return checkpoint.read_part(store, manifest, partition)
        raise CheckpointError(f"the checkpoint of clock {name.clock} (epoch {name.epoch}) is gone")


def check_place(spec: RunSpec) -> None:
    """Check before a run starts that it can write checkpoints and that its place is unused. Raises CheckpointError."""
    if spec.config.checkpoint is None or spec.restarts:
        return  # after a restart the place is the run's own, and a full disk costs only checkpoints
    store = spec.stores()[0]
    store.probe()
    if spec.resume is None or len(spec.stores()) > 1:
        checkpoint.check_unused(store)


class PartWriter:
    """Writes parts of checkpoints, one after the other, in its own thread, which also calls `report`."""

    def __init__(self, store: CheckpointStore | None, report: Callable[[NodeEvent], None]) -> None:
        self._store = store
        self._report = report
        self._parts: queue.SimpleQueue[SavePart | None] = queue.SimpleQueue()
        self._full_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def ask(self, part: SavePart) -> None:
        """Queue a part."""
        self._parts.put(part)

    def fill_disk(self, seconds: float) -> None:
        """A planned fault: for `seconds` from now on, writing fails as on a full disk."""
        self._full_until_s = time.monotonic() + seconds

    def stop(self) -> None:
        """End the thread once it is idle."""
        self._parts.put(None)

    def _run(self) -> None:
        while (part := self._parts.get()) is not None:
            self._report(PartSaved(self._write(part)))

    def _write(self, part: SavePart) -> Saved | SaveFailed:
        assert self._store is not None, "parts are written only in runs with a place for checkpoints"
        if time.monotonic() < self._full_until_s:
            return SaveFailed(part.name, part.partition, os.strerror(errno.ENOSPC))
        try:
            try:
                info = checkpoint.write_part(self._store, part.name, part.partition, part.cut)
            except StoreError:
                if not self._made_room(part.name):
                    raise
                info = checkpoint.write_part(self._store, part.name, part.partition, part.cut)
        except Exception as error:  # the run waits for an answer, and goes on without this checkpoint
            return SaveFailed(part.name, part.partition, _sentence(error))
        return Saved(part.name, part.partition, info.bytes, info.sha256, part.cut.counted)

    def _made_room(self, name: CutId) -> bool:
        """Remove the parts of checkpoints that were given up before this one.

        What old ones leave goes when the next one is whole, which may never be if they take its room.
        """
        assert self._store is not None
        try:
            return checkpoint.drop_unfinished(self._store, name)
        except StoreError:
            return False


class ManifestWriter:
    """Writes manifests and removes old checkpoints in the background, for the head."""

    def __init__(
        self,
        spec: RunSpec,
        identity: Identity,
        report: Callable[[Sealed | SealFailed], None],
        warn: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._identity = identity
        self._report = report
        self._warn = warn
        self._threads: list[threading.Thread] = []
        self._warned = ""  # the last reported reason why old checkpoints stay

    def ask(self, seal: Seal) -> None:
        """Start to write the manifest of a checkpoint."""
        thread = threading.Thread(target=self._seal, args=(seal,), name="seal", daemon=True)
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), thread]
        thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for running threads: the last manifest may be written while old checkpoints are still being removed."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _seal(self, seal: Seal) -> None:
        assert self._spec.config.checkpoint is not None
        parts = tuple(PartInfo(part.partition, part.size_bytes, part.sha256) for part in seal.parts)
        try:
            store = self._spec.stores()[0]
            checkpoint.write_manifest(store, Manifest(seal.name, time.time(), self._identity, parts))
        except Exception as error:  # the end of the run waits for an answer
            self._report(SealFailed(seal.name, _sentence(error)))
            return
        self._report(Sealed(seal.name))
        stays = ""
        try:
            checkpoint.prune(store, self._spec.config.checkpoint.keep)
        except Exception as error:  # the next checkpoint tries again
            stays = f"old files of checkpoints stay: {_sentence(error)}"
        if stays and stays != self._warned:  # without a right, each time: once a minute, for weeks
            self._warn(stays)
        self._warned = stays


def _sentence(error: Exception) -> str:
    """The text of an error; unexpected ones with the name of their class."""
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def resumed(spec: RunSpec, job: Job, identity: Identity, report: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint at the place that `resume` names; None when the run starts anew.

    Raises StoreError: there is none, or the place cannot be read. CheckpointError: it belongs to another run, or its
    clock is beyond the end of this run.
    """
    if spec.resume is None:
        _check_start(spec, report)
        return None
    store = spec.stores()[-1]
    manifest = checkpoint.newest(store, report, checkpoint.Check.CHECKSUMS)
    if manifest is None:
        raise NotThereError(f"{store.where} holds no whole checkpoint, expected one to resume from")
    if problems := check_identity(manifest, identity, may_change_optimizer=spec.may_change_optimizer):
        raise CheckpointError("; ".join(problems))
    if manifest.name.clock > job.clocks:
        raise CheckpointError(
            f"{store.where} is at clock {manifest.name.clock}, expected at most clocks = {job.clocks}"
        )
    return _checkpoint(store, manifest, job)


def _check_start(spec: RunSpec, report: Callable[[str], None]) -> None:
    """Check that a run which begins again at its start has no checkpoint. Raises StoreError.

    The supervisor may have looked before the folder was mounted, and seen none; after this error it looks again.
    """
    if not spec.restarts or spec.config.checkpoint is None:
        return
    store = spec.stores()[0]
    if (manifest := checkpoint.newest(store, report)) is not None:
        raise StoreError(
            f"{store.where} holds a checkpoint of clock {manifest.name.clock}, expected none: the run had found none "
            "when it began again"
        )


def saved_before(
    spec: RunSpec, job: Job, identity: Identity, report: Callable[[str], None]
) -> Checkpoint | Unreadable | None:
    """The newest whole checkpoint for a restarted controller: of this run, or the one that it resumed from.

    This does not verify checksums; reading a part does. If a place cannot be read, `report` gets the reason as well.
    """
    try:
        for store in spec.stores():
            manifest = checkpoint.newest(store, report, checkpoint.Check.SIZES)
            if manifest is not None and not check_identity(
                manifest, identity, may_change_optimizer=spec.may_change_optimizer
            ):
                return _checkpoint(store, manifest, job)
    except CheckpointError as error:
        report(f"the new controller knows of no checkpoint: {error}")
        return Unreadable(str(error))
    return None


def _checkpoint(store: CheckpointStore, manifest: Manifest, job: Job) -> Checkpoint:
    partitions = range(job.layout.partitions)
    if job.consistency.applies_on_arrival:
        counted = tuple(checkpoint.read_part(store, manifest, p).counted for p in partitions)
    else:
        counted = ((),) * len(partitions)
    return Checkpoint(manifest.name, counted)


def highest_epoch(spec: RunSpec) -> int:
    """The highest epoch in the name of any checkpoint, or before a restart; this run uses higher ones."""
    return max([spec.least_epoch, *(checkpoint.last_epoch(store) for store in spec.stores())])
