"""A supervised run that goes on in a new process says from which clock, whatever its supervisor took for the newest."""

from __future__ import annotations

import time
from pathlib import Path

from agileml.checkpoints.checkpoint import Manifest, write_manifest, write_part
from agileml.checkpoints.manifest import Identity
from agileml.checkpoints.store import FolderStore
from agileml.config.job import JobConfig, from_values
from agileml.core.protocol.view import CutId
from agileml.events.run import ClockDone, RunStarted
from agileml.process.spec import RunSpec
from agileml.runs.folder import RunFolder
from agileml.runs.owner import this_process
from agileml.runs.supervision import SUPERVISION, Restart, Supervision
from agileml.session.continued import checked_clock
from agileml.session.session import _Session
from tests.agileml.checkpoints.rig import cut_of


def saved(config: JobConfig, place: Path, *names: CutId) -> None:
    """Whole checkpoints of a run of this config."""
    spec = RunSpec("run", config)
    layout = spec.job(spec.build()).layout
    identity, store = Identity.of(config, layout.tables), FolderStore(place)
    for name in names:
        parts = [write_part(store, name, p, cut_of(name, p)) for p in range(layout.partitions)]
        write_manifest(store, Manifest(name, 1e9, identity, tuple(parts)))


def test_a_restart_whose_newest_checkpoint_is_damaged_counts_what_is_done_again(tmp_path: Path) -> None:
    """The supervisor looks at the sizes of files alone, and takes it for whole."""
    out, place = tmp_path / "run", tmp_path / "saved"
    data = {"kind": "blobs", "examples": 40, "features": 5, "classes": 3}
    config = from_values({"application": "mlr", "data": data, "clocks": 90, "partitions": 2, "out": str(out)})
    saved(config, place, CutId(30, 2), CutId(50, 3))
    part = place / "clock-50-3" / "part-1.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    folder = RunFolder.create(out, "run")
    folder.events.write(RunStarted("run", {}, time.time(), this_process()))
    folder.events.write(ClockDone(60, 0.1, 10, 0.1))
    folder.events.close()
    restart = Restart(1.0, "its process was ended by SIGKILL", 50)
    (out / SUPERVISION).write_text(Supervision(this_process(), 10, (restart,)).to_text())
    session = _Session(config, None, "run", place, overwrite=False, callbacks=(), restart=restart)
    assert session.continued is not None
    begun = session.continued.beginning_at(checked_clock(session.spec, session.job)).event(this_process())
    assert (begun.clock, begun.redone) == (30, 30)
