"""Ray Train's elastic training in kill_one: one of three nodes is killed as a whole, another is added.

Prints a JSON list, one object for each kill. `python kill_one_ray.py default|tuned KILLS`. It has a checkpoint every 5
steps, as often as the other side has a cut.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

MACHINES, STEP_S, ELEMENTS, EVERY = 3, 0.2, 1_000_000, 5
LIMIT_S = 150.0
TUNED = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}


def train(config: dict[str, Any]) -> None:
    """Rank 0 writes a line for each step: Unix time, step, workers."""
    import torch
    import torch.distributed as dist
    from ray import train as ray_train

    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = torch.nn.Linear(1000, ELEMENTS // 1000, bias=False)
    start = 0
    if (checkpoint := ray_train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "state.pt")
        module.load_state_dict(saved["module"])
        start = saved["step"]
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.randn(16, 1000)
    for step in range(start, config["steps"]):
        begin_s = time.monotonic()
        module.zero_grad()
        module(x).square().mean().backward()
        time.sleep(max(0.0, STEP_S - (time.monotonic() - begin_s)))
        dist.all_reduce(module.weight.grad)
        with torch.no_grad():
            module.weight -= 0.001 * module.weight.grad / world
        if rank == 0:
            with open(config["log"], "a") as file:
                file.write(f"{time.time()} {step} {world}\n")
        if step % EVERY == EVERY - 1:
            with tempfile.TemporaryDirectory() as folder:
                saved = None
                if rank == 0:
                    torch.save({"module": module.state_dict(), "step": step + 1}, Path(folder) / "state.pt")
                    saved = ray_train.Checkpoint.from_directory(folder)
                ray_train.report({"step": step}, checkpoint=saved)


def steps(log: Path) -> list[tuple[float, int, int]]:
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [(float(line[0]), int(line[1]), int(line[2])) for line in lines if len(line) == 3]


def wait(condition, what: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(what)
        time.sleep(0.05)


def kill(node: Any) -> None:
    """The raylet and everything below it, at once: a machine that goes."""
    import psutil
    from ray._private import ray_constants

    raylet = psutil.Process(node.all_processes[ray_constants.PROCESS_TYPE_RAYLET][0].process.pid)
    tree = [raylet, *raylet.children(recursive=True)]
    for act in ("suspend", "kill"):
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, act)()


def measure(tuned: bool, kills: int, folder: Path) -> None:
    """Kill one after the other; print what each cost."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    cluster.add_node(num_cpus=0, include_dashboard=False, **({"_system_config": TUNED} if tuned else {}))
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    draw = random.Random(0)
    found = []
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(MACHINES)]
        log = folder / "steps"
        threading.Thread(target=fit, args=(tuned, folder, log), daemon=True).start()
        for _ in range(kills):
            wait(
                lambda: [w for _, _, w in steps(log)[-5:]] == [MACHINES] * 5,
                "the workers do not come together",
            )
            time.sleep(draw.uniform(1.0, 2.0))
            killed_s = time.time()
            node = nodes.pop(draw.randrange(MACHINES))
            cluster.worker_nodes.discard(node)
            kill(node)
            wait(lambda: steps(log)[-1][0] > killed_s + 1 or steps(log)[-1][2] < MACHINES, "no step")  # noqa: B023
            after = [(at, step) for at, step, _ in steps(log) if at > killed_s]
            # A step whose exchange was over when the machine died is not one that went on.
            first = next((at, step) for at, step, world in steps(log) if at > killed_s and world < MACHINES)
            done = max(step for at, step, _ in steps(log) if at < first[0])
            found.append({"resumed_s": first[0] - killed_s, "redone": done + 1 - first[1]})
            assert after
            nodes.append(cluster.add_node(num_cpus=1))
        print(json.dumps(found), flush=True)
    finally:
        # Not ray.shutdown(): the trainer's thread goes on, and its next call would end this process in the middle.
        cluster.shutdown()


def fit(tuned: bool, folder: Path, log: Path) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        train,
        train_loop_config={"steps": 1_000_000, "log": str(log)},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(
            num_workers=(1, MACHINES), **({"elastic_resize_monitor_interval_s": 1.0} if tuned else {})
        ),
        run_config=RunConfig(storage_path=str(folder), failure_config=FailureConfig(max_failures=-1)),
    ).fit()


if __name__ == "__main__":
    os.environ |= {"RAY_TRAIN_V2_ENABLED": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    is_tuned = sys.argv[1] == "tuned"
    if is_tuned:
        os.environ |= {
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
            "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",
        }
    with tempfile.TemporaryDirectory(prefix="kr-", dir="/tmp", ignore_cleanup_errors=True) as name:
        os.environ["RAY_TMPDIR"] = name
        measure(is_tuned, int(sys.argv[2]), Path(name))
    os._exit(0)  # the trainer's thread waits for a cluster that is gone
