"""Every event comes back from its line as it was; a line that is no event of this version is one clear sentence."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agileml.events.run import (
    CheckpointSaved,
    ClockDone,
    MachineLost,
    MachinesJoined,
    MembershipChanged,
    StagesArranged,
)
from agileml.events.schema import (
    KINDS,
    VERSION,
    Logged,
    RunEvent,
    SchemaError,
    check_header,
    events_of,
    from_line,
    header,
    of_type,
    table,
    to_line,
)
from agileml.events.terms import Cause, Loss, Tier, Trigger
from agileml.runs.event_log import EventLog, read_events
from tests.agileml.events.samples import changed

PAGE = Path(__file__).resolve().parents[3] / "docs" / "events.md"
finite = st.floats(allow_nan=False, allow_infinity=False)
st.register_type_strategy(float, finite)


@settings(deadline=None, derandomize=True, max_examples=12)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@given(data=st.data())
def test_an_event_comes_back_as_it_was(kind: type[RunEvent], data: st.DataObject) -> None:
    event = data.draw(st.from_type(kind))
    line = to_line(Logged(1.5, event))
    assert "\n" not in line
    assert from_line(line) == Logged(1.5, event)


def test_no_two_classes_share_a_kind() -> None:
    assert len(set(KINDS.values())) == len(KINDS)
    assert all(kind == each.kind for kind, each in KINDS.items())


def test_a_number_that_is_not_finite_is_null_in_the_log() -> None:
    line = to_line(Logged(0.0, ClockDone(1, math.inf, 24, None)))
    assert json.loads(line) == {
        "t_s": 0.0, "kind": "clock", "clock": 1, "loss": None, "examples": 24, "seconds": None,
    }  # fmt: skip
    done = from_line(line).event
    assert isinstance(done, ClockDone)
    assert math.isnan(done.loss)
    assert done.seconds is None


def test_events_are_found_by_their_class() -> None:
    log = [
        Logged(1.0, MachinesJoined({"m0": Tier.RELIABLE})),
        Logged(2.0, MachineLost("m0", Loss.SILENT, "for 1 s")),
        Logged(3.0, CheckpointSaved(7)),
        Logged(4.0, CheckpointSaved(9)),
    ]
    assert events_of(log, CheckpointSaved) == [CheckpointSaved(7), CheckpointSaved(9)]
    assert [each.t_s for each in of_type(log, MachineLost)] == [2.0]


CHANGE = json.loads(to_line(Logged(0.5, changed(1, Trigger(Cause.JOIN, ("m1",)), owners=("m0",)))))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "vieuw"}, f'found kind "vieuw", expected an event of version {VERSION}'),
        ({"kind": None}, f"found kind null, expected an event of version {VERSION}"),
        ({"t_s": "soon"}, 't_s: found "soon", expected a number'),
        ({"epoch": 1.5}, "change: epoch: found 1.5, expected a whole number"),
        ({"epoch": True}, "change: epoch: found true, expected a whole number"),
        ({"rolled_back": 0}, "change: rolled_back: found 0, expected true or false"),
        ({"seconds": False}, "change: seconds: found false, expected a number"),
        ({"owners": "m0"}, 'change: owners: found "m0", expected a list of text'),
        ({"owners": [3]}, "change: owners: found 3, expected text"),
        (
            {"trigger": {**CHANGE["trigger"], "cause": "whim"}},
            'change: trigger.cause: found "whim", expected "start" | "restart',
        ),
        ({"trigger": "join"}, 'change: trigger: found "join", expected an object with cause, machines, why'),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_is_a_sentence(change: dict[str, object], sentence: str) -> None:
    assert isinstance(from_line(json.dumps(CHANGE)).event, MembershipChanged)
    with pytest.raises(SchemaError, match=re.escape(sentence)):
        from_line(json.dumps({**CHANGE, **change}))


@pytest.mark.parametrize("name", CHANGE)
def test_a_field_that_is_missing_or_too_many_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match=r"expected (an object with epoch|an event of|a number)"):
        from_line(json.dumps({key: value for key, value in CHANGE.items() if key != name}))
    with pytest.raises(SchemaError, match="expected an object with epoch, trigger"):
        from_line(json.dumps({**CHANGE, f"more_{name}": 1}))


def test_a_field_that_was_added_later_may_be_missing_in_an_older_log() -> None:
    line = '{"t_s": 1.0, "kind": "stages", "epoch": 1, "clock": 0, "ends": [2, 4]}'
    assert from_line(line).event == StagesArranged(1, 0, (2, 4), overlapping=())
    with pytest.raises(SchemaError, match="expected an object with epoch, clock, ends, overlapping"):
        from_line(line.replace('"clock": 0, ', ""))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"t_s": 0.0, "kind": "run_started"}', f"found no version, expected a log of version {VERSION}"),
        ('{"log": "proteus run", "version": 99}', f"found 99, expected a log of version {VERSION}"),
        ("[1]", "found '[1]', expected an object"),
        ("no JSON", "found 'no JSON', expected JSON"),
    ],
)
def test_a_log_of_another_version_is_refused(line: str, sentence: str) -> None:
    check_header(header())
    with pytest.raises(SchemaError, match=re.escape(sentence)):
        check_header(line)


def test_the_sentence_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.write(CheckpointSaved(1))
    log.close()
    with path.open("a") as file:
        file.write('{"t_s": 2, "kind": "checkpoint", "clock": "two"}\n')
    with pytest.raises(SchemaError) as refused:
        read_events(path)
    assert str(refused.value) == f'{path}, line 3: checkpoint: clock: found "two", expected a whole number'


def test_the_room_needs_no_library() -> None:
    heavy = "ray torch zmq boto3 numpy scipy numba pydantic"
    script = f"import sys, agileml.events.schema; sys.exit(sorted(sys.modules.keys() & set('{heavy}'.split())) or 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_has_the_table_of_the_classes() -> None:
    """python -c 'from agileml.events.schema import table; print(table())' prints it."""
    assert table() in PAGE.read_text()
