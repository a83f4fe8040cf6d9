"""Clocks are noted once, in order, and the log never stands still."""

from __future__ import annotations

from agileml.core.controller.progress_log import ProgressLog
from agileml.core.protocol.messages import ClockReport
from agileml.events.run import ClockDone


def entries(*clocks):
    return [ClockReport(clock, 2.0, 4, 10.0 + 0.5 * clock) for clock in clocks]


def clocks(notes):
    return [event.clock for event, _ in notes]


def test_each_clock_is_noted_once_though_it_is_reported_again():
    log = ProgressLog(0)
    assert clocks(log.add(entries(0, 1, 2))) == [1, 2, 3]
    assert clocks(log.add(entries(1, 2, 3))) == [4]
    assert clocks(log.add(entries(0, 1))) == []
    assert log.completed == 4


def test_it_knows_how_long_a_clock_takes():
    log = ProgressLog(0)
    notes = list(log.add(entries(*range(10))))
    assert notes[0][0].seconds is None
    assert notes[1] == (ClockDone(clock=2, loss=0.5, examples=4, seconds=0.5), 10.5)
    assert log.clock_s == 0.5


def test_after_a_restart_the_first_report_says_where_training_is():
    assert clocks(ProgressLog(None).add(entries(7, 8))) == [8, 9]


def test_clocks_that_are_done_again_are_noted_again():
    log = ProgressLog(0)
    list(log.add(entries(*range(6))))
    assert log.roll_back(known=6, base=4) == 2
    assert clocks(log.add(entries(4, 5, 6))) == [5, 6, 7]


def test_clocks_that_another_controller_was_told_of_are_not_waited_for():
    log = ProgressLog(0)
    list(log.add(entries(0, 1)))
    assert clocks(log.add(entries(5, 6))) == [6, 7]
    assert log.completed == 7


def test_what_another_controller_was_told_is_not_waited_for():
    log = ProgressLog(None)
    log.none_left(5)
    assert log.completed is None  # nothing is known yet, so nothing is missing
    list(log.add([ClockReport(1, 1.0, 1, 2.0)]))
    assert log.completed == 2
    log.none_left(5)
    assert log.completed == 5
    log.none_left(3)
    assert log.completed == 5


def test_it_counts_the_reports_that_any_controller_has():
    log = ProgressLog(None)
    assert log.reported == 0
    log.none_left(5)
    assert log.reported == 5
    list(log.add(entries(5, 6)))
    assert log.reported == 7
    log.roll_back(known=7, base=4)
    assert log.reported == 4
