"""Which GPUs of this computer each Ray node on it has: Ray itself would give every node the first ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from agileml.cluster.errors import ClusterError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here() -> int:
    """The GPUs of this computer, as Ray counts them."""
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    return int(NvidiaGPUAcceleratorManager.get_current_node_num_accelerators())


def visible_gpus() -> list[str]:
    """The GPUs that this process sees, as `VISIBLE` names them."""
    from ray._private.accelerators import NvidiaGPUAcceleratorManager

    named = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    return [str(number) for number in range(gpus_here())] if named is None else list(named)


def least_used(count: int, there: Sequence[str], taken: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """So many of the GPUs that are there: those that the fewest nodes have, of equal ones the first. taken: those of
    each node."""
    users = Counter(gpu for each in taken for gpu in each)
    return tuple(sorted(sorted(there, key=users.__getitem__)[:count], key=list(there).index))


def check_gpus(asked: float, there: float, whose: str) -> None:
    """Raise ClusterError when a machine could never get the GPUs that it reserves."""
    if math.ceil(asked) > there:
        raise ClusterError(f"machines.gpus: found {asked:g}, expected at most {there:g}, as {whose} has")
