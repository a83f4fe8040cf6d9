"""The controller as short scripts: one that could not read the checkpoints when it began."""

from __future__ import annotations

from agileml.core.cuts.checkpoint import Unreadable
from agileml.core.protocol.commands import HaltKind
from agileml.core.protocol.inputs import NodeDown, Received, Sealed
from agileml.core.protocol.messages import Save, Saved
from agileml.core.stage.placement import StageRule
from agileml.events.terms import Loss
from tests.agileml.core.fixtures import scripts as scripts

IN_STAGE_1 = {"rule": StageRule(forced=1), "restart_wait_s": 1.0}
WHY = "/mnt/saved could not be read: Stale file handle"


def make_restarted(scripts, **settings):
    """A run of two owners with a committed cut, whose new controller could not read the checkpoints."""
    script = scripts(**IN_STAGE_1, **settings)
    script.up("r0", "r1", "t1")
    script.commit_cut()
    script.saved = Unreadable(WHY)
    script.restart()
    script.wait(3.0)
    assert not script.halts and script.view.members == ("r0", "r1", "t1")
    return script


def test_a_run_does_not_begin_anew_while_it_may_have_a_checkpoint(scripts):
    script = make_restarted(scripts)
    script.tell(NodeDown("r1", Loss.NODE_GONE))
    (halt,) = script.halts
    assert halt.kind is HaltKind.UNREAD
    assert halt.reason.endswith(WHY) and "would begin at its start" in halt.reason


def test_what_needs_no_checkpoint_goes_on(scripts):
    script = make_restarted(scripts)
    script.tell(NodeDown("t1", Loss.NODE_GONE))
    script.wait(1.0)
    assert not script.halts and script.view.members == ("r0", "r1")


def test_a_later_checkpoint_is_known(scripts):
    script = make_restarted(scripts, checkpoint_every_s=1.0)
    script.wait(2.0)
    name = script.told("r0", Save)[-1].cut
    for partition in (0, 1):
        script.tell(Received(script.view.backup[partition], Saved(name, partition, 1, "0", ())))
    script.tell(Sealed(name))
    script.tell(NodeDown("r1", Loss.NODE_GONE))
    script.wait(1.0)
    assert not script.halts
    assert (script.view.base, script.view.members) == (name.clock, ("r0", "t1"))


def test_the_first_view_does_not_begin_anew_either(scripts):
    """The controller before died after its first record, and the run may be one that resumes."""
    script = scripts(**IN_STAGE_1)
    script.is_store_open = False
    script.up("r0", "t1")
    script.is_store_open = True
    script.freeze("r0")
    script.write()
    script.saved = Unreadable(WHY)
    script.restart()
    script.wake("r0")
    script.wait(2.0)
    (halt,) = script.halts
    assert halt.kind is HaltKind.UNREAD and script.controller.view is None
