"""torchft in kill_one: three replica groups of one process each under a lighthouse; one is killed, another starts.

Prints a JSON list, one object for each kill. `python kill_one_torchft.py default|tuned KILLS`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

MACHINES, STEP_S, ELEMENTS = 3, 0.2, 1_000_000
LIMIT_S = 120.0


def replica(lighthouse: str, name: str, log: str) -> None:
    """Train until somebody kills this process; a line for each step: Unix time, step, committed, replicas."""
    import torch
    import torch.distributed as dist
    from torchft.ddp import DistributedDataParallel
    from torchft.manager import Manager
    from torchft.optim import OptimizerWrapper
    from torchft.process_group import ProcessGroupGloo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    module = torch.nn.Linear(1000, ELEMENTS // 1000, bias=False)
    inner = torch.optim.SGD(module.parameters(), lr=0.001)

    def load(state: dict[str, dict[str, object]]) -> None:
        module.load_state_dict(state["module"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"module": module.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=name,
        hostname="localhost",
    )
    trained = DistributedDataParallel(manager, module)
    optimizer = OptimizerWrapper(manager, inner)
    x = torch.randn(16, 1000)
    with open(log, "a", buffering=1) as file:
        while True:
            begin_s = time.monotonic()
            before = manager.current_step()
            optimizer.zero_grad()
            trained(x).square().mean().backward()
            time.sleep(max(0.0, STEP_S - (time.monotonic() - begin_s)))
            optimizer.step()
            committed = manager.current_step() > before
            file.write(f"{time.time()} {before} {int(committed)} {manager.num_participants()}\n")


class Replicas:
    """The processes of one run and their logs."""

    def __init__(self, folder: Path, lighthouse: str) -> None:
        self._folder, self._lighthouse = folder, lighthouse
        self._count = 0
        self.live: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        name = f"replica-{self._count}"
        self._count += 1
        command = [sys.executable, __file__, "replica", self._lighthouse, name, str(self._folder / name)]
        with (self._folder / f"{name}.out").open("wb") as output:
            self.live[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def steps(self, name: str) -> list[tuple[float, int, bool, int]]:
        path = self._folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        found = [line.split() for line in lines if line.count(" ") == 3]
        return [(float(at), int(step), committed == "1", int(world)) for at, step, committed, world in found]

    def all_together(self, since_s: float) -> bool:
        """True when everybody commits with everybody."""
        return all(
            sum(at > since_s and ok and world == MACHINES for at, _, ok, world in self.steps(name)) >= 3
            for name in self.live
        )

    def kill(self, name: str) -> None:
        process = self.live.pop(name)
        process.kill()
        process.wait()


def wait(condition, what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(what)
        time.sleep(0.05)


def measure(tuned: bool, kills: int) -> list[dict[str, float]]:
    """Kill one after the other; what each cost."""
    from torchft.coordination import LighthouseServer

    tuning = {"quorum_tick_ms": 50, "heartbeat_timeout_ms": 500, "join_timeout_ms": 500} if tuned else {}
    server = LighthouseServer(bind="[::]:0", min_replicas=1, **tuning)
    draw = random.Random(0)
    found = []
    with tempfile.TemporaryDirectory() as name:
        replicas = Replicas(Path(name), server.address())
        try:
            for _ in range(MACHINES):
                replicas.start()
            for _ in range(kills):
                since_s = time.time()
                wait(lambda: replicas.all_together(since_s), "the replicas do not come together")  # noqa: B023
                time.sleep(draw.uniform(1.0, 2.0))
                killed_s = time.time()
                replicas.kill(draw.choice(sorted(replicas.live)))
                wait(lambda: all(goes_on(replicas, n, killed_s) for n in replicas.live), "no step")  # noqa: B023
                after = [replicas.steps(n) for n in replicas.live]
                found.append(
                    {
                        "resumed_s": min(goes_on_at(steps, killed_s) for steps in after) - killed_s,
                        "redone": max(
                            sum(at > killed_s and not ok for at, _, ok, _ in steps) for steps in after
                        ),
                    }
                )
                replicas.start()
        finally:
            for left in sorted(replicas.live):
                replicas.kill(left)
            server.shutdown()
    return found


def goes_on_at(steps: list[tuple[float, int, bool, int]], killed_s: float) -> float:
    """When the first step was committed without the one that was killed; infinity when none was."""
    return min(
        (at for at, _, ok, world in steps if at > killed_s and ok and world < MACHINES), default=float("inf")
    )


def goes_on(replicas: Replicas, name: str, killed_s: float) -> bool:
    return goes_on_at(replicas.steps(name), killed_s) < float("inf")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1] == "replica":
        replica(*sys.argv[2:])
    else:
        print(json.dumps(measure(sys.argv[1] == "tuned", int(sys.argv[2]))))
