"""Callbacks: what they hear, when they end a run, and what one that fails costs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agileml.application import InputError
from agileml.events.observed import Evaluated
from agileml.events.run import ClockDone, Process, RunRestarted, RunStopped
from agileml.events.schema import Logged
from agileml.runs.callbacks import Callback, Callbacks, EarlyStopping
from agileml.runs.history import ClockRow, history


def rate(clock: int) -> float:
    return 0.1 / (clock + 1)


def stops_at(values: list[float], **options: object) -> tuple[int, str] | None:
    """The evaluation (from 1) at which early stopping ends a run with these values, and why."""
    rule = EarlyStopping("error", **options)  # type: ignore[arg-type]
    for clock, value in enumerate(values, 1):
        if (reason := rule.on_evaluate(clock, {"error": value})) is not None:
            return clock, reason
    return None


def test_early_stopping_waits_for_an_improvement() -> None:
    found = stops_at([5, 4, 4.5, 4.2, 4.1, 3], patience=3)
    assert found == (5, "error has not improved on 4 of clock 2 for 3 evaluations")
    assert stops_at([5, 4, 4.5, 4.2, 3, 3.5, 3.5], patience=3) is None
    assert stops_at([0.5, 0.6, 0.55], patience=1, mode="max") == (
        3,
        "error has not improved on 0.6 of clock 2 for 1 evaluations",
    )
    assert stops_at([5, 4.95, 4.9], patience=2, least_change=0.2) is not None
    assert stops_at([float("nan"), float("nan")], patience=2) is not None


def test_early_stopping_knows_two_modes() -> None:
    with pytest.raises(InputError, match="found mode='minimum', expected min or max"):
        EarlyStopping("error", mode="minimum")


def test_clocks_that_are_done_again_are_no_missing_improvement() -> None:
    rule = EarlyStopping("error", patience=2)
    assert rule.on_evaluate(10, {"error": 1.0}) is None
    for clock in (6, 8, 10):  # after a rollback to before the best
        assert rule.on_evaluate(clock, {"error": 2.0}) is None


@given(st.lists(st.integers(1, 12), max_size=6), st.integers(1, 5))
def test_rollbacks_do_not_end_a_run_sooner(back: list[int], patience: int) -> None:
    """After a rollback the evaluations since then come again, with the same values."""
    values = [5.0, 4.0, *(4.0 + number for number in range(1, 13))]
    undisturbed = stops_at(values, patience=patience)
    rule, clock, rollbacks = EarlyStopping("error", patience=patience), 1, list(back)
    while (reason := rule.on_evaluate(clock, {"error": values[clock - 1]})) is None:
        clock += 1
        if rollbacks and clock > 2:
            clock = max(1, clock - rollbacks.pop())
    assert (clock, reason) == undisturbed


def test_an_evaluation_without_the_metric_is_not_judged() -> None:
    rule = EarlyStopping("error", patience=2, mode="max")
    assert [rule.on_evaluate(clock, {"test_loss": 1.0}) for clock in range(1, 9)] == [None] * 8
    assert rule.on_evaluate(9, {"error": 0.5}) is None
    assert [rule.on_evaluate(10 + n, {"error": 0.4}) is None for n in range(2)] == [True, False]


class Deaf(Callback):
    """Fails at its second clock."""

    def __init__(self) -> None:
        self.rows: list[ClockRow] = []

    def on_clock(self, row: ClockRow) -> None:
        self.rows.append(row)
        if len(self.rows) == 2:
            raise OSError("no space")


class Strict(Callback):
    def on_clock(self, row: ClockRow) -> str | None:
        return "enough" if row.clock == 3 else None

    def on_evaluate(self, clock: int, metrics: Mapping[str, float]) -> str | None:
        return "bad" if metrics["error"] > 1 else None


def test_one_that_fails_is_called_no_more_and_the_others_are() -> None:
    deaf, warned = Deaf(), list[str]()
    callbacks = Callbacks([deaf, Strict()], rate, warned.append)
    found = [callbacks.on_event(ClockDone(clock, 0.5, 10, 0.1)) for clock in (1, 2, 3)]
    assert found == [None, None, "enough"]
    assert len(deaf.rows) == 2
    assert len(warned) == 1 and warned[0].startswith("the callback Deaf is called no more: OSError: no space")
    assert callbacks.on_event(Evaluated(3, {"error": 2.0})) == "bad"
    assert deaf.rows[1] == ClockRow(2, 0.5, 10, 0.1, 100.0, 0.05, 1)


class Away(Callback):
    """Of a service that does not answer, whose library says its address."""

    def on_clock(self, row: ClockRow) -> None:
        raise ConnectionError(
            "https://me:word@mlflow/api: retries exceeded with url: /api?token=abc (closed)"
        )


def test_a_service_that_does_not_answer_is_told_without_its_password() -> None:
    warned: list[str] = []
    Callbacks([Away()], rate, warned.append).on_event(ClockDone(1, 0.5, 10, 0.1))
    assert "https://...@mlflow/api: retries exceeded with url: /api?... (closed)" in warned[0]


class Talking(Callback):
    """Returns what it was told to."""

    def __init__(self, answer: object) -> None:
        self.answer, self.clocks = answer, list[int]()

    def on_start(self, folder: Path, config: Mapping[str, Any]) -> Any:
        return self

    def on_clock(self, row: ClockRow) -> Any:
        self.clocks.append(row.clock)
        return self.answer


@pytest.mark.parametrize("answer", [0.5, 0, [], {"loss": 1.0}, object()])
def test_what_is_no_sentence_ends_no_run(answer: object) -> None:
    talking, warned = Talking(answer), list[str]()
    callbacks = Callbacks([talking], rate, warned.append)
    callbacks.start(Path(), {})
    assert [callbacks.on_event(ClockDone(clock, 0.5, 10, 0.1)) for clock in (1, 2)] == [None, None]
    assert talking.clocks == [1]
    assert len(warned) == 1
    assert warned[0].startswith("the callback Talking is called no more: it returned ")


def test_true_ends_a_run_and_false_does_not() -> None:
    said = Callbacks([Talking(True)], rate).on_event(ClockDone(1, 0.5, 10, 0.1))
    assert said == "the callback Talking returned True"
    for answer in (False, None, ""):
        assert Callbacks([Talking(answer)], rate).on_event(ClockDone(1, 0.5, 10, 0.1)) is None


def test_history_keeps_the_last_of_each_clock() -> None:
    events = [
        ClockDone(1, 5.0, 8, None),
        ClockDone(2, 4.0, 8, 0.5),
        Evaluated(1, {"error": 0.5}),
        ClockDone(2, 3.0, 8, 0.25),
        Evaluated(2, {"error": 0.25}),
    ]
    rows = history([Logged(0.0, event) for event in events], rate)
    assert [row["clock"] for row in rows] == [1, 2]
    assert rows[0]["items_per_s"] is None and rows[0]["error"] == 0.5
    assert (rows[1]["loss"], rows[1]["items_per_s"], rows[1]["learning_rate"]) == (3.0, 32.0, 0.05)


def test_history_ends_with_the_cut_that_a_stopped_run_ended_with() -> None:
    done = [Logged(float(clock), ClockDone(clock, 1 / clock, 8, 1.0)) for clock in range(1, 8)]
    log = [*done, Logged(8.0, Evaluated(7, {"error": 0.5})), Logged(9.0, RunStopped(5))]
    assert [row["clock"] for row in history(log, rate)] == [1, 2, 3, 4, 5]
    goes_on = Logged(10.0, RunRestarted("its process ended", 5, 2, 1, Process("here", 1, 0.0)))
    again = [Logged(10.0 + clock, ClockDone(clock, 1 / clock, 8, 1.0)) for clock in (6, 7)]
    assert [row["clock"] for row in history([*log, goes_on, *again], rate)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_metric_of_the_name_of_a_series_stands_beside_it() -> None:
    events = [ClockDone(1, 5.0, 8, None), Evaluated(1, {"loss": 0.5, "clock": 7.0, "error": 0.25})]
    (row,) = history([Logged(0.0, event) for event in events], rate)
    assert (row["clock"], row["loss"], row["error"]) == (1, 5.0, 0.25)
    assert (row["evaluation/loss"], row["evaluation/clock"]) == (0.5, 7.0)
