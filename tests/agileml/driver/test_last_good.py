"""A training that diverges ends with a sentence and the last cut that was good."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from agileml.application import Application, Array, Settings, Table, Unit, Update, Updates
from agileml.config.job import JobConfig, from_values
from agileml.core.node.shard.dirty_rows import is_finite
from agileml.core.parameters.layout import Layout
from agileml.core.protocol.commands import Finished, Halt, HaltKind
from agileml.core.protocol.messages import Cut
from agileml.driver.last_good import write_last_good
from agileml.errors import RunError
from agileml.events.observed import BestKept
from agileml.events.run import CutCommitted, RunFailed, RunStarted, Warned
from agileml.events.schema import events_of
from agileml.net.events import Address
from agileml.process.head import HeadState
from agileml.runs.event_log import read_events
from agileml.runs.folder import RunFolder
from agileml.runs.owner import this_process
from agileml.runs.status import State, read_status
from tests.agileml.process.engine_rig import Rig
from tests.agileml.runs.full_disk import files_of_at_most
from tests.agileml.runs.model_file import model_sha256
from tests.faults.fault_rig import FaultRig

TABLES = (Table("w", 3, 40, update=Update.STEP), Table("rows", 8, 2, sparse=True, update=Update.STEP))


class Diverges(Application):
    """Counts up; once it may, and from clock `at` on, the loss is not a number, or a parameter is not."""

    def __init__(self, settings: Settings, what: str, at: int, may: threading.Event) -> None:
        super().__init__(settings)
        self.what, self.at, self.may = what, at, may

    def with_settings(self, settings: Settings) -> Diverges:
        return Diverges(settings, self.what, self.at, self.may)

    def tables(self) -> tuple[Table, ...]:
        return TABLES

    def load(self, slice_index: int) -> int:
        return slice_index

    def reads(self, unit: Unit, items: int) -> Mapping[str, Array]:
        return {"rows": np.array([unit.slice % 8])}

    def process(self, unit: Unit, items: int, parameters: Mapping[str, Array]) -> Updates:
        bad = unit.clock >= self.at and unit.slice == 1 and self.may.is_set()
        one = np.ones((3, 40), np.float32)
        if bad and self.what == "parameter":
            one[2, 3] = np.inf
        rows = np.full((1, 2), np.nan if bad and self.what == "row" else 1, np.float32)
        return Updates({"w": one, "rows": rows}, float("nan") if bad and self.what == "loss" else 1.0, 1)


def config(**more: Any) -> JobConfig:
    values = {
        "application": "mlr",
        "clocks": 1_000_000,
        "deterministic": True,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
        "cuts": {"every_s": 0.001, "max_clocks": 2},
        "plan": [{"at_clock": 6, "join": 1}],
    }
    return from_values({**values, **more})


class Alive:
    """The machines of a rig, asked as those of a run are."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def state(self) -> HeadState:
        return self.rig.head.state()

    def result(self, finished: Finished) -> list[tuple[Array, ...]]:
        found = [self.rig.machines[b].final_blocks(p, finished.clock) for p, b in enumerate(finished.backup)]
        assert all(blocks is not None for blocks in found)
        return [blocks for blocks in found if blocks is not None]


SENTENCES = {
    "loss": r"clock \d+, slice 1, part 0: process\(\) returned a loss of nan",
    "parameter": "are not finite: the training diverged",
    "row": "are not finite: the training diverged",
}


@pytest.mark.parametrize("what", SENTENCES)
def test_the_last_good_cut_is_left(what: str, tmp_path: Path) -> None:
    has_cut = threading.Event()

    def watch(rig: FaultRig, state: HeadState) -> None:
        if any(isinstance(happened.event, CutCommitted) for happened in state.events):
            has_cut.set()

    rig = FaultRig(config().model_dump(), tmp_path, watch, Diverges(Settings(), what, 9, has_cut))
    ran = rig.finish()
    assert ran.halted is not None and re.search(SENTENCES[what], ran.halted.reason)
    kept = ran.halted.kept
    assert kept is not None and kept.clock > 0
    folder = RunFolder.create(tmp_path / "run", "test")
    folder.write_config("clocks: 40\n")
    folder.events.write(RunStarted("test", {}, 0.0, this_process()))
    layout = Layout(TABLES, config().partitions)
    versions = {"python": "3"}
    told = write_last_good(RunError(ran.halted.reason), Alive(rig), layout, folder, config(), versions)
    folder.events.close()
    assert str(told) == (
        f"{ran.halted.reason}; the last good cut, of clock {kept.clock}, is {folder.path / 'model.safetensors'}"
    )
    model = load_file(folder.path / "model.safetensors")
    assert (model["w"] == 4 * kept.clock).all()
    assert (model["rows"][:4] == kept.clock).all() and not model["rows"][4:].any()
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["failed"] == ran.halted.reason and summary["model_clock"] == kept.clock
    assert summary["params_sha256"] == model_sha256(folder.path / "model.safetensors")
    assert [failed.clock for failed in events_of(read_events(folder.events.path), RunFailed)] == [kept.clock]
    assert ran.halted.reason in (folder.path / "report.html").read_text().replace("&#39;", "'")
    assert read_status(folder.path).state is State.BROKEN


class Kept:
    """Machines whose last cut is that of clock 7."""

    def state(self) -> HeadState:
        halt = Halt(HaltKind.BROKEN, "it diverged", kept=Finished(7, ("m0",)))
        nowhere = Address("head", "", "", "", 0)
        return HeadState(nowhere, 0, (), 9, 9, 1, 1, 0, {}, {}, (), (), 0, None, None, halt)

    def result(self, finished: Finished) -> list[tuple[Array, ...]]:
        layout = Layout(TABLES, 1)
        return [layout.blocks({t.name: np.ones((t.rows, t.columns), t.dtype) for t in TABLES}, 0)]


def test_an_application_that_cannot_say_its_model_does_not_hide_why_a_run_failed(tmp_path: Path) -> None:
    def as_model(tables: Mapping[str, Array]) -> Mapping[str, Any]:
        return {"w": tables["weights"]}

    folder = RunFolder.create(tmp_path / "run", "test")
    told = write_last_good(RunError("it diverged"), Kept(), Layout(TABLES, 1), folder, config(), {}, as_model)
    folder.events.close()
    assert str(told).startswith("it diverged; the last good cut, of clock 7, is ")
    assert load_file(folder.path / "model.safetensors")["w"].shape == (3, 40)
    (warned,) = events_of(read_events(folder.events.path), Warned)
    assert warned.reason == "as_model(): KeyError: 'weights'; the tables are kept"


@pytest.mark.parametrize(("most_bytes", "file"), [(400, "model.safetensors"), (4000, "report.html")])
def test_a_full_disk_does_not_hide_why_a_run_failed(tmp_path: Path, most_bytes: int, file: str) -> None:
    folder = RunFolder.create(tmp_path / "run", "test")
    with files_of_at_most(most_bytes):
        told = write_last_good(RunError("it diverged"), Kept(), Layout(TABLES, 1), folder, config(), {})
    folder.events.close()
    assert str(told).startswith("it diverged; the last good cut, of clock 7, ")
    assert f"/{file} could not be written: " in str(told)
    assert (folder.path / "model.safetensors").exists() is (file != "model.safetensors")


@pytest.mark.parametrize("kept", [BestKept(5, "test_loss", 0.25), None])
def test_the_summary_of_a_run_that_failed_says_which_parameters_were_best(
    tmp_path: Path, kept: BestKept | None
) -> None:
    """They stay in best.safetensors: where a training diverged, they may be all that is of use."""
    folder = RunFolder.create(tmp_path / "run", "test")
    for event in (BestKept(3, "test_loss", 0.5), kept) if kept is not None else ():
        folder.events.write(event)
    job = config(keep_best={"metric": "test_loss"})
    write_last_good(RunError("it diverged"), Kept(), Layout(TABLES, 1), folder, job, {})
    folder.events.close()
    best = json.loads((folder.path / "summary.json").read_text())["best"]
    assert best == (None if kept is None else {"metric": "test_loss", "value": 0.25, "clock": 5})


def test_without_a_cut_there_is_only_the_sentence(tmp_path: Path) -> None:
    may = threading.Event()
    may.set()
    rig = Rig(config(plan=[]), tmp_path, Diverges(Settings(), "loss", 0, may))
    ran = rig.finish()
    assert ran.halted is not None and ran.halted.kept is None
    folder = RunFolder.create(tmp_path / "run", "test")
    error = RunError(ran.halted.reason)
    assert write_last_good(error, Alive(rig), Layout(TABLES, 4), folder, config(), {}) is error
    folder.events.close()
    assert not (folder.path / "model.safetensors").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 500_000, 999_999])
def test_one_number_that_is_none_is_found(value: float, place: int) -> None:
    block = np.full(1_000_000, 3e38, np.float32)  # the sum alone is infinite
    assert is_finite(Cut(1, (np.zeros((0, 2)), block), ()))
    block[place] = value
    assert not is_finite(Cut(1, (np.zeros((0, 2)), block), ()))
    assert not is_finite(Cut(1, (np.array([[1.0, value]]),), ()))


@given(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 3e38, np.nan, np.inf, -np.inf]), min_size=4, max_size=4),
    st.booleans(),
)
def test_what_may_be_infinite_or_was_looked_at_before_counts_as_found(
    may_be: list[bool], resident: list[bool], values: list[float], is_known: bool
) -> None:
    tables = [
        Table(f"t{number}", 1, 3, may_be_infinite=infinite, resident=there)
        for number, (infinite, there) in enumerate(zip(may_be, resident, strict=False))
    ]
    blocks = tuple(
        np.array([1.0, value, value], np.float32) for value, _ in zip(values, tables, strict=False)
    )
    expected = all(
        (table.resident and is_known)
        or bool((~np.isnan(block) if table.may_be_infinite else np.isfinite(block)).all())
        for table, block in zip(tables, blocks, strict=True)
    )
    assert is_finite(Cut(1, blocks, ()), tables, is_resident_finite=is_known) is expected
