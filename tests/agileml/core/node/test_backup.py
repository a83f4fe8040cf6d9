"""The reliable copies: a part counts when the whole cut is committed."""

from __future__ import annotations

from agileml.core.node.backup import Backup
from agileml.core.protocol.messages import CONTROLLER, Cut, Part, PartAck, Stored
from agileml.core.protocol.view import INITIAL, CutId, View


def make():
    sent = []
    return Backup(lambda to, message: sent.append((to, message))), sent


def cut(clock):
    return Cut(clock, (), ())


def part(backup, clock, epoch=3, partition=0, committed=INITIAL):
    backup.part("owner", Part(epoch, partition, committed, cut(clock)))


def view(epoch, backup=("me",), committed=INITIAL):
    return View(epoch, 1, ("me",), ("me",), backup, (("me", 1),), ("",), 0, (), 1, committed)


def test_a_part_is_acknowledged_and_told_to_the_controller_but_not_yet_true():
    backup, sent = make()
    part(backup, 4)
    assert sent == [(CONTROLLER, Stored(3, 0, 4)), ("owner", PartAck(3, 0, 4))]
    assert backup.held() == ()
    backup.commit(CutId(4, 3))
    assert [p for p, _ in backup.held()] == [0]
    assert backup.cut(0).clock == 4


def test_a_part_of_an_aborted_cut_is_never_committed():
    backup, _ = make()
    part(backup, 4, epoch=2)
    backup.commit(CutId(4, 3))
    assert backup.held() == ()


def test_the_committed_cut_stays_until_the_next_one_is_whole():
    backup, _ = make()
    part(backup, 4)
    backup.commit(CutId(4, 3))
    part(backup, 8)
    assert backup.cut(0).clock == 4
    backup.commit(CutId(8, 3))
    assert backup.cut(0).clock == 8


def test_a_commit_that_was_missed_is_heard_of_with_the_next_part():
    backup, _ = make()
    part(backup, 4)
    part(backup, 8, committed=CutId(4, 3))
    assert backup.cut(0).clock == 4


def test_late_and_old_parts_change_nothing():
    backup, sent = make()
    part(backup, 8)
    part(backup, 4)
    assert backup.arrived(0).clock == 8
    backup.commit(CutId(8, 3))
    sent.clear()
    part(backup, 8)
    assert sent == [("owner", PartAck(3, 0, 8))]
    backup.commit(CutId(4, 3))
    assert backup.cut(0).clock == 8, "what is committed never goes back"


def test_stored_is_repeated_until_the_cut_is_committed():
    backup, sent = make()
    part(backup, 4)
    sent.clear()
    backup.resend()
    assert sent == [(CONTROLLER, Stored(3, 0, 4))]
    backup.commit(CutId(4, 3))
    sent.clear()
    backup.resend()
    assert sent == []


def test_a_late_view_keeps_parts_of_its_own_epoch_and_drops_others():
    backup, _ = make()
    part(backup, 4, epoch=5)
    backup.adopt(view(5), "me")
    assert backup.arrived(0) is not None
    backup.adopt(view(6), "me")
    assert backup.arrived(0) is None


def test_a_view_takes_what_was_staged_for_it_even_when_it_was_never_announced_here():
    for announced in (True, False):
        backup, _ = make()
        backup.commit(CutId(4, 3))
        backup.stage(5, 0, CutId(4, 3), cut(4))
        assert backup.held() == ()
        if announced:
            backup.adopt(view(5, committed=CutId(4, 3)), "me")
        else:
            backup.prepare(CutId(4, 3), 5)
        assert [p for p, _ in backup.held()] == [0]


def test_what_was_staged_for_a_view_that_was_never_written_is_dropped():
    backup, _ = make()
    backup.commit(CutId(4, 3))
    backup.stage(5, 0, CutId(4, 3), cut(4))
    backup.prepare(CutId(4, 3), 4)
    assert backup.held() == ()
    assert not backup.is_staged(5, 0)


def test_a_view_that_gives_the_partition_to_another_drops_it():
    backup, _ = make()
    part(backup, 4)
    backup.commit(CutId(4, 3))
    backup.adopt(view(5, backup=("other",)), "me")
    assert backup.held() == ()
