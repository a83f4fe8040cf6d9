"""The peer on hosts with links: a process of a DistributedDataParallel group over gloo, called by link_rig."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from ddp_peer import Options, Task, steps_of


def join(address: str, port: int, world: int, rank: int) -> None:
    """Become a member of the group whose first member listens at address:port."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0"}
    dist.init_process_group("gloo", rank=rank, world_size=world)


def steps(task: Task, options: Options | None, count: int, rank: int) -> list[float]:
    """Seconds of each step. `options` None: the model alone, no exchange."""
    dist.barrier()
    return [seconds for seconds, _ in steps_of(task, options, count, rank)]


def leave(rank: int) -> None:
    """End the group."""
    dist.destroy_process_group()
