"""Stages in the engine: bytes of each machine against the formulas, and trials that change no bit of the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agileml.application import Application, Array, Settings, Table, Unit, Updates
from agileml.core.controller.stage_chooser import arrangement_of
from agileml.core.protocol.inputs import Stop
from agileml.core.protocol.record import Record
from agileml.core.stage.auto_stage import TrialRule
from agileml.core.stage.traffic import ClockBytes, Volume, clock_bytes
from agileml.events.run import CutCommitted, MembershipChanged, StageJudged
from agileml.net.transport import Transport
from agileml.process.head import HeadState
from agileml.process.record_store import FileStore
from tests.agileml.process.engine_rig import Rig, reference
from tests.faults.fault_rig import FaultRig

ROWS, COLUMNS, CLOCKS = 500, 1000, 12
W = 4.0 * ROWS * COLUMNS


class Dense(Application):
    """Reads and updates all of 2 MB in each unit."""

    def __init__(self) -> None:
        super().__init__(Settings())

    def with_settings(self, settings: Settings) -> Dense:
        made = Dense()
        made.settings = settings
        return made

    def tables(self) -> Sequence[Table]:
        return (Table("parameters", ROWS, COLUMNS),)

    def load(self, slice_index: int) -> Any:
        return None

    def process(self, unit: Unit, items: Any, parameters: Mapping[str, Array]) -> Updates:
        return Updates({"parameters": np.full((ROWS, COLUMNS), 1e-3, np.float32)}, 0.0, 1)


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> dict[str, Transport]:
    """Every transport that a test makes, by name."""
    made: dict[str, Transport] = {}
    make = Transport.__init__

    def make_and_keep(self: Transport, name: str, **settings: Any) -> None:
        make(self, name, **settings)
        made[name] = self

    monkeypatch.setattr(Transport, "__init__", make_and_keep)
    return made


def tallied(transport: Transport) -> ClockBytes:
    """What the transport counted to and from other machines."""
    peers = transport.counters.peers
    others = [traffic for name, traffic in peers.items() if name != "controller"]
    return ClockBytes(sum(t.bytes_sent for t in others), sum(t.bytes_received for t in others))


@pytest.mark.parametrize(
    ("reliable", "transient", "stage", "fraction", "deterministic"),
    [
        (4, 0, 1, 0.5, False),
        (2, 2, 1, 0.5, False),
        (1, 3, 2, 1.0, False),
        (1, 3, 3, 0.5, False),
        (1, 3, 2, 1.0, True),
    ],
)
def test_machines_move_what_the_formulas_say(
    tmp_path: Path,
    transports: dict[str, Transport],
    reliable: int,
    transient: int,
    stage: int,
    fraction: float,
    deterministic: bool,
) -> None:
    values = {
        "application": "tests.agileml.test_stages_measured:Dense",
        "clocks": CLOCKS,
        "machines": {"reliable": reliable, "transient": transient, "max": 8},
        "slices": 8,
        "partitions": 12,
        "stage": stage,
        "active_fraction": fraction,
        "deterministic": deterministic,
        "cuts": {"every_s": 1e6, "max_clocks": 1 << 30},
    }
    rig = Rig(values, tmp_path, Dense())
    counted: dict[str, ClockBytes] = {}
    stop = rig.stop

    def count_and_stop() -> None:
        counted.update({name: tallied(transports[name]) for name in rig.machines})
        stop()

    rig.stop = count_and_stop  # type: ignore[method-assign]
    ran = rig.finish()
    assert ran.halted is None
    newest = FileStore(tmp_path / "records").newest()
    assert newest is not None
    view = Record.from_text(newest).view
    assert view is not None
    assert view.stage == stage
    roles = arrangement_of(rig.spec.job(Dense()), view).roles
    # Until a clock's length is known, cuts are a clock apart; parts of one that some owner missed are not counted.
    cuts = len(ran.of(CutCommitted))
    expected = clock_bytes(roles, Volume(CLOCKS * W, CLOCKS * W, cuts * W))
    for name, load in expected.items():
        assert counted[name].sent == pytest.approx(load.sent, rel=0.02, abs=W)
        assert counted[name].received == pytest.approx(load.received, rel=0.02, abs=W)


@pytest.mark.slow
def test_trials_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As eager as can be: another stage is tried whatever it promises."""
    eager = TrialRule(clocks=8, settle=1, try_gain=-99.0, worth=-1e12)
    monkeypatch.setattr("agileml.process.spec.TrialRule", lambda: eager)
    values = {
        "application": "mlr",
        "clocks": 1_000_000,
        "machines": {"reliable": 1, "transient": 2, "max": 4},
    }
    moves: list[StageJudged] = []

    def stop_when_judged(rig: FaultRig, state: HeadState) -> None:
        before = len(moves)
        moves.extend(each.event for each in state.events if isinstance(each.event, StageJudged))
        if before < 2 <= len(moves):
            rig.head.tell(Stop())

    ran = FaultRig(values, tmp_path, stop_when_judged).finish()
    assert moves[0].move == "try" and moves[1].move in ("keep", "take back")
    assert len({view.stage for view in ran.of(MembershipChanged)}) > 1
    assert ran.sha256 == reference({**values, "clocks": ran.of(CutCommitted)[-1].clock})


BYTES_PER_S = (
    5e6  # of a machine's way out, whoever it sends to; so few that computing hardly counts, on any host
)


@pytest.mark.slow  # it sleeps, and measures how long
def test_auto_finds_the_stage_that_the_links_like_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 + 3 machines, nearly nothing to compute: servers send 3 W, 2 W and 1.5 W in stages 1, 2 and 3."""
    send = Transport.send

    def send_slowly(
        self: Transport, name: str, header: bytes, arrays: Sequence[np.ndarray] = (), *, urgency: int = 0
    ) -> bool:
        time.sleep(sum(array.nbytes for array in arrays) / BYTES_PER_S)
        return send(self, name, header, arrays, urgency=urgency)

    monkeypatch.setattr(Transport, "send", send_slowly)
    trial_rule = TrialRule(worth=0.0)  # the run is short
    monkeypatch.setattr("agileml.process.spec.TrialRule", lambda: trial_rule)
    values = {
        "application": "tests.agileml.test_stages_measured:Dense",
        "clocks": 26,
        "machines": {"reliable": 1, "transient": 3, "max": 4},
        "slices": 4,
        "partitions": 4,
        "active_fraction": 0.5,
        "deterministic": False,
        "cuts": {"every_s": 1e6, "max_clocks": 1 << 30},
    }
    ran = Rig(values, tmp_path, Dense()).finish()
    assert ran.halted is None
    moves = ran.of(StageJudged)
    assert [(note.move, note.stage) for note in moves[:2]] == [("try", 3), ("keep", 3)], moves
    assert [view.stage for view in ran.of(MembershipChanged)] == [2, 3]
    assert moves[1].clock_s < 0.9 * moves[0].clock_s
