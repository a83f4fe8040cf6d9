"""A link that swallows everything, by network namespaces: no second brain, and everybody back after it heals.

Two of three transient machines are in a namespace of their own and reach each other whatever happens, so they could go
on by themselves: they hold parameters and have all the work of stage 3 that is left to them.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agileml.core.protocol.inputs import NodeUp
from agileml.events.run import ClockDone, MembershipChanged
from agileml.events.terms import Tier
from agileml.process.head import HeadState
from tests.agileml.process.engine_rig import reference
from tests.faults.fault_rig import MLR, FaultRig, job

pytestmark = pytest.mark.slow

SPACE, NEAR_LINK, FAR_LINK = "proteus-far", "proteus-near0", "proteus-far0"
NEAR_IP, FAR_IP = "10.77.31.1", "10.77.31.2"
FAR = Path(__file__).with_name("far_machine.py")


def ip(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False)


@pytest.fixture
def link() -> Iterator[Callable[[str], None]]:
    """A namespace at the end of a link; `link("down")` and `link("up")`."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces are made by root only")
    try:
        made = ip("netns", "add", SPACE).returncode == 0
    except FileNotFoundError:
        pytest.skip("network namespaces need iproute2's `ip`")
    if not made:
        pytest.skip("this system makes no network namespaces")
    try:
        for arguments in (
            ("link", "add", NEAR_LINK, "type", "veth", "peer", "name", FAR_LINK, "netns", SPACE),
            ("addr", "add", f"{NEAR_IP}/30", "dev", NEAR_LINK),
            ("link", "set", NEAR_LINK, "up"),
            ("-n", SPACE, "addr", "add", f"{FAR_IP}/30", "dev", FAR_LINK),
            ("-n", SPACE, "link", "set", FAR_LINK, "up"),
            ("-n", SPACE, "link", "set", "lo", "up"),
        ):
            done = ip(*arguments)
            assert done.returncode == 0, (arguments, done.stderr)
        yield lambda state: ip("-n", SPACE, "link", "set", FAR_LINK, state).check_returncode()
    finally:
        ip("netns", "del", SPACE)


class NearRig(FaultRig):
    """The side of the controller."""

    node_ip = NEAR_IP

    @contextlib.contextmanager
    def far(self, name: str) -> Iterator[None]:
        """A transient machine on the other side."""
        command = ["ip", "netns", "exec", SPACE, sys.executable, str(FAR)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            told = (name, self.spec, FAR_IP, (self.keys.public, self.keys.secret), self.head.address)
            process.stdin.write(base64.b64encode(pickle.dumps(told)).decode() + "\n")
            process.stdin.flush()
            address = pickle.loads(base64.b64decode(process.stdout.readline()))  # noqa: S301  our own child
            self.head.register(address, NodeUp(name, Tier.TRANSIENT, admitted=True))
            yield
        finally:
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()


def test_the_side_without_the_controller_does_nothing_that_lasts(
    link: Callable[[str], None], tmp_path: Path
) -> None:
    machines = {"reliable": 1, "transient": 1, "max": 4}
    values = job(MLR, clocks=6000, stage=3, machines=machines, active_fraction=1.0)
    at_s: dict[str, float] = {}

    def act(rig: FaultRig, state: HeadState) -> None:
        if "cut" not in at_s and state.clock > 200 and state.transient == 3:
            link("down")
            at_s["cut"] = time.time()
        elif "cut" in at_s and "healed" not in at_s and state.transient == 1:
            at_s.setdefault("alone at clock", state.clock)
            if state.clock > at_s["alone at clock"] + 100:  # the others go on
                link("up")
                at_s["healed"] = time.time()

    rig = NearRig(values, tmp_path, act)
    with rig.far("far1"), rig.far("far2"):
        ran = rig.finish()
    assert ran.sha256 == reference(values)
    views = [(each.at_s, each.event) for each in ran.events if isinstance(each.event, MembershipChanged)]
    epochs = [view.epoch for _, view in views]
    assert epochs == sorted(set(epochs))
    alone = [at for at, view in views if at > at_s["cut"] and view.transient == 1]
    assert alone[0] - at_s["cut"] < 2.0, "the others went on within two seconds"
    during = [view for at, view in views if at_s["cut"] < at < at_s["healed"]]
    assert all(not {"far1", "far2"} & set(view.workers) for view in during)
    assert views[-1][1].transient == 3, "after the link healed they joined again"
    assert {"far1", "far2"} <= set(views[-1][1].workers)
    clocks = [note.clock for note in ran.of(ClockDone)]
    assert clocks[-1] == 6000
