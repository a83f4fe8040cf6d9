"""What a machine's process holds, by mode: the formula beside what is measured.

    python benchmarks/bench_memory.py [--quick] [--big] [--together] [--megabytes 100] [--only TEXT] [--json]

Every mode runs a multilayer perceptron of `--megabytes` of parameters in fresh processes. An idle worker is the same
process after a run of a tiny network: everything is imported, compiled and loaded. Measured is how far the resident
memory (VmHWM) rises above that, and the highest number of bytes that malloc had given out. `--big` trains 1 GB of
parameters for 10 clocks on two machines instead.

The formula, with S the bytes of all parameters, a what the machine owns of them, b what it backs up, k the
optimizer's arrays per parameter: see `formula`.
"""

import argparse
import ctypes
import gc
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import child_machines  # first: it sets the environment that the processes begin with
import torch
from child_machines import Pair
from ddp_peer import resident_mb
from measuring import computer

from agileml.apps.torch.models import mlp
from agileml.apps.torch.module import TorchModule
from agileml.config.job import from_values
from agileml.net.keys import KeyPair
from agileml.net.links import UNREAD_MESSAGES
from agileml.net.wire import FRAME_BYTES
from agileml.process.machine import Machine
from agileml.process.spec import RunSpec

LAYERS = 4
LIMIT_S = 400.0
CLOCKS = 8
UNREAD_MB = UNREAD_MESSAGES * FRAME_BYTES / 1e6
SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}


@dataclass(frozen=True)
class Mode:
    """Machines, stage and rules of a run. `slices`: deterministic with so many; None: one sum per worker."""

    stage: int
    reliable: int
    transient: int
    optimizer: str = "momentum"
    slices: int | None = None
    cuts_s: float | None = None  # seconds from cut to cut; None: none until the end
    replicas: str | None = None  # optimizer.kind torch with an all-reduce: "whole", or "sharded" state

    @property
    def machines(self) -> int:
        return self.reliable + self.transient

    @property
    def workers(self) -> int:
        return self.transient if self.stage == 3 else self.machines

    @property
    def owners(self) -> int:
        return self.reliable if self.stage == 1 else self.transient

    def __str__(self) -> str:
        kind = "not deterministic" if self.slices is None else f"deterministic, {self.slices} slices"
        cuts = "no cuts" if self.cuts_s is None else "cuts"
        if self.replicas is not None:
            return f"all-reduce, replicas, {self.replicas} state, {self.machines}, {self.optimizer}, {cuts}"
        return f"stage {self.stage}, {self.reliable} + {self.transient}, {self.optimizer}, {kind}, {cuts}"


MODES = (
    Mode(1, 2, 0, "sgd"),
    Mode(1, 2, 0),
    Mode(1, 2, 0, "adam"),
    Mode(1, 2, 0, slices=2),
    Mode(1, 2, 0, slices=4),
    Mode(1, 2, 0, cuts_s=0.3),
    Mode(2, 1, 2, cuts_s=0.3),
    Mode(3, 1, 2, "sgd", cuts_s=0.3),
    Mode(3, 1, 2, cuts_s=0.3),
    Mode(3, 1, 2, "adam", cuts_s=0.3),
    Mode(1, 2, 0, "adam", replicas="whole"),
    Mode(1, 2, 0, "adam", replicas="sharded"),
    Mode(1, 4, 0, "adam", replicas="sharded"),
)
QUICK = (Mode(1, 2, 0), Mode(3, 1, 2, cuts_s=0.3))


def formula(mode: Mode, is_reliable: bool, whole: float) -> dict[str, float]:
    """What a machine holds at most, in MB, by what it is for. `whole`: all parameters."""
    k = SLOTS[mode.optimizer]
    if mode.replicas is not None:
        return formula_of_replica(mode, whole)
    owns = whole / mode.owners if (mode.stage == 1) == is_reliable else 0.0
    backs_up = whole / mode.reliable if is_reliable and mode.stage > 1 else 0.0
    works = mode.stage < 3 or not is_reliable
    units = 1 if mode.slices is None else mode.slices // mode.workers
    others = mode.workers - (1 if works else 0)
    return {
        # The whole table that a clock reads; the parameters of others are received into it.
        "read": whole if works else 0.0,
        # One gradient; of several units of a deterministic clock one more, into which each next one is added.
        "gradient": whole * min(units, 2) if works else 0.0,
        # The newest version, and the one before or the one that is being made.
        "parameters": 2 * owns,
        "optimizer": k * owns,
        # The sum is made in the first contribution that comes from another machine; the next one is on its way.
        "pending": owns * min(others, 2),
        # What has come and is not read yet, from each sender.
        "unread": min(owns, others * UNREAD_MB) + min(backs_up, mode.owners * UNREAD_MB),
        # Arrays of the committed cut that no later version shares; of the open one too, while it is on its way. Without
        # cuts there is that of the first clock: it is taken before anybody knows how long clocks are.
        "cut": (1 if mode.stage == 1 else 2) * (1 + k) * owns,
        # The committed cut, and the next one arriving.
        "backup": 2 * (1 + k) * backs_up,
    }


def formula_of_replica(mode: Mode, whole: float) -> dict[str, float]:
    """The same of a machine with a replica, in stage 1: the parameters are there once, and are stepped in place."""
    k = SLOTS[mode.optimizer]
    owns = whole / mode.owners
    return {
        "read": whole,
        "gradient": whole,
        "optimizer": k * (owns if mode.replicas == "sharded" else whole),
        # The committed cut and the open one of what it owns: copies, because steps change the tensors in place.
        "cut": 2 * (1 + k) * owns,
    }


class Allocated(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_mb() -> float:
    """MB that malloc has given out and not got back."""
    found = MALLINFO()
    return (found.uordblks + found.hblkhd) / 1e6


MALLINFO = ctypes.CDLL("libc.so.6").mallinfo2
MALLINFO.restype = Allocated


@contextmanager
def highest_mb(found: list[float]) -> Iterator[None]:
    """Puts the highest value of `allocated_mb` meanwhile into `found`, looked up every few milliseconds."""
    stopping = threading.Event()

    def watch() -> None:
        while not stopping.wait(0.003):
            found[0] = max(found[0], allocated_mb())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield
    stopping.set()
    thread.join()


def serve(pipe: Connection, rank: int, groups: list[list[str]]) -> None:
    """The machines of a group, again and again until None comes; answers with (allocated, resident) MB above what was
    before."""
    torch.set_num_threads(1)
    while (asked := pipe.recv()) is not None:
        gc.collect()
        before = allocated_mb(), resident_mb()["rss"]
        highest = [0.0]
        with highest_mb(highest):
            spec, halves, head = asked
            keys = KeyPair(*halves)
            machines = [Machine(name, spec, spec.build(), "127.0.0.1", keys, head) for name in groups[rank]]
            for machine in machines:
                machine.start()
            pipe.send([machine.address for machine in machines])
            pipe.recv()
            for machine in machines:
                machine.stop()
        del machine, machines
        pipe.send((highest[0] - before[0], resident_mb()["peak"] - before[1]))


def build(width: int) -> torch.nn.Module:
    return mlp((width,) * (LAYERS + 1))


def data(width: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(64, width, generator=generator), torch.arange(64) % width), None


def optimizer(mode: Mode) -> dict[str, Any]:
    if mode.replicas is None:
        return {"kind": mode.optimizer, "learning_rate": 0.001}
    assert mode.optimizer == "adam"
    return {"kind": "torch", "name": "Adam", "learning_rate": 0.001, "sharded": mode.replicas == "sharded"}


def config(mode: Mode, clocks: int) -> dict[str, Any]:
    return {
        "application": "torch",
        "model": {"batch_size": 2 * mode.workers},
        "optimizer": optimizer(mode),
        "exchange": "servers" if mode.replicas is None else "allreduce",
        "clocks": clocks,
        "slices": mode.slices or 1 << (mode.machines - 1).bit_length(),
        "deterministic": mode.slices is not None,
        "machines": {"reliable": mode.reliable, "transient": mode.transient, "max": mode.machines},
        "stage": mode.stage,
        "active_fraction": 1.0,
        "partitions": mode.owners,
        "cuts": {"every_s": mode.cuts_s or 1e6, "max_clocks": 1 << 30},
        "heartbeat": {"interval_s": 0.5, "timeout_s": 60.0},
    }


def run(pair: Pair, mode: Mode, width: int, clocks: int) -> tuple[list[float], list[Any]]:
    """Train once; when each clock was applied, and the machines' answers."""
    module = TorchModule(build=partial(build, width), dataset=partial(data, width))
    spec = RunSpec(secrets.token_hex(4), from_values(config(mode, clocks)), module)
    return child_machines.train(pair, spec, limit_s=LIMIT_S)


def measure(mode: Mode, megabytes: float, clocks: int, *, together: bool) -> list[dict[str, Any]]:
    """Rows of the table: one for the reliable machines and one for the transient ones, the highest of each.

    `together`: all machines in one process, and one row for their sum.
    """
    width = round((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    names = [f"m{number}" for number in range(mode.machines)]
    groups = [names] if together else [[name] for name in names]
    pair = Pair(serve, groups, world=len(groups))
    run(pair, mode, 16, 3)  # to be idle workers
    ends, answers = run(pair, mode, width, clocks)
    pair.end()
    whole = (width * width + width) * LAYERS * 4 / 1e6
    held = [formula(mode, number < mode.reliable, whole) for number in range(mode.machines)]
    if together:
        rows_of = {"all machines": (held, answers)}
    else:
        rows_of = {
            "reliable": (held[:1], answers[: mode.reliable]),
            "transient": (held[-1:], answers[mode.reliable :]),
        }
    rows = []
    for name, (parts, found) in rows_of.items():
        if not found:
            continue
        total = {part: sum(machine[part] for machine in parts) for part in parts[0]}
        rows.append(
            {
                "mode": str(mode),
                "machine": name,
                "parts_mb": {part: round(value) for part, value in total.items() if value},
                "formula_mb": round(sum(total.values())),
                "allocated_mb": round(max(allocated for allocated, _ in found)),
                "resident_mb": round(max(resident for _, resident in found)),
                "seconds": round(ends[-1] - ends[0], 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two modes, all machines in one process")
    parser.add_argument("--together", action="store_true", help="all machines of a mode in one process")
    parser.add_argument("--big", action="store_true", help="1 GB of parameters, 10 clocks, two machines")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--only", default="", help="modes whose name has this text")
    parser.add_argument("--json", action="store_true", help="the rows as JSON as well")
    arguments = parser.parse_args()
    modes = (Mode(1, 2, 0),) if arguments.big else QUICK if arguments.quick else MODES
    megabytes, clocks = (1000.0, 10) if arguments.big else (arguments.megabytes, CLOCKS)
    print(f"{computer('torch', 'python')}; {megabytes:g} MB of parameters, MB above an idle worker")
    print(f"{'':62}{'formula':>9}{'allocated':>11}{'ratio':>7}{'resident':>10}{'ratio':>7}")
    found = []
    for mode in modes:
        if arguments.only not in str(mode):
            continue
        for row in measure(mode, megabytes, clocks, together=arguments.together or arguments.quick):
            found.append(row)
            expected = row["formula_mb"]
            print(
                f"{row['mode'] + ': ' + row['machine']:62}{expected:9}"
                f"{row['allocated_mb']:11}{row['allocated_mb'] / expected:7.2f}"
                f"{row['resident_mb']:10}{row['resident_mb'] / expected:7.2f}",
                flush=True,
            )
            print("    " + ", ".join(f"{name} {value}" for name, value in row["parts_mb"].items()))
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
