"""Machines as lanes: who was a member when, who was noticed, and how each one went."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from agileml.cli import app
from agileml.events.run import (
    ClockDone,
    MachineLost,
    MachineNoticed,
    MachineReleased,
    MachinesJoined,
    Process,
    RunStarted,
)
from agileml.events.schema import Logged, RunEvent
from agileml.events.terms import Loss, Tier
from agileml.runs.event_log import EVENTS, EventLog
from agileml.runs.report.picture import lanes_and_loss, lanes_of
from tests.agileml.runs.full_disk import files_of_at_most

STORY: list[tuple[float, RunEvent]] = [
    (0.0, RunStarted("job", {}, 0.0, Process("here", 7, 1.0))),
    (1.0, MachinesJoined({"m0": Tier.RELIABLE, "m1": Tier.TRANSIENT, "m2": Tier.TRANSIENT})),
    (2.0, ClockDone(1, 0.9, 8, None)),
    (3.0, MachineNoticed("m1", 5.0)),
    (4.0, MachineReleased("m1")),
    (4.5, MachineLost("m1", Loss.PROCESS_ENDED, "")),
    (5.0, MachineLost("m2", Loss.NODE_GONE, "")),
    (6.0, MachinesJoined({"m3": Tier.TRANSIENT})),
    (7.0, ClockDone(2, 0.5, 8, 5.0)),
    (8.0, MachineLost("m3", Loss.SILENT, "")),
    (9.0, MachinesJoined({"m3": Tier.TRANSIENT})),
]
LOG = [Logged(t_s, event) for t_s, event in STORY]


def test_each_machine_has_a_lane_with_its_end() -> None:
    found = {lane.machine: (lane.from_s, lane.to_s, lane.end, lane.marks) for lane in lanes_of(LOG)}
    assert found == {
        "m0": (1.0, None, "", []),
        "m1": (1.0, 4.0, "left", [(3.0, "notice")]),  # told once that it left; its end afterwards is no loss
        "m2": (1.0, 5.0, "node gone", []),
        "m3": (6.0, None, "", [(9.0, "back")]),
    }


def test_of_many_machines_the_newest_are_drawn() -> None:
    many = [Logged(float(n), MachinesJoined({f"m{n}": Tier.TRANSIENT})) for n in range(100)]
    assert [lane.machine for lane in lanes_of(many, 40)] == [f"m{n}" for n in range(60, 100)]


def test_the_picture_has_a_row_for_each_machine_and_the_loss_on_the_same_seconds() -> None:
    figure = lanes_and_loss(LOG)
    assert figure is not None
    above, below = figure.axes
    assert [label.get_text() for label in above.get_yticklabels()] == ["m0", "m1", "m2", "m3"]
    assert above.get_xlim() == below.get_xlim()
    (line,) = below.get_lines()
    assert list(line.get_xdata()) == [2.0, 7.0]
    texts = [text.get_text() for text in above.get_legend().get_texts()]
    assert texts == ["reliable", "transient", "preemption notice", "gone without leaving"]
    assert lanes_and_loss(LOG[:2]) is None


def test_the_command_draws_it_and_says_what_it_cannot(tmp_path: Path) -> None:
    log = EventLog(tmp_path / EVENTS)
    for t_s, event in STORY:
        log.write(event, t_s=t_s)
    log.close()
    for ending in ("svg", "png"):
        done = CliRunner().invoke(
            app, ["report", str(tmp_path), "--picture", str(tmp_path / f"lanes.{ending}")]
        )
        assert done.exit_code == 0, done.output
        assert (tmp_path / f"lanes.{ending}").stat().st_size > 1000
    again = (tmp_path / "lanes.svg").read_bytes()
    CliRunner().invoke(app, ["report", str(tmp_path), "--picture", str(tmp_path / "lanes.svg")])
    assert (tmp_path / "lanes.svg").read_bytes() == again  # the same events, the same file
    assert CliRunner().invoke(app, ["report", str(tmp_path), "--picture", "lanes.doc"]).exit_code == 2
    assert CliRunner().invoke(app, ["report", str(tmp_path / "no"), "--picture", "lanes.svg"]).exit_code == 2
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--picture", str(tmp_path / "no" / "lanes.svg")])
    assert (done.exit_code, "expected a new file in a folder" in done.output) == (2, True)
    with files_of_at_most(10):
        done = CliRunner().invoke(app, ["report", str(tmp_path), "--picture", str(tmp_path / "new.svg")])
    assert done.exit_code == 1
    assert "new.svg could not be written: File too large" in done.output
    assert not [path for path in tmp_path.iterdir() if "new.svg" in path.name]
