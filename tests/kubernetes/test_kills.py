"""The service of a job on KubeRay, killed between any two of its effects: nothing is bought twice, nothing is left."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bidbrain.history.prices import History
from bidbrain.instants import Interval
from bidbrain.live.guards import Guards
from bidbrain.live.job import JobPlan
from bidbrain.live.journal import Closing, Ended, Journal
from bidbrain.live.service import Service
from bidbrain.policy.today import Elastic
from bidbrain.setting import Engine, Listing, Reliable, Setting, Workload
from tests.bidbrain.live.kills import Fuse, FusedCloud, FusedJournal, Killed, pick
from tests.bidbrain.live.lone_cloud import LoneJob
from tests.bidbrain.live.makers import ModelTrainer
from tests.kubernetes.ground import SPOT, Ground, ground_of, soon

NODES = 3
LOST_AT_S = 900


def setting_of() -> Setting:
    """Nodes stand for vCPUs: a pod is worth one."""
    job = Workload(NODES, 0.5, 1.0, 1.0, None, Engine(120, 60))
    return Setting(
        job, (Listing(SPOT, 200_000, 1),), History({}, 0), Interval(0, 1), Reliable("stays", 1, 200_000, 1),
        200_000, rules="per_second_paid",
    )  # fmt: skip


class Play:
    """A job with a clock that jumps; the cloud takes a pod at `LOST_AT_S`. Services come and go."""

    trouble = ""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.ground, self.folder = ground, folder
        self.setting = setting_of()
        self.start_s = ground.now_s()
        self.engine = ModelTrainer(self.setting, self.start_s)
        self.service: Service | None = None
        self.lost = ""

    def now_s(self) -> int:
        return self.ground.now_s()

    def wait(self, until_s: int, market: bool) -> None:
        """Jump; the model works on the way. Pods need no time to start, so none is late."""
        assert self.service is not None
        self.ground.running()
        at_s = self.now_s()
        lost_s = self.start_s + LOST_AT_S
        then_s = max(at_s + 1, min(until_s, at_s + 120, *([lost_s] if at_s < lost_s else [])))
        workers = [
            a for a in self.service.state.account.open if a.number >= 0 and a.phase.value != "requested"
        ]
        done_s = self.engine.progress.advance(at_s, then_s, workers)
        self.engine.done_s = done_s
        self.ground.later_s += (then_s if done_s is None else done_s) - at_s
        if not self.lost and self.now_s() >= lost_s and self.ground.operator.names("spot"):
            self.lost = self.ground.operator.names("spot")[0]
            self.ground.operator.evict(self.lost)

    def play(self, fuse: Fuse) -> Closing:
        """One service, as a new process. Raises Killed."""
        cloud = self.ground.cloud(setting=self.setting)
        policy = Elastic(self.setting, self.start_s)
        plan = JobPlan("job", "elastic", self.setting, policy, self.start_s, True, Guards())
        with Journal(self.folder) as journal:
            log = FusedJournal(journal, fuse)
            self.service = Service(plan, FusedCloud(cloud, fuse), self.engine, self, log)
            return self.service.run()


def played(folder: Path, at: list[int]) -> tuple[Ground, list[str]]:
    """A job whose services die at these moments; (its ground when all is over, the moments of the last one)."""
    with ground_of(folder / "ground") as ground:
        play = Play(ground, folder / "journal")
        made = set[str]()
        plain = ground.server.put

        def put(resource: str, item: dict) -> None:  # type: ignore[type-arg]
            made.update({item["metadata"]["name"]} if resource == "pods" else ())
            plain(resource, item)

        ground.server.put = put  # type: ignore[method-assign]
        for moment in (*at, None):
            fuse = Fuse(moment)
            try:
                closing = play.play(fuse)
            except Killed:
                continue
            break
        assert closing.finished and play.lost
        ground.settled()
        assert not ground.server.items("pods"), "nothing is left"
        # The reliable one, the job's, one ordered and one that KubeRay made in place of the one that was lost.
        assert len(made) <= 1 + NODES + 2, "nothing is bought twice"
        return ground, fuse.passed


def test_a_service_that_is_killed_anywhere_leaves_nothing_and_buys_nothing_twice(tmp_path: Path) -> None:
    _, moments = played(tmp_path / "whole", [])
    rng = random.Random(5)
    for number in range(1):
        played(tmp_path / str(number), [pick(rng, moments) for _ in range(2)])


def test_a_job_that_ends_without_a_pod_leaves_none_that_kuberay_made_instead(tmp_path: Path) -> None:
    """Its last pod is lost while it drains, for less time than a pod of no order is kept."""
    with ground_of(tmp_path) as ground:
        job = LoneJob(setting=setting_of())
        job.cloud, job.at_s = ground.cloud(setting=job.setting), ground.now_s()  # type: ignore[assignment]
        job.restarted()
        job.after(0)
        (pod,) = ground.operator.names("stays")
        job.service.stop("told to stop")
        job.after(0)
        ground.operator.evict(pod)
        ground.settled()

        def is_known() -> bool:
            job.after(ground.now_s() - job.at_s)
            return bool(job.of(Ended))

        soon(ground, is_known)
        assert ground.server.items("pods")
        job.engine.is_drained = True
        job.after(0)
        assert job.service.state.closed is not None
        ground.settled()
        assert not ground.server.items("pods")


@pytest.mark.slow
def test_a_hundred_kills(tmp_path: Path) -> None:
    _, moments = played(tmp_path / "whole", [])
    rng = random.Random(7)
    for number in range(50):
        played(tmp_path / str(number), [pick(rng, moments) for _ in range(2)])
