"""Jobs on a hostile EC2, whose services are killed at random moments until there were enough kills."""

from __future__ import annotations

import random
import urllib.request
from collections import Counter
from pathlib import Path

from bidbrain.live.journal import Closing, Journal
from tests.aws.ground import AwsGround
from tests.aws.layer import REGION, Ec2Layer
from tests.bidbrain.live.kills import Fuse, FusedCloud, FusedJournal, Killed, pick

MOST_KILLS = 3  # of one job


class KillCampaign:
    """`seen`: the kills, by kind of moment; `hostile`: what EC2 did to the jobs."""

    def __init__(self, url: str, folder: Path, kills: int, seed: int) -> None:
        self.seen: Counter[str] = Counter()
        self.hostile: Counter[str] = Counter()
        self._url, self._folder, self._kills = url, folder, kills
        self._rng = random.Random(seed)
        self._moments: list[str] = []  # that the first job went through, which nobody kills

    @property
    def is_over(self) -> bool:
        return self._to_come == 0

    @property
    def _to_come(self) -> int:
        return self._kills - sum(self.seen.values())

    def layer(self, seed: int, region: str = REGION) -> Ec2Layer:
        """EC2 that throttles and loses answers."""
        layer = Ec2Layer(self._url, seed=seed, region=region)
        layer.throttled, layer.lost = 0.15, 0.25
        return layer

    def play(self, ground: AwsGround) -> Closing:
        """A job to its end, its service killed and begun again up to three times."""
        times = min(MOST_KILLS, self._to_come) if self._moments else 0
        for _ in range(times):
            self._live(ground, Fuse(pick(self._rng, self._moments)))
        fuse = Fuse(None)
        closing = self._live(ground, fuse)
        self._moments = self._moments or fuse.passed
        assert closing is not None
        return closing

    def _live(self, ground: AwsGround, fuse: Fuse) -> Closing | None:
        """The life of one service; None: it was killed."""
        try:
            with Journal(self._folder / ground.job) as journal:
                cloud = FusedCloud(ground.new_cloud(), fuse)
                return ground.play(FusedJournal(journal, fuse), cloud)  # type: ignore[arg-type]
        except Killed:
            self.seen[fuse.where] += 1
            return None

    def journal(self, ground: AwsGround) -> Journal:
        return Journal(self._folder / ground.job)

    def say(self, jobs: int) -> None:
        kills = sum(self.seen.values())
        print(f"{kills} kills in {jobs} jobs at {len(self.seen)} kinds of moment; {dict(self.hostile)}")


def forget(url: str) -> None:
    """moto keeps terminated machines for ever, and every listing goes through them."""
    urllib.request.urlopen(
        urllib.request.Request(f"{url}/moto-api/reset", method="POST"), timeout=600
    ).close()
